"""`machine`: the record of this machine, kept, measured or of a file; and how far it is from what is measured now."""

from __future__ import annotations

import os
from pathlib import Path

from graphopt.errors import OptionError
from graphopt.flows.records.machine import CheckLine, CheckRecord
from graphopt.machine import kept
from graphopt.machine.file import read
from graphopt.machine.record import ALL, MachineRecord
from graphopt.model.text import ONCE, Progress, silent
from kernels.target import host
from kernels.units.write import has_unit

# The entries that records have had for the shortest time, of one core, between cores, of matrix units, of bfloat16.
LATEST, LATEST_BETWEEN, LATEST_OF_UNITS, LATEST_OF_PAIRS = (
    "few_near", "other_read", "tile_products", "dot_products"
)  # fmt: skip
MEASURING = f"measuring this machine ({ONCE})"


def machine(
    file: str | os.PathLike[str] | None = None, *, again: bool = False, progress: Progress | None = None
) -> MachineRecord:
    """What this machine was measured to do: multiply-adds, loads, caches, memory, waits between cores, disk.

    Measured when it is first asked for, in some seconds, and kept in the user's cache folder under the processor,
    its cache sizes and LLVM's version; `again` measures anew. With `file` the record of that file. Programs are planned
    by it where it is given to `compile`. Raises OptionError for a file that holds no record, and SaveError where the
    record cannot be kept.
    """
    if file is not None:
        if again:
            raise OptionError("a file is read, not measured; leave out the file or again=True.")
        return read(Path(file))
    folder, progress = kept.cache_folder(), progress or silent
    found = None if again else _found(folder)
    if found is None:
        kept.require_writable(folder)  # before the work is done that would be lost
        progress(MEASURING)
        found = kept.measured_now(folder)
        kept.keep(found, folder)
    return found


def _found(folder: Path) -> MachineRecord | None:
    """The kept record, where it is whole; it is ours and can be made again.

    None where it is damaged, and where several cores are at hand and it was made on one, or before there was an entry.
    """
    try:
        found = kept.find(kept.own_key(), folder)
    except OptionError:
        return None
    if found is None or found.value(LATEST) is None:
        return None
    if found.value(LATEST_OF_UNITS) is None and has_unit("bf16", host()):
        return None
    if found.value(LATEST_OF_PAIRS) is None and host().has("avx512bf16"):
        return None
    return None if found.value(LATEST_BETWEEN) is None and len(os.sched_getaffinity(0)) > 1 else found


def check_machine(record: MachineRecord, progress: Progress = silent) -> CheckRecord:
    """Measure this machine and say how far each entry is from the record's. Nothing is kept."""
    progress("measuring this machine once more")
    return compared(record, kept.measured_now(kept.cache_folder()))


def compared(record: MachineRecord, now: MachineRecord) -> CheckRecord:
    """Each entry of either record; one that is in neither is left out."""
    lines = []
    for name, entry in ALL.items():
        held, seen = record.entries.get(name), now.entries.get(name)
        if held is not None or seen is not None:
            difference = None if held is None or seen is None else seen.value / held.value - 1
            figures = (held.value if held else None, seen.value if seen else None)
            spreads = (held.spread if held else None, seen.spread if seen else None)
            lines.append(CheckLine(name, entry.unit, *figures, difference, *spreads))
    return CheckRecord(record.key.cpu, now.key.cpu, tuple(lines))

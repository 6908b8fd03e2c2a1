"""What `compile` made, as the record that `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphopt.flows.records.compilation import CompileRecord
from graphopt.lazy import Lazy
from graphopt.machine.record import MachineRecord
from graphopt.program.deploy.compiled import Compiled, Rounding
from graphopt.program.deploy.manifest import Manifest
from graphopt.program.listing import Linked
from graphopt.program.regions.precision import PrecisionName

if TYPE_CHECKING:
    from graphopt.program import gpu
else:
    gpu = Lazy("graphopt.program.gpu")


def _ram_of(programs: Sequence[Linked]) -> tuple[int | None, int, int, int]:
    """What a process takes for a program within a budget, how many workers run it, what a run reads and spills."""
    within = programs[0].streamed
    if within is None:
        return None, 0, 0, 0
    return within.parts.total, within.workers, within.fetched_bytes, within.spilled_bytes


def _level(compiled: Compiled) -> str:
    """What a machine must have to run the program."""
    on_units = any(one.listing.uses_units for one in compiled.programs)
    return f"{compiled.target.level} and matrix units (AMX)" if on_units else compiled.target.level


def _rounding_of(rounding: Rounding | None) -> tuple[PrecisionName, dict[str, float], int, int]:
    """The precision, each output's error, regions that are rounded, and those that could be."""
    if rounding is None:
        return "float32", {}, 0, 0
    return "bf16", rounding.errors, rounding.rounded, rounding.rounded + rounding.wide


def compile_record(
    compiled: Compiled,
    source: str,
    output: str,
    machine: MachineRecord | str | None = None,
    written: Manifest | None = None,
) -> CompileRecord:
    """What was made with a machine's record, as `--json` prints it; `output` is the folder that is written.

    `written` is the manifest, where it says more of the program.
    """
    program, footprint = (None, None) if written is None else (written.program, written.footprint)
    programs, verification = compiled.programs, compiled.verification
    listings, plans = [one.listing for one in programs], [one.plan for one in programs]
    shared = [one.ticketed.arena_bytes for one in listings if one.ticketed is not None]
    return CompileRecord(
        source, output, compiled.target.cpu, _level(compiled), sum(len(one.runs) for one in listings),
        sum(len(one.kernels) for one in listings),
        sum(one.weights_bytes for one in listings) if program is None else program.weights_bytes,
        sum(one.arena_size for one in plans), sum(one.lower_bound for one in plans),
        max(one.scratch_bytes for one in listings), compiled.seconds, compiled.max_abs, compiled.max_rel,
        compiled.not_compared, verification.feeds, verification.rounding, compiled.remade,
        verification.tolerance, compiled.model_bytes, sum(shared) if shared else None,
        machine.key.cpu if isinstance(machine, MachineRecord) else machine, compiled.fallback,
        0 if program is None else program.made_bytes,
        tuple(dict.fromkeys(one.target.cpu for one in compiled.sizes)),
        *_ram_of(programs),
        1 if program is None else max(1, len(program.points)),
        *_rounding_of(compiled.rounding),
        _workers_of(compiled),
        *((0, 0, ()) if footprint is None else (footprint.flash, footprint.memory, footprint.outside)),
        compiled.not_rounded,
        verification.plain_rel,
        verification.rounded_feeds,
    )  # fmt: skip


def _workers_of(compiled: Compiled) -> int:
    """Blocks of a GPU that the programs are pinned to."""
    if not compiled.target.is_gpu:
        return 0
    return sum(len(one.lists) for one in compiled.programs if isinstance(one, gpu.LinkedTasks))

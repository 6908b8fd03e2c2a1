"""Where records are kept: a file in the user's cache folder for each processor, cache sizes and version of LLVM."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec
from llvmlite import binding as llvm

from graphopt.errors import OptionError, SaveError
from graphopt.files.single import write_file
from graphopt.machine import file
from graphopt.machine.disk import measure_disk
from graphopt.machine.record import SCHEMA, Key, MachineRecord, check, measured
from kernels.measure.processor import measure
from kernels.target import host

FOLDER = "graphopt"
ATTEMPTS = 2  # at measuring what is believed


def cache_folder() -> Path:
    """The folder of this user's caches, for us: `$XDG_CACHE_HOME`, or `.cache` in the home, as the XDG says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / FOLDER


def own_key() -> Key:
    """What records of this machine are kept under."""
    target = host()
    version = ".".join(map(str, llvm.llvm_version_info))
    return Key(_cpu() or target.cpu, target.cpu, (target.l1, target.l2, target.l3), version)


def kept_file(key: Key, folder: Path, name: str = "machine", suffix: str = "toml") -> Path:
    """Where the record of a key is kept, or what else holds for it alone; those of another version lie elsewhere."""
    digest = hashlib.sha256(msgspec.json.encode((SCHEMA, key))).hexdigest()
    return folder / f"{name}-{digest[:12]}.{suffix}"


def find(key: Key, folder: Path) -> MachineRecord | None:
    """The record that is kept for a key; None where there is none, or one of another machine.

    Raises OptionError for one that is damaged.
    """
    place = kept_file(key, folder)
    if not place.exists():
        return None
    record = file.read(place)
    return record if record.key == key else None


def require_writable(folder: Path) -> None:
    """Make the folder where there is none; raises SaveError where nothing can be kept there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise SaveError(f"no record can be kept in '{folder}': {error.strerror}; set XDG_CACHE_HOME.") from None


def keep(record: MachineRecord, folder: Path) -> Path:
    """Write a record to its place, where it takes that of an earlier one; raises SaveError."""
    place = kept_file(record.key, folder)
    write_file(place, file.written(record).encode())
    return place


def measured_now(folder: Path) -> MachineRecord:
    """This machine, measured; the disk is that of `folder`, or of temporary files where it cannot be written.

    Raises OptionError for a machine whose readings are not believed.
    """
    for attempt in range(ATTEMPTS):
        record = _measured(folder)
        try:
            check(record, "this machine")
            break
        except OptionError:
            if attempt == ATTEMPTS - 1:
                raise
    return record


def _measured(folder: Path) -> MachineRecord:
    place = folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
    target = host()
    disk = measure_disk(place)
    sizes = os.statvfs(place)
    return MachineRecord(
        own_key(), len(os.sched_getaffinity(0)), target.vector_bytes,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), sizes.f_frsize * sizes.f_blocks if disk else 0,
        measured(measure(target) | disk),
    )  # fmt: skip


def _cpu() -> str:
    """The processor's name as Linux tells it; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == "model name"), "")

"""A record as TOML, in the form of all machine files: what libraries read of it is computed from its entries.

[target] [device]                 of `scheduler --device FILE`
[[memory.tier]] [[memory.link]]   of `memplan --machine FILE`, `graphopt memory --tiers FILE`
[key] [measured.NAME]             the record; the other tables follow from it, and are refused where they do not
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from graphopt.errors import OptionError
from graphopt.machine.record import SCHEMA, Key, MachineRecord, Measured, check, rounded

AGAIN = "write it again with graphopt machine --measure"
Value = str | int | float | Sequence[int]
Table = Mapping[str, Value]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    workers: int
    vector_bytes: int
    memory_bytes: int
    disk_bytes: int
    measured: dict[str, Measured]
    schema: str


def written(record: MachineRecord) -> str:
    """The file's text, the same for the same record."""
    return "\n".join(_lines(record)) + "\n"


def parse(text: str, where: str) -> MachineRecord:
    """The record of a file's text; raises OptionError, in a sentence that begins with `where`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{where} is no TOML: {error}; {AGAIN}.") from None
    schema = tables.get("schema")
    if schema != SCHEMA:
        raise OptionError(f"{where} is no record of this version: its schema is {schema!r}, not '{SCHEMA}'; {AGAIN}.")
    try:
        file = msgspec.convert(tables, _File, strict=False)
    except msgspec.ValidationError as error:
        raise OptionError(f"{where}: {error}; {AGAIN}.") from None
    record = MachineRecord(file.key, file.workers, file.vector_bytes, file.memory_bytes, file.disk_bytes, file.measured)
    check(record, where)
    for name, table in tomllib.loads(written(record)).items():
        if tables.get(name) != table:
            raise OptionError(f"{where}: '{name}' does not follow from the measured entries; {AGAIN}.")
    return record


def read(file: Path) -> MachineRecord:
    """The record in a file; raises OptionError."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"the machine file '{file}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise OptionError(f"the machine file '{file}' is no text; {AGAIN}.") from None
    return parse(text, f"the machine file '{file}'")


def _lines(record: MachineRecord) -> Iterator[str]:
    yield "# Measured by graphopt machine, which prints it as a table; docs/machine.md says what the entries are."
    for name in ("schema", "workers", "vector_bytes", "memory_bytes", "disk_bytes"):
        yield _pair(name, getattr(record, name))
    yield _pair("name", f"{record.key.cpu}, {record.workers} worker{'' if record.workers == 1 else 's'}")
    yield from _table("[key]", msgspec.structs.asdict(record.key))
    peak, bandwidth = rounded(record.peak_flops), rounded(record.bandwidth)
    yield from _table("[target]", {"peak_flops": peak, "bandwidth": bandwidth})
    device: dict[str, Value] = {"multiprocessors": record.workers}
    for ours, theirs in (("signal", "signal_ns"), ("tile_call", "block_fixed_ns")):
        if (value := record.by_ns(ours)) is not None:
            device[theirs] = rounded(value)
    yield from _table("[device]", device)
    for tier in _tiers(record):
        yield from _table("[[memory.tier]]", tier)
    for link in _links(record):
        yield from _table("[[memory.link]]", link)
    for name, one in record.entries.items():
        yield from _table(f"[measured.{name}]", msgspec.structs.asdict(one))


def _tiers(record: MachineRecord) -> Iterator[Table]:
    together = record.bandwidth / record.entries["memory_read"].value  # cores, by a billion
    yield {
        "name": "dram", "capacity": record.memory_bytes, "read_bandwidth": rounded(record.bandwidth),
        "write_bandwidth": rounded(together * record.entries["memory_write"].value),
    }  # fmt: skip
    if _has_disk(record):
        yield {
            "name": "disk", "capacity": record.disk_bytes,
            "read_bandwidth": _rate(record, "disk_read"), "write_bandwidth": _rate(record, "disk_write"),
        }  # fmt: skip


def _links(record: MachineRecord) -> Iterator[Table]:
    if _has_disk(record):
        yield {"from": "disk", "to": "dram", "sync_bandwidth": _rate(record, "disk_read")}
        yield {"from": "dram", "to": "disk", "sync_bandwidth": _rate(record, "disk_write")}


def _has_disk(record: MachineRecord) -> bool:
    return "disk_read" in record.entries and "disk_write" in record.entries


def _rate(record: MachineRecord, name: str) -> float:
    """Bytes a second of an entry."""
    return rounded(1e9 * record.entries[name].value)


def _table(head: str, values: Table) -> Iterator[str]:
    yield ""
    yield head
    for name, value in values.items():
        yield _pair(name, value)


def _pair(name: str, value: Value) -> str:
    text = json.dumps(list(value)) if isinstance(value, (list, tuple)) else json.dumps(value, ensure_ascii=False)
    return f"{name} = {text}"

"""The tables of `graphopt machine`."""

from __future__ import annotations

from graphopt.flows.records.machine import CheckRecord
from graphopt.machine.record import ALL, MachineRecord
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table

WIDE = 0.50  # spread from which an entry was disturbed
FAR = 0.10  # an entry that is further off is coloured, unless its spread is as wide


def print_machine(screen: Screen, record: MachineRecord) -> None:
    """A line for each entry: its figure, the same by nanosecond where it is counted in cycles, its spread."""
    screen.line(f"{record.key.cpu}, {several(record.workers, 'worker')}", "bold")
    caches = ", ".join(map(binary_size, record.key.caches))
    screen.line(f"{'caches':<13} {caches}; vectors of {record.vector_bytes} bytes; LLVM {record.key.llvm}")
    screen.line(f"{'memory':<13} {binary_size(record.memory_bytes)}")
    table = Table("entry", "what", "figure", "unit", "by ns", "spread", left=(0, 1, 3))
    for name, one in record.entries.items():
        by_ns = _figure(record.by_ns(name)) if ALL[name].by_cycle else ""
        table.add(name, ALL[name].text, _figure(one.value), one.unit, by_ns, f"{one.spread:.1%}")
    screen.table(table)
    wide = [name for name, one in record.entries.items() if one.spread > WIDE]
    if wide:
        screen.line(f"{'disturbed':<13} {', '.join(wide)}: measure again when the machine has less to do", "yellow")
    core, every = record.core_flops / 1e9, record.peak_flops / 1e9
    screen.line(f"{'float32':<13} {core:.4g} Gflop/s of one core, {every:.4g} of all")


def print_check(screen: Screen, record: CheckRecord) -> None:
    """A line for each entry: kept, now, how far that is, and the spreads."""
    if record.cpu != record.measured_cpu:
        screen.line(f"the record is of another processor: {record.cpu}; this is {record.measured_cpu}", "yellow")
    table = Table("entry", "unit", "kept", "now", "difference", "spread kept", "spread now", left=(0, 1))
    for line in record.entries:
        far = line.difference is not None and abs(line.difference) > max(
            FAR, line.kept_spread or 0.0, line.now_spread or 0.0
        )
        table.add(
            line.name, line.unit, _figure(line.kept), _figure(line.now),
            "" if line.difference is None else f"{line.difference:+.1%}", _share(line.kept_spread),
            _share(line.now_spread), style="yellow" if far else "",
        )  # fmt: skip
    screen.table(table)
    off = [abs(line.difference) for line in record.entries if line.difference is not None]
    screen.line(f"{'within 10 %':<13} {sum(one <= FAR for one in off)} of {len(off)} entries")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"

"""The memory report in a terminal."""

from __future__ import annotations

from graphopt.flows.records.memory import LeverLine, MemoryRecord
from graphopt.model.text import binary_size, steps
from graphopt.report.screen import Screen, Table

LIVE = 12  # buffers listed at the peak


def print_memory(screen: Screen, record: MemoryRecord) -> None:
    """The figures, what is live at the peak, what each lever gives, and what was asked for besides."""
    dims = ", ".join(f"{name}={size}" for name, size in record.dims.items())
    screen.line(f"{record.model}{f' ({dims})' if dims else ''}", "bold")
    at = f" at step {record.peak_step} of {len(record.steps):,}: {record.peak_operator}" if record.steps else ""
    screen.line(f"peak           {binary_size(record.peak)}{at}")
    proved = "the least there is" if record.proved_optimal else f"at least {binary_size(record.lower_bound)} are needed"
    screen.line(f"arena          {binary_size(record.arena)}, {proved}")
    share = f" ({100 * record.fragmentation / record.arena:.2g}% of the arena)" if record.fragmentation else ""
    screen.line(f"fragmentation  {binary_size(record.fragmentation)}{share}")
    screen.line(f"lower bound    {binary_size(record.lower_bound)} for this order")
    screen.line(f"weights        {binary_size(record.weights)}; inputs {binary_size(record.inputs)}, the caller's")
    _order(screen, record)
    if record.formula is not None:
        screen.line(f"formula        {record.formula}")
    _live(screen, record)
    _tiers(screen, record)
    _what_if(screen, record)
    for note in record.notes:
        screen.small(f"note: {note}")


def _order(screen: Screen, record: MemoryRecord) -> None:
    again = sum(step.again for step in record.steps)
    words = {"given": "as in the file", "best": "the best that was found"}.get(record.order, record.order)
    changed = record.order not in ("given", "best")
    if again:
        words += f"; {again} operators run again"
    if changed:
        words += f"; {record.extra_time_percent:.1f}% more time (estimated)"
    screen.line(f"order          {words}")
    if record.budget is not None:
        left = record.budget - record.arena
        screen.line(f"budget         {binary_size(record.budget)}, kept with {binary_size(left)} to spare")


def _live(screen: Screen, record: MemoryRecord) -> None:
    if not record.at_peak:
        return
    table = Table("live at the peak", "bytes", "share", "shape", "steps", "made by a")
    for item in record.at_peak[:LIVE]:
        shape = f"{item.dtype} {'x'.join(map(str, item.shape))}".strip()
        table.add(
            item.name, binary_size(item.bytes), f"{100 * item.bytes / max(record.peak, 1):.0f}%", shape,
            steps(item.begin, item.end),
            item.producer.rpartition("(")[2].removesuffix(")"),
        )  # fmt: skip
    screen.table(table)
    if len(record.at_peak) > LIVE:
        screen.small(f"and {len(record.at_peak) - LIVE} smaller ones")


def print_lever_head(screen: Screen) -> None:
    """What stands above the lines of levers."""
    screen.line(f"{'what would save':<26} {'arena':>9}  {'saves':>9}  {'more time':>9}", "dim")


def print_lever(screen: Screen, lever: LeverLine) -> None:
    """One lever."""
    saves = binary_size(lever.saved) if lever.saved > 0 else "nothing"
    extra = f"{lever.extra_time_percent:.1f}%" if lever.extra_time_percent else ""
    screen.line(f"{lever.name:<26} {binary_size(lever.arena):>9}  {saves:>9}  {extra:>9}  {lever.note}".rstrip())


def _tiers(screen: Screen, record: MemoryRecord) -> None:
    report = record.tiers
    if report is None:
        return
    ratio = report.time / report.fast_time if report.fast_time else 1.0
    slower = f"{100 * (ratio - 1):.1f}% slower than" if ratio < 2 else f"{ratio:.1f} times as long as"
    moves = f", {len(report.moves)} moves" if report.moves else ""
    screen.line(
        f"tiers          {report.machine}, {report.mode}{moves}: simulated {slower} with enough "
        f"{report.tiers[0].name} ({report.solver})",
    )
    table = Table("tier", "capacity", "arena", "live peak")
    for tier in report.tiers:
        table.add(tier.name, binary_size(tier.capacity), binary_size(tier.arena), binary_size(tier.peak))
    screen.table(table)


def _what_if(screen: Screen, record: MemoryRecord) -> None:
    if not record.what_if:
        return
    table = Table("what if", "peak", "arena")
    for item in record.what_if:
        dims = ", ".join(f"{name}={size}" for name, size in item.dims.items())
        table.add(dims, binary_size(item.peak), binary_size(item.arena))
    screen.table(table)

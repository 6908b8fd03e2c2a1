"""The memory report in a terminal."""

from __future__ import annotations

from rich.console import Console

from graphopt.flows.records.memory import MemoryRecord
from graphopt.model.text import binary_size, steps
from graphopt.report.terminal import dim_line, line, new_table

LIVE = 12  # buffers listed at the peak


def print_memory(console: Console, record: MemoryRecord) -> None:
    """The figures, what is live at the peak, what each lever gives, and what was asked for besides."""
    dims = ", ".join(f"{name}={size}" for name, size in record.dims.items())
    line(console, f"{record.model}{f' ({dims})' if dims else ''}", "bold")
    at = f" at step {record.peak_step} of {len(record.steps):,}: {record.peak_operator}" if record.steps else ""
    line(console, f"peak           {binary_size(record.peak)}{at}")
    proved = "the least there is" if record.proved_optimal else f"at least {binary_size(record.lower_bound)} are needed"
    line(console, f"arena          {binary_size(record.arena)}, {proved} ({record.solver})")
    share = f" ({100 * record.fragmentation / record.arena:.2g}% of the arena)" if record.fragmentation else ""
    line(console, f"fragmentation  {binary_size(record.fragmentation)}{share}")
    line(console, f"lower bound    {binary_size(record.lower_bound)} for this order")
    line(console, f"weights        {binary_size(record.weights)}; inputs {binary_size(record.inputs)}, the caller's")
    _order(console, record)
    if record.formula is not None:
        line(console, f"formula        {record.formula}")
    _live(console, record)
    _levers(console, record)
    _tiers(console, record)
    _what_if(console, record)
    for note in record.notes:
        dim_line(console, f"note: {note}")


def _order(console: Console, record: MemoryRecord) -> None:
    again = sum(step.again for step in record.steps)
    words = {"given": "as in the file", "best": "the best that was found"}.get(record.order, record.order)
    changed = record.order not in ("given", "best")
    if again:
        words += f"; {again} operators run again"
    if changed:
        words += f"; {record.extra_time_percent:.1f}% more time (estimated)"
    if record.order_bound > 0 and not changed:
        least = "no order needs less" if record.peak <= record.order_bound else "no order needs less than "
        words += f"; {least}{'' if record.peak <= record.order_bound else binary_size(record.order_bound)}"
    line(console, f"order          {words}")
    if record.budget is not None:
        left = record.budget - record.arena
        line(console, f"budget         {binary_size(record.budget)}, kept with {binary_size(left)} to spare")


def _live(console: Console, record: MemoryRecord) -> None:
    if not record.at_peak:
        return
    table = new_table("live at the peak", "bytes", "share", "shape", "steps", "made by a")
    for item in record.at_peak[:LIVE]:
        shape = f"{item.dtype} {'x'.join(map(str, item.shape))}".strip()
        table.add_row(
            item.name, binary_size(item.bytes), f"{100 * item.bytes / max(record.peak, 1):.0f}%", shape,
            steps(item.begin, item.end),
            item.producer.rpartition("(")[2].removesuffix(")"),
        )  # fmt: skip
    console.print(table)
    if len(record.at_peak) > LIVE:
        dim_line(console, f"and {len(record.at_peak) - LIVE} smaller ones")


def _levers(console: Console, record: MemoryRecord) -> None:
    if not record.levers:
        return
    table = new_table("lever", "arena", "saves", "extra time", "")
    for lever in record.levers:
        extra = f"{lever.extra_time_percent:.1f}%" if lever.extra_time_percent else ""
        table.add_row(
            lever.name,
            binary_size(lever.arena),
            binary_size(lever.saved) if lever.saved > 0 else "nothing",
            extra,
            lever.note,
        )
    console.print(table)


def _tiers(console: Console, record: MemoryRecord) -> None:
    report = record.tiers
    if report is None:
        return
    ratio = report.time / report.fast_time if report.fast_time else 1.0
    slower = f"{100 * (ratio - 1):.1f}% slower than" if ratio < 2 else f"{ratio:.1f} times as long as"
    moves = f", {len(report.moves)} moves" if report.moves else ""
    line(
        console,
        f"tiers          {report.machine}, {report.mode}{moves}: simulated {slower} all in "
        f"{report.tiers[0].name} ({report.solver})",
    )
    table = new_table("tier", "capacity", "arena", "live peak")
    for tier in report.tiers:
        table.add_row(tier.name, binary_size(tier.capacity), binary_size(tier.arena), binary_size(tier.peak))
    console.print(table)


def _what_if(console: Console, record: MemoryRecord) -> None:
    if not record.what_if:
        return
    table = new_table("what if", "peak", "arena")
    for item in record.what_if:
        dims = ", ".join(f"{name}={size}" for name, size in item.dims.items())
        table.add_row(dims, binary_size(item.peak), binary_size(item.arena))
    console.print(table)

"""The text of `graphopt diff`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from graphopt.flows.records.models import DiffRecord, NodeLine, TensorLine
from graphopt.report.terminal import line, new_table
from graphopt.report.wording import size

SHOWN = 30  # nodes or initializers of one kind listed in the terminal


def print_diff(console: Console, record: DiffRecord) -> None:
    """The differences, by kind."""
    line(console, f"A {record.a}\nB {record.b}", "bold")
    if record.identical:
        line(console, "no differences")
        return
    for text in (*record.signature, *record.header):
        line(console, text, "yellow")
    if record.types:
        console.print(_type_table(record))
    _print_nodes(console, "only in A", record.only_in_a, "red")
    _print_nodes(console, "only in B", record.only_in_b, "green")
    if record.changed:
        line(console, f"changed: {_count(len(record.changed), 'node')}", "bold")
        for item in record.changed[:SHOWN]:
            line(console, f"  {item.op_type_b} '{item.output}': {'; '.join(item.changes)}")
        _rest(console, len(record.changed))
    _print_tensors(console, "removed", record.initializers_removed, "red")
    _print_tensors(console, "added", record.initializers_added, "green")
    _print_tensors(console, "changed", record.initializers_changed, "yellow")


def _type_table(record: DiffRecord) -> Table:
    table = new_table("operator", "A", "B", "change")
    for item in record.types:
        table.add_row(item.op_type, f"{item.a:,}", f"{item.b:,}", f"{item.b - item.a:+,}")
    return table


def _print_nodes(console: Console, label: str, found: tuple[NodeLine, ...], style: str) -> None:
    if found:
        line(console, f"{label}: {_count(len(found), 'node')}", "bold")
        for item in found[:SHOWN]:
            line(console, f"  {item.op_type} '{', '.join(item.outputs)}'", style)
        _rest(console, len(found))


def _print_tensors(console: Console, label: str, found: tuple[TensorLine, ...], style: str) -> None:
    if found:
        total = size(sum(item.bytes for item in found))
        line(console, f"initializers {label}: {len(found):,}, {total}", "bold")
        for item in found[:SHOWN]:
            line(console, f"  '{item.name}' {item.type}, {size(item.bytes)}", style)
        _rest(console, len(found))


def _rest(console: Console, count: int) -> None:
    if count > SHOWN:
        line(console, f"  and {count - SHOWN:,} more (--json lists all)", "dim")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""The text of `graphopt diff`."""

from __future__ import annotations

from graphopt.flows.records.models import DiffRecord, NodeLine, TensorLine
from graphopt.model.text import binary_size
from graphopt.report.screen import Screen, Table

SHOWN = 30  # nodes or initializers of one kind listed in the terminal


def print_diff(screen: Screen, record: DiffRecord) -> None:
    """The differences, by kind: what changed, what came, what went, of which there may be most."""
    screen.line(f"A {record.a}\nB {record.b}", "bold")
    if record.identical:
        screen.line("no differences")
        return
    for text in (*record.signature, *record.header):
        screen.line(text, "yellow")
    if record.types:
        screen.table(_type_table(record))
    if record.changed:
        screen.line(f"changed: {_count(len(record.changed), 'node')}", "bold")
        for item in record.changed[:SHOWN]:
            screen.line(f"  {item.op_type_b} '{item.output}': {'; '.join(item.changes)}")
        _rest(screen, len(record.changed))
    _print_nodes(screen, "only in B", record.only_in_b, "green")
    _print_nodes(screen, "only in A", record.only_in_a, "red")
    _print_tensors(screen, "changed", record.initializers_changed, "yellow")
    _print_tensors(screen, "added", record.initializers_added, "green")
    _print_tensors(screen, "removed", record.initializers_removed, "red")


def _type_table(record: DiffRecord) -> Table:
    table = Table("operator", "A", "B", "change")
    for item in record.types:
        table.add(item.op_type, f"{item.a:,}", f"{item.b:,}", f"{item.b - item.a:+,}")
    return table


def _print_nodes(screen: Screen, label: str, found: tuple[NodeLine, ...], style: str) -> None:
    if found:
        screen.line(f"{label}: {_count(len(found), 'node')}", "bold")
        for item in found[:SHOWN]:
            screen.line(f"  {item.op_type} '{', '.join(item.outputs)}'", style)
        _rest(screen, len(found))


def _print_tensors(screen: Screen, label: str, found: tuple[TensorLine, ...], style: str) -> None:
    if found:
        total = binary_size(sum(item.bytes for item in found))
        screen.line(f"initializers {label}: {len(found):,}, {total}", "bold")
        for item in found[:SHOWN]:
            screen.line(f"  '{item.name}' {item.type}, {binary_size(item.bytes)}", style)
        _rest(screen, len(found))


def _rest(screen: Screen, count: int) -> None:
    if count > SHOWN:
        screen.line(f"  and {count - SHOWN:,} more (--json lists all)", "dim")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

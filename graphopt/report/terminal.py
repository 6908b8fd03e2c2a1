"""Records as tables for a terminal."""

from __future__ import annotations

from graphopt.check.verification import Verification
from graphopt.flows.records.models import OptimizeRecord, VerifyRecord
from graphopt.memory.budgeted import BudgetRecord
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table
from graphopt.report.wording import change, quantity, remarks, verdict

SHOWN_TYPES = 24  # operators that changed and are listed one by one
SHOWN_TRANSPOSES = 8  # Transposes that stay although a layout was asked for
SHOWN_PORTS = 8  # inputs and outputs that are listed one by one


def print_optimize(screen: Screen, record: OptimizeRecord) -> None:
    """The before/after table, what was rolled back, and how it was checked."""
    screen.line(f"{record.input} -> {record.output}" if record.output else record.input, "bold")
    table = Table("", "before", "after", "change")
    _figures(table, "nodes", f"{record.nodes_before:,}", f"{record.nodes_after:,}",
             change(record.nodes_before, record.nodes_after))  # fmt: skip
    _type_rows(table, record)
    _figures(table, "bytes", binary_size(record.bytes_before), binary_size(record.bytes_after),
             change(record.bytes_before, record.bytes_after))  # fmt: skip
    _figures(table, "parameters", quantity(record.parameters_before), quantity(record.parameters_after),
             change(record.parameters_before, record.parameters_after))  # fmt: skip
    screen.table(table)
    for kind, ports in (("input", record.inputs), ("output", record.outputs)):
        for port in ports[:SHOWN_PORTS]:
            screen.line(f"{kind:<13} {port}")
        if len(ports) > SHOWN_PORTS:
            screen.line(f"{'':<13} and {several(len(ports) - SHOWN_PORTS, f'more {kind}')}")
    rewrites = sum(line.rewrites for line in record.passes)
    checking = f", {record.verify_seconds:.2f} s checking" if record.verification.status != "off" else ""
    screen.line(f"time          {record.seconds:.2f} s for {several(rewrites, 'rewrite')}{checking}")
    print_verdict(screen, record.verification)
    if record.opset_before != record.opset_after:
        screen.line(f"opset         {record.opset_before} -> {record.opset_after}, as asked")
    for text in record.signature_changes:
        screen.line(f"signature     {text}, as asked")
    for text in record.kept_transposes[:SHOWN_TRANSPOSES]:
        screen.line(f"transpose     {text}")
    hidden = len(record.kept_transposes) - SHOWN_TRANSPOSES
    if hidden > 0:
        screen.line(f"transpose     and {hidden:,} more")
    if record.memory is not None:
        _print_budget(screen, record.memory)
    for rollback in record.rolled_back:
        screen.line(f"rolled back   {rollback.rule} at '{rollback.site}': {rollback.reason}", "yellow")
    if not record.output:
        screen.line("nothing was written: add an output file, or --in-place.")


def _figures(table: Table, *cells: str) -> None:
    table.add(*cells, style="bold")


def _print_budget(screen: Screen, memory: BudgetRecord) -> None:
    tiles = f" ({several(memory.tiled_regions, 'region')} in tiles)" if memory.tiled_regions else ""
    screen.line(
        f"memory        {binary_size(memory.arena)} of a budget of {binary_size(memory.budget)}: "
        f"{binary_size(memory.arena_given)} before, {binary_size(memory.arena_best)} by order alone; "
        f"{several(memory.added_nodes, 'node')} added{tiles}, {memory.extra_time_percent:.1f}% more time (estimated)"
        f"{', outputs the same bit for bit' if memory.bit_equal else ''}",
    )
    if memory.heap is not None and memory.heap_before is not None and memory.slowdown_percent is not None:
        screen.line(
            f"measured      {binary_size(memory.heap)} of heap in ONNX Runtime, {binary_size(memory.heap_before)} "
            f"before; {memory.slowdown_percent:+.0f}% time",
        )
    counted = "with results in place and slices" if memory.sharing else "even where every result has bytes of its own"
    measured = "so in ONNX Runtime, measured," if memory.heap is not None else "in ONNX Runtime, not measured here,"
    screen.small(
        f"the budget holds, {counted}, in runtimes that keep the order of the file and free what is dead; {measured} "
        f"with SessionOptions of {memory.keeping}, which graphopt run sets",
    )


def _type_rows(table: Table, record: OptimizeRecord) -> None:
    """Operators whose number changed, one by one; the rest in one row."""
    kinds = dict.fromkeys((*record.types_before, *record.types_after))
    pairs = {kind: (record.types_before.get(kind, 0), record.types_after.get(kind, 0)) for kind in kinds}
    moved = sorted((k for k, (one, two) in pairs.items() if one != two), key=lambda k: (pairs[k][1] - pairs[k][0], k))
    shown = moved if len(moved) <= SHOWN_TYPES else [*moved[: SHOWN_TYPES // 2], *moved[-(SHOWN_TYPES // 2) :]]
    for kind in shown:
        before, after = pairs[kind]
        table.add(f"  {kind}", f"{before:,}", f"{after:,}", f"{after - before:+,}")
    others = [pair for kind, pair in pairs.items() if kind not in shown]
    if others:
        label = "operator" if len(others) == 1 else "operators"
        before, after = sum(one for one, _ in others), sum(two for _, two in others)
        table.add(f"  {len(others)} other {label}", f"{before:,}", f"{after:,}", "", style="dim")


def print_verdict(screen: Screen, verification: Verification) -> None:
    """The verdict and its small print."""
    good = verification.status == "verified"
    style = "green" if good else "yellow" if verification.status == "off" else "red"
    screen.line(verdict(verification), style, label="verification  ")
    for remark in remarks(verification):
        screen.small(remark)


def print_verify(screen: Screen, record: VerifyRecord) -> None:
    """Whether two models are equal, and where they part."""
    screen.line(f"{record.a} and {record.b}")
    print_verdict(screen, record.verification)
    found = record.divergence
    if found is not None:
        screen.line(f"first difference  '{found.name}': {found.reason}", "red")
        screen.line(f"  in A            {found.node_a}")
        screen.line(f"  in B            {found.node_b}")
        screen.small(f"{found.compared:,} values that both models have were equal before it")

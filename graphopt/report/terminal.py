"""Records as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from graphopt.check.verification import Verification
from graphopt.flows.records.models import OptimizeRecord, VerifyRecord
from graphopt.memory.budget import BudgetRecord
from graphopt.model.text import binary_size, several, shown
from graphopt.report.wording import change, quantity, remarks, size, verdict

SHOWN_TYPES = 24  # operators that changed and are listed one by one
SHOWN_TRANSPOSES = 8  # Transposes that stay although a layout was asked for


class Screen(Console):
    """A console for names from strangers: of what it is asked to print, control characters are shown, not sent."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments with their texts escaped; line ends and rich's own control codes stay."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(shown, segment.text.split("\n"))), segment.style)


def new_table(*columns: str) -> Table:
    """A plain table: the first column names things, the others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    return table


def dim_line(console: Console, text: str) -> None:
    """A line of small print, left to the terminal to wrap."""
    console.print(Text(text, style="dim"), soft_wrap=True)


def line(console: Console, text: str, style: str = "") -> None:
    """A line of text as it is, left to the terminal to wrap."""
    console.print(Text(text, style=style), soft_wrap=True)


def print_optimize(console: Console, record: OptimizeRecord) -> None:
    """The before/after table, what was rolled back, and how it was checked."""
    line(console, f"{record.input} -> {record.output}", "bold")
    table = new_table("", "before", "after", "change")
    table.add_row(
        Text("nodes", "bold"), f"{record.nodes_before:,}", f"{record.nodes_after:,}",
        change(record.nodes_before, record.nodes_after),
    )  # fmt: skip
    _type_rows(table, record)
    table.add_row(
        Text("bytes", "bold"), size(record.bytes_before), size(record.bytes_after),
        change(record.bytes_before, record.bytes_after),
    )  # fmt: skip
    table.add_row(
        Text("parameters", "bold"), quantity(record.parameters_before), quantity(record.parameters_after),
        change(record.parameters_before, record.parameters_after),
    )  # fmt: skip
    console.print(table)
    rewrites = sum(line.rewrites for line in record.passes)
    passes = sum(line.rewrites > 0 for line in record.passes)
    line(
        console,
        f"seconds       {record.seconds:.2f} for {rewrites:,} rewrites in {passes} passes, "
        f"{record.verify_seconds:.2f} for verification",
    )
    print_verdict(console, record.verification)
    if record.opset_before != record.opset_after:
        line(console, f"opset         {record.opset_before} -> {record.opset_after}, as asked")
    for text in record.signature_changes:
        line(console, f"signature     {text}, as asked")
    for text in record.kept_transposes[:SHOWN_TRANSPOSES]:
        line(console, f"transpose     {text}")
    hidden = len(record.kept_transposes) - SHOWN_TRANSPOSES
    if hidden > 0:
        line(console, f"transpose     and {hidden:,} more")
    if record.memory is not None:
        _print_budget(console, record.memory)
    for rollback in record.rolled_back:
        line(console, f"rolled back   {rollback.rule} at '{rollback.site}': {rollback.reason}", "yellow")


def _print_budget(console: Console, memory: BudgetRecord) -> None:
    tiles = f" ({several(memory.tiled_regions, 'region')} in tiles)" if memory.tiled_regions else ""
    line(
        console,
        f"memory        {binary_size(memory.arena)} of a budget of {binary_size(memory.budget)}: "
        f"{binary_size(memory.arena_given)} before, {binary_size(memory.arena_best)} by order alone; "
        f"{memory.added_nodes} nodes added{tiles}, {memory.extra_time_percent:.1f}% more time (estimated)"
        f"{', outputs the same bit for bit' if memory.bit_equal else ''}",
    )
    if memory.measured_before is not None and memory.measured_after is not None:
        line(
            console,
            f"measured      ONNX Runtime grew by {binary_size(memory.measured_after)} in its runs, before by "
            f"{binary_size(memory.measured_before)}",
        )
    counted = "with results in place and slices" if memory.sharing else "even where every result has bytes of its own"
    dim_line(
        console,
        f"the budget holds, {counted}, in runtimes that keep the order of the file and merge no nodes; ONNX Runtime "
        f"does with {memory.keeping}",
    )


def _type_rows(table: Table, record: OptimizeRecord) -> None:
    """Operators whose number changed, one by one; the rest in one row."""
    kinds = dict.fromkeys((*record.types_before, *record.types_after))
    pairs = {kind: (record.types_before.get(kind, 0), record.types_after.get(kind, 0)) for kind in kinds}
    moved = sorted((k for k, (one, two) in pairs.items() if one != two), key=lambda k: (pairs[k][1] - pairs[k][0], k))
    shown = moved if len(moved) <= SHOWN_TYPES else [*moved[: SHOWN_TYPES // 2], *moved[-(SHOWN_TYPES // 2) :]]
    for kind in shown:
        before, after = pairs[kind]
        table.add_row(f"  {kind}", f"{before:,}", f"{after:,}", f"{after - before:+,}")
    others = [pair for kind, pair in pairs.items() if kind not in shown]
    if others:
        label = "operator" if len(others) == 1 else "operators"
        table.add_row(
            Text(f"  {len(others)} other {label}", "dim"), f"{sum(one for one, _ in others):,}",
            f"{sum(two for _, two in others):,}", "",
        )  # fmt: skip


def print_verdict(console: Console, verification: Verification) -> None:
    """The verdict and its small print."""
    good = verification.status == "verified"
    style = "green" if good else "yellow" if verification.status == "off" else "red"
    text = Text("verification  ")
    text.append(verdict(verification), style)
    console.print(text, soft_wrap=True)
    for remark in remarks(verification):
        dim_line(console, remark)


def print_verify(console: Console, record: VerifyRecord) -> None:
    """Whether two models are equal, and where they part."""
    line(console, f"{record.a} and {record.b}")
    print_verdict(console, record.verification)
    found = record.divergence
    if found is not None:
        line(console, f"first difference  '{found.name}': {found.reason}", "red")
        line(console, f"  in A            {found.node_a}")
        line(console, f"  in B            {found.node_b}")
        dim_line(console, f"{found.compared:,} values that both models have were equal before it")

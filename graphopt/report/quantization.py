"""The table of `graphopt quantize`: what was chosen for each node, by which error and which cost."""

from __future__ import annotations

from graphopt.flows.records.quantization import NodeLine, QuantizationRecord
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table
from graphopt.report.wording import error, verdict

FLOAT = "float32"


def print_quantization(screen: Screen, record: QuantizationRecord) -> None:
    """A line for each node, and the whole model below."""
    screen.line(f"{record.input} -> {record.output}", "bold")
    bytes_count = record.minimized == "size"
    unit = "bytes" if bytes_count else "us"
    table = Table("node", "operator", "format", "error alone", f"{unit} before", unit, left=(0, 1, 2))
    for line in record.nodes:
        costs = (_cost(one, bytes_count=bytes_count) for one in (line.cost_before, line.cost))
        off = "-" if line.chosen == FLOAT else error(line.error)
        table.add(line.name, line.op_type, line.chosen, off, *costs, style="" if line.chosen == FLOAT else "green")
    screen.table(table)
    chosen = [line for line in record.nodes if line.chosen != FLOAT]
    screen.line(f"{'quantized':<13} {len(chosen):,} of {several(len(record.nodes), 'node')}{_formats(chosen)}")
    if record.in_bytes:
        screen.line(f"{'in bytes':<13} {several(record.in_bytes, 'other operator')} between them")
    screen.line(
        f"{'error':<13} {record.error:.2g} of the output's root mean square, budget {record.budget_error:g}; largest "
        f"{record.largest_error:.2g} of its largest element"
    )
    data = f"calibrated on {several(record.calibration_feeds, 'feed')}" if record.calibration_feeds else "no data"
    screen.line(f"{'':<13} {data}; errors measured on {several(record.error_feeds, 'feed')} in ONNX Runtime")
    faster = record.milliseconds_before / record.milliseconds if record.milliseconds else 1.0
    threads = several(record.threads, "thread")
    screen.line(
        f"{'latency':<13} {record.milliseconds_before:.2f} ms -> {record.milliseconds:.2f} ms ({faster:.2f} x) in "
        f"{record.engine}, {threads}"
    )
    screen.line(f"{'weights':<13} {binary_size(record.bytes_before)} -> {binary_size(record.bytes)}")
    screen.line(f"{'optimized':<13} {verdict(record.optimized)}")


def _formats(chosen: list[NodeLine]) -> str:
    kinds = [line.chosen for line in chosen]
    return "".join(f", {kinds.count(kind):,} {kind}" for kind in dict.fromkeys(kinds))


def _cost(cost: float, *, bytes_count: bool) -> str:
    return f"{cost:,.0f}" if bytes_count else f"{1e3 * cost:,.0f}"

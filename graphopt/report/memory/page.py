"""The memory report as a page: one file that opens without a network; without scripts its tables are still read."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup
from msgspec.structs import replace
from plotly.offline import get_plotlyjs

from graphopt.flows.records.alias_classes import alias_classes
from graphopt.flows.records.memory import BufferLine, MemoryRecord
from graphopt.model.text import binary_size, steps
from graphopt.report.memory.charts import arena_chart, curve_chart, live_chart, tier_chart
from graphopt.report.page import ENVIRONMENT

LARGEST = 100  # buffers in the table
MOVES = 200  # moves in the table


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its heading and a line that says how to read it."""

    anchor: str
    title: str
    text: str
    drawing: Markup


def memory_page(record: MemoryRecord) -> bytes:
    """The page, UTF-8."""
    charts = [
        Chart("live", "Live memory", "Bytes needed while each operator runs. Drag to zoom.", live_chart(record)),
        Chart(
            "arena", "The arena", "Each rectangle is a buffer: across, the steps in which it is needed; "
            "upwards, its bytes in the arena. Point at one to read it.", arena_chart(record),
        ),
    ]  # fmt: skip
    if len(record.curve) > 1:
        charts.append(
            Chart(
                "curve", "Memory against time", "Plans that compute values again or in tiles: what they take.",
                curve_chart(record),
            )
        )  # fmt: skip
    if record.tiers is not None:
        charts.append(
            Chart("tiers", "Tiers", f"Placement on {record.tiers.machine}, simulated.", tier_chart(record.tiers))
        )
    environment = ENVIRONMENT.overlay()
    environment.filters = {**ENVIRONMENT.filters, "bytes": binary_size, "steps": lambda one: steps(one.begin, one.end)}
    page = environment.get_template("memory.html").render(
        record=record,
        charts=charts,
        largest=_largest(record),
        moves=() if record.tiers is None else record.tiers.moves[:MOVES],
        again=sum(step.again for step in record.steps),
        plotly=Markup(get_plotlyjs()),
    )
    return page.encode()


def _largest(record: MemoryRecord) -> list[BufferLine]:
    roots = [replace(one.root, begin=one.begin, end=one.end) for one in alias_classes(record.buffers)]
    return sorted(roots, key=lambda buffer: (-buffer.bytes, buffer.begin, buffer.name))[:LARGEST]

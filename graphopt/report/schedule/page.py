"""The schedule report as a page: a Gantt chart and tables, one file that opens without a network."""

from __future__ import annotations

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from graphopt.flows.records.schedule import ScheduleRecord
from graphopt.model.text import binary_size
from graphopt.report.memory.charts import COLOURS, drawn
from graphopt.report.page import ENVIRONMENT
from graphopt.report.schedule.terminal import duration

MOST_SPANS = 8000  # bars in the chart; a browser draws more only slowly


def schedule_page(record: ScheduleRecord) -> bytes:
    """The page, UTF-8."""
    environment = ENVIRONMENT.overlay()
    environment.filters = {**ENVIRONMENT.filters, "bytes": binary_size, "duration": duration}
    page = environment.get_template("schedule.html").render(
        record=record,
        gantt=_gantt(record),
        busy=_utilisation(record),
        left_out=max(len(record.spans) - MOST_SPANS, 0),
        plotly=Markup(get_plotlyjs()),
    )
    return page.encode()


def _gantt(record: ScheduleRecord) -> Markup:
    """Workers upwards, time across; each bar is a run of blocks of one region."""
    spans = record.spans[:MOST_SPANS]
    rows = {worker: row for row, worker in enumerate(sorted({(s.multiprocessor, s.worker) for s in spans}))}
    colour = {
        name: COLOURS[number % len(COLOURS)] for number, name in enumerate(dict.fromkeys(s.region for s in spans))
    }
    figure = go.Figure(
        go.Bar(
            orientation="h",
            base=[span.start / 1000 for span in spans],
            x=[(span.end - span.start) / 1000 for span in spans],
            y=[rows[span.multiprocessor, span.worker] for span in spans],
            width=0.9,
            marker={"color": [colour[span.region] for span in spans], "opacity": 0.9},
            customdata=[
                (span.region, span.blocks, span.multiprocessor, span.worker, duration(span.end - span.start))
                for span in spans
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]} blocks, %{customdata[4]}<br>multiprocessor "
            "%{customdata[2]}, worker %{customdata[3]}<extra></extra>",
        )
    )
    return drawn(figure, "gantt", "microseconds", "worker", None, height=max(320, min(1200, 24 * len(rows) + 120)))


def _utilisation(record: ScheduleRecord) -> Markup:
    figure = go.Figure(
        go.Bar(
            x=list(range(len(record.utilisation))), y=[100 * share for share in record.utilisation],
            marker={"color": COLOURS[0]}, hovertemplate="multiprocessor %{x}: %{y:.0f}%<extra></extra>",
        )
    )  # fmt: skip
    return drawn(figure, "utilisation", "multiprocessor", "busy, %", 100, height=260)

"""The charts of the memory page, drawn by Plotly: live memory, the arena as a map, tiers, memory against time."""

from __future__ import annotations

import plotly.graph_objects as go
import plotly.io
from markupsafe import Markup

from graphopt.flows.records.alias_classes import AliasClass, alias_classes
from graphopt.flows.records.memory import MemoryRecord, TierReport
from graphopt.model.text import binary_size, steps

MIB = 1 << 20
INK, LINE = "#7a8696", "rgba(122,134,150,0.25)"  # readable on light and on dark ground
COLOURS = ("#2f6fb5", "#d98c2b", "#4a9a62", "#b5524a", "#8566b0", "#3a9aa5", "#c06a9a", "#8a8f3a")
NAMED_INSIDE = 6  # buffers named that share another's bytes


def live_chart(record: MemoryRecord) -> Markup:
    """Live bytes after each step, the peak marked, the arena as a line."""
    numbers = list(range(len(record.steps)))
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=numbers, y=[step.live / MIB for step in record.steps], mode="lines", line={"shape": "hv", "width": 1.2},
            fill="tozeroy", name="live", marker={"color": COLOURS[0]},
            customdata=[
                (step.operator, step.type, binary_size(step.live), "again" if step.again else "")
                for step in record.steps
            ],
            hovertemplate="step %{x}: %{customdata[0]} (%{customdata[1]}) %{customdata[3]}<br>"
            "%{customdata[2]} live<extra></extra>",
        )
    )  # fmt: skip
    again = [number for number, step in enumerate(record.steps) if step.again]
    if again:
        figure.add_trace(
            go.Scatter(
                x=again, y=[record.steps[number].live / MIB for number in again], mode="markers", name="computed again",
                marker={"color": COLOURS[3], "size": 5}, hoverinfo="skip",
            )
        )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=[record.peak_step], y=[record.peak / MIB], mode="markers+text", name="peak",
            text=[f"peak {binary_size(record.peak)}"], textposition="top center",
            marker={"color": COLOURS[3], "size": 9}, hoverinfo="skip",
        )
    )  # fmt: skip
    figure.add_hline(y=record.arena / MIB, line={"dash": "dot", "width": 1, "color": INK}, annotation_text="arena")
    if record.budget is not None:
        figure.add_hline(y=record.budget / MIB, line={"dash": "dash", "color": COLOURS[3]}, annotation_text="budget")
    return drawn(figure, "live", "step (operator)", "MiB", max(record.arena, record.budget or 0) / MIB)


def arena_chart(record: MemoryRecord) -> Markup:
    """Every buffer as a rectangle: from its first to its last step, from its offset upwards."""
    shown = alias_classes(record.buffers)
    figure = go.Figure(
        go.Bar(
            x=[(one.begin + one.end) / 2 for one in shown], width=[one.end - one.begin for one in shown],
            base=[one.root.offset / MIB for one in shown], y=[one.root.bytes / MIB for one in shown],
            marker={
                "color": [COLOURS[number % len(COLOURS)] for number in range(len(shown))],
                "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"}, "opacity": 0.85,
            },
            customdata=[_card(one) for one in shown],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(bargap=0, hovermode="closest")
    return drawn(figure, "arena", "step (operator)", "offset, MiB", record.arena / MIB)


def curve_chart(record: MemoryRecord) -> Markup:
    """Plans between memory and time."""
    points = sorted(record.curve, key=lambda point: point.arena)
    figure = go.Figure(
        go.Scatter(
            x=[point.arena / MIB for point in points], y=[point.extra_time_percent for point in points],
            mode="lines+markers", line={"shape": "hv", "color": COLOURS[0]},
            customdata=[(binary_size(point.arena), point.recomputed, point.tiled) for point in points],
            hovertemplate="%{customdata[0]}: %{y:.1f}% more time, %{customdata[1]} operators again, "
            "%{customdata[2]} regions in tiles<extra></extra>",
        )
    )  # fmt: skip
    return drawn(figure, "curve", "arena, MiB", "extra time, %", None)


def tier_chart(report: TierReport) -> Markup:
    """What each tier holds at each step, against its capacity."""
    figure = go.Figure()
    for number, tier in enumerate(report.tiers):
        figure.add_trace(
            go.Scatter(
                x=list(range(len(tier.occupancy))), y=[held / MIB for held in tier.occupancy], mode="lines",
                line={"shape": "hv", "width": 1.2, "color": COLOURS[number % len(COLOURS)]},
                name=f"{tier.name} (of {binary_size(tier.capacity)})",
                hovertemplate=f"step %{{x}}: %{{y:.3g}} MiB in {tier.name}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(showlegend=True)
    return drawn(figure, "tiers", "step (operator)", "MiB", None)


def _card(shared: AliasClass) -> str:
    root, inside = shared.root, shared.inside
    shape = f"{root.dtype} {' x '.join(map(str, root.shape))}".strip()
    lines = [
        f"<b>{_text(root.name)}</b>", _text(shape), f"{binary_size(root.bytes)} at {root.offset:,}",
        f"steps {steps(shared.begin, shared.end)}", f"made by {_text(root.producer)}",
    ]  # fmt: skip
    if root.users:
        more = f" and {len(root.users) - NAMED_INSIDE} more" if len(root.users) > NAMED_INSIDE else ""
        lines.append(f"used by {_text(', '.join(root.users[:NAMED_INSIDE]))}{more}")
    if inside:
        more = f" and {len(inside) - NAMED_INSIDE} more" if len(inside) > NAMED_INSIDE else ""
        lines.append(f"also holds {_text(', '.join(one.name for one in inside[:NAMED_INSIDE]))}{more}")
    return "<br>".join(lines)


def _text(text: str) -> str:
    """Names as they are: Plotly reads a few tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def drawn(figure: go.Figure, name: str, across: str, up: str, top: float | None, *, height: int = 420) -> Markup:
    """The chart as HTML, in the page's own colours; `top`: where the upward axis ends, a little above it."""
    axis = {"gridcolor": LINE, "zerolinecolor": LINE, "linecolor": LINE}
    figure.update_layout(
        height=height, margin={"l": 64, "r": 24, "t": 16, "b": 48}, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", font={"color": INK, "size": 12}, dragmode="zoom",
        xaxis={**axis, "title": across}, yaxis={**axis, "title": up, "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.08}, hoverlabel={"align": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": INK, "activecolor": COLOURS[0]},
    )  # fmt: skip
    if figure.layout.showlegend is None:
        figure.update_layout(showlegend=False)
    if top:
        figure.update_yaxes(range=[0, top * 1.08])
    html = plotly.io.to_html(
        figure, full_html=False, include_plotlyjs=False, div_id=f"chart-{name}",
        config={"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]},
    )  # fmt: skip
    return Markup(html)  # Plotly's own output: it escapes what it is given

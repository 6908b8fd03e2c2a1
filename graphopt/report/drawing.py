"""A sketch of a graph as inline SVG: layers from top to bottom, few crossings, long arrows bent around boxes.

The layered method of Sugiyama, Tagawa and Toda (1981): longest paths give the layers, barycenters the order in each.
Colors come from the page's style sheet, so that a drawing follows light, dark and print.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import networkx
from markupsafe import Markup

from graphopt.rewrite.record import Dot, Sketch

LETTER = 6.7  # px; width of a letter of the small print in a box
HEIGHT = 36.0
LAYER = 66.0  # from the top of one layer to the top of the next
GAP = 14.0
MARGIN = 6.0
BEND = 12.0  # width kept free for an arrow that passes a layer
LONGEST = 22  # letters of a name in a box
SWEEPS = 6
LEAVES = ("input", "output", "constant")


@dataclass(slots=True)
class _Layout:
    """Boxes and bends with their layers, their order and where their middles are."""

    layers: list[list[int]]
    width: dict[int, float]
    x: dict[int, float]
    ways: dict[tuple[int, int], list[int]]  # of each arrow: the reader's end, the bends and the producer's end
    neighbours: dict[int, list[int]]


def draw(sketch: Sketch, label: str) -> Markup:
    """The drawing; `label` says what it shows to those who do not see it."""
    layout = _layout(sketch)
    left, right = _sides(layout)
    height = max(len(layout.layers) - 1, 0) * LAYER + HEIGHT + 2 * MARGIN
    level = {n: number for number, layer in enumerate(layout.layers) for n in layer}
    parts = [_arrow(layout, level, way, left) for way in layout.ways.values()]
    parts += [
        _box(dot, layout.x[n] - left, MARGIN + level[n] * LAYER, layout.width[n]) for n, dot in enumerate(sketch.dots)
    ]
    across = right - left
    return Markup(
        '<svg role="img" aria-label="{}" width="{:.0f}" height="{:.0f}" viewBox="0 0 {:.0f} {:.0f}">{}</svg>'
    ).format(label, across, height, across, height, Markup("").join(parts))


def width(sketch: Sketch) -> int:
    """How wide the drawing is, in px."""
    left, right = _sides(_layout(sketch))
    return round(right - left)


def _sides(layout: _Layout) -> tuple[float, float]:
    left = min((layout.x[n] - layout.width[n] / 2 for n in layout.x), default=0.0) - MARGIN
    right = max((layout.x[n] + layout.width[n] / 2 for n in layout.x), default=0.0) + MARGIN
    return left, right


def _box(dot: Dot, middle: float, top: float, width: float) -> Markup:
    leaf = dot.op_type in LEAVES
    kind = " ".join(word for word, holds in (("leaf", leaf), ("changed", dot.changed)) if holds) or "near"
    round_by = HEIGHT / 2 if leaf else 5
    return Markup(
        '<g class="{}"><title>{} {}</title><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.0f}" rx="{:.0f}"/>'
        '<text x="{:.1f}" y="{:.1f}" class="op">{}</text><text x="{:.1f}" y="{:.1f}" class="nm">{}</text></g>'
    ).format(
        kind, dot.op_type, dot.name, middle - width / 2, top, width, HEIGHT, round_by,
        middle, top + 15, dot.op_type, middle, top + 28, _short(dot.name),
    )  # fmt: skip


def _arrow(layout: _Layout, level: dict[int, int], way: list[int], left: float) -> Markup:
    """A curve through the bends, from the bottom of the producer to the top of the reader."""
    points = []
    for number, n in enumerate(way):
        top = MARGIN + level[n] * LAYER
        x = layout.x[n] - left
        if n >= 0:
            points.append((x, top + HEIGHT if number == 0 else top))
        else:
            points += [(x, top), (x, top + HEIGHT)]
    text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = (y + to_y) / 2
        straight = x == to_x
        text += f"V{to_y:.1f}" if straight else f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    x, y = points[-1]
    return Markup('<path class="way" d="{}"/><path class="tip" d="M{:.1f} {:.1f}l-3.5 -7h7z"/>').format(text, x, y)


def _short(name: str) -> str:
    """The end of a long name, which tells more than its beginning."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _layout(sketch: Sketch) -> _Layout:
    level = _levels(sketch)
    layers: list[list[int]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    width = {
        n: max(len(dot.op_type) * (LETTER + 1), len(_short(dot.name)) * LETTER) + 18
        for n, dot in enumerate(sketch.dots)
    }
    for n in range(len(sketch.dots)):
        layers[level[n]].append(n)
    ways: dict[tuple[int, int], list[int]] = {}
    neighbours: dict[int, list[int]] = {n: [] for n in width}
    for source, reader in sketch.arrows:
        if level[source] >= level[reader]:
            continue
        way = [source]
        for passed in range(level[source] + 1, level[reader]):
            bend = -1 - sum(n < 0 for n in width)
            width[bend] = BEND
            layers[passed].append(bend)
            neighbours[bend] = []
            way.append(bend)
        way.append(reader)
        ways[source, reader] = way
        for one, two in itertools.pairwise(way):
            neighbours[one].append(two)
            neighbours[two].append(one)
    layout = _Layout(layers, width, {}, ways, neighbours)
    _order(layout)
    _place(layout)
    return layout


def _levels(sketch: Sketch) -> dict[int, int]:
    """Longest paths from above; what only gives is then pulled down to just above its first reader."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(sketch.dots)))
    graph.add_edges_from((one, two) for one, two in sketch.arrows if one != two)
    if not networkx.is_directed_acyclic_graph(graph):
        return dict.fromkeys(graph, 0)
    level = {n: number for number, layer in enumerate(networkx.topological_generations(graph)) for n in layer}
    for n in reversed(list(networkx.topological_sort(graph))):
        readers = list(graph.successors(n))
        if readers and graph.in_degree(n) == 0:
            level[n] = min(level[reader] for reader in readers) - 1
    return level


def _order(layout: _Layout) -> None:
    """Move everything in its layer to the mean position of its neighbours, a few times down and up."""
    position = {n: float(index) for layer in layout.layers for index, n in enumerate(layer)}
    for sweep in range(SWEEPS):
        for layer in layout.layers if sweep % 2 == 0 else reversed(layout.layers):
            wanted = {n: _mean([position[other] for other in layout.neighbours[n]], position[n]) for n in layer}
            layer.sort(key=lambda n: wanted[n])
            position.update({n: float(index) for index, n in enumerate(layer)})


def _place(layout: _Layout) -> None:
    """Middles near those of the neighbours, in order and without overlap."""
    x = layout.x
    for layer in layout.layers:
        end = -sum(layout.width[n] + GAP for n in layer) / 2
        for n in layer:
            x[n] = end + layout.width[n] / 2
            end += layout.width[n] + GAP
    for sweep in range(SWEEPS):
        for layer in layout.layers if sweep % 2 == 0 else reversed(layout.layers):
            wanted = [_mean([x[other] for other in layout.neighbours[n]], x[n]) for n in layer]
            right, left = list(wanted), list(wanted)
            apart = [(layout.width[one] + layout.width[two]) / 2 + GAP for one, two in itertools.pairwise(layer)]
            for index, least in enumerate(apart):
                right[index + 1] = max(right[index + 1], right[index] + least)
            for index in range(len(apart) - 1, -1, -1):
                left[index] = min(left[index], left[index + 1] - apart[index])
            for n, one, two in zip(layer, left, right, strict=True):
                x[n] = round((one + two) / 2, 1)


def _mean(numbers: list[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise

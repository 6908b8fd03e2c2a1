"""The HTML report of one optimization: a page that stands alone, is read without scripts, and prints.

What it says comes from the JSON record; sketches, flops and near misses are added. Lists are cut so that the page of a
model of any size opens at once; the JSON report has them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from graphopt.flows.explain import near_misses
from graphopt.flows.records.models import OptimizeFile
from graphopt.flows.result import OptimizeResult
from graphopt.model.text import binary_size, several
from graphopt.passes.meaning import Meaning, meanings, why
from graphopt.report import drawing, wording
from graphopt.rewrite.explain import NearMiss, NearMisses
from graphopt.rewrite.record import PassRecord, Rewrite, Sketch

LISTED = 400  # rewrites of one rule listed one by one
LISTED_AT_ALL = 3000
NODES = 6  # nodes named for one rewrite
EXAMPLES = 3  # nodes named for one reason
REASONS = 8  # reasons listed for one rule
TRANSPOSES = 40  # left by a change of layout, that are listed

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("graphopt.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(size=binary_size, quantity=wording.quantity, error=wording.error, several=several)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number before and after."""

    label: str
    before: str
    after: str
    change: str
    better: bool | None  # None: unchanged


@dataclass(frozen=True, slots=True)
class Bar:
    """How often an operator occurs before and after, and that as shares of the largest count."""

    op_type: str
    before: int
    after: int
    before_percent: float
    after_percent: float


@dataclass(frozen=True, slots=True)
class Picture:
    """A rewrite drawn before and after."""

    rewrite: Rewrite
    before: Markup
    after: Markup
    left_out: int
    width: int  # px, of the wider drawing


@dataclass(frozen=True, slots=True)
class Group:
    """All rewrites of one rule."""

    rule: str
    pass_name: str
    count: int
    said: Meaning
    pictures: tuple[Picture, ...]
    listed: tuple[Rewrite, ...]


def page_of(result: OptimizeResult, output: str = "", source: str | None = None) -> bytes:
    """The page of a result; `output` is the file that the model is written to, `source` a name for the input."""
    return page(result.full_record(output, source), result.rewrites, result.flops, near_misses(result)).encode()


def page(record: OptimizeFile, log: Sequence[Rewrite], flops: tuple[int, int] | None, near: NearMisses) -> str:
    """The whole page."""
    template = ENVIRONMENT.get_template("page.html")
    active = [step for step in record.passes if step.rewrites]
    return template.render(
        record=record,
        verdict=wording.verdict(record.verification),
        figures=_figures(record, flops),
        bars=_bars(record),
        passes=active,
        idle=[step for step in record.passes if not step.rewrites],
        slowest=max((step.seconds for step in record.passes), default=0.0) or 1.0,
        other_seconds=sum(step.seconds for step in record.passes) - _seconds(active),
        groups=_groups(log),
        near=[item for item in near.found if not item.searching],
        searching=[item for item in near.found if item.searching],
        near_is_complete=near.complete,
        places=_places,
        nodes=NODES,
        examples=EXAMPLES,
        reasons=REASONS,
        listed=TRANSPOSES,
    )


def _seconds(passes: Sequence[PassRecord]) -> float:
    return sum(step.seconds for step in passes)


def _places(miss: NearMiss) -> int:
    return sum(len(reason.nodes) for reason in miss.reasons)


def _figures(record: OptimizeFile, flops: tuple[int, int] | None) -> tuple[Figure, ...]:
    nodes, sizes = (record.nodes_before, record.nodes_after), (record.bytes_before, record.bytes_after)
    found = [
        _figure("nodes", nodes, "{:,}".format),
        _figure("bytes", sizes, binary_size),
        _figure("parameters", (record.parameters_before, record.parameters_after), wording.quantity),
    ]
    if flops is not None:
        found.append(_figure("operations (flops)", flops, wording.quantity))
    return tuple(found)


def _figure(label: str, pair: tuple[int, int], text: Callable[[int], str]) -> Figure:
    before, after = pair
    change = wording.change(before, after)
    if not change or change in ("+0.0%", "-0.0%"):
        return Figure(label, text(before), text(after), "about the same" if change else "the same", None)
    return Figure(label, text(before), text(after), change, after < before)


def _bars(record: OptimizeFile) -> tuple[Bar, ...]:
    """Operators by how often they occur, the most frequent first."""
    one, two = record.types_before, record.types_after
    kinds = sorted({*one, *two}, key=lambda kind: (-max(one.get(kind, 0), two.get(kind, 0)), kind))
    most = max((*one.values(), *two.values()), default=1)
    return tuple(
        Bar(kind, before, after, 100 * before / most, 100 * after / most)
        for kind in kinds
        for before, after in [(one.get(kind, 0), two.get(kind, 0))]
    )


def _groups(log: Sequence[Rewrite]) -> tuple[Group, ...]:
    """The rewrites by rule, in the order in which the rules first fired."""
    by_rule: dict[str, list[Rewrite]] = {}
    for rewrite in log:
        by_rule.setdefault(rewrite.rule, []).append(rewrite)
    said = meanings()
    left = LISTED_AT_ALL
    found = []
    for rule, rewrites in by_rule.items():
        listed = tuple(rewrites[: min(LISTED, left)])
        left -= len(listed)
        found.append(
            Group(rule, rewrites[0].pass_name, len(rewrites), why(said, rewrites[0]), _pictures(rewrites), listed)
        )
    return tuple(found)


def _pictures(rewrites: Sequence[Rewrite]) -> tuple[Picture, ...]:
    """The first rewrite drawn; all, where only as many were made as were sketched."""
    sketched = [(rewrite, rewrite.sketches) for rewrite in rewrites if rewrite.sketches is not None]
    chosen = sketched if len(sketched) == len(rewrites) else sketched[:1]
    return tuple(
        Picture(
            rewrite,
            _drawn(one, rewrite, "before"),
            _drawn(two, rewrite, "after"),
            max(one.left_out, two.left_out),
            max(drawing.width(one), drawing.width(two)),
        )
        for rewrite, (one, two) in chosen
        if one.dots or two.dots
    )


def _drawn(sketch: Sketch, rewrite: Rewrite, when: str) -> Markup:
    if not sketch.dots:
        return Markup("")
    return drawing.draw(sketch, f"The graph around {rewrite.site} {when} rewrite {rewrite.number}, {rewrite.rule}")

"""The whole run: passes, verification, and taking back whatever a check objects to.

When the result differs from the original, the guilty rewrite is found by bisection over the numbered changes: a run cut
after k changes is a model too, and can be checked. The guilty one is blocked and the run repeated; all else stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from msgspec import structs

from graphopt.check.given import Given
from graphopt.check.reference import Reference
from graphopt.check.runner import Workplace
from graphopt.check.verification import OFF, UNCHANGED, Verification
from graphopt.model.census import file_bytes
from graphopt.model.collection import paused_collection
from graphopt.model.nodes import graphs_of
from graphopt.model.signature import signature_of
from graphopt.model.text import Progress
from graphopt.rewrite.driver import BrokenRewrite, Pass, run_passes
from graphopt.rewrite.editor import Editor, usual_budget
from graphopt.rewrite.lighten import lighten
from graphopt.rewrite.record import PassRecord, Rewrite, Rollback

MAX_ROLLBACKS = 8  # single rewrites; after that the rules they belong to are blocked as a whole


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run delivers: the model, and the story of how it came to be."""

    model: ir.Model
    log: tuple[Rewrite, ...]
    passes: tuple[PassRecord, ...]
    rolled_back: tuple[Rollback, ...]
    verification: Verification


@dataclass(frozen=True, slots=True)
class _Run:
    model: ir.Model
    log: tuple[Rewrite, ...]
    passes: tuple[PassRecord, ...]
    refused_growth: int | None  # the least number of bytes that the budget for growth was too small for


def optimize_verified(
    original: ir.Model,
    stages: Sequence[Sequence[Pass]],
    *,
    stop_after: int | None = None,
    seconds: float | None,
    most_bytes: int | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
    sketches: bool = False,
    given: Sequence[Given] = (),
    tolerance: float | None = None,
) -> Outcome:
    """Run the stages on a copy of `original`; with `seconds` not None, check the result and roll back what is wrong.

    A result that would take more than `most_bytes` as a file is made lighter; where that does not do, it is made again
    and nothing is written out that costs bytes. Room that is left is filled with constants where that saves nodes.
    Without `most_bytes` constants may add `budget` bytes; None: as many as usual. Feeds that are `given` and a
    `tolerance` are for the check. With `sketches` the first rewrites of each rule are drawn: their records show the
    graph around them.
    """
    blocked: set[tuple[str, str]] = set()
    rolled_back: list[Rollback] = []

    def fitting() -> _Run:
        """A run whose file is no larger than it may be, and that writes out what there is room for."""
        nonlocal budget
        result = run(stop_after)
        if most_bytes is None or not result.log:
            return result
        room = most_bytes - file_bytes(result.model)
        if room < 0 and not lighten(result.model, original, most_bytes) and budget != 0:
            budget = 0
            result = run(stop_after)
            lighten(result.model, original, most_bytes)
        elif budget is None and result.refused_growth is not None and result.refused_growth <= room:
            budget = usual_budget(original) + room
            wider = run(stop_after)
            if _nodes(wider) < _nodes(result) and file_bytes(wider.model) <= most_bytes:
                return wider
            budget = None
        return result

    def run(limit: int | None) -> _Run:
        while True:
            try:
                return _run(original, stages, limit, frozenset(blocked), progress, sketches, budget)
            except BrokenRewrite as broken:
                blocked.add((broken.rule, broken.site))
                rolled_back.append(Rollback(broken.rule, broken.site, broken.reason))
                if len(rolled_back) > MAX_ROLLBACKS:
                    blocked.add((broken.rule, "*"))

    result = fitting()
    if seconds is None:
        return Outcome(result.model, result.log, result.passes, tuple(rolled_back), OFF)
    if not result.log and not given:
        return Outcome(result.model, result.log, result.passes, tuple(rolled_back), UNCHANGED)
    with Workplace() as workplace:
        _tell(progress, "verification: running the original")
        reference = Reference(workplace, original, seconds, given=given, tolerance=tolerance)
        while True:
            _tell(progress, "verification: comparing")
            verdict = _check(reference, original, result.model)
            if not result.log and not given:
                return Outcome(result.model, result.log, result.passes, tuple(rolled_back), UNCHANGED)
            if verdict.status != "different":
                return Outcome(result.model, result.log, result.passes, tuple(rolled_back), verdict)
            _tell(progress, "verification: looking for the guilty rewrite")
            guilty, reason = _bisect(reference, original, run, result, verdict.reason or "the results differ")
            blocked.add((guilty.rule, guilty.site))
            rolled_back.append(Rollback(guilty.rule, guilty.site, reason))
            if len(rolled_back) > MAX_ROLLBACKS:
                blocked.add((guilty.rule, "*"))
            result = fitting()


@paused_collection()
def _run(
    original: ir.Model,
    stages: Sequence[Sequence[Pass]],
    limit: int | None,
    blocked: frozenset[tuple[str, str]],
    progress: Progress | None,
    sketches: bool,
    budget: int | None,
) -> _Run:
    editor = Editor(original.clone(), stop_after=limit, blocked=blocked, sketches=sketches, budget=budget)
    records: list[PassRecord] = []
    for stage in stages:
        records.extend(run_passes(editor, stage, progress))
    return _Run(editor.model, tuple(editor.log), tuple(records), editor.refused_growth)


def _nodes(run: _Run) -> int:
    return sum(len(graph) for graph in graphs_of(run.model))


def _check(reference: Reference, original: ir.Model, candidate: ir.Model) -> Verification:
    """The reference's verdict, after the signature's."""
    verdict = reference.check(candidate)
    changes = signature_of(original).differences(signature_of(candidate))
    if not changes:
        return verdict
    return structs.replace(verdict, status="different", reason=f"the signature changed: {changes[0]}")


def _bisect(
    reference: Reference, original: ir.Model, run: Callable[[int | None], _Run], bad: _Run, reason: str
) -> tuple[Rewrite, str]:
    """The first rewrite after which the model is wrong, and what was wrong then."""
    good, wrong = 0, len(bad.log)
    while wrong - good > 1:
        middle = (good + wrong) // 2
        verdict = _check(reference, original, run(middle).model)
        if verdict.status == "different":
            wrong, reason = middle, verdict.reason or reason
        else:
            good = middle
    return bad.log[wrong - 1], reason


def _tell(progress: Progress | None, text: str) -> None:
    if progress is not None:
        progress(text)

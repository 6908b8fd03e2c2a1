"""The first value at which two models part: intermediates that both name are made outputs and compared in order.

Names are what a rewriter keeps for the values it does not touch, so values of equal name are meant to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import onnx_ir as ir

from graphopt.check.foreign import cut
from graphopt.check.reference import Reference
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.tolerance import Difference
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.text import Progress

CHUNK = 100  # intermediates exposed in one run, so that not all of them are in memory at once


class Divergence(msgspec.Struct, frozen=True):
    """The first value at which two models part."""

    name: str
    node_a: str  # what computes the value, as "Op 'name'"
    node_b: str
    reason: str
    max_abs: float
    max_rel: float
    compared: int  # values found equal before it


def first_divergence(
    first: ir.Model, second: ir.Model, seconds: float, progress: Progress | None = None
) -> Divergence | None:
    """The first value in the order of `first` that differs beyond tolerance on a feed; None when there is none.

    Values that depend on random operators are passed over. Raises CannotRun when a model cannot be run with its
    intermediates as outputs.
    """
    names = common_values(first, second)
    compared = 0
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        if progress is not None:
            progress(f"values {start + 1} to {start + len(chunk)} of {len(names)}")
        found, equal = _compare(exposing(first, chunk), exposing(second, chunk), seconds)
        compared += equal
        if found is not None:
            name, difference = found
            return Divergence(
                name, _producer(first, name), _producer(second, name), difference.reason or "", difference.max_abs,
                difference.max_rel, compared,
            )  # fmt: skip
    return None


def common_values(first: ir.Model, second: ir.Model) -> tuple[str, ...]:
    """Names computed by nodes of both main graphs, in the order of the first."""
    theirs = {output.name for node in second.graph for output in node.outputs}
    mine = (output for node in first.graph for output in node.outputs if nodes.is_used(output))
    return tuple(output.name for output in mine if output.name and output.name in theirs)


def exposing(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy whose only outputs are the values called `names`."""
    copy = model.clone()
    values = {output.name: output for node in copy.graph for output in node.outputs}
    facts = Facts(copy)
    types = {name: facts.known(values[name]).type for name in names}
    copy.graph.outputs.clear()
    for name in names:
        value = values[name]
        value.type, value.shape = value.type or types[name], None
        copy.graph.outputs.append(value)
    return copy


def _compare(first: ir.Model, second: ir.Model, seconds: float) -> tuple[tuple[str, Difference] | None, int]:
    """The first output that differs, and how many before it were equal on every feed."""
    with Workplace() as workplace:
        reference = Reference(workplace, first, seconds)
        if reference.problem is not None:
            raise CannotRun(reference.problem)
        around = cut(second) if reference.foreign else None
        sound = workplace.examined(second)
        runner = workplace.runner(second if around is None else around.model, sound)
        places = {name: position for position, name in enumerate(runner.output_names)}
        runs = [(case, runner.run(case.feed)) for case in reference.cases]
        names = reference.runner.output_names[: len(runs[0][0].outputs)]
        for position, name in enumerate(names):
            if name in reference.excluded or name not in places:
                continue
            for case, found in runs:
                difference = reference.difference(name, case, case.outputs[position], found[places[name]])
                if difference.reason is not None:
                    return (name, difference), position
        return None, len(names)


def _producer(model: ir.Model, name: str) -> str:
    found = (nodes.describe(node) for node in model.graph for output in node.outputs if output.name == name)
    return next(found, "what an operator that cannot be run here reads")

"""The steps of a sequence: found again as one tensor where they were cut from one, joined where they were not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.movement import slice_bounds
from graphopt.model.operators.parameters import Unclear
from graphopt.passes.fusion.private import made_by
from graphopt.rewrite.rule import Match


@dataclass(frozen=True, slots=True)
class Step:
    """Place `index` along `axis` of a tensor, without that axis."""

    source: ir.Value
    axis: int
    index: int


@dataclass(frozen=True, slots=True)
class Run:
    """Neighboring steps of one tensor, in order or, with `reverse`, from the last to the first."""

    source: ir.Value
    axis: int
    start: int
    stop: int
    reverse: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """Steps as one [steps, batch, features] tensor; `reverse` when the first step comes last in it."""

    value: ir.Value
    reverse: bool


def join(match: Match, pieces: Sequence[ir.Value]) -> Joined:
    """[batch, features] values in order as one tensor; the number of features is known.

    Steps of one tensor, from first to last or from last to first, are that tensor, cut where it is longer and
    transposed where they lie along its second axis. Others are joined by a Concat.
    """
    run = run_of(match.facts, pieces)
    if run is not None and run.axis < 2 and match.facts.rank(run.source) == 3:
        whole = cut(match, run)
        if run.axis == 1:
            whole = match.op("Transpose", whole, attributes={"perm": (1, 0, 2)})
        return Joined(whole, run.reverse)
    batch, features = match.shape(pieces[0])
    assert isinstance(features, int), "the caller has looked"
    flat = match.op("Concat", *pieces, attributes={"axis": 0})
    target = match.ints_constant(len(pieces), batch if isinstance(batch, int) else -1, features)
    return Joined(match.op("Reshape", flat, target), False)


def cut(match: Match, run: Run) -> ir.Value:
    """The steps of a run as one tensor, in the order in which they lie."""
    shape = match.shape(run.source)
    if shape[run.axis] == run.stop - run.start:
        return run.source
    attributes = {"starts": (run.start,), "ends": (run.stop,), "axes": (run.axis,)}
    return match.op("Slice", run.source, attributes=attributes)


def run_of(facts: Facts, pieces: Sequence[ir.Value]) -> Run | None:
    """The pieces as neighboring steps of one tensor; None when they are no such thing."""
    steps = [step_of(facts, piece) for piece in pieces]
    first = steps[0]
    if first is None:
        return None
    places: list[int] = []
    for step in steps:
        if step is None or step.source is not first.source or step.axis != first.axis:
            return None
        places.append(step.index)
    low, high = min(places), max(places) + 1
    upwards = list(range(low, high))
    if places == upwards:
        return Run(first.source, first.axis, low, high, False)
    return Run(first.source, first.axis, low, high, True) if places == upwards[::-1] else None


def step_of(facts: Facts, value: ir.Value) -> Step | None:
    """Which step of which tensor the value is."""
    node = value.producer()
    if node is None or not nodes.is_standard(node) or nodes.has_reference_attributes(node):
        return None
    source = nodes.input_at(node, 0)
    whole, kept = None if source is None else facts.shape(source), facts.shape(value)
    if source is None or whole is None or kept is None:
        return None
    if node.op_type == "Gather":
        place = facts.ints(nodes.input_at(node, 1))
        if place is None or len(place) != 1 or len(whole) != len(kept) + 1:
            return None
        return _placed(facts, source, nodes.int_attribute(node, "axis", 0) % len(whole), place[0])
    if node.op_type in ("Squeeze", "Reshape"):
        return _kept_step(facts, source, value)
    return None


def _kept_step(facts: Facts, kept: ir.Value | None, value: ir.Value) -> Step | None:
    """The step of a Slice or Split that keeps its axis, which a Squeeze or Reshape has then dropped."""
    node = made_by(kept, "Slice", "Split")
    if kept is None or node is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    shape, whole, flat = facts.shape(kept), facts.shape(source), facts.shape(value)
    if shape is None or whole is None or flat is None or len(flat) != len(whole) - 1 or len(shape) != len(whole):
        return None
    for axis in range(len(whole)):
        others = tuple(dim for place, dim in enumerate(shape) if place != axis)
        if shape[axis] != 1 or others != flat or tuple(d for p, d in enumerate(whole) if p != axis) != flat:
            continue
        if node.op_type == "Split":
            if nodes.int_attribute(node, "axis", 0) % len(whole) != axis:
                continue
            sizes = [facts.shape(output) for output in node.outputs]
            if all(size is not None and size[axis] == 1 for size in sizes):
                return _placed(facts, source, axis, kept.index() or 0)
            continue
        start = _start(facts, node, axis, len(whole))
        if start is not None:
            return _placed(facts, source, axis, start)
    return None


def _start(facts: Facts, node: ir.Node, axis: int, rank: int) -> int | None:
    """Where a Slice along `axis` alone begins."""
    try:
        bounds = slice_bounds(facts, node)
    except Unclear:
        return None
    return bounds.starts[0] if len(bounds.axes) == 1 and bounds.axes[0] % rank == axis else None


def _placed(facts: Facts, source: ir.Value, axis: int, index: int) -> Step | None:
    shape = facts.shape(source)
    if shape is None:
        return None
    size = shape[axis]
    if index < 0:
        return Step(source, axis, index + size) if isinstance(size, int) else None
    return Step(source, axis, index)

"""Whether a model whose fixed dim was freed treats samples as the original did: twice the size equals two runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.runner import CannotRun, Runner, Workplace
from graphopt.check.tolerance import ROUGH, compare


def freed_fault(original: ir.Model, freed: ir.Model) -> str | None:
    """Run `freed` on two samples and `original` on each alone; what differs, None when they agree."""
    inputs = _changed_axes(original.graph.inputs, freed.graph.inputs)
    outputs = _changed_axes(original.graph.outputs, freed.graph.outputs)
    doubled = {name: 2 * size for _, name, size in inputs.values()}
    with Workplace() as workplace:
        try:
            alone = workplace.runner(original, workplace.examined(original))
            together = workplace.runner(freed, workplace.examined(freed))
            feed = make_feed(inputs_of(freed), doubled, "normal")
            whole = together.run(feed)
            halves = [_run_half(alone, feed, inputs, half) for half in range(2)]
        except CannotRun as error:
            return str(error)
    for position, (first, second, found) in enumerate(zip(*halves, whole, strict=True)):
        value = freed.graph.outputs[position]
        if position in outputs:
            expected: object = np.concatenate([np.asarray(first), np.asarray(second)], axis=outputs[position][0])
        else:
            expected = first
        difference = compare(expected, found, limit=ROUGH)
        if difference.reason is not None:
            return f"output '{value.name}' for two samples is not that of each alone ({difference.reason})"
    return None


def _changed_axes(before: Sequence[ir.Value], after: Sequence[ir.Value]) -> dict[int, tuple[int, str, int]]:
    """By position of the value: the axis that was fixed and is free now, its new name, its old size."""
    found: dict[int, tuple[int, str, int]] = {}
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        for axis, (was, now) in enumerate(zip(old.shape or (), new.shape or (), strict=False)):
            if isinstance(was, int) and isinstance(now, ir.SymbolicDim) and now.value is not None:
                found[position] = (axis, now.value, was)
                break
    return found


def _run_half(
    runner: Runner, feed: dict[str, object], inputs: dict[int, tuple[int, str, int]], half: int
) -> Sequence[object]:
    given = {}
    for position, (name, array) in enumerate(feed.items()):
        if position in inputs:
            axis, _, size = inputs[position]
            array = np.take(np.asarray(array), range(half * size, (half + 1) * size), axis=axis)
        given[name] = array
    return runner.run(given)

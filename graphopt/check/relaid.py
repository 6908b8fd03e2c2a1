"""Whether a model whose inputs and outputs have another layout gives what the original gives, in that layout."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.randomness import random_outputs
from graphopt.check.runner import CannotRun, Runner, Workplace
from graphopt.check.search import TRIES
from graphopt.check.sizes import first_sizes
from graphopt.check.tolerance import ROUGH, compare
from graphopt.model.relayout import Relayout


def relaid_fault(original: ir.Model, relaid: ir.Model, change: Relayout) -> str | None:
    """Run both on one feed, permuted for `relaid`; what differs, None when they agree."""
    with Workplace() as workplace:
        try:
            runner = workplace.runner(original, workplace.examined(original))
            feed, expected = _first_run(original, runner)
            names = {original.graph.inputs[place].name: perm for place, perm in change.inputs.items()}
            turned = {name: _permuted(array, names.get(name)) for name, array in feed.items()}
            found = workplace.runner(relaid, workplace.examined(relaid)).run(turned)
        except CannotRun as error:
            return str(error)
    random = random_outputs(original)
    for position, (one, other) in enumerate(zip(expected, found, strict=True)):
        name = original.graph.outputs[position].name
        difference = compare(_permuted(one, change.outputs.get(position)), other, limit=ROUGH)
        if difference.reason is not None and name not in random:
            return f"output '{name}' is not the permuted one ({difference.reason})"
    return None


def _first_run(model: ir.Model, runner: Runner) -> tuple[dict[str, object], Sequence[object]]:
    """A feed that the model accepts, and what it gives."""
    inputs = inputs_of(model)
    last: Exception = CannotRun("no feed was found that the model accepts")
    for sizes in itertools.islice(first_sizes(inputs), TRIES):
        feed = make_feed(inputs, sizes, "normal")
        try:
            return feed, runner.run(feed)
        except CannotRun as error:
            last = error
    raise last


def _permuted(array: object, perm: tuple[int, ...] | None) -> object:
    return array if perm is None else np.ascontiguousarray(np.transpose(np.asarray(array), perm))

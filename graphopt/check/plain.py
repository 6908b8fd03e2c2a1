"""A feed to time a model with, or to show what it gives: the first of the plain draws that it runs on."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import Feed, make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.search import FIRST


def plain_feed(model: ir.Model) -> Feed:
    """Seeded values for all inputs, whose dims are numbers; those of the first draw where the model runs on none.

    Floats suit every model. Integers may be places of a table, and are tried. Raises ValueError for inputs that no
    value suits.
    """
    inputs = inputs_of(model)
    first = make_feed(inputs, {}, FIRST[0])
    if not any(isinstance(value, np.ndarray) and value.dtype.kind in "iu" for value in first.values()):
        return first
    with Workplace() as workplace:
        try:
            runner = workplace.runner(model, workplace.examined(model))
        except CannotRun:
            return first
        for draw in FIRST:
            feed = make_feed(inputs, {}, draw)
            try:
                runner.run(feed)
            except CannotRun:
                continue
            return feed
    return first

"""Shapes that only a run can tell: seen in one run on seeded inputs.

An exporter computes amounts of padding or ends of ranges with operators whose results no inference follows, though they
are the same in every run; and results of NonZero and the like really differ. Either way the run gives a number, and
whoever uses it says where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.check.divergence import CHUNK, exposing
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.runner import CannotRun, OutOfTime, Workplace

SECONDS = 120.0  # of a run; a model that takes longer is not waited for, and what it computes has no known size


def observed(model: ir.Model, names: Sequence[str]) -> Mapping[str, tuple[str, tuple[int, ...], int]]:
    """Dtype, shape and bytes by name of the values called `names`; nothing where the model cannot be run."""
    found: dict[str, tuple[str, tuple[int, ...], int]] = {}
    try:
        with Workplace() as workplace:
            sound = workplace.examined(model)
            for start in range(0, len(names), CHUNK):
                chunk = names[start : start + CHUNK]
                runner = workplace.runner(exposing(model, chunk), sound)
                results = runner.run(make_feed(inputs_of(model), {}, "normal"), SECONDS)
                for name, result in zip(runner.output_names, results, strict=True):
                    if isinstance(result, np.ndarray):
                        found[name] = (str(result.dtype), result.shape, result.nbytes)
    except (CannotRun, OutOfTime, ValueError):
        return found
    return found

"""What ai.onnx.ml does to a row of scores in the end."""

from __future__ import annotations

from math import inf, pi

from graphopt.errors import NotLowered
from graphopt.program.regions.routines.stage import Stage
from kernels.routine.writer import Grid, either, eq, gt, lt, maximum, number, pick
from kernels.tensor.expression import Expression, Unary

NONE = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # by their numbers in TreeEnsemble


def post_transformed(w: Stage, scores: Grid, way: str) -> None:
    """Transform a row of scores in scratch, in place. Raises NotLowered for an unknown way."""
    count, kind = scores.shape[0], scores.dtype
    match way:
        case "NONE":
            return
        case "LOGISTIC":
            with w.loop(count) as at:
                scores[at] = Unary("sigmoid", scores[at])
            return
        case "PROBIT":
            with w.loop(count) as at:
                scores[at] = _error_inverse(scores[at] * 2.0 - 1.0) * 1.41421356
            return
        case "SOFTMAX" | "SOFTMAX_ZERO":
            largest, total = w.local(kind, number(-inf, kind)), w.local(kind, number(0, kind))
            with w.loop(count) as at:
                w.set(largest, maximum(largest, scores[at]))
            with w.loop(count) as at:
                found: Expression = Unary("exp", scores[at] - largest)
                if way == "SOFTMAX_ZERO":  # zeros stay zeros
                    some = either(gt(scores[at], 1e-7), lt(scores[at], -1e-7))
                    found = pick(some, found, scores[at] * Unary("exp", -largest))
                scores[at] = found
                w.set(total, total + scores[at])
            with w.loop(count) as at:
                scores[at] = pick(eq(total, 0), number(0.5, kind), scores[at] / total)
            return
    raise NotLowered(f"scores are not transformed by {way}.")


def _error_inverse(x: Expression) -> Expression:
    """The inverse of erf, by Winitzki's approximation (2008) as ONNX Runtime has it."""
    log = Unary("log", (1.0 - x) * (1.0 + x))
    v = log * 0.5 + 2.0 / (pi * 0.147)
    found = Unary("sqrt", Unary("sqrt", v * v - log * (1.0 / 0.147)) - v)
    return pick(lt(x, 0), -found, found)

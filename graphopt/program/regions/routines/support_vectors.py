"""Support vector machines (ai.onnx.ml): kernels of a row with all vectors, then what their sums decide.

Scores, votes and labels are as ONNX Runtime gives them. Labels that are texts are no numbers, and refused.
"""

from __future__ import annotations

from math import prod

import numpy as np

from graphopt.program.regions.routines.scores import post_transformed
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from graphopt.program.regions.routines.sums import summed
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, both, ge, gt, lt, maximum, minimum, number, pick
from kernels.tensor.expression import Binary, Expression, Unary

F32, I64 = DType.F32, DType.I64
_ROUNDS = 100  # of the iteration that finds probabilities of more than two classes
_LEAST = 1e-7  # of the probability of a pair


def _kernels(node: Defined, vectors: int, kind: str) -> View:
    """The kernel of each row with each vector: all vectors side by side, number by number of the row."""
    gamma, offset, degree = (*node.numbers("kernel_params"), 0.0, 0.0, 0.0)[:3]
    x = node.input(0)
    rows, width = prod(x.shape[:-1]), x.shape[-1]
    held = np.asarray(node.numbers("support_vectors"), np.float32)
    node.require(held.size == vectors * width, "has vectors of another width than its input")
    found = node.temporary(F32, (rows, vectors))
    table = np.ascontiguousarray(held.reshape(vectors, width).T)
    with node.stage() as w:
        source, of, y = w.reads(x), w.reads(node.table(table)), w.writes(found)
        with w.shared(rows) as (row,):
            with w.loop(vectors) as vector:
                y[row, vector] = 0.0
            with w.loop(width) as at:
                one = w.local(F32, as_type(source.at(row * width + at), F32))
                with w.loop(vectors) as vector:
                    other = of[at, vector]
                    term = (one - other) * (one - other) if kind == "RBF" else one * other
                    y[row, vector] = y[row, vector] + term
            with w.loop(vectors) as vector:
                y[row, vector] = _kernel(node, kind, y[row, vector], gamma, offset, degree)
    return found


def _kernel(node: Defined, kind: str, total: Expression, gamma: float, offset: float, degree: float) -> Expression:
    """Of a sum of products, or of squares of differences."""
    match kind:
        case "LINEAR":
            return total
        case "RBF":
            return Unary("exp", total * -gamma)
        case "SIGMOID":
            return Unary("tanh", total * gamma + offset)
        case "POLY":
            return Binary("pow", total * gamma + offset, number(float(int(degree)), F32))
    raise node.refuse(f"has kernels {kind}")


def regress(node: Defined) -> None:
    """A sum of kernels, or a linear function of a row; of one class, the side on which it lies."""
    vectors, x = node.integer("n_supports", 0), node.input(0)
    rows = prod(x.shape[:-1])
    factors = np.asarray(node.numbers("coefficients"), np.float32)
    read = _kernels(node, vectors, node.text("kernel_type", "LINEAR")) if vectors else x
    node.require(factors.size == read.shape[-1], "has coefficients for other operands")
    shift, is_side = (*node.numbers("rho"), 0.0)[0], bool(node.integer("one_class", 0))
    with node.stage() as w:
        operands, table, y = w.reads(read), w.reads(node.table(factors)), w.writes(node.output(0))
        with w.shared(rows) as (row,):

            def term(at: Expression) -> Expression:
                return as_type(operands.at(row * factors.size + at), F32) * table.at(at)

            total = w.local(F32, summed(w, F32, factors.size, term) + shift)
            y.put(row, pick(gt(total, 0), number(1, F32), -1) if is_side else total)


def classify(node: Defined) -> None:
    """The label that most pairs of classes vote for, and their scores, or probabilities made of these."""
    labels = node.integers("classlabels_ints")
    if not labels:
        raise node.refuse("has labels that are texts")
    sizes, shifts = node.integers("vectors_per_class"), node.numbers("rho")
    if not sum(sizes):
        raise node.refuse("has no vectors, so that it is a linear model, which is not written")
    classes, vectors = len(labels), sum(sizes)
    pairs = [(one, other) for one in range(classes) for other in range(one + 1, classes)]
    post, has_odds = node.text("post_transform", "NONE"), bool(node.numbers("prob_a"))
    factors = np.asarray(node.numbers("coefficients"), np.float32)
    node.require(
        len(sizes) == classes > 1 and len(shifts) == len(pairs) and factors.size == (classes - 1) * vectors,
        "has numbers for other classes",
    )
    node.require(has_odds or post == "NONE" or len(pairs) > 1, f"has one score that is transformed by {post}")
    kernels = _kernels(node, vectors, node.text("kernel_type", "LINEAR"))
    with node.stage() as w:
        read, table = w.reads(kernels), w.reads(node.table(factors))
        label = w.writes(node.output(0)) if node.wants(0) else None
        y = w.writes(node.output(1)) if node.wants(1) else None
        names = w.reads(node.table(np.asarray(labels, np.int64)))
        scores, votes = w.scratch(F32, (len(pairs),)), w.scratch(I64, (classes,))
        odds = _Odds(node, w, pairs, classes) if has_odds else None
        with w.shared(kernels.shape[0]) as (row,):
            with w.loop(classes) as at:
                votes[at] = 0
            for place, (one, other) in enumerate(pairs):
                total: Expression = number(shifts[place], F32)
                for mine, line in ((one, other - 1), (other, one)):
                    start = sum(sizes[:mine])

                    def term(at: Expression, line: int = line, start: int = start) -> Expression:
                        return read.at(row * vectors + start + at) * table.at(line * vectors + start + at)

                    total = total + summed(w, F32, sizes[mine], term)
                scores[place] = w.local(F32, total)
                winner = w.local(I64, pick(gt(scores[place], 0), number(one, I64), other))
                votes[winner] = votes[winner] + 1
            best = w.local(I64, 0)
            with w.loop(classes) as at:
                w.set(best, pick(gt(votes[at], votes[best]), at, best))
            if label is not None:
                label.put(row, names.at(best))
            if y is None:
                return
            shown = scores if odds is None else odds.of(scores)
            if odds is not None or len(pairs) > 1:
                post_transformed(w, shown, post)
                with w.loop(shown.shape[0]) as at:
                    y.put(row * shown.shape[0] + at, shown[at])
            else:
                y.put(row * 2, -scores[0])
                y.put(row * 2 + 1, scores[0])


class _Odds:
    """Probabilities of classes by those of pairs: Wu, Lin and Weng (2004), the second method, as libsvm has it."""

    def __init__(self, node: Defined, w: Stage, pairs: list[tuple[int, int]], classes: int) -> None:
        self._w, self._pairs, self._classes = w, pairs, classes
        self._a, self._b = node.numbers("prob_a"), node.numbers("prob_b")
        node.require(len(self._a) == len(self._b) == len(pairs), "has probabilities for other pairs")
        self._r, self._q = (w.scratch(F32, (classes, classes)) for _ in range(2))
        self._p, self._qp = (w.scratch(F32, (classes,)) for _ in range(2))

    def of(self, scores: Grid) -> Grid:
        """The probabilities of a row, by the scores of its pairs."""
        w, count, r, q, p, qp = self._w, self._classes, self._r, self._q, self._p, self._qp
        for place, (mine, theirs) in enumerate(self._pairs):
            odds = 1.0 - Unary("sigmoid", scores[place] * self._a[place] + self._b[place])
            r[mine, theirs] = w.local(F32, minimum(maximum(odds, _LEAST), 1.0 - _LEAST))
            r[theirs, mine] = 1.0 - r[mine, theirs]
        for mine in range(count):
            p[mine] = 1.0 / count
            q[mine, mine] = number(0, F32)
            for theirs in range(count):
                if theirs != mine:
                    q[mine, mine] = q[mine, mine] + r[theirs, mine] * r[theirs, mine]
                    q[mine, theirs] = -(r[theirs, mine] * r[mine, theirs])
        turn, error = w.local(I64, 0), w.local(F32, 1.0)
        mean, step = w.local(F32, 0.0), w.local(F32, 0.0)
        with w.loop_while(both(lt(turn, _ROUNDS), ge(error, 0.005 / count))):
            w.set(turn, turn + 1)
            w.set(mean, 0.0)
            with w.loop(count) as one:
                qp[one] = number(0, F32)
                with w.loop(count) as other:
                    qp[one] = qp[one] + q[one, other] * p[other]
                w.set(mean, mean + p[one] * qp[one])
            w.set(error, 0.0)
            with w.loop(count) as one:
                w.set(error, maximum(error, Unary("abs", qp[one] - mean)))
            with w.when(ge(error, 0.005 / count)), w.loop(count) as one:
                w.set(step, (mean - qp[one]) / q[one, one])
                p[one] = p[one] + step
                w.set(mean, (mean + step * (step * q[one, one] + 2.0 * qp[one])) / (1.0 + step) / (1.0 + step))
                with w.loop(count) as other:
                    qp[other] = (qp[other] + step * q[one, other]) / (1.0 + step)
                    p[other] = p[other] / (1.0 + step)
        return p


ML_DEFINITIONS: dict[str, Definition] = {"SVMRegressor": regress, "SVMClassifier": classify}

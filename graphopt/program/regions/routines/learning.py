"""Operators of ai.onnx.ml on numbers, except trees; and n-grams counted (TfIdfVectorizer).

Labels and categories that are texts are no numbers, and refused.
"""

from __future__ import annotations

from math import prod

import numpy as np

from graphopt.model.nodes import attribute_of
from graphopt.program.regions.routines.scores import post_transformed
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted, held
from graphopt.program.regions.routines.sums import summed
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    either,
    eq,
    ge,
    gt,
    integer,
    le,
    maximum,
    minimum,
    number,
    pick,
)
from kernels.tensor.expression import Expression, Unary

F32, I64 = DType.F32, DType.I64


def extract(node: Defined) -> None:
    """The elements of the last dim that are listed."""
    with node.stage() as w:
        x, places, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        size, count = x.shape[-1], prod(places.shape)
        with w.shared(prod(x.shape[:-1])) as (row,), w.loop(count) as at:
            y.put(row * count + at, x.at(row * size + counted(places.at(at), size)))


def binarize(node: Defined) -> None:
    """1 where an element is above the threshold, 0 elsewhere."""
    threshold = node.number("threshold", 0.0)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(prod(x.shape)) as (at,):
            kind = held(x.dtype) if x.dtype.is_float else DType.F64
            y.put(at, pick(gt(as_type(x.at(at), kind), threshold), number(1, y.dtype), 0))


def scale(node: Defined) -> None:
    """(x - offset) * scale, of each feature or of all."""
    offsets, factors = (
        np.asarray(node.numbers(name, (one,)), np.float32) for name, one in (("offset", 0), ("scale", 1))
    )
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        shift, factor = w.reads(node.table(offsets)), w.reads(node.table(factors))
        width = x.shape[-1] if x.shape else 1
        with w.shared(prod(x.shape[:-1])) as (row,), w.loop(width) as at:
            a, b = (one.at(at if one.shape[0] > 1 else 0) for one in (shift, factor))
            y.put(row * width + at, as_type((as_type(x.at(row * width + at), F32) - a) * b, y.dtype))


def normalize(node: Defined) -> None:
    """Rows by their largest element (MAX), the sum of magnitudes (L1) or the root of that of squares (L2)."""
    norm = node.text("norm", "MAX")
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        width = x.shape[-1]
        with w.shared(prod(x.shape[:-1])) as (row,):
            start = w.local(I64, row * width)
            if norm == "MAX":
                total = w.local(F32, as_type(x.at(start), F32))
                with w.loop(width) as at:
                    w.set(total, maximum(total, as_type(x.at(start + at), F32)))
            else:

                def term(at: Expression) -> Expression:
                    one = as_type(x.at(start + at), F32)
                    return Unary("abs", one) if norm == "L1" else one * one

                found = summed(w, F32, width, term)
                total = w.local(F32, found if norm == "L1" else Unary("sqrt", found))
            with w.loop(width) as at:
                one = as_type(x.at(start + at), F32)
                y.put(start + at, as_type(pick(eq(total, 0), one, one / total), y.dtype))


def impute(node: Defined) -> None:
    """What stands for a missing element, put in its place."""
    floats = attribute_of(node.node, "imputed_value_floats") is not None
    values = node.numbers("imputed_value_floats") or node.integers("imputed_value_int64s")
    missing = node.number("replaced_value_float", 0.0) if floats else node.integer("replaced_value_int64", 0)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        table = w.reads(node.table(np.asarray(values, x.dtype.numpy)))
        width = x.shape[-1]
        with w.shared(prod(x.shape[:-1])) as (row,), w.loop(width) as at:
            one = w.local(held(x.dtype), as_type(x.at(row * width + at), held(x.dtype)))
            is_missing = Unary("is_nan", one) if missing != missing else eq(one, missing)
            other = as_type(table.at(at if len(values) > 1 else 0), one.dtype)
            y.put(row * width + at, as_type(pick(is_missing, other, one), y.dtype))


def _linear_scores(node: Defined, w: Stage, x: Grid, row: Expression, scores: Grid) -> None:
    """The products of a row with the coefficients, and the intercepts."""
    count, width, kind = scores.shape[0], x.shape[-1], scores.dtype
    factors = w.reads(node.table(np.asarray(node.numbers("coefficients"), kind.numpy)))
    shifts = w.reads(node.table(np.asarray(node.numbers("intercepts") or (0.0,) * count, kind.numpy)))
    with w.loop(count) as target:

        def term(at: Expression) -> Expression:
            return as_type(x.at(row * width + at), kind) * factors.at(target * width + at)

        scores[target] = summed(w, kind, width, term) + shifts.at(target)


def regress(node: Defined) -> None:
    """A linear function for each target."""
    kind = DType.F64 if node.dtype(0) is DType.F64 else F32
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        scores = w.scratch(kind, (node.integer("targets", 1),))
        with w.shared(prod(x.shape[:-1])) as (row,):
            _linear_scores(node, w, x, row, scores)
            post_transformed(w, scores, node.text("post_transform", "NONE"))
            with w.loop(scores.shape[0]) as at:
                y.put(row * scores.shape[0] + at, as_type(scores[at], y.dtype))


def classify(node: Defined) -> None:
    """The label of the largest score, and the scores; one score of two classes is shown with its negative."""
    labels = node.integers("classlabels_ints")
    if not labels:
        raise node.refuse("has labels that are texts")
    width = node.shape(0)[-1]
    given = len(node.numbers("coefficients")) // width
    if given == 1 and len(labels) != 2:
        raise node.refuse("has one score for other than two classes")
    with node.stage() as w:
        x = w.reads(node.input(0))
        label = w.writes(node.output(0)) if node.wants(0) else None
        y = w.writes(node.output(1)) if node.wants(1) else None
        scores, shown = w.scratch(F32, (given,)), w.scratch(F32, (len(labels),))
        names = w.reads(node.table(np.asarray(labels, np.int64)))
        post = node.text("post_transform", "NONE")
        with w.shared(prod(x.shape[:-1])) as (row,):
            _linear_scores(node, w, x, row, scores)
            best = w.local(I64, 0)
            if given == 1:
                w.set(best, as_type(gt(scores[0], 0), I64))
                shown[0] = 1.0 - Unary("sigmoid", scores[0]) if post == "LOGISTIC" else -scores[0]
                shown[1] = Unary("sigmoid", scores[0]) if post == "LOGISTIC" else scores[0]
                post_transformed(w, shown, "NONE" if post == "LOGISTIC" else post)
            else:
                with w.loop(given) as at:
                    w.set(best, pick(gt(scores[at], scores[best]), at, best))
                    shown[at] = scores[at]
                post_transformed(w, shown, post)
            if label is not None:
                label.put(row, names.at(best))
            if y is not None:
                with w.loop(len(labels)) as at:
                    y.put(row * len(labels) + at, shown[at])


def encode(node: Defined) -> None:
    """Numbers by a table of keys and values; others get the default."""
    keys, values = (_listed(node, name) for name in ("keys", "values"))
    if keys is None or values is None:
        raise node.refuse("has keys or values that are texts")
    result = node.output_dtype(0)
    tensor = attribute_of(node.node, "default_tensor")
    usual: float = node.integer("default_int64", -1) if not result.is_float else node.number("default_float", -0.0)
    if tensor is not None:
        usual = tensor.value.numpy().reshape(-1)[0].item()
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        from_, to = w.reads(node.table(keys.astype(x.dtype.numpy))), w.reads(node.table(values.astype(result.numpy)))
        with w.shared(prod(x.shape)) as (place,):
            one = w.local(held(x.dtype), as_type(x.at(place), held(x.dtype)))
            found = w.local(I64, -1)
            with w.loop(len(keys)) as at:
                key = as_type(from_.at(at), one.dtype)
                same = either(eq(one, key), both(_is_nan(one), _is_nan(key))) if x.dtype.is_float else eq(one, key)
                w.set(found, pick(same, at, found))
            value = as_type(to.at(maximum(found, 0)), held(result))
            y.put(place, as_type(pick(ge(found, 0), value, number(usual, held(result))), result))


def _is_nan(x: Expression) -> Expression:
    return Unary("is_nan", x)


def _listed(node: Defined, name: str) -> np.ndarray | None:
    """Keys or values, as numbers; None where they are texts."""
    for suffix in ("_int64s", "_floats", "_tensor"):
        found = attribute_of(node.node, name + suffix)
        if found is not None:
            array = np.asarray(found.value.numpy() if suffix == "_tensor" else found.value)
            return array if array.dtype.kind in "biuf" else None
    return None


def one_hot(node: Defined) -> None:
    """A 1 in the place of each element's category."""
    categories = node.integers("cats_int64s")
    if not categories:
        raise node.refuse("has categories that are texts")
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        names = w.reads(node.table(np.asarray(categories, np.int64)))
        with w.shared(prod(x.shape)) as (place,), w.loop(len(categories)) as at:
            same = eq(as_type(x.at(place), I64), names.at(at))
            y.put(place * len(categories) + at, pick(same, number(1, y.dtype), 0))


def join_features(node: Defined) -> None:
    """The features of all operands side by side; each is cut or filled with zeros to its size."""
    sizes = node.integers("inputdimensions") or tuple(node.shape(at)[-1] for at in range(len(node.node.inputs)))
    total = sum(sizes)
    with node.stage() as w:
        operands = [w.reads(node.input(at)) for at in range(len(sizes))]
        y, start = w.writes(node.output(0)), 0
        with w.shared(y.shape[0]) as (row,):
            for x, size in zip(operands, sizes, strict=True):
                width = prod(x.shape[1:])
                with w.loop(min(size, width)) as at:
                    y.put(row * total + start + at, as_type(x.at(row * width + at), y.dtype))
                with w.loop(size, min(size, width)) as at:
                    y.put(row * total + start + at, number(0, y.dtype))
                start += size


def count_grams(node: Defined) -> None:
    """How often each n-gram of the pool stands in a row, its items up to some places apart."""
    pool, starts = node.integers("pool_int64s"), node.integers("ngram_counts")
    if not pool:
        raise node.refuse("has a pool of texts")
    least, most = node.integer("min_gram_length", 1), node.integer("max_gram_length", 1)
    grams: list[tuple[int, int]] = []  # where each begins in the pool, and its length
    for size_of, (begin, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        grams += [(place, size_of if least <= size_of <= most else 0) for place in range(begin, end, size_of)]
    indices, weights, mode = node.integers("ngram_indexes"), node.numbers("weights"), node.text("mode", "TF")
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        size, width = x.shape[-1] if x.shape else 1, y.shape[-1]
        items = w.reads(node.table(np.asarray(pool, np.int64)))
        table = w.reads(
            node.table(np.asarray([(*gram, to) for gram, to in zip(grams, indices, strict=True)], np.int64))
        )
        factors = w.reads(node.table(np.asarray(weights, np.float32))) if weights and mode != "TF" else None
        with w.shared(prod(x.shape[:-1])) as (row,):
            with w.loop(width) as at:
                y.put(row * width + at, number(0.0, y.dtype))
            with w.loop(len(grams)) as gram:
                first, length, to = (w.local(I64, table[gram, one]) for one in range(3))
                found = w.local(I64, 0)
                skips = pick(le(length, 1), minimum(length, 1), node.integer("max_skip_count", 0) + 1)
                with w.loop(skips + 1, 1) as skip, w.loop(integer(size) - (length - 1) * skip) as start:
                    same = w.local(DType.BOOL, True)
                    with w.loop(length) as at:
                        one = as_type(x.at(row * size + start + at * skip), I64)
                        w.set(same, both(same, eq(one, items.at(first + at))))
                    w.set(found, found + as_type(same, I64))
                place = w.local(I64, row * width + to)
                y.put(place, y.at(place) + as_type(found, F32))
            if mode != "TF":
                with w.loop(width) as at:
                    total: Expression = y.at(row * width + at)
                    total = pick(gt(total, 0), number(1.0, F32), 0) if mode == "IDF" else total
                    y.put(row * width + at, total if factors is None else total * factors.at(at))


DEFINITIONS: dict[str, Definition] = {"TfIdfVectorizer": count_grams}
ML_DEFINITIONS: dict[str, Definition] = {
    "ArrayFeatureExtractor": extract,
    "Binarizer": binarize,
    "Scaler": scale,
    "Normalizer": normalize,
    "Imputer": impute,
    "LinearRegressor": regress,
    "LinearClassifier": classify,
    "LabelEncoder": encode,
    "OneHotEncoder": one_hot,
    "FeatureVectorizer": join_features,
}

"""Operators that draw numbers: each element from a hash of the seed and its place, so that workers need no state.

A program draws the same numbers in every call: those of its seed, or of the result's name where it has none. The hash
is splitmix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators), normal numbers are made by the
transform of Box and Muller. They are not the numbers of another runtime, which ONNX leaves open.
"""

from __future__ import annotations

import math
import struct
import zlib

from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from kernels.dtype import DType
from kernels.routine.writer import as_type, ge, integer, le, lt, maximum, number, pick
from kernels.tensor.expression import Binary, Expression, Unary

_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _key(node: Defined) -> int:
    """What tells the numbers of one node from those of another."""
    seed = node.number("seed", math.nan)
    given = (node.node.outputs[0].name or "").encode() if math.isnan(seed) else struct.pack("<d", seed)
    return (zlib.crc32(given) + 1) * _GOLDEN & (1 << 64) - 1


def _hashed(w: Stage, key: int, place: Expression) -> Expression:
    """64 bits of a place."""
    found = w.local(DType.U64, as_type(place, DType.U64) * _GOLDEN + key)
    for shift, factor in _ROUNDS:
        w.set(found, Binary("xor", found, Binary("shr", found, number(shift, DType.U64))) * factor)
    w.set(found, Binary("xor", found, Binary("shr", found, number(31, DType.U64))))
    return found


def _uniform(w: Stage, key: int, place: Expression, kind: DType, *, above: bool = False) -> Expression:
    """A number in [0, 1), or in (0, 1], that has all bits of its type's fraction."""
    bits = 53 if kind is DType.F64 else 24
    high = as_type(Binary("shr", _hashed(w, key, place), number(64 - bits, DType.U64)), DType.I64)
    return as_type(high + (1 if above else 0), kind) * 2.0**-bits


def _normal(w: Stage, key: int, place: Expression, kind: DType) -> Expression:
    radius = Unary("sqrt", Unary("log", _uniform(w, key, place * 2, kind, above=True)) * -2.0)
    return radius * Unary("cos", _uniform(w, key, place * 2 + 1, kind) * (2 * math.pi))


def uniform(node: Defined) -> None:
    """RandomUniform and RandomUniformLike: between `low` and `high`."""
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    with node.stage() as w:
        y = w.writes(node.output(0))
        kind = DType.F64 if y.dtype is DType.F64 else DType.F32
        with w.shared(y.area.elements) as (i,):
            y.put(i, as_type(_uniform(w, _key(node), i, kind) * (high - low) + low, y.dtype))


def normal(node: Defined) -> None:
    """RandomNormal and RandomNormalLike: of `mean` and `scale`, which is the standard deviation."""
    mean, scale = node.number("mean", 0.0), node.number("scale", 1.0)
    with node.stage() as w:
        y = w.writes(node.output(0))
        kind = DType.F64 if y.dtype is DType.F64 else DType.F32
        with w.shared(y.area.elements) as (i,):
            y.put(i, as_type(_normal(w, _key(node), i, kind) * scale + mean, y.dtype))


def bernoulli(node: Defined) -> None:
    """1 with the probability that the element says, else 0."""
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        kind = DType.F64 if x.dtype is DType.F64 else DType.F32
        with w.shared(y.area.elements) as (i,):
            y.put(i, as_type(lt(_uniform(w, _key(node), i, kind), as_type(x.at(i), kind)), y.dtype))


def multinomial(node: Defined) -> None:
    """Classes of each row, drawn by their unnormalized log probabilities: the first whose running sum is reached."""
    rows, classes = node.shape(0)
    count = node.output_shape(0)[1]
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        kind = DType.F64 if x.dtype is DType.F64 else DType.F32
        weights = w.scratch(kind, (classes,))
        with w.shared(rows) as (row,):
            largest, total = w.local(kind, -math.inf), w.local(kind, 0.0)
            with w.loop(classes) as c:
                w.set(largest, maximum(largest, as_type(x[row, c], kind)))
            with w.loop(classes) as c:
                w.set(total, total + Unary("exp", as_type(x[row, c], kind) - largest))
                weights[c] = total
            with w.loop(count) as sample:
                wanted = w.local(kind, _uniform(w, _key(node), row * count + sample, kind) * total)
                chosen = w.local(DType.I64, 0)
                with w.loop(classes - 1) as c:
                    w.set(chosen, chosen + as_type(le(weights[c], wanted), DType.I64))
                y[row, sample] = as_type(chosen, y.dtype)


def dropout(node: Defined) -> None:
    """The operand, and a mask of ones; in training mode elements fall out by `ratio`, and the others grow for them."""
    trained = node.constant(2)
    may_train = node.has(2) and (trained is None or bool(trained.reshape(-1)[0]))
    if node.opset < 7:
        may_train = not node.integer("is_test", 0)
    if not may_train:
        node.pass_on(0)
        if node.wants(1):
            with node.stage() as w:
                ones = w.writes(node.output(1))
                with w.shared(ones.area.elements) as (i,):
                    ones.put(i, 1)
        return
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        mask = w.writes(node.output(1)) if node.wants(1) else None
        kind = x.dtype.held
        with w.shared(y.area.elements) as (i,):
            ratio: Expression = number(node.number("ratio", 0.5), kind)
            if node.has(1):
                ratio = w.local(kind, as_type(w.reads(node.input(1)).at(0), kind))
            kept = w.local(DType.BOOL, ge(_uniform(w, _key(node), i, kind), ratio))
            if node.has(2) and trained is None:
                w.set(kept, pick(w.reads(node.input(2)).at(0), kept, number(True, DType.BOOL)))
                ratio = pick(w.reads(node.input(2)).at(0), ratio, number(0.0, kind))
            y.put(i, as_type(pick(kept, as_type(x.at(i), kind) / (1.0 - ratio), number(0.0, kind)), y.dtype))
            if mask is not None:
                mask.put(i, as_type(kept, mask.dtype))


def has_element(node: Defined) -> None:
    """Whether an optional holds something: a tensor does, and what is left out does not."""
    with node.stage() as w:
        y = w.writes(node.output(0))
        with w.shared():
            y.put(integer(0), node.has(0))


def get_element(node: Defined) -> None:
    """What an optional holds: the tensor itself."""
    node.pass_on(0)


DEFINITIONS: dict[str, Definition] = {
    "RandomUniform": uniform, "RandomUniformLike": uniform, "RandomNormal": normal, "RandomNormalLike": normal,
    "Bernoulli": bernoulli, "Multinomial": multinomial, "Dropout": dropout, "OptionalHasElement": has_element,
    "OptionalGetElement": get_element,
}  # fmt: skip

"""The softmax of attention: rows of scores in scratch become exponentials, and the inverse of each row's sum.

Scaling, capping and masking happen here, where each score is read anyway. The division is left to the product with V.

A row without any key (all shut out by the mask, or none there) has zeros and a sum that is not divided by: its result
is 0, as ONNX defines it, and not the 0 / 0 of the formula. A row whose scores hold a NaN is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value, joined
from kernels.llvm.module import Module
from kernels.math import exponential
from kernels.templates.attention.problem import Attention

MINUS_INFINITY = -math.inf

# A step over keys: (first key, what is carried, the lanes that are there or None for all) -> what is carried.
_Part = Callable[[Value, Value, Value | None], Value]


class ScoreSoftmax:
    """Writes the function for one attention; a row of scores takes `row_length` elements of scratch."""

    def __init__(self, module: Module, attention: Attention, row_length: int, name: str) -> None:
        self._module, self._attention, self._row_length, self._name = module, attention, row_length, name
        self._lanes = module.target.lanes()
        self._vector = types.vector("float", self._lanes)

    def write(self) -> str:
        """f(rows, scores, inverses, limit, bound, mask): exp(score - maximum) in place, and the inverse of each sum.

        The inverse of a row without keys is 0. `limit` keys count in the first row (one more in each next one
        when causal, `bound` at most); up to `bound` the rest becomes zero, so that the product with V may run
        over all of them.
        """
        name = f"{self._name}_softmax"
        if self._module.has(name):
            return name
        one = self._attention
        given = [
            Parameter("rows", "i64"), Parameter("scores", "ptr", "noalias"), Parameter("inverses", "ptr", "noalias"),
            Parameter("limit", "i64"), Parameter("bound", "i64"),
        ]  # fmt: skip
        if one.mask is not None:
            given.append(Parameter("mask", "ptr", "noalias readonly"))
        f = Function(self._module, name, given)
        zero = f.number("float", 0.0)

        def row(number: Value, _: tuple[Value, ...]) -> None:
            scores = f.at(f.parameter("scores"), f.mul(number, self._row_length))
            limit = f.parameter("limit")
            if one.causal:
                limit = f.minimum(f.add(limit, number), f.parameter("bound"))
            mask = None
            if one.mask is not None:
                mask = f.at(f.parameter("mask"), f.mul(number, one.mask.query), types.scalar(one.mask.dtype))
            highest = self._highest(f, scores, limit, mask)
            total = self._exponentials(f, scores, limit, highest)
            inverse = f.div(f.number("float", 1.0), total)
            inverse = f.select(f.compare("oeq", total, zero), zero, inverse)
            f.store(inverse, f.at(f.parameter("inverses"), number))
            if one.causal:
                f.loop(limit, f.parameter("bound"), 1, lambda key, _: f.store(zero, f.at(scores, key)))

        f.loop(0, f.parameter("rows"), 1, row)
        f.finish()
        return name

    def _highest(self, f: Function, scores: Value, limit: Value, mask: Value | None) -> Value:
        """Scale, cap and mask the scores of a row where anything but scaling is asked for; their maximum.

        Without mask and cap the scores stay as they are, and the scale waits for the exponentials.
        """
        lowest = f.number(self._vector, MINUS_INFINITY)

        def part(key: Value, best: Value, present: Value | None) -> Value:
            count = len(best.parts)
            values = []
            for number in range(count):
                at = f.add(key, number * self._lanes)
                address = f.at(scores, at)
                if present is None:
                    value = f.load(self._vector, address)
                else:
                    value = f.masked_load(self._vector, address, present, otherwise=lowest)
                if self._rewritten:
                    value = self._rewrite(f, value, at, mask, present)
                    if present is None:
                        f.store(value, address)
                    else:
                        f.masked_store(value, address, present)
                values.append(value)
            return f.maximum(best, joined(values))

        best = self._over_keys(f, limit, part, lowest, 4)
        return f.reduce("maximum", best)

    @property
    def _rewritten(self) -> bool:
        return self._attention.mask is not None or self._attention.softcap > 0 or self._attention.scale < 0

    def _rewrite(self, f: Function, value: Value, key: Value, mask: Value | None, present: Value | None) -> Value:
        one = self._attention
        value = f.mul(value, f.number(self._vector, one.scale))
        if one.softcap:
            value = self._capped(f, value)
        if mask is None or one.mask is None:
            return value if present is None else f.select(present, value, f.number(self._vector, MINUS_INFINITY))
        kind = types.scalar(one.mask.dtype)
        if one.mask.key == 0:
            given = f.splat(f.load(kind, mask), self._lanes)
        elif present is None:
            given = f.load(types.vector(kind, self._lanes), f.at(mask, key, kind))
        else:
            given = f.masked_load(types.vector(kind, self._lanes), f.at(mask, key, kind), present)
        if one.mask.dtype is DType.BOOL:
            allowed = f.compare("ne", given, f.number(given.type, 0))
            value = f.select(allowed, value, f.number(self._vector, MINUS_INFINITY))
        else:
            value = f.add(value, given)
        return value if present is None else f.select(present, value, f.number(self._vector, MINUS_INFINITY))

    def _capped(self, f: Function, value: Value) -> Value:
        """cap * tanh(value / cap), by exponentials: 1 - 2 / (1 + exp(2 x)) is exact at both ends."""
        cap = self._attention.softcap
        twice = exponential.exp(f, f.mul(value, f.number(self._vector, 2 / cap)))
        below = f.div(f.number(self._vector, 2 * cap), f.add(twice, f.number(self._vector, 1.0)))
        return f.sub(f.number(self._vector, cap), below)

    def _exponentials(self, f: Function, scores: Value, limit: Value, highest: Value) -> Value:
        """exp(scale * score - scale * maximum) in place; their sum. The scale is 1 where it has been applied."""
        scale = f.number(self._vector, 1.0 if self._rewritten else self._attention.scale)
        turned = f.neg(f.mul(highest, f.number("float", 1.0 if self._rewritten else self._attention.scale)))
        shut = f.compare("oeq", highest, f.number("float", MINUS_INFINITY))
        turned = f.select(shut, f.number("float", 0.0), turned)  # the row's exponentials are 0 then, not NaN
        shift = f.splat(turned, self._lanes)
        zero = f.number(self._vector, 0.0)

        def part(key: Value, total: Value, present: Value | None) -> Value:
            addresses = [f.at(scores, f.add(key, number * self._lanes)) for number in range(len(total.parts))]
            if present is None:
                given = joined([f.load(self._vector, address) for address in addresses])
            else:
                given = f.masked_load(self._vector, addresses[0], present)
            made = exponential.exp_nonpositive(f, f.fma(given, scale, shift))
            if present is not None:
                made = f.select(present, made, zero)
                f.masked_store(made, addresses[0], present)
            else:
                for one, address in zip(made.split(), addresses, strict=True):
                    f.store(one, address)
            return f.add(total, made)

        return f.reduce("fadd", self._over_keys(f, limit, part, zero, 4))

    def _over_keys(self, f: Function, limit: Value, part: _Part, initial: Value, interleaved: int) -> Value:
        """Run over the keys of a row: several vectors at a time, then one, then the lanes that are left."""
        lanes = self._lanes
        wide = f.binary("and", limit, f.integer(-lanes * interleaved))
        (several,) = f.loop(
            0, wide, lanes * interleaved, lambda key, carried: [part(key, carried[0], None)],
            [joined([initial] * interleaved)],
        )  # fmt: skip
        whole = f.binary("and", limit, f.integer(-lanes))
        first, *others = several.split()
        (first,) = f.loop(wide, whole, lanes, lambda key, carried: [part(key, carried[0], None)], [first])
        left = f.sub(limit, whole)
        some = f.compare("sgt", left, f.integer(0))
        (first,) = f.when(some, lambda: [part(whole, first, f.first_lanes(left, lanes))], lambda: [first])
        return joined([first, *others])

"""Indices that data gives as places along a dim: moved inside of it, or asked whether they all are."""

from __future__ import annotations

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Body, Function, Value


def moved_inside(f: Function, index: Value, size: int) -> Value:
    """An index counted from the start; the nearest one of the dim where it lies outside."""
    wrapped = f.select(f.compare("slt", index, f.integer(0)), f.add(index, size), index)
    return f.minimum(f.maximum(wrapped, f.integer(0)), f.integer(size - 1))


def are_inside(f: Function, dtype: DType, size: int, indices: Value, low: Value, high: Value) -> Value:
    """Whether the indices `low` to `high`, exclusive, are at least 0 and less than the size of their dim.

    Then neither an index nor the last place less it is negative: all of these are joined by "or", whose sign tells.
    """
    kind, lanes = types.scalar(dtype), max(1, f.module.target.lanes(dtype))
    last = f.integer(size - 1)
    last = last if kind == "i64" else f.convert("trunc", kind, last)

    def signs(count: int) -> Body:
        ends = f.splat(last, count) if count > 1 else last

        def more(where: Value, found: tuple[Value, ...]) -> list[Value]:
            some = f.load(types.vector(kind, count), f.at(indices, where, kind))
            return [f.binary("or", found[0], f.binary("or", some, f.binary("sub", ends, some)))]

        return more

    found = f.number(kind, 0)
    whole = low
    if lanes > 1:
        whole = f.add(low, f.binary("and", f.sub(high, low), f.integer(-lanes)))
        wide = f.loop(low, whole, lanes, signs(lanes), [f.number(types.vector(kind, lanes), 0)])
        found = f.reduce("or", wide[0])
    (found,) = f.loop(whole, high, 1, signs(1), [found])
    return f.compare("sge", found, f.number(kind, 0))

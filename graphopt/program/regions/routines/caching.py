"""Caches of keys and values, to which a step adds rows: TensorScatter, and Extend, which bodies are written with.

Of what is there nothing is copied where the result lies in its memory.
"""

from __future__ import annotations

from math import prod

from graphopt.program.regions.routines.moving import bits
from graphopt.program.regions.routines.stage import Defined, Definition
from kernels.dtype import DType
from kernels.routine.writer import as_type, both, ge, integer, lt, maximum, minimum
from kernels.tensor.expression import Binary


def tensor_scatter(node: Defined) -> None:
    """A cache with new entries from each sequence's place on; `circular` begins anew at the end."""
    shape, given = node.shape(0), node.shape(1)
    axis = node.axis(-2, len(shape))
    fits = all(a == b or at == axis for at, (a, b) in enumerate(zip(shape, given, strict=True)))
    node.require(
        fits and axis > 0 and (not node.has(2) or node.shape(2) == shape[:1]), "has other entries than its cache"
    )
    whole = bits(node.continued(0, 0))
    size, count, inner = whole.shape[axis], given[axis], prod(shape[axis + 1 :])
    each = prod(shape[1:axis])
    is_circular = node.text("mode", "linear") == "circular"
    node.require(not is_circular or size == shape[axis], "begins anew before its memory ends")
    with node.stage() as w:
        updates, y = w.reads(bits(node.input(1))), w.writes(whole)
        with w.shared(shape[0], each) as (batch, other):
            before = w.local(DType.I64, batch * each + other)
            first = w.local(DType.I64, before * (size * inner))
            start = as_type(w.reads(node.input(2)).at(batch), DType.I64) if node.has(2) else integer(0)
            begin = w.local(DType.I64, start)
            with w.loop(count) as entry:
                place = w.local(DType.I64, begin + entry)
                if is_circular:
                    w.set(place, Binary("mod", place, integer(max(size, 1))))
                with w.when(both(ge(place, 0), lt(place, size))), w.loop(inner) as after:
                    source = (before * count + entry) * inner + after
                    y.put(first + place * inner + after, updates.at(source))


def extend(node: Defined) -> None:
    """A cache with new rows from each sequence's place on, and zeros behind them up to a row."""
    batch, heads, count, size = node.shape(1)
    old = node.shape(0)
    node.require((old[0], old[1], old[3]) == (batch, heads, size), "has other rows than its cache")
    whole = bits(node.continued(0, 0))
    rows = whole.shape[2]
    with node.stage() as w:
        new, begins, counts = w.reads(bits(node.input(1))), w.reads(node.input(2)), w.reads(node.input(4))
        y = w.writes(whole)
        with w.shared(batch, heads) as (sequence, head):
            begin = w.local(DType.I64, begins.at(sequence))
            with w.loop(count) as entry:
                place = w.local(DType.I64, begin + entry)
                with w.when(both(ge(place, 0), lt(place, rows))), w.loop(size) as element:
                    y[sequence, head, place, element] = new[sequence, head, entry, element]
            end = w.local(DType.I64, maximum(begin + count, 0))
            stop = w.local(DType.I64, minimum(counts.at(0), rows))
            with w.loop(maximum(stop - end, 0)) as behind, w.loop(size) as element:
                y[sequence, head, end + behind, element] = 0


DEFINITIONS: dict[str, Definition] = {"TensorScatter": tensor_scatter}
OURS: dict[str, Definition] = {"Extend": extend}

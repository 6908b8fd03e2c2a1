"""TopK: the first elements of each row when it is sorted; equal ones in their order, NaN above all numbers.

Elements become unsigned keys of the same order. Few are kept in an ordered list, which most blocks of keys do not
enter; for many the last key that is wanted is found digit by digit (a radix selection), and what is not behind it is
sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from graphopt.program.regions.routines.sorting import DIGITS, UNSIGNED, Keys, digit, key_of
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, both, either, eq, gt, integer, lt, minimum, number, pick
from kernels.tensor.expression import Binary, Expression, ExpressionLike

_FEW = 32  # elements of an ordered list; more are sorted
_LANES = 16  # rows of which such lists are kept together
_BLOCK = 32  # keys that are looked at together


def top_k(node: Defined) -> None:
    """Rows of which few elements are wanted side by side, where they lie so; others one by one."""
    shape = node.shape(0)
    axis = node.axis(-1, len(shape))
    inner, count = prod(shape[axis + 1 :]), node.output_shape(0)[axis]
    node.require(count <= shape[axis], f"takes {count} of {shape[axis]} elements")
    if not node.is_steady and 0 < count <= _FEW and inner >= _LANES:
        _side_by_side(node, axis)
    else:
        _one_by_one(node, axis)


def _side_by_side(node: Defined, axis: int) -> None:
    """Ordered lists of neighbouring rows in vectors: an element that comes before a last one moves up in its list."""
    shape = node.shape(0)
    size, inner, count = shape[axis], prod(shape[axis + 1 :]), node.output_shape(0)[axis]
    source, aim, is_largest = node.input(0), node.output(0), bool(node.integer("largest", 1))
    bits = UNSIGNED[source.dtype.bytes]
    with node.stage() as w:
        x, values = w.reads(replace(source, dtype=bits)), w.writes(replace(aim, dtype=bits))
        places = w.writes(node.output(1))
        some_keys = w.scratch(bits, (_LANES,))
        best, found = w.scratch(bits, (count + 1, _LANES)), w.scratch(DType.I32, (count + 1, _LANES))
        with w.shared(prod(shape[:axis]), -(-inner // _LANES)) as (before, part):
            (there,) = node.extents(w, node.dims(0)[axis : axis + 1])
            left = w.local(DType.I64, minimum(part * _LANES, inner - _LANES))  # the last ones once more
            first = w.local(DType.I64, before * (size * inner) + left)
            with w.loop(_LANES) as lane:
                best.put(lane, (1 << 8 * bits.bytes) - 1)  # no key comes before that
                found.put(lane, 0)

            def read(at: Expression) -> None:
                here = w.local(DType.I64, first + at * inner)
                with w.loop(_LANES) as lane:
                    some_keys.put(lane, key_of(x.at(here + lane), source.dtype, is_largest=is_largest))

            def enter(at: Expression, last: ExpressionLike) -> None:
                place = w.local(DType.I32, as_type(at, DType.I32))
                with w.loop(integer(last)) as step:
                    level = w.local(DType.I64, (last - step) * _LANES)
                    with w.loop(_LANES) as lane:
                        key, own, next_ = some_keys.at(lane), best.at(level + lane), best.at(level - _LANES + lane)
                        moves, enters = gt(key, next_), gt(key, own)
                        found.put(
                            level + lane,
                            pick(moves, found.at(level - _LANES + lane), pick(enters, place, found.at(level + lane))),
                        )
                        best.put(level + lane, pick(moves, next_, pick(enters, key, own)))

            with w.loop(count) as at:
                with w.when(lt(at, there)):
                    read(at)
                with w.otherwise(), w.loop(_LANES) as lane:
                    some_keys.put(lane, 0)  # behind all others
                with w.loop(_LANES) as lane:
                    best[at + 1, lane], found[at + 1, lane] = some_keys.at(lane), as_type(at, DType.I32)
                enter(at, at + 1)
            with w.loop(there, count) as at:
                read(at)
                some = w.local(DType.BOOL, False)
                with w.loop(_LANES) as lane:
                    w.set(some, either(some, gt(some_keys.at(lane), best[count, lane])))
                with w.when(some):
                    enter(at, integer(count))
            start = w.local(DType.I64, before * (count * inner) + left)
            with w.loop(count) as at, w.loop(_LANES) as lane:
                place = w.local(DType.I64, as_type(found[at + 1, lane], DType.I64))
                values.put(start + at * inner + lane, x.at(first + place * inner + lane))
                places.put(start + at * inner + lane, place)


def _one_by_one(node: Defined, axis: int) -> None:
    """Keys, the places of the first ones, and what lies there."""
    shape = node.shape(0)
    size, inner, count = shape[axis], prod(shape[axis + 1 :]), node.output_shape(0)[axis]
    source, aim = node.input(0), node.output(0)
    bits = UNSIGNED[source.dtype.bytes]
    with node.stage() as w:
        x, values = w.reads(replace(source, dtype=bits)), w.writes(replace(aim, dtype=bits))
        places = w.writes(node.output(1))
        key = DType.U16 if bits is DType.U8 else bits
        keys = w.scratch(key, (size,))
        with w.shared(prod(shape[:axis]), inner) as (before, after):
            (there,) = node.extents(w, node.dims(0)[axis : axis + 1])
            first = w.local(DType.I64, before * (size * inner) + after)
            with w.loop(there) as at:
                one = key_of(x.at(first + at * inner), source.dtype, is_largest=bool(node.integer("largest", 1)))
                keys.put(at, as_type(one, key))
            with w.loop(size, there) as at:
                keys.put(at, 0)  # behind all others
            found = _few(w, keys, count) if count <= _FEW else _many(w, keys, count)
            start = w.local(DType.I64, before * (count * inner) + after)
            with w.loop(count) as at:
                place = w.local(DType.I64, found(at))
                values.put(start + at * inner, x.at(first + place * inner))
                places.put(start + at * inner, place)


def _few(w: Stage, keys: Grid, count: int) -> Callable[[Expression], Expression]:
    """An ordered list: a key that comes before its last one moves up to its place."""
    size = keys.shape[0]
    best, places = w.scratch(keys.dtype, (count,)), w.scratch(DType.I64, (count,))
    last = w.local(keys.dtype, 0)

    def insert(at: Expression, end: Expression) -> None:
        one, place = w.local(keys.dtype, keys.at(at)), w.local(DType.I64, end)
        moves = w.local(DType.BOOL, gt(place, 0))
        with w.loop_while(moves):
            w.set(moves, gt(one, best.at(place - 1)))
            with w.when(moves):
                best.put(place, best.at(place - 1))
                places.put(place, places.at(place - 1))
                w.set(place, place - 1)
                w.set(moves, gt(place, 0))
        best.put(place, one)
        places.put(place, at)

    if not count:
        return places.at
    with w.loop(count) as at:
        insert(at, at)
    w.set(last, best.at(count - 1))
    block = w.local(DType.I64, count)
    with w.loop_while(lt(block, size)):
        end = w.local(DType.I64, minimum(block + _BLOCK, size))
        some = w.local(DType.BOOL, False)
        with w.loop(end, block) as at:
            w.set(some, either(some, gt(keys.at(at), last)))
        with w.when(some), w.loop(end, block) as at, w.when(gt(keys.at(at), last)):
            insert(at, w.local(DType.I64, count - 1))
            w.set(last, best.at(count - 1))
        w.set(block, end)
    return places.at


def _many(w: Stage, keys: Grid, count: int) -> Callable[[Expression], Expression]:
    """The keys that come before the last wanted one and the first of those equal to it, sorted."""
    kind, digits = keys.dtype, keys.dtype.bytes
    counts = w.scratch(DType.I64, (DIGITS,))
    prefix, mask, wanted = w.local(kind, 0), w.local(kind, 0), w.local(DType.I64, count)
    with w.loop(digits) as step:
        shift = w.local(kind, as_type((digits - 1 - step) * 8, kind))
        with w.loop(DIGITS) as one:
            counts.put(one, 0)
        with w.loop(keys.shape[0]) as at, w.when(eq(Binary("and", keys.at(at), mask), prefix)):
            here = w.local(DType.I64, digit(keys.at(at), shift))
            counts.put(here, counts.at(here) + 1)
        chosen = w.local(DType.I64, DIGITS - 1)
        with w.loop_while(both(gt(wanted, counts.at(chosen)), gt(chosen, 0))):
            w.set(wanted, wanted - counts.at(chosen))
            w.set(chosen, chosen - 1)
        w.set(prefix, Binary("or", prefix, Binary("shl", as_type(chosen, kind), shift)))
        w.set(mask, Binary("or", mask, Binary("shl", number(DIGITS - 1, kind), shift)))
    found = Keys(w, kind, count)
    taken = w.local(DType.I64, 0)
    with w.loop(keys.shape[0]) as at:
        one = w.local(kind, keys.at(at))
        is_last = w.local(DType.BOOL, both(eq(one, prefix), gt(wanted, 0)))
        with w.when(both(either(gt(one, prefix), is_last), lt(taken, count))):
            found.put(taken, one, at)
            w.set(taken, taken + 1)
            with w.when(is_last):
                w.set(wanted, wanted - 1)
    found.sort(count)
    return found.place


DEFINITIONS: dict[str, Definition] = {"TopK": top_k}

"""Vectors of elements along one axis: the loops over them, and the leaves of expressions in them.

A stretch of n elements is a loop over several vectors side by side, and a rest in one piece whose last vector may be
partly valid; lanes that are not valid are neither read nor written. Where only the run knows n, single vectors follow
the whole groups, and the last one has as many lanes as the run says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from kernels.llvm import conversion, types
from kernels.llvm import function as llvm
from kernels.llvm.conversion import held_type
from kernels.llvm.function import Function, Value, joined
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.axes import Axis, distinct, distinct_loads, place, value_of
from kernels.tensor.check import check_loads, check_types, check_variables
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Expression,
    Index,
    InvalidExpression,
    Load,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
)
from kernels.tensor.ranges import lies_inside

_LARGE_TREE = 100_000  # nodes, shared ones counted wherever they stand

ValidLanes = int | Value  # how many lanes of a vector are valid; a value where only the run knows

# body(first element, how many vectors, valid lanes of the last one, carried) -> carried
Piece = Callable[[Value, int, ValidLanes, tuple[Value, ...]], Sequence[Value]]


def lanes_for(values: Iterable[Expression], target: Target) -> int:
    """How many elements a vector has: as many as fit a register of the widest type that is computed with."""
    widest = 1
    for node in distinct(values):
        if not isinstance(node, Position):
            widest = max(widest, types.bits(held_type(node.dtype, 1)) // 8)
    return target.vector_bytes // widest


def unrolled(extent: int, lanes: int, most: int) -> int:
    """How many vectors side by side a stretch of this length is worth."""
    return max(1, min(most, bound(extent) // lanes))


def stretch(
    f: Function, extent: int, lanes: int, vectors: int, body: Piece, carried: Sequence[Value] = ()
) -> tuple[Value, ...]:
    """body over all elements: whole groups of `vectors` vectors in a loop, then the rest."""
    if is_free(extent):
        return between(f, f.integer(0), f.integer(extent), lanes, vectors, body, carried)
    end = groups_end(extent, lanes, vectors)
    kept = whole_groups(f, 0, end, lanes, vectors, body, carried)
    return rest(f, extent, lanes, vectors, body, kept)


def between(
    f: Function, first: Value, last: Value, lanes: int, vectors: int, body: Piece, carried: Sequence[Value] = ()
) -> tuple[Value, ...]:
    """body over all elements between two places that the run knows."""
    step, count = lanes * vectors, f.sub(last, first)
    ends = [f.add(first, f.sub(count, f.binary("urem", count, f.integer(size)))) for size in (step, lanes)]
    kept = whole_groups(f, first, ends[0], lanes, vectors, body, carried)
    if vectors > 1:
        kept = whole_groups(f, ends[0], ends[1], lanes, 1, body, kept)
    left = f.sub(last, ends[1])

    def rest_of() -> Sequence[Value]:
        return body(ends[1], 1, left, kept)

    if lanes == 1:
        return kept
    return f.when(f.compare("sgt", left, f.integer(0)), rest_of, lambda: kept)


def groups_end(extent: int, lanes: int, vectors: int) -> int:
    """Where the rest begins."""
    return extent // (lanes * vectors) * (lanes * vectors)


def whole_groups(
    f: Function,
    first: llvm.Amount,
    last: llvm.Amount,
    lanes: int,
    vectors: int,
    body: Piece,
    carried: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """body over whole groups of `vectors` vectors between two places."""

    def one(where: Value, kept: tuple[Value, ...]) -> Sequence[Value]:
        return body(where, vectors, lanes, kept)

    return f.loop(first, last, lanes * vectors, one, carried)


def rest(
    f: Function, extent: int, lanes: int, vectors: int, body: Piece, carried: Sequence[Value] = ()
) -> tuple[Value, ...]:
    """body over what whole groups leave over."""
    end = groups_end(extent, lanes, vectors)
    if end == extent:
        return tuple(carried)
    count = -(-(extent - end) // lanes)
    valid = extent - end - (count - 1) * lanes
    return tuple(body(f.integer(end), count, valid, tuple(carried)))


def with_first(whole: Value, parts: Value) -> Value:
    """A value of several parts with its first ones replaced."""
    return Value((*parts.parts, *whole.parts[len(parts.parts) :]), whole.type)


def first(whole: Value, count: int) -> Value:
    """The first parts of a value."""
    return Value(whole.parts[:count], whole.type, whole.is_constant)


def where_valid(f: Function, value: Value, otherwise: Value, valid: ValidLanes) -> Value:
    """The value with the lanes of its last vector that are not valid replaced."""
    lanes = types.lanes(value.type)
    if valid == lanes:
        return value
    *whole, last = value.split()
    return joined([*whole, f.select(f.first_lanes(valid, lanes), last, otherwise)])


class Stream:
    """The leaves of expressions whose elements follow one another along an axis, all other axes being at a place.

    `prepare` writes what does not change along the axis (addresses, single elements); it stands before the loop. `at`
    binds the stream to a group of vectors.
    """

    def __init__(
        self,
        f: Function,
        pointers: Mapping[str, Value],
        fixed: Mapping[Axis, Value],
        along: Axis,
        lanes: int,
        stand_ins: Mapping[str, Value] | None = None,
    ) -> None:
        self._f = f
        self._pointers = pointers
        self._fixed = {axis: where for axis, where in fixed.items() if axis != along}
        self._along = along
        self._lanes = lanes
        self._stand_ins = dict(stand_ins or {})
        self._rows: dict[tuple[str, Index], Value] = {}
        self._single: dict[tuple[str, Index], Value] = {}
        self._where = f.integer(0)
        self._vectors = 1
        self._valid: ValidLanes = lanes

    def prepare(self, values: Iterable[Expression], outputs: Iterable[Load] = ()) -> Stream:
        """Write the addresses of all loads (and of `outputs`, loads of what will be stored) and single elements."""
        for load in distinct_loads(values):
            if load.buffer.name in self._pointers:
                self._row(load)
                if self._along.factor(place(load)) == 0 and lies_inside(load):
                    self._element(load)
        for output in outputs:
            self._row(output)
        return self

    def at(self, where: Value, vectors: int, valid: ValidLanes, stand_ins: Mapping[str, Value] | None = None) -> Stream:
        """These leaves for `vectors` vectors from element `where` on, the last of which has `valid` lanes."""
        made = Stream(self._f, self._pointers, self._fixed, self._along, self._lanes, self._stand_ins)
        made._rows, made._single = self._rows, self._single
        made._where, made._vectors, made._valid = where, vectors, valid
        made._stand_ins |= stand_ins or {}
        return made

    def with_stand_ins(self, stand_ins: Mapping[str, Value]) -> Stream:
        """The same leaves with values for more stand-ins."""
        return self.at(self._where, self._vectors, self._valid, stand_ins)

    # -- leaves -----------------------------------------------------------------------------------------------------

    def load(self, load: Load) -> Value:
        """The elements as they are stored."""
        if load.buffer.name in self._stand_ins:
            return self._stand_ins[load.buffer.name]
        step = self._along.factor(place(load))
        kind = memory_type(load)
        if step == 0:
            return self._element(load)
        f, lanes = self._f, self._lanes
        start = f.at(self._row(load), f.mul(self._where, step), kind)
        whole = types.vector(kind, lanes)
        found = []
        for part in range(self._vectors):
            address = f.at(start, part * lanes * step, kind)
            valid = self._valid_of(part)
            if step == 1 and valid == lanes:
                found.append(f.load(whole, address))
            elif step == 1:
                found.append(f.masked_load(whole, address, f.first_lanes(valid, lanes)))
            else:
                one = f.number(whole, 0)
                for lane, which in self._lanes_of(valid):
                    offset = which * step if isinstance(which, int) else f.mul(which, step)
                    one = _put(f, one, f.load(kind, f.at(address, offset, kind)), lane)
                found.append(one)
        return joined(found)

    def _lanes_of(self, valid: ValidLanes) -> list[tuple[int, ValidLanes]]:
        """Lanes to read, each with the one whose element it reads: those that are not valid the last valid one's."""
        f = self._f
        if isinstance(valid, int):
            return [(lane, lane) for lane in range(valid)]
        last = f.sub(valid, 1)
        return [(lane, f.minimum(f.integer(lane), last)) for lane in range(self._lanes)]

    def load_where(self, load: Load, condition: Value) -> Value:
        """The elements where the condition holds."""
        f, lanes = self._f, self._lanes
        kind = memory_type(load)
        whole = types.vector(kind, lanes)
        if prod(load.buffer.shape) == 0:
            return f.number(whole, 0)
        step = self._along.factor(place(load))
        conditions = condition.split() * (self._vectors if len(condition.parts) == 1 else 1)
        found = []
        if step == 1 and lanes > 1:
            start = f.at(self._row(load), self._where, kind)
            for part, holding in enumerate(conditions):
                valid = self._valid_of(part)
                mask = holding if valid == lanes else f.binary("and", holding, f.first_lanes(valid, lanes))
                found.append(f.masked_load(whole, f.at(start, part * lanes, kind), mask))
            return joined(found)
        # Lanes that are not wanted read the first element of the storage, which exists.
        base = self._pointers[load.buffer.name]
        places = self.position(place(load)).split()
        places = places * (len(conditions) if len(places) == 1 else 1)
        for part, (holding, where) in enumerate(zip(conditions, places, strict=True)):
            safe = f.select(holding, where, f.number(where.type, 0))
            one = f.number(whole, 0)
            valid = self._valid_of(part)
            for lane in range(valid if isinstance(valid, int) else lanes):
                where_of_lane = f.extract(safe, lane)
                if isinstance(valid, Value):
                    there = f.compare("slt", f.integer(lane), valid)
                    where_of_lane = f.select(there, where_of_lane, f.number(where_of_lane.type, 0))
                one = _put(f, one, f.load(kind, f.at(base, where_of_lane, kind)), lane)
            found.append(one)
        return joined(found)

    def position(self, index: Index) -> Value:
        """The values of an index, i64."""
        f, lanes, step = self._f, self._lanes, self._along.factor(index)
        base = value_of(f, index, {**self._fixed, self._along: self._where})
        kind = types.vector("i64", lanes)
        if step == 0:
            return f.splat(base, lanes)
        found = []
        for part in range(self._vectors):
            lane_numbers = [part * lanes + lane for lane in range(lanes)]
            if is_free(step):
                counted = Value((types.constant_lanes(kind, lane_numbers) if lanes > 1 else str(part),), kind)
                steps = f.binary("mul", counted, f.splat(f.integer(step), lanes))
            else:
                numbers = [one * step for one in lane_numbers]
                steps = Value((types.constant_lanes(kind, numbers) if lanes > 1 else str(numbers[0]),), kind)
            found.append(f.binary("add", f.splat(base, lanes), steps))
        return joined(found)

    # -- results ----------------------------------------------------------------------------------------------------

    def store(self, value: Value, output: Load) -> None:
        """Write elements, as they are stored, to where `output` would read them."""
        f, lanes, step = self._f, self._lanes, self._along.factor(place(output))
        kind = memory_type(output)
        start = f.at(self._row(output), f.mul(self._where, step), kind)
        parts = value.split() * (self._vectors if len(value.parts) == 1 else 1)
        for part, one in enumerate(parts):
            address, valid = f.at(start, part * lanes * step, kind), self._valid_of(part)
            if step == 1 and valid == lanes:
                f.store(one, address)
            elif step == 1:
                f.masked_store(one, address, f.first_lanes(valid, lanes))
            else:
                for lane in range(valid if isinstance(valid, int) else lanes):
                    self._store_lane(one, lane, valid, address, lane * step, kind)

    def _store_lane(self, value: Value, lane: int, valid: ValidLanes, start: Value, offset: int, kind: str) -> None:
        f = self._f

        def put() -> None:
            f.store(f.extract(value, lane), f.at(start, offset, kind))

        if isinstance(valid, int):
            put()
        else:
            f.when(f.compare("slt", f.integer(lane), valid), put)

    def ask(self, load: Load, where: Value, distance: int, vectors: int) -> None:
        """Prefetch a group of vectors of a prepared load that lies side by side, `distance` elements further on."""
        kind = memory_type(load)
        start = self._f.at(self._row(load), where, kind)
        size = types.bits(kind) // 8
        for byte in range(0, vectors * self._lanes * size, self._f.module.target.line):
            self._f.prefetch(self._f.at(start, distance + byte // size, kind))

    def _valid_of(self, part: int) -> ValidLanes:
        return self._valid if part == self._vectors - 1 else self._lanes

    def _row(self, load: Load) -> Value:
        """The address of the element at the start of the axis."""
        key = (load.buffer.name, place(load))
        if key not in self._rows:
            offset = value_of(self._f, place(load), self._fixed)
            kind = memory_type(load)
            self._rows[key] = self._f.at(self._pointers[load.buffer.name], offset, kind)
        return self._rows[key]

    def _element(self, load: Load) -> Value:
        """One element in every lane."""
        key = (load.buffer.name, place(load))
        if key not in self._single:
            one = self._f.load(memory_type(load), self._row(load))
            self._single[key] = self._f.splat(one, self._lanes)
        return self._single[key]


def memory_type(load: Load) -> str:
    """The type of its elements in memory."""
    return conversion.memory_type(load.buffer.dtype)


def check_value(value: Expression, variables: Iterable[Variable]) -> None:
    """Raises InvalidExpression for types that do not fit, unknown variables, and loads that may lie outside.

    Large expressions are walked node by node, each once, and their loads must lie inside without a condition.
    """
    known = frozenset(variables)
    found = list(distinct((value,)))
    for node in found:
        check_types(_alone(node))
        check_variables(_alone(node), known)
    if _tree_size(value, {}) <= _LARGE_TREE:
        check_loads(value)
    else:
        for load in distinct_loads((value,)):
            check_loads(load)


def _tree_size(node: Expression, known: dict[int, int]) -> int:
    if id(node) not in known:
        known[id(node)] = 1 + sum(_tree_size(operand, known) for operand in node.operands)
    return known[id(node)]


def _alone(node: Expression) -> Expression:
    """The node with constants as operands."""
    stand_ins = [Number(0, operand.dtype) for operand in node.operands]
    match node:
        case Unary(op, _):
            return Unary(op, stand_ins[0])
        case Binary(op, _, _):
            return Binary(op, *stand_ins)
        case Compare(op, _, _):
            return Compare(op, *stand_ins)
        case Select():
            return Select(*stand_ins)
        case Cast(kind, _):
            return Cast(kind, stand_ins[0])
        case Reduce():
            raise InvalidExpression("a reduction inside an expression: give it a template that reduces")
    return node


def _put(f: Function, whole: Value, one: Value, lane: int) -> Value:
    return one if types.lanes(whole.type) == 1 else f.insert(whole, one, lane)


def inputs_of(values: Iterable[Expression], besides: Iterable[Buffer] = ()) -> tuple[Buffer, ...]:
    """The buffers that expressions read, in the order of first use, without the stand-ins."""
    without = set(besides)
    return tuple(dict.fromkeys(one.buffer for one in distinct_loads(values) if one.buffer not in without))

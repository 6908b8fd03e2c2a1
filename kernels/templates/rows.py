"""What row-wise templates share: rows in blocks, and one value gathered from all elements of a row.

A row is one value of the kept variables; its elements are the values of the reduced ones. Where a row's elements lie
side by side, vectors run along the row; where those of different rows do ("across"), each lane has a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernels.llvm.emission import emit_all
from kernels.llvm.function import Function, Value
from kernels.size import is_free
from kernels.templates.axes import Axis, count, distinct_loads, fused, indices_of, place, spread
from kernels.templates.streams import Piece, Stream, ValidLanes, first, stretch, unrolled, with_first
from kernels.tensor.expression import Expression, Index, Load, Variable

BLOCK_BYTES = 64 << 10  # of traffic
AHEAD_BYTES = 3 << 10  # of 1 to 5 KiB the fastest, for rows of 1 to 8 KiB

# step(values of the expressions, carried, valid lanes of the last vector) -> carried
RowStep = Callable[[tuple[Value, ...], tuple[Value, ...], ValidLanes], Sequence[Value]]

# visit(a row's places on all axes but the last) -> what is done with a group of vectors along the last one
Visit = Callable[[Mapping[Axis, Value]], Piece]


@dataclass(frozen=True, slots=True)
class RowCandidate:
    """How many vectors are computed side by side, and how many rows a block has."""

    vectors: int
    rows: int

    def __str__(self) -> str:
        return f"{self.vectors} vectors, blocks of {self.rows:,} rows"


def row_candidates(rows: int, bytes_of_row: int, vectors: Sequence[int]) -> tuple[RowCandidate, ...]:
    """The ways worth trying, the likely best first: these numbers of vectors side by side."""
    block = max(1, min(rows, BLOCK_BYTES // max(1, bytes_of_row)))
    return tuple(RowCandidate(several, block) for several in vectors)


def lies_across(kept: Sequence[Variable], reduced: Sequence[Variable], x: Expression) -> bool:
    """Whether elements of different rows lie side by side."""
    places = indices_of((x,))

    def side_by_side(variables: Sequence[Variable]) -> int:
        return max(
            (sum(one.factor(v) == 1 for one in places) for v in variables if is_free(v.extent) or v.extent > 1),
            default=0,
        )

    return side_by_side(kept) > side_by_side(reduced)


def each_row(f: Function, block: Value, rows_of_block: int, rows: int, body: Callable[[Value], None]) -> None:
    """body for every row of a block."""
    if rows_of_block == 1:
        body(block)
        return
    start = f.mul(block, rows_of_block)
    cut = is_free(rows) or rows % rows_of_block
    last = f.minimum(f.add(start, rows_of_block), f.integer(rows)) if cut else None
    f.loop(start, last or f.add(start, rows_of_block), 1, lambda row, _: body(row))


def nested(
    f: Function,
    axes: Sequence[Axis],
    fixed: Mapping[Axis, Value],
    body: Callable[[Mapping[Axis, Value], tuple[Value, ...]], Sequence[Value]],
    carried: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """Loops over axes, outermost first, around body(places on all axes, carried)."""
    if not axes:
        return tuple(body(fixed, tuple(carried)))
    axis, *inner = axes

    def one(where: Value, kept: tuple[Value, ...]) -> tuple[Value, ...]:
        return nested(f, inner, {**fixed, axis: where}, body, kept)

    return f.loop(0, axis.extent, 1, one, carried)


def reduced_axes(
    variables: Sequence[Variable], values: Sequence[Expression], outputs: Sequence[Load] = ()
) -> tuple[Axis, ...]:
    """The axes of a row's elements for these expressions, the last one for vectors."""
    places: list[Index] = [*indices_of(values), *(place(one) for one in outputs)]
    return fused(variables, places) or (Axis(),)


def sweep(
    f: Function,
    pointers: Mapping[str, Value],
    fixed: Mapping[Axis, Value],
    axes: Sequence[Axis],
    lanes: int,
    vectors: int,
    values: Sequence[Expression],
    step: RowStep,
    carried: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """step over all elements of a row; see `reading`."""
    return over_row(f, axes, lanes, vectors, reading(f, pointers, fixed, axes, lanes, values, step), carried)


def over_row(
    f: Function, axes: Sequence[Axis], lanes: int, vectors: int, visit: Visit, carried: Sequence[Value] = ()
) -> tuple[Value, ...]:
    """Visit all elements of a row, vectors running along its last axis.

    `carried` values have one part per vector side by side (see `side_by_side`).
    """
    *outer, along = axes
    wide = side_by_side(axes, lanes, vectors)

    def body(at: Mapping[Axis, Value], kept: tuple[Value, ...]) -> tuple[Value, ...]:
        return stretch(f, along.extent, lanes, wide, visit(at), kept)

    return nested(f, outer, {}, body, carried)


def reading(
    f: Function,
    pointers: Mapping[str, Value],
    fixed: Mapping[Axis, Value],
    axes: Sequence[Axis],
    lanes: int,
    values: Sequence[Expression],
    step: RowStep,
    ahead: Sequence[tuple[Load, int]] = (),
) -> Visit:
    """step over the values of a row's elements. `ahead` are loads to ask for early, each at a distance in elements."""

    def visit(at: Mapping[Axis, Value]) -> Piece:
        stream = Stream(f, pointers, {**fixed, **at}, axes[-1], lanes).prepare(values)

        def piece(where: Value, several: int, valid: ValidLanes, held: tuple[Value, ...]) -> list[Value]:
            for load, distance in ahead:
                stream.ask(load, where, distance, several)
            found = emit_all(f, values, lanes, stream.at(where, several, valid))
            # A value that all elements share has one part: the last of several is not the only one.
            found = tuple(Value(one.parts * (several // len(one.parts)), one.type) for one in found)
            made = step(found, tuple(first(one, several) for one in held), valid)
            return [with_first(one, new) for one, new in zip(held, made, strict=True)]

        return piece

    return visit


def writing(
    f: Function,
    pointers: Mapping[str, Value],
    fixed: Mapping[Axis, Value],
    axes: Sequence[Axis],
    lanes: int,
    values: Sequence[Expression],
    outputs: Sequence[Load],
    stand_ins: Callable[[Stream], Mapping[str, Value]],
    also_read: Sequence[Expression] = (),
) -> Visit:
    """Every output's value for a row's elements; `stand_ins` gives what the template computed for a piece.

    `also_read` are the expressions that `stand_ins` emits. What is carried stays as it is.
    """

    def visit(at: Mapping[Axis, Value]) -> Piece:
        stream = Stream(f, pointers, {**fixed, **at}, axes[-1], lanes).prepare((*also_read, *values), outputs)

        def piece(where: Value, several: int, valid: ValidLanes, held: tuple[Value, ...]) -> tuple[Value, ...]:
            leaves = stream.at(where, several, valid)
            bound = stream.at(where, several, valid, stand_ins(leaves))
            for value, output in zip(emit_all(f, values, lanes, bound), outputs, strict=True):
                bound.store(value, output)
            return held

        return piece

    return visit


def together(one: Visit, other: Visit) -> Visit:
    """Two visits piece by piece, of two rows or of one: while the memory answers one, the core computes the other."""

    def visit(at: Mapping[Axis, Value]) -> Piece:
        first_piece, second_piece = one(at), other(at)

        def piece(where: Value, several: int, valid: ValidLanes, held: tuple[Value, ...]) -> Sequence[Value]:
            return second_piece(where, several, valid, tuple(first_piece(where, several, valid, held)))

        return piece

    return visit


def next_row(rows: Sequence[Axis], axes: Sequence[Axis], x: Expression) -> list[tuple[Load, int]]:
    """The loads of the following row, each with its distance in elements, to be asked for while a row is read for the
    first time: the processor's own prefetching stops at the end of a page, and a row is often one.

    Rows that follow one another without a gap are asked for `AHEAD_BYTES` early and no further. Much earlier, and a
    long row pushes out of the first cache what is still needed there.
    """
    if not rows:
        return []
    found = []
    for load in distinct_loads((x,)):
        distance = rows[-1].factor(place(load))
        if distance > 0 and axes[-1].factor(place(load)) == 1:
            dense = len(axes) == 1 and distance == axes[-1].extent
            ahead = AHEAD_BYTES // load.buffer.dtype.bytes
            found.append((load, ahead if is_free(distance) else min(distance, ahead) if dense else distance))
    return found


def side_by_side(axes: Sequence[Axis], lanes: int, vectors: int) -> int:
    """How many vectors of a row are computed side by side; a rest that is wider never happens."""
    return unrolled(axes[-1].extent, lanes, vectors)


def rows_of(variables: Sequence[Variable]) -> int:
    """How many rows there are."""
    return prod(variable.extent for variable in variables)


def places_of(f: Function, row: Value, axes: Sequence[Axis]) -> dict[Axis, Value]:
    """The places of a row on the axes of the kept variables."""
    several = is_free(count(axes)) or count(axes) > 1
    return spread(f, row, axes) if several else {axis: f.integer(0) for axis in axes}

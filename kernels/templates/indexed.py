"""Gather and scatter in all their forms: copies whose place in one tensor is read from another.

All of them are one record. Positions run over `dims`; for each, one side (the plain one: a gather's output, a scatter's
updates) has its element at a constant stride per dim, the other (the data) at strides of its own plus, for each
component of an index, the index times a stride:

    plain[sum p * plain_stride]  <->  data[sum p * data_stride + sum index[p, c] * component_stride]

Trailing dims that no index depends on and that lie densely on both sides are copied as vectors. An index may be
negative, counted from the end. One outside its dim is an error in ONNX; here it is moved to the nearest valid one, so
that nothing outside the data is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Value
from kernels.llvm.module import Module
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.grid import unravel
from kernels.templates.places import are_inside, moved_inside
from kernels.templates.template import only
from kernels.tensor.expression import dense_strides

ScatterReduction = Literal["none", "add", "mul", "min", "max"]
BLOCK_BYTES = 64 << 10  # that a block of a gather copies, about
_UNROLLED = 4  # single elements of a turn
_BITS = {8: "i64", 4: "i32", 2: "i16", 1: "i8"}  # by the bytes of an element


class InvalidIndexing(KernelsError):
    """A gather or scatter whose dims do not fit."""


@dataclass(frozen=True, slots=True)
class Component:
    """One coordinate of an index: the size of the dim that it points into, and that dim's stride in elements."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """A gather or a scatter; see the module. Operands: "data", "indices", a scatter's "updates", "output".

    A scatter onto one number, as the gradient of a gather begins, has no "data": these would be as large as the table.
    """

    direction: Literal["gather", "scatter"]
    dims: tuple[int, ...]
    data_strides: tuple[int, ...]
    plain_strides: tuple[int, ...]
    index_strides: tuple[int, ...]
    components: tuple[Component, ...]
    component_step: int  # elements between the components of one index
    data_elements: int
    index_elements: int
    dtype: DType
    index_dtype: DType = DType.I64
    reduction: ScatterReduction = "none"  # of a scatter: what happens to the element that is there
    filler: int | None = None  # of a scatter: the bits of each element of the data, where all are one number

    @property
    def plain_elements(self) -> int:
        """Elements of a gather's output or a scatter's updates."""
        return math.prod(self.dims)


def gather(
    shape: tuple[int, ...], axis: int, indices: tuple[int, ...], dtype: DType, index_dtype: DType = DType.I64
) -> Indexed:
    """ONNX Gather: output[outer, indices..., inner] = data[outer, index, inner]."""
    axis = _axis(axis, len(shape))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    count = math.prod(indices)
    return Indexed(
        "gather", (outer, count, inner), (shape[axis] * inner, 0, 1), (count * inner, inner, 1), (0, 1, 0),
        (Component(shape[axis], inner),), 0, math.prod(shape), count, dtype, index_dtype,
    )  # fmt: skip


def gather_elements(
    shape: tuple[int, ...], axis: int, indices: tuple[int, ...], dtype: DType, index_dtype: DType = DType.I64
) -> Indexed:
    """ONNX GatherElements: output[p] = data[p with its coordinate along `axis` replaced by index[p]]."""
    return _elements("gather", shape, axis, indices, dtype, index_dtype, "none")


def scatter_elements(
    shape: tuple[int, ...], axis: int, indices: tuple[int, ...], dtype: DType, index_dtype: DType = DType.I64,
    reduction: ScatterReduction = "none",
) -> Indexed:  # fmt: skip
    """ONNX ScatterElements: output = data; output[p with its coordinate replaced] (op)= updates[p]."""
    return _elements("scatter", shape, axis, indices, dtype, index_dtype, reduction)


def gather_nd(
    shape: tuple[int, ...], indices: tuple[int, ...], dtype: DType, index_dtype: DType = DType.I64, batch_dims: int = 0
) -> Indexed:
    """ONNX GatherND: the last dim of the indices holds coordinates of data after `batch_dims` shared dims."""
    return _nd("gather", shape, indices, dtype, index_dtype, batch_dims, "none")


def scatter_nd(
    shape: tuple[int, ...], indices: tuple[int, ...], dtype: DType, index_dtype: DType = DType.I64,
    reduction: ScatterReduction = "none",
) -> Indexed:  # fmt: skip
    """ONNX ScatterND: output = data; output[index] (op)= updates, slice by slice."""
    return _nd("scatter", shape, indices, dtype, index_dtype, 0, reduction)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise InvalidIndexing(f"axis {axis} is outside of {rank} dims.")
    return axis % rank


def _elements(
    direction: Literal["gather", "scatter"], shape: tuple[int, ...], axis: int, indices: tuple[int, ...], dtype: DType,
    index_dtype: DType, reduction: ScatterReduction,
) -> Indexed:  # fmt: skip
    axis = _axis(axis, len(shape))
    if len(indices) != len(shape):
        raise InvalidIndexing(f"indices of {len(indices)} dims for data of {len(shape)}: they must be as many.")
    strides, dense = dense_strides(shape), dense_strides(indices)
    data = tuple(0 if dim == axis else stride for dim, stride in enumerate(strides))
    component = Component(shape[axis], strides[axis])
    return Indexed(
        direction, indices, data, dense, dense, (component,), 0, math.prod(shape), math.prod(indices), dtype,
        index_dtype, reduction,
    )  # fmt: skip


def _nd(
    direction: Literal["gather", "scatter"], shape: tuple[int, ...], indices: tuple[int, ...], dtype: DType,
    index_dtype: DType, batch_dims: int, reduction: ScatterReduction,
) -> Indexed:  # fmt: skip
    *places, width = indices
    if batch_dims + width > len(shape):
        raise InvalidIndexing(f"{width} coordinates after {batch_dims} batch dims for data of {len(shape)} dims.")
    strides = dense_strides(shape)
    slices, slice_strides = shape[batch_dims + width :], strides[batch_dims + width :]
    dims = (*places, *slices)
    data = (*strides[:batch_dims], *[0] * (len(places) - batch_dims), *slice_strides)
    index = (*(stride * width for stride in dense_strides(tuple(places))), *[0] * len(slices))
    components = tuple(Component(shape[batch_dims + n], strides[batch_dims + n]) for n in range(width))
    return Indexed(
        direction, dims, data, dense_strides(dims), index, components, 1, math.prod(shape), math.prod(indices),
        dtype, index_dtype, reduction,
    )  # fmt: skip


def _row_bytes(problem: Indexed) -> int:
    """Of a row of the data, where a gather copies whole rows along its first dim, however many; 0 elsewhere."""
    if problem.direction != "gather" or len(problem.components) != 1 or len(problem.dims) != 3:
        return 0
    (outer, _, inner), (component,) = problem.dims, problem.components
    sizes = (outer, inner, component.size, component.stride, problem.data_elements)
    if any(is_free(one) for one in sizes) or outer != 1 or component.stride != inner:
        return 0
    is_whole = component.size * inner == problem.data_elements and problem.data_strides[1:] == (0, 1)
    return inner * problem.dtype.bytes if is_whole and problem.index_strides == (0, 1, 0) else 0


def operands_of(problem: Indexed) -> tuple[Operand, ...]:
    """The table of arguments."""
    data = Operand("data", "input", problem.dtype, problem.data_elements, rows=_row_bytes(problem))
    indices = Operand("indices", "input", problem.index_dtype, problem.index_elements)
    if problem.direction == "gather":
        return data, indices, Operand("output", "output", problem.dtype, problem.plain_elements)
    updates = Operand("updates", "input", problem.dtype, problem.plain_elements)
    given = (data,) if problem.filler is None else ()
    return *given, indices, updates, Operand("output", "output", problem.dtype, problem.data_elements)


def build(problem: Indexed, target: Target, name: str = "indexed") -> Kernel:
    """The kernel. A gather's blocks are stretches of its outer positions; a scatter has one, as updates may collide."""
    module = Module(target)
    axes, length = _axes(problem)
    positions, rows, line = (
        math.prod(axis.size for axis in axes),
        math.prod(axis.size for axis in axes[:-1]),
        axes[-1].size,
    )
    stretch = positions
    if problem.direction == "gather":
        stretch = max(1, BLOCK_BYTES // max(1, bound(length) * problem.dtype.bytes))
    blocks = -(-positions // stretch) if is_free(positions) else max(1, -(-positions // max(stretch, 1)))

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if problem.filler is not None:
            _fill(f, problem.dtype, problem.filler, pointers["output"], problem.data_elements)
        elif problem.direction == "scatter":
            _copy(f, problem.dtype, pointers["data"], pointers["output"], problem.data_elements)
        if not bound(problem.plain_elements):
            return
        if not is_free(blocks) and blocks == 1:
            f.loop(0, rows, 1, lambda row, _: _line(f, problem, pointers, axes, row, f.integer(0), line, length))
            return
        first = f.mul(block, stretch)
        last = f.minimum(f.add(first, stretch), f.integer(positions))

        def row_of_block(row: Value, _: tuple[Value, ...]) -> None:
            start = f.mul(row, line)
            low = f.maximum(f.sub(first, start), f.integer(0))
            high = f.minimum(f.sub(last, start), f.integer(line))
            _line(f, problem, pointers, axes, row, low, high, length)

        past = f.add(f.binary("udiv", f.sub(last, 1), f.integer(line)), 1)
        f.loop(f.binary("udiv", first, f.integer(line)), past, 1, row_of_block)

    return write_kernel(module, name, operands_of(problem), blocks, body, candidate=f"runs of {length}")


INDEXED = only("indexed", Indexed, build)


def dense_tail(problem: Indexed) -> int:
    """How many trailing dims no index depends on and both sides hold densely."""
    step, count = 1, 0
    for size, data, plain, index in reversed(
        list(zip(problem.dims, problem.data_strides, problem.plain_strides, problem.index_strides, strict=True))
    ):
        if index != 0 or data != step or plain != step:
            break
        step *= size
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dim of the positions, or several that are as one: its size, and what a step along it is on each side."""

    size: int
    index: int
    data: int
    plain: int


def _axes(problem: Indexed) -> tuple[tuple[_Axis, ...], int]:
    """The dims in front of the dense tail, at least one, and the elements of that; dims of 1 are left out."""
    run = len(problem.dims) - dense_tail(problem)
    axes: list[_Axis] = []
    for one in zip(
        problem.dims[:run], problem.index_strides, problem.data_strides, problem.plain_strides, strict=False
    ):
        axis = _Axis(*one)
        if not is_free(axis.size) and axis.size == 1:
            continue
        before = axes[-1] if axes else None
        steps = axis.size * axis.index, axis.size * axis.data, axis.size * axis.plain
        if before is not None and steps == (before.index, before.data, before.plain):
            axes[-1] = replace(axis, size=before.size * axis.size)
        else:
            axes.append(axis)
    return tuple(axes or [_Axis(1, 0, 0, 0)]), math.prod(problem.dims[run:])


def _line(
    f: Function, problem: Indexed, pointers: dict[str, Value], axes: Sequence[_Axis], row: Value, low: Value,
    high: Amount, length: int,
) -> None:  # fmt: skip
    """The positions `low` to `high`, exclusive, along the last axis.

    Single elements that lie side by side are copied as they are told where all their indices are places of the data:
    vectors of them are asked first.
    """
    *outer, along = axes
    at = unravel(f, row, [axis.size for axis in outer])
    kind = types.scalar(problem.index_dtype)
    index_base, data_base, plain_base = (
        _offset(f, at, [getattr(axis, side) for axis in outer]) for side in ("index", "data", "plain")
    )
    indices = f.at(pointers["indices"], index_base, kind)

    def move(where: Value, *, inside: bool) -> None:
        data_at = f.add(data_base, f.mul(where, along.data))
        for number, component in enumerate(problem.components):
            place = f.add(f.mul(where, along.index), number * problem.component_step)
            index = f.convert("sext", "i64", f.load(kind, f.at(indices, place, kind)))
            chosen = index if inside else moved_inside(f, index, component.size)
            data_at = f.add(data_at, f.mul(chosen, component.stride))
        _move(f, problem, pointers, data_at, f.add(plain_base, f.mul(where, along.plain)), length)

    def one_by_one() -> None:
        f.loop(low, high, 1, lambda where, _: move(where, inside=False))

    if is_free(length) or length > 1 or len(problem.components) > 1 or along.index != 1:
        one_by_one()
        return

    def unrolled() -> None:
        whole = f.add(low, f.binary("and", f.sub(f.integer(high), low), f.integer(-_UNROLLED)))

        def several(where: Value, _: tuple[Value, ...]) -> None:
            for number in range(_UNROLLED):
                move(f.add(where, number), inside=True)

        f.loop(low, whole, _UNROLLED, several)
        f.loop(whole, high, 1, lambda where, _: move(where, inside=True))

    f.when(
        are_inside(f, problem.index_dtype, problem.components[0].size, indices, low, f.integer(high)),
        unrolled,
        one_by_one,
    )


def _offset(f: Function, coordinates: Sequence[Value], strides: Sequence[int]) -> Value:
    total = f.integer(0)
    for coordinate, stride in zip(coordinates, strides, strict=True):
        total = f.add(total, f.mul(coordinate, stride))
    return total


def _move(
    f: Function, problem: Indexed, pointers: dict[str, Value], data_at: Value, plain_at: Value, length: int
) -> None:  # fmt: skip
    """Copy, or combine, the run of elements at one position."""
    element = types.scalar(problem.dtype)
    if problem.direction == "gather":
        source, aim = f.at(pointers["data"], data_at, element), f.at(pointers["output"], plain_at, element)
        _copy(f, problem.dtype, source, aim, length)
        return
    source, aim = f.at(pointers["updates"], plain_at, element), f.at(pointers["output"], data_at, element)
    if problem.reduction == "none":
        _copy(f, problem.dtype, source, aim, length)
    else:
        _combine(f, problem, source, aim, length)


def _fill(f: Function, dtype: DType, bits: int, aim: Value, length: int) -> None:
    """One number in all elements, as vectors while they last."""
    kind = _BITS[dtype.bytes]
    lanes = f.module.target.vector_bytes // dtype.bytes
    whole, number = length // lanes * lanes, f.number(kind, bits)
    wide = f.splat(number, lanes)
    f.loop(0, whole, lanes, lambda at, _: f.store(wide, f.at(aim, at, kind)))
    f.loop(whole, length, 1, lambda at, _: f.store(number, f.at(aim, at, kind)))


def _copy(f: Function, dtype: DType, source: Value, aim: Value, length: int) -> None:
    """Elements one after the other, as vectors while they last."""
    kind = _BITS[dtype.bytes]
    lanes = f.module.target.vector_bytes // dtype.bytes
    whole = length // lanes * lanes
    f.loop(0, whole, lanes, lambda at, _: f.store(
        f.load(types.vector(kind, lanes), f.at(source, at, kind)), f.at(aim, at, kind)))  # fmt: skip
    f.loop(whole, length, 1, lambda at, _: f.store(f.load(kind, f.at(source, at, kind)), f.at(aim, at, kind)))


def _combine(f: Function, problem: Indexed, source: Value, aim: Value, length: int) -> None:
    """output = output (op) update, element by element: runs of a scatter that reduces are short."""
    kind = types.scalar(problem.dtype)

    def one(at: Value, _: tuple[Value, ...]) -> None:
        place = f.at(aim, at, kind)
        f.store(combined(f, problem, f.load(kind, place), f.load(kind, f.at(source, at, kind))), place)

    f.loop(0, length, 1, one)


def combined(f: Function, problem: Indexed, old: Value, new: Value) -> Value:
    """What an element becomes with an update. Raises InvalidIndexing for types that no scatter reduces."""
    dtype = problem.dtype
    if problem.reduction == "none":
        return new
    if dtype.held is not dtype or dtype is DType.BOOL:
        raise InvalidIndexing(f"a scatter that reduces {dtype.value} is not supported; cast to f32 around it.")
    signed = dtype.is_signed or dtype.is_float
    match problem.reduction:
        case "add":
            return f.add(old, new)
        case "mul":
            return f.mul(old, new)
        case "min":
            return f.minimum(old, new, signed=signed)
        case _:
            return f.maximum(old, new, signed=signed)

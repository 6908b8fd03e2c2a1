"""Matrix products: tiles in shared memory, and for few rows the depth shared by warps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, operands_of
from kernels.llvm.conversion import memory_type, widened
from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.leaves import ThreadElements, axes_of
from kernels.ptx.tasks.panel import HeldPanel, sums_of_share
from kernels.ptx.tasks.threads import THREADS, WARP, Block, NoTask, copies_ahead, write_task
from kernels.ptx.tasks.tile import TaskTile, TiledProduct, chosen
from kernels.ptx.tasks.tile_source import StridedSource
from kernels.ptx.tasks.tile_writer import Which, prepare_tile, write_tile
from kernels.target import Target
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm_problem import Gemm
from kernels.templates.matrix import Matrix, dense_batch
from kernels.tensor.expression import Buffer, Load, Variable, index

FEW_ROWS = 8  # up to so many a thread has a column, and the sums of all rows


@dataclass(frozen=True, slots=True)
class RowMajor:
    """A constant B as rows of the depth, its columns side by side, and zeros behind the last one."""

    depth: int
    columns: int
    room: int  # columns and zeros of a row
    row: int  # strides of the array that is given
    column: int
    matrices: int = 1
    apart: int = 0

    @property
    def elements(self) -> int:
        """ThreadElements of the packed form."""
        return self.matrices * self.depth * self.room

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The matrices, one after the other."""
        flat = np.ascontiguousarray(array).reshape(-1)
        shape, size = (self.matrices, self.depth, self.columns), flat.itemsize
        strides = (self.apart * size, self.row * size, self.column * size)
        filled = np.zeros((self.matrices, self.depth, self.room), flat.dtype)
        filled[..., : self.columns] = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
        return filled.reshape(-1)


def product(problem: Gemm, target: Target, name: str, tile: TaskTile | None = None) -> Kernel:
    """The task: operands "a", "b", those of the epilogue, "c"; with the likely best tile where none is given.

    Raises NoTask for other arithmetic than float32's.
    """
    if problem.arithmetic != "f32":
        raise NoTask(f"products of {problem.arithmetic} have no task.")
    few = problem.rows <= FEW_ROWS and tile is None
    packing = _packing(problem, _few_columns(problem, target) if few else 4)
    b_place = problem.place_b
    if packing is not None:
        steps = (
            dense_batch(problem.batch, problem.depth * packing.room)
            if packing.matrices > 1
            else (0,) * len(problem.batch)
        )
        b_place = Matrix(packing.room, 1, steps)
    b_dtype = problem.b_dtype
    operands = (
        Operand("a", "input", DType.F32, problem.place_a.elements(problem.rows, problem.depth, problem.batch)),
        Operand(
            "b", "constant" if packing else "input", b_dtype,
            packing.elements if packing else b_place.elements(problem.depth, problem.columns, problem.batch), packing,
        ),
        *operands_of(problem.epilogue.buffers),
        Operand("c", "output", problem.epilogue.dtype, _elements(problem)),
    )  # fmt: skip
    if not (problem.rows and problem.columns and problem.matrices):
        return write_task(target, name, operands, 0, lambda block: None)
    if few:
        return _few_rows(problem, b_place, b_dtype, operands, target, name)
    tile = tile or chosen(tiled(problem), target)
    counts = (problem.matrices, -(-problem.rows // tile.rows), -(-problem.columns // tile.columns))
    vector = 4 if packing is not None and b_dtype is DType.F32 else 1
    columns = problem.columns if packing is None else packing.room

    a, b, depth = problem.place_a, b_place, problem.depth
    held: Which | None = "right" if packing is not None else None

    def right_of(block: Block, batch: Sequence[Value]) -> StridedSource:
        start = _moved(block, "b", b, batch, b_dtype)
        return StridedSource(start, b.column, b.row, columns, depth, b_dtype, vector)

    def prepare(block: Block) -> None:
        matrix, _, over = block.split(block.number, counts)
        right = right_of(block, block.split(matrix, problem.batch))
        prepare_tile(block, tile, depth, right, "right", block.f.mul(over, tile.columns))

    def body(block: Block) -> None:
        f = block.f
        matrix, down, over = block.split(block.number, counts)
        batch = block.split(matrix, problem.batch)
        start = _moved(block, "a", a, batch, DType.F32)
        left = StridedSource(start, a.row, a.column, problem.rows, depth, DType.F32)
        corner = f.mul(down, tile.rows), f.mul(over, tile.columns)

        def store(rows: Value, columns: Value, sums: Value) -> None:
            store_elements(
                block,
                problem.epilogue,
                ProductOutput(problem, batch),
                rows,
                columns,
                sums,
                (problem.rows, problem.columns),
            )

        write_tile(block, tile, depth, left, right_of(block, batch), corner, store, held)

    return write_task(
        target, name, operands, counts[0] * counts[1] * counts[2], body, shared=tile.shared, flops=problem.flops,
        candidate=str(tile), prepare=prepare if held else None, resident=tile.resident,
    )  # fmt: skip


def tiled(problem: Gemm) -> TiledProduct:
    """The product as tiles see it."""
    vector = 4 if problem.constant_b and problem.b_dtype is DType.F32 else 1
    return TiledProduct(problem.rows, problem.columns, problem.depth, problem.matrices, 1, vector)


class ProductOutput:
    """Where the elements of a product go, and what its epilogue's variables are."""

    def __init__(self, problem: Gemm, batch: Sequence[Value]) -> None:
        self._problem = problem
        self._batch = dict(zip(problem.batch_variables, batch, strict=True))
        c, shape = problem.place_c, (*problem.batch, problem.rows, problem.columns)
        self.load = Load(
            Buffer("c", problem.epilogue.dtype, shape, (*c.batch, c.row, 1), c.offset),
            tuple(index(one) for one in (*problem.batch_variables, problem.row, problem.column)),
        )  # fmt: skip

    def at(self, row: Value, column: Value) -> dict[Variable, Value]:
        """The variables at an element."""
        return {**self._batch, self._problem.row: row, self._problem.column: column}


def store_elements(
    block: Block, epilogue: Epilogue, output: Any, rows: Value, columns: Value, sums: Value, limits: tuple[int, int]
) -> None:
    """The epilogue of some sums, and those of them stored that lie inside."""
    f = block.f
    inside = [
        f.binary("and", block.below(row, limits[0]), block.below(column, limits[1]))
        for row, column in zip(rows.split(), columns.split(), strict=True)
    ]
    safe = joined([block.least(one, limits[0] - 1) for one in rows.split()])
    near = joined([block.least(one, limits[1] - 1) for one in columns.split()])
    leaves = ThreadElements(block, axes_of(output.at(safe, near)), {ACCUMULATED.name: sums})
    values = leaves.values((epilogue.value,))[0].split()
    pairs = zip(safe.split(), near.split(), inside, strict=True)
    for number, (row, column, there) in enumerate(pairs):
        one = values[number % len(values)]

        def put(row: Value = row, column: Value = column, one: Value = one) -> None:
            ThreadElements(block, axes_of(output.at(row, column))).store(one, output.load)

        f.when(there, put)


def _moved(block: Block, name: str, place: Matrix, batch: Sequence[Value], dtype: DType) -> Value:
    """Where a matrix of the batch begins."""
    f, total = block.f, block.word(place.offset)
    for where, step in zip(batch, place.batch, strict=True):
        total = f.add(total, f.mul(where, step))
    return block.at(block.pointers[name], total, memory_type(dtype))


def _elements(problem: Gemm) -> int:
    return problem.place_c.elements(problem.rows, problem.columns, problem.batch)


def _packing(problem: Gemm, vector: int) -> RowMajor | None:
    if not problem.constant_b:
        return None
    b = problem.place_b
    several = any(b.batch)
    if several and b.batch != dense_batch(problem.batch, b.batch[-1]):
        raise NoTask("a constant B of a batch must hold one matrix per index, or one for all.")
    return RowMajor(
        problem.depth,
        problem.columns,
        -(-problem.columns // vector) * vector,
        b.row,
        b.column,
        problem.matrices if several else 1,
        b.batch[-1] if several else 0,
    )


def _few_rows(
    problem: Gemm, b_place: Matrix, b_dtype: DType, operands: tuple[Operand, ...], target: Target, name: str
) -> Kernel:
    """All rows of some columns: threads beside one another have columns, those apart a share of the depth."""
    side_by_side = b_place.column == 1 or problem.columns == 1
    # Else a warp has a column, and its threads shares of the depth.
    wide = _few_columns(problem, target) if side_by_side else THREADS // WARP
    shares = THREADS // wide
    counts = (problem.matrices, -(-problem.columns // wide))
    rows, depth, sums = problem.rows, problem.depth, 4 * THREADS * problem.rows
    held = None
    if side_by_side and problem.constant_b and b_dtype is DType.F32 and copies_ahead(target):
        held = HeldPanel.of(depth, wide, b_place.row, sums)

    def prepare(block: Block) -> None:
        assert held is not None
        matrix, number = block.split(block.number, counts)
        b = _moved(block, "b", b_place, block.split(matrix, problem.batch), b_dtype)
        held.bring(block, block.at(b, block.f.mul(number, wide)))

    def body(block: Block) -> None:
        f = block.f
        matrix, number = block.split(block.number, counts)
        batch = block.split(matrix, problem.batch)
        a = _moved(block, "a", problem.place_a, batch, DType.F32)
        b = _moved(block, "b", b_place, batch, b_dtype)
        slow = f.binary("udiv", block.thread, block.word(wide if side_by_side else shares))
        fast = f.sub(block.thread, f.mul(slow, wide if side_by_side else shares))
        mine, share = (fast, slow) if side_by_side else (slow, fast)
        column = f.add(f.mul(number, wide), mine)
        near = block.least(column, problem.columns - 1)
        kind = memory_type(b_dtype)

        def add(in_shared: bool, k: Value, total: Value, inside: Value | None) -> Value:
            k = k if inside is None else block.least(k, (held.rows if in_shared and held else depth) - 1)
            if in_shared:
                assert held is not None
                weight = f.load("float", held.at(block, k, mine))
            else:
                at = f.add(f.mul(k, b_place.row), f.mul(near, b_place.column))
                weight = widened(f, f.load(kind, block.at(b, at, kind)), b_dtype)
            first = f.mul(k, problem.place_a.column)
            places = [block.at(a, f.add(first, row * problem.place_a.row)) for row in range(rows)]
            parts = []
            for place, part in zip(places, total.split(), strict=True):
                given = f.fma(f.load("float", place), weight, part)
                parts.append(given if inside is None else f.select(inside, given, part))
            return joined(parts)

        total, rows_held = joined([f.number("float", 0.0)] * rows), held.rows if held else 0
        if held:
            block.await_copies(0)
            block.barrier()
            total = sums_of_share(block, share, shares, 0, rows_held, total, partial(add, True))
        if rows_held < depth:
            total = sums_of_share(block, share, shares, rows_held, depth, total, partial(add, False))
        for row, part in enumerate(total.split()):
            f.store(part, block.at(block.shared, f.add(f.mul(f.add(f.mul(share, rows), row), wide), mine)))
        block.barrier()

        def finish(at: Value, _: tuple[Value, ...]) -> Sequence[Value]:
            row, place = block.split(at, (rows, wide))
            found = f.number("float", 0.0)
            for other in range(shares):
                found = f.add(found, f.load("float", block.at(block.shared, f.add(at, other * rows * wide))))
            column = f.add(f.mul(number, wide), place)
            store_elements(
                block, problem.epilogue, ProductOutput(problem, batch), row, column, found, (rows, problem.columns)
            )
            return ()

        block.strided(block.thread, rows * wide, THREADS, finish)

    return write_task(
        target, name, operands, counts[0] * counts[1], body, shared=held.end if held else sums, flops=problem.flops,
        candidate=f"{rows} rows, {wide} columns by {shares} shares", prepare=prepare if held else None,
    )  # fmt: skip


def _few_columns(problem: Gemm, target: Target) -> int:
    """Columns of a block where a product has few rows: as many as leave each multiprocessor two blocks."""
    enough = max(1, target.workers) * 2
    return next((one for one in (WARP, 16, 8) if problem.matrices * -(-problem.columns // one) >= enough), 8)

"""Matrix products whose columns or depth only a run knows: C = epilogue(A B), A and B read where they lie.

A block is a few rows of one matrix. Its columns are taken by vectors and the rest one by one, each over the whole depth
with its sums in registers. Where the depth lies side by side in both operands, as keys do under queries, a sum is a
product along the depth, by vectors of it. Nothing is packed, so that a product of known columns and depth is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.errors import Undecided
from kernels.kernel import Kernel, Operand, operands_of
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.size import is_free
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.epilogue import TileLeaves, apply, origins
from kernels.templates.gemm_choice import GemmCandidate, lanes_of
from kernels.templates.gemm_problem import Gemm
from kernels.templates.grid import Group, Groups, cut, each_piece, pieces, unravel
from kernels.templates.matrix import Matrix
from kernels.tensor.expression import Variable

ROWS = 4  # of a block: each element of B is multiplied by so many


def is_of_any_width(gemm: Gemm) -> bool:
    """Whether only a run knows the columns or the depth."""
    return is_free(gemm.columns) or is_free(gemm.depth)


class FreeProductBuilder(Builder[Gemm, GemmCandidate]):
    """Writes such a product of float32 or float64; raises Undecided for another arithmetic."""

    def __init__(self, gemm: Gemm, candidate: GemmCandidate, target: Target, name: str) -> None:
        super().__init__(gemm, candidate, target, name)
        if gemm.arithmetic not in ("f32", "f64") or gemm.b_dtype.bytes < 4:
            raise Undecided(f"columns and depth of a product of {gemm.arithmetic} cannot be of any size.")
        self.lanes, self.scalar = lanes_of(gemm, target), "double" if gemm.arithmetic == "f64" else "float"
        self.row_groups: Groups = cut(gemm.rows, ROWS)
        self.is_along = gemm.place_a.column == gemm.place_b.row == 1 and gemm.place_b.column != 1

    def kernel(self) -> Kernel:
        """The kernel; B is as it lies, also where it is constant."""
        gemm, kind = self.problem, self.problem.epilogue.dtype
        summed = self.problem.b_dtype if self.scalar == "float" else kind
        operands = (
            Operand("a", "input", summed, gemm.place_a.elements(gemm.rows, gemm.depth, gemm.batch)),
            Operand("b", "constant" if gemm.constant_b else "input", summed,
                    gemm.place_b.elements(gemm.depth, gemm.columns, gemm.batch)),
            *operands_of(gemm.epilogue.buffers),
            Operand("c", "output", kind, gemm.place_c.elements(gemm.rows, gemm.columns, gemm.batch)),
        )  # fmt: skip
        return self.written(operands, gemm.matrices * pieces(self.row_groups), flops=gemm.flops)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """A few rows of one matrix."""
        gemm = self.problem
        matrix, piece = unravel(f, block, (gemm.matrices, pieces(self.row_groups)))
        batch = dict(zip(gemm.batch_variables, unravel(f, matrix, gemm.batch), strict=True))

        def rows(tall: Group, row: Value) -> None:
            a = self._from(f, pointers["a"], gemm.place_a, batch, row)
            b = self._from(f, pointers["b"], gemm.place_b, batch, f.integer(0))

            def some(column: Value, _: tuple[Value, ...], lanes: int) -> None:
                sums = (self._along if self.is_along else self._across)(f, a, b, column, tall.size, lanes)
                self._store(f, pointers, batch, row, column, sums, lanes)

            lanes = 1 if self.is_along else self.lanes
            whole = gemm.columns // lanes * lanes
            f.loop(0, whole, lanes, lambda column, carried: some(column, carried, lanes))
            f.loop(whole, gemm.columns, 1, lambda column, carried: some(column, carried, 1))

        each_piece(f, self.row_groups, piece, f.add(piece, 1), rows)

    def _from(self, f: Function, base: Value, place: Matrix, batch: dict[Variable, Value], row: Value) -> Value:
        """Where a row of a matrix begins."""
        offset = f.add(f.mul(row, place.row), place.offset)
        for number, stride in zip(batch.values(), place.batch, strict=True):
            offset = f.add(offset, f.mul(number, stride))
        return f.at(base, offset, self.scalar)

    def _across(self, f: Function, a: Value, b: Value, column: Value, tall: int, lanes: int) -> Sequence[Value]:
        """The sums of some columns of each row: B's elements of one step of the depth at a time."""
        gemm, kind = self.problem, types.vector(self.scalar, lanes)

        def step(k: Value, sums: tuple[Value, ...]) -> list[Value]:
            place = f.at(b, f.add(f.mul(k, gemm.place_b.row), f.mul(column, gemm.place_b.column)), self.scalar)
            right = self._several(f, place, gemm.place_b.column, lanes)
            first = f.at(a, f.mul(k, gemm.place_a.column), self.scalar)
            lefts = [f.load(self.scalar, f.at(first, row * gemm.place_a.row, self.scalar)) for row in range(tall)]
            return [f.fma(f.splat(left, lanes), right, total) for left, total in zip(lefts, sums, strict=True)]

        return f.loop(0, gemm.depth, 1, step, [f.number(kind, 0)] * tall)

    def _several(self, f: Function, place: Value, apart: int, lanes: int) -> Value:
        kind = types.vector(self.scalar, lanes)
        if lanes == 1 or apart == 1:
            return f.load(kind, place)
        found = f.number(kind, 0)
        for lane in range(lanes):
            found = f.insert(found, f.load(self.scalar, f.at(place, lane * apart, self.scalar)), lane)
        return found

    def _along(self, f: Function, a: Value, b: Value, column: Value, tall: int, _: int) -> Sequence[Value]:
        """The sums of one column of each row: vectors of the depth, whose lanes are added in the end, and the rest."""
        gemm = self.problem
        second = f.at(b, f.mul(column, gemm.place_b.column), self.scalar)

        def step(k: Value, sums: tuple[Value, ...], kind: str) -> list[Value]:
            right = f.load(kind, f.at(second, k, self.scalar))
            first = f.at(a, k, self.scalar)
            lefts = [f.load(kind, f.at(first, row * gemm.place_a.row, self.scalar)) for row in range(tall)]
            return [f.fma(left, right, total) for left, total in zip(lefts, sums, strict=True)]

        wide = types.vector(self.scalar, self.lanes)
        whole = gemm.depth // self.lanes * self.lanes
        sums = f.loop(0, whole, self.lanes, lambda k, carried: step(k, carried, wide), [f.number(wide, 0)] * tall)
        added = [f.reduce("fadd", total) for total in sums]
        return f.loop(whole, gemm.depth, 1, lambda k, carried: step(k, carried, self.scalar), added)

    def _store(
        self, f: Function, pointers: dict[str, Value], batch: dict[Variable, Value], row: Value, column: Value,
        sums: Sequence[Value], lanes: int,
    ) -> None:  # fmt: skip
        gemm, epilogue = self.problem, self.problem.epilogue
        kind = types.scalar(epilogue.dtype)
        offset = f.add(f.add(f.mul(row, gemm.place_c.row), column), gemm.place_c.offset)
        for number, stride in zip(batch.values(), gemm.place_c.batch, strict=True):
            offset = f.add(offset, f.mul(number, stride))
        given = origins(f, epilogue, pointers, {gemm.row: row, gemm.column: column, **batch})
        leaves = TileLeaves(f, given, gemm.column, lanes)
        for position, total in enumerate(sums):
            value = apply(f, epilogue, leaves.place(total, {gemm.row: position}, [0]), lanes)
            f.store(value, f.at(f.at(pointers["c"], offset, kind), position * gemm.place_c.row, kind))

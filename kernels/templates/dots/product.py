"""Matrix products on dot products of bfloat16: float32 rounded on the way, sums and epilogue in float32.

A block rounds its rows of A into scratch once, where they stay in the second cache, and is a product of bfloat16 then
(`kernels/templates/gemm.py`). A constant B is rounded where it is packed.
"""

from __future__ import annotations

from dataclasses import replace

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, Packing
from kernels.llvm.function import Amount, Function, Value
from kernels.size import as_size, bound
from kernels.target import Target
from kernels.templates.dots.product_choice import candidates, estimate, of_rounded, row_elements, share
from kernels.templates.gemm import GemmBuilder
from kernels.templates.gemm_choice import GemmCandidate, family, steady
from kernels.templates.gemm_problem import Gemm
from kernels.templates.grid import start_of, tallest
from kernels.templates.template import Template
from kernels.templates.units.rounding import Rounded, write_rows
from kernels.tensor.expression import Variable


def build(gemm: Gemm, candidate: GemmCandidate, target: Target, name: str) -> Kernel:
    """The kernel: operands "a", "b", "c" and those of the epilogue."""
    return _DotProductBuilder(gemm, candidate, target, name).kernel()


DOT_PRODUCT = Template(
    "product", Gemm, candidates, build, estimate, share, family=family, steady=steady, variant="dots"
)


class _DotProductBuilder(GemmBuilder):
    """Writes a product of bfloat16 whose blocks make their rows of A themselves."""

    def __init__(self, gemm: Gemm, candidate: GemmCandidate, target: Target, name: str) -> None:
        super().__init__(of_rounded(gemm), candidate, target, name)
        self._given = gemm

    def kernel(self) -> Kernel:
        made, given = super().kernel(), self._given
        size = given.place_a.elements(given.rows, given.depth, given.batch)
        first = Operand("a", "input", DType.F32, bound(size), run_elements=as_size(size))
        return replace(made, operands=tuple(first if one.name == "a" else one for one in made.operands))

    def _again(self, candidate: GemmCandidate) -> GemmBuilder:
        return type(self)(self._given, candidate, self.target, self.name)

    def _packing(self) -> Packing | None:
        packing = super()._packing()
        return None if packing is None else Rounded(packing)

    def _panel_bytes(self) -> int:
        """Scratch for a block's rows of A."""
        rows = tallest(self.row_groups) * self.candidate.row_stretch
        return rows * row_elements(self._given) * DType.BF16.bytes

    def _place_of_a(self, f: Function, base: Value, at: dict[Variable, Value]) -> Value:
        return self._matrix(f, base, self._given.place_a, at, "float")

    def _ready(self, f: Function, a: Value, scratch: Value, rows: tuple[Amount, Amount]) -> Value:
        """Round the block's rows; returns where row 0 would lie."""
        given, distance = self._given, row_elements(self._given)
        first = start_of(f, self.row_groups, rows[0])
        end = f.minimum(start_of(f, self.row_groups, f.integer(rows[1])), f.integer(given.rows))
        function = write_rows(
            self.module, given.depth, given.place_a.row, distance // 32, prefix=self.name, side_by_side=True
        )
        f.call(function, f.at(a, f.mul(first, given.place_a.row)), scratch, f.sub(end, first))
        return f.at(scratch, f.mul(first, -distance), "bfloat")

"""Matrix products whose constant B has a few bits for each element: C = epilogue(A B), in float32.

    B[k, n] = (code[k, n] - zero[k // block, n]) * scale[k // block, n]

A block of work is that of a product of float32, but for a panel of B: a part of its depth, which the first cache holds,
is widened into scratch, once for all rows of the block.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand
from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.target import Target
from kernels.templates import gemm_choice
from kernels.templates.epilogue import Epilogue
from kernels.templates.gemm import BlockPlace, GemmBuilder
from kernels.templates.gemm_choice import GemmCandidate, lanes_of
from kernels.templates.gemm_problem import Gemm
from kernels.templates.grid import Group
from kernels.templates.quantized.arithmetic import PER_WORD, best
from kernels.templates.template import Template
from kernels.templates.tile import Asked

Array = npt.NDArray[np.generic]
BITS = (2, 4, 8)
TOGETHER = 16  # bytes of codes of a lane that are widened without a loop
AHEAD = 2  # blocks of a panel between codes that are widened and those that are asked for
WORD = 4  # bytes
MOST = 8_355_000.0  # steps of the largest number of a block: below 127.5 * 65536, where the first digit is one byte


class InvalidBits(KernelsError):
    """Widths or blocks of codes that no kernel widens."""


@dataclass(frozen=True, slots=True)
class BitsProduct:
    """C[rows, columns] = epilogue(A[rows, depth] B[depth, columns]), A and C dense.

    Codes are given as (columns, blocks, block * bits / 8), a byte's low bits first; scales as (columns, blocks); zero
    points likewise where they are "floats", and as the codes of a column's blocks in whole bytes where they are
    "codes". In the "middle" lies 2 ** (bits - 1). The epilogue's variables are those of `gemm`.
    """

    rows: int
    columns: int
    depth: int
    bits: int
    block: int  # elements of the depth that share a scale
    zeros: Literal["middle", "codes", "floats"] = "middle"
    epilogue: Epilogue = field(default_factory=Epilogue)

    def __post_init__(self) -> None:
        if self.bits not in BITS or self.block < 1 or self.block * self.bits % 8:
            raise InvalidBits(f"codes of {self.bits} bits in blocks of {self.block} do not fill bytes.")

    @property
    def gemm(self) -> Gemm:
        """The same product of float32."""
        return Gemm(self.rows, self.columns, self.depth, epilogue=self.epilogue)

    @property
    def of_columns(self) -> BitsProduct:
        """One row by the same codes, which decides how these lie: for any rows alike."""
        return replace(self, rows=1, epilogue=Epilogue())

    @property
    def blocks(self) -> int:
        """Scales of a column."""
        return -(-self.depth // self.block)

    @property
    def each(self) -> int:
        """Codes of a byte."""
        return 8 // self.bits


@dataclass(frozen=True, slots=True)
class ColumnPacking:
    """Numbers of columns as panels: [panel][number][column of the panel], zeros where there are no columns.

    With several numbers `together`, these lie side by side: [panel][number / together][column of the panel][number].
    """

    product: BitsProduct
    lanes: int
    groups: tuple[Group, ...]
    kind: Literal["codes", "scales", "zeros"]
    together: int = 1

    @property
    def numbers(self) -> int:
        """Of a column: bytes of codes, or blocks."""
        product = self.product
        return product.blocks * product.block // product.each if self.kind == "codes" else product.blocks

    @property
    def elements(self) -> int:
        """Elements of all panels."""
        return self.numbers * sum(group.size * group.count for group in self.groups) * self.lanes

    def pack(self, array: Array) -> Array:
        """The packed form."""
        packed = np.zeros(self.elements, array.dtype)
        self.fill(array, packed)
        return packed

    def fill(self, array: Array, packed: Array) -> None:
        """Write the packed form over zeros."""
        product = self.product
        given = np.ascontiguousarray(array).reshape(product.columns, -1)
        if self.kind == "zeros" and product.zeros == "codes":
            shifts = np.arange(product.each, dtype=np.uint8) * product.bits
            codes = given.astype(np.uint8)[..., None] >> shifts & np.uint8((1 << product.bits) - 1)
            given = codes.reshape(product.columns, -1)[:, : product.blocks]
        for group in self.groups:
            size = group.size * self.lanes
            for panel in range(group.count):
                first = group.start * self.lanes + panel * size
                some = given[first : first + size]
                found = packed[first * self.numbers : (first + size) * self.numbers]
                found = found.reshape(-1, size, self.together)  # [number / together][column][number]
                found[:, : len(some)] = some.reshape(len(some), -1, self.together).transpose(1, 0, 2)


def in_words(product: BitsProduct, target: Target) -> bool:
    """Whether codes lie in words of four bytes of a column: one row is computed by dot products of these.

    Blocks are of whole vectors, and sums of their digits fit (bits_dots.py).
    """
    if target.is_gpu or PER_WORD[best(target)] != WORD:
        return False
    largest = product.block * ((1 << product.bits) - 1) * MOST / 256  # of a sum of the upper digits
    vector = lanes_of(product.gemm, target)
    return largest < 2**31 and product.block % vector == 0 and product.block % (WORD * product.each) == 0


def candidates(product: BitsProduct, target: Target) -> tuple[GemmCandidate, ...]:
    """Those of the product of float32, in parts of the depth that the first cache holds."""
    found = []
    for one in gemm_choice.candidates(product.gemm, target):
        steps = target.l1 // 2 // (one.vectors * target.vector_bytes)
        part = max(1, steps // product.block) * product.block
        found.append(replace(one, depth_block=part if part < product.depth else None))
    return tuple(dict.fromkeys(found))


def estimate(product: BitsProduct, candidate: GemmCandidate, target: Target) -> float:
    """Nanoseconds of all blocks on one core: those of the sums."""
    return gemm_choice.estimate(product.gemm, candidate, target)


def build(product: BitsProduct, candidate: GemmCandidate, target: Target, name: str = "bits") -> Kernel:
    """The kernel: operands "a", "b", "scales", "zeros" where they are not in the middle, the epilogue's, "c"."""
    return BitsBuilder(product, candidate, target, name).kernel()


BITS_PRODUCT = Template("bits", BitsProduct, candidates, build, estimate)


class BitsBuilder(GemmBuilder):
    """Writes a product whose panels are widened; one of a single row says otherwise (`bits_row.py`)."""

    def __init__(self, product: BitsProduct, candidate: GemmCandidate, target: Target, name: str) -> None:
        super().__init__(product.gemm, candidate, target, name)
        self.product, self.b_type, self.widens = product, DType.U8, True

    def _again(self, candidate: GemmCandidate) -> GemmBuilder:
        return type(self)(self.product, candidate, self.target, self.name)

    def _for_few(self, tiles: int, rows: int) -> GemmCandidate:
        return self.candidate  # a part is of whole blocks, and widened where the first cache holds it

    def _packing(self) -> ColumnPacking:
        return ColumnPacking(
            self.product.of_columns, self.lanes, self.column_groups, "codes",
            WORD if in_words(self.product, self.target) else 1,
        )  # fmt: skip

    def _beside(self) -> tuple[Operand, ...]:
        scales, zeros = (replace(self._packing(), kind=kind, together=1) for kind in ("scales", "zeros"))
        found = [Operand("scales", "constant", DType.F32, scales.elements, scales)]
        if self.product.zeros != "middle":
            dtype = DType.U8 if self.product.zeros == "codes" else DType.F32
            found.append(Operand("zeros", "constant", dtype, zeros.elements, zeros))
        return tuple(found)

    def _panel_bytes(self) -> int:
        return -(-self.part // self.product.block) * self.product.block * self._widest()

    def _asked(self, width: int, ends: bool) -> Asked:
        return Asked()

    def _panel(
        self, f: Function, at: BlockPlace, group: Group, column: Value, number: Value, ends: bool
    ) -> tuple[Value, Value]:
        product, width = self.product, group.size * self.lanes
        blocks = -(-self._steps(ends) // product.block)
        first = f.mul(number, self.part // product.block)  # block of the depth
        each = product.block // product.each  # bytes of a block of a column
        codes = f.at(at.b, f.add(f.mul(column, product.blocks * each), f.mul(first, each * width)), "i8")
        place = f.add(f.mul(column, product.blocks), f.mul(first, width))
        given = [codes, f.at(at.pointers["scales"], place)]
        if product.zeros != "middle":
            given.append(f.at(at.pointers["zeros"], place, "i8" if product.zeros == "codes" else "float"))
        f.call(self._widening(group.size, blocks), *given, at.panel)
        return at.panel, codes

    def _widening(self, vectors: int, blocks: int) -> str:
        """Write, once, f(codes, scales, [zeros,] panel): so many blocks of the depth of a panel."""
        name = f"{self.name}_widen_{vectors}_{blocks}"
        if self.module.has(name):
            return name
        product, lanes = self.product, self.lanes
        names = ("codes", "scales", *(() if product.zeros == "middle" else ("zeros",)))
        given = [Parameter(one, "ptr", "noalias nocapture readonly") for one in names]
        f = Function(self.module, name, (*given, Parameter("panel", "ptr", "noalias nocapture")))
        real, width = types.vector("float", lanes), vectors * lanes
        each, together = product.block // product.each, self._packing().together

        def vector(number: Value, _: tuple[Value, ...]) -> None:
            block = f.binary("udiv", number, f.integer(vectors))
            part = f.mul(f.sub(number, f.mul(block, vectors)), lanes)
            scale = f.load(real, f.at(f.parameter("scales"), f.add(f.mul(block, width), part)))
            zero = self._zero(f, f.add(f.mul(block, width), part))
            source = f.at(f.parameter("codes"), f.add(f.mul(block, each * width), f.mul(part, together)), "i8")
            aim = f.at(f.parameter("panel"), f.add(f.mul(block, product.block * width), part))

            def some(first: Value, _: tuple[Value, ...], count: int) -> None:
                for byte in range(0, count, together):
                    here = f.at(f.at(source, f.mul(first, width), "i8"), byte * width, "i8")
                    to = f.at(aim, f.mul(first, product.each * width))
                    if together > 1:  # in strides of a panel's width, which no cache asks for by itself
                        f.prefetch(f.at(here, AHEAD * each * width, "i8"), locality=3)
                    for code, bits in enumerate(self._codes_at(f, here, together)):
                        value = f.mul(f.sub(f.convert("sitofp", real, bits), zero), scale)
                        place = (byte * product.each + code) * width
                        f.store(value, f.at(to, place), align=4 * lanes)

            whole = each // TOGETHER * TOGETHER
            f.loop(0, whole, TOGETHER, partial(some, count=TOGETHER))
            if each > whole:
                some(f.integer(whole), (), each - whole)

        f.loop(0, blocks * vectors, 1, vector)
        f.finish()
        return name

    def _codes_at(self, f: Function, here: Value, together: int) -> list[Value]:
        """The codes of a byte of each lane, or of four, in the order of the depth, as int32."""
        product, lanes = self.product, self.lanes
        words, mask = types.vector("i32", lanes), (1 << product.bits) - 1
        shifts = [code * product.bits for code in range(product.each)]
        if together == 1:
            whole = f.convert("zext", words, f.load(types.vector("i8", lanes), here, align=1))
            moved = [f.binary("lshr", whole, f.number(words, shift)) if shift else whole for shift in shifts]
            return [*(f.binary("and", one, f.number(words, mask)) for one in moved[:-1]), moved[-1]]
        whole, every = f.load(words, here, align=1), sum(mask << 8 * byte for byte in range(together))
        small = types.vector("i8", together * lanes)
        parts = []
        for shift in shifts:
            one = f.binary("lshr", whole, f.number(words, shift)) if shift else whole
            parts.append(f.convert("bitcast", small, f.binary("and", one, f.number(words, every))))
        found, nothing = [], f.number(small, 0)
        for byte in range(together):
            order = [
                place
                for lane in range(lanes)
                for place in (together * lane + byte, *[together * lanes] * (together - 1))
            ]
            found += [f.convert("bitcast", words, f.shuffle(part, nothing, order)) for part in parts]
        return found

    def _zero(self, f: Function, place: Value) -> Value:
        """The zero points of a vector of columns, in float32."""
        real = types.vector("float", self.lanes)
        if self.product.zeros == "middle":
            return f.number(real, float(1 << self.product.bits - 1))
        if self.product.zeros == "floats":
            return f.load(real, f.at(f.parameter("zeros"), place))
        return f.convert("sitofp", real, self._code(f, place))

    def _code(self, f: Function, place: Value) -> Value:
        """The zero points of a vector of columns that are codes, as int32."""
        codes = f.load(types.vector("i8", self.lanes), f.at(f.parameter("zeros"), place, "i8"), align=1)
        return f.convert("zext", types.vector("i32", self.lanes), codes)

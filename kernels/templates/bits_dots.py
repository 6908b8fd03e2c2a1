"""One row by a constant B of a few bits for each element, on dot products of four bytes.

Codes are bytes once they are taken apart, and so are the numbers of the row: of the largest of their block of the
depth they are multiples of a step, of 23 bits and a sign, whose three digits to the base of 256 are signed bytes.

    sum of a[k] code[k, n]  =  step (65536 sum of high[k] code[k, n] + 256 sum of middle[k] code[k, n]
                                     + sum of low[k] code[k, n])

The three sums are exact, and zero points are subtracted from them in integers, so that what is lost is half a step for
each number of the row, and the rounding of few float32 operations for each block. A block of work makes the digits of
the row anew, so one worker has one, and those of several are as wide as `WIDE`.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Parameter, Value, joined
from kernels.target import Target
from kernels.templates.bits import MOST, WORD, BitsProduct, ColumnPacking, InvalidBits, in_words
from kernels.templates.bits_row import RowBuilder
from kernels.templates.gemm_choice import GemmCandidate, lanes_of
from kernels.templates.gemm_choice import candidates as of_floats
from kernels.templates.grid import balanced, pieces
from kernels.templates.quantized.arithmetic import add_products, best
from kernels.templates.template import Template

DIGITS = 3
LEAST = 1e-30  # no step is of a smaller largest number: it would be subnormal
INFINITE = 0x7F800000  # an infinity's bits
# Vectors of columns of a block of several workers: making digits is a twentieth of its work, and half of that.
WIDE = 20, 40
BLOCKS = 8  # of work, where the lesser width gives so many
TOGETHER = 4  # words of a lane that a turn of the loop multiplies


def fits(product: BitsProduct, target: Target) -> bool:
    """Whether the product is one row, in blocks of whole vectors whose sums fit, and there are dot products."""
    return product.rows == 1 and in_words(product, target)


def candidates(product: BitsProduct, target: Target) -> tuple[GemmCandidate, ...]:
    """Panels of few vectors, each of which has three sums; raises InvalidBits where the product does not fit."""
    if not fits(product, target):
        raise InvalidBits("it is no row, or there are no dot products of bytes for its blocks.")
    lanes, found, (first, *_) = lanes_of(product.gemm, target), [], of_floats(product.gemm, target)
    for vectors in (5, 4, 3) if target.vector_registers >= 32 else (2, 1):
        panels = pieces(balanced(-(-product.columns // lanes), vectors))
        found.append(replace(first, vectors=vectors, depth_block=None, panel_stretch=panels))
    return tuple(found)


def share(product: BitsProduct, candidate: GemmCandidate, target: Target) -> GemmCandidate:
    """The candidate with blocks for several workers."""
    panels = candidate.panel_stretch
    least, most = (-(-wide // candidate.vectors) for wide in WIDE)
    return replace(candidate, panel_stretch=min(panels, max(least, min(most, panels // BLOCKS))))


def estimate(product: BitsProduct, candidate: GemmCandidate, target: Target) -> float:
    """Nanoseconds of all blocks on one core: three dot products for four codes, at the rate of multiply-adds."""
    vectors = -(-product.columns // lanes_of(product.gemm, target))
    each = product.blocks * (DIGITS * product.block / WORD + 10 + 2 / candidate.vectors)
    return vectors * each / (target.core.gigahertz * target.core.products)


def build(product: BitsProduct, candidate: GemmCandidate, target: Target, name: str = "bits") -> Kernel:
    """The kernel: operands as `bits` has them, codes in words of four bytes."""
    return _DotsBuilder(product, candidate, target, name).kernel()


BITS_DOTS = Template("bits", BitsProduct, candidates, build, estimate, share, variant="dots")


class _DotsBuilder(RowBuilder):
    """Writes a product of one row whose numbers are digits in scratch.

    There lie the row, and for each block its sum, its step, the sums of its upper and of its low digits, then digits.
    Where all zero points are in the middle, it is a multiple of the last two.
    """

    def _packing(self) -> ColumnPacking:
        return replace(super()._packing(), together=WORD)

    @property
    def _steps_at(self) -> int:
        """Where the step of each block of the depth is in scratch, in elements."""
        return self._elements + self.product.blocks

    @property
    def _sums_at(self) -> tuple[int, int]:
        """Where the sums of each block's upper and low digits are in scratch, in elements."""
        return self._elements + 2 * self.product.blocks, self._elements + 3 * self.product.blocks

    @property
    def _digits_at(self) -> int:
        """Where the digits are in scratch, in bytes."""
        line = self.target.vector_bytes
        return -(-4 * (self._elements + 4 * self.product.blocks) // line) * line

    def _panel_bytes(self) -> int:
        line = self.target.vector_bytes
        return self._digits_at + -(-DIGITS * self._elements // line) * line

    def _ready(self, f: Function, a: Value, scratch: Value, rows: tuple[Amount, Amount]) -> Value:
        """Copy the row into scratch, with the sums, steps and digits of its blocks."""
        row = super()._ready(f, a, scratch, rows)
        f.call(self._dividing(), row)
        return row

    def _dividing(self) -> str:
        """Write, once, f(row): the steps of its blocks, and the digits of its numbers."""
        name = f"{self.name}_digits"
        if self.module.has(name):
            return name
        product, lanes = self.product, self.lanes
        f = Function(self.module, name, (Parameter("row", "ptr", "noalias nocapture"),))
        real, words, small = (types.vector(one, lanes) for one in ("float", "i32", "i8"))
        row = f.parameter("row")
        digits = f.at(row, self._digits_at, "i8")
        order = [
            first + product.each * byte + code
            for first in range(0, lanes, WORD * product.each)
            for code in range(product.each)
            for byte in range(WORD)
        ]

        def block(number: Value, _: tuple[Value, ...]) -> None:
            first = f.mul(number, product.block)

            def larger(place: Value, carried: tuple[Value, ...]) -> list[Value]:
                bits = f.binary("and", f.load(words, f.at(row, f.add(first, place))), f.number(words, 0x7FFFFFFF))
                return [f.combine("smax", carried[0], bits)]

            (most,) = f.loop(0, product.block, lanes, larger, [f.number(words, 0)])
            top = f.reduce("smax", most)
            finite = f.compare("slt", top, f.number("i32", INFINITE))
            largest = f.maximum(f.convert("bitcast", "float", top), f.number("float", LEAST))
            unsure = f.convert("bitcast", "float", f.number("i32", INFINITE + 1))
            step = f.select(finite, f.mul(largest, f.number("float", 1 / MOST)), unsure)
            f.store(step, f.at(row, f.add(number, self._steps_at)))
            times = f.splat(f.div(f.number("float", MOST), largest), lanes)
            kept = f.splat(f.select(finite, f.number("i32", -1), f.number("i32", 0)), lanes)

            def some(place: Value, carried: tuple[Value, ...]) -> list[Value]:
                at = f.add(first, place)
                known = f.binary("and", f.load(words, f.at(row, at)), kept)
                steps = f.mul(f.convert("bitcast", real, known), times)
                rest = f.convert("fptosi", words, f.intrinsic("llvm.rint", real, steps))
                upper = f.binary("ashr", f.add(rest, f.number(words, 128)), f.number(words, 8))
                low = f.sub(rest, f.binary("shl", upper, f.number(words, 8)))
                for digit in range(DIGITS):
                    byte = f.convert("trunc", small, rest)
                    f.store(
                        f.shuffle(byte, byte, order), f.at(f.at(digits, digit * self._elements, "i8"), at, "i8"),
                        align=1,
                    )  # fmt: skip
                    rest = f.binary("ashr", f.add(rest, f.number(words, 128)), f.number(words, 8))
                return [f.add(one, other) for one, other in zip(carried, (upper, low), strict=True)]

            sums = f.loop(0, product.block, lanes, some, [f.number(words, 0)] * 2)
            zero = 1 << product.bits - 1 if product.zeros == "middle" else 1
            for one, at in zip(sums, self._sums_at, strict=True):
                f.store(f.mul(f.reduce("add", one), zero), f.at(row, f.add(number, at), "i32"), align=4)

        f.loop(0, product.blocks, 1, block)
        f.finish()
        return name

    def _multiplying(self, vectors: int) -> str:
        """Write, once, f(codes, scales, [zeros,] row, sums): the sums of a panel of so many vectors."""
        name = f"{self.name}_dots_{vectors}"
        if self.module.has(name):
            return name
        product, lanes, arithmetic = self.product, self.lanes, best(self.target)
        names = ("codes", "scales", *(() if product.zeros == "middle" else ("zeros",)))
        given = [Parameter(one, "ptr", "noalias nocapture readonly") for one in (*names, "row")]
        f = Function(self.module, name, (*given, Parameter("sums", "ptr", "noalias nocapture")))
        real, words, width = types.vector("float", lanes), types.vector("i32", lanes), vectors * lanes
        row = f.parameter("row")
        groups = product.block // product.each // WORD  # words of a column of a block
        together = gcd(groups, TOGETHER)
        mask = f.number(words, sum((1 << product.bits) - 1 << 8 * byte for byte in range(WORD)))

        def block(number: Value, carried: tuple[Value, ...]) -> list[Value]:
            source = f.at(f.parameter("codes"), f.mul(number, groups * WORD * width), "i8")
            digits = f.at(f.at(row, self._digits_at, "i8"), f.mul(number, product.block), "i8")

            def word(group: Value, carried: tuple[Value, ...]) -> list[Value]:
                sums = [list(one.split()) for one in carried]
                here = f.at(source, f.mul(group, WORD * width), "i8")
                self._ask(f, here, WORD * width)
                packed = [f.load(words, f.at(here, place * WORD * lanes, "i8"), align=1) for place in range(vectors)]
                for code in range(product.each):
                    parts = []
                    for one in packed:
                        moved = f.binary("lshr", one, f.number(words, code * product.bits)) if code else one
                        parts.append((moved if product.bits == 8 else f.binary("and", moved, mask),))
                    at = f.add(f.mul(group, WORD * product.each), code * WORD)
                    for digit in range(DIGITS):
                        address = f.at(f.at(digits, digit * self._elements, "i8"), at, "i8")
                        right = (f.splat(f.load("i32", address, align=1), lanes),)
                        for place, part in enumerate(parts):
                            sums[digit][place] = add_products(f, arithmetic, part, right, sums[digit][place])
                return [joined(one) for one in sums]

            def some(first: Value, carried: tuple[Value, ...]) -> list[Value]:
                sums = list(carried)
                for group in range(together):
                    sums = word(f.add(first, group), tuple(sums))
                return sums

            zero = joined([f.number(words, 0)] * vectors)
            low, middle, high = f.loop(0, groups, together, some, [zero] * DIGITS)
            step, total = (
                f.splat(f.load("float", f.at(row, f.add(number, at))), lanes) for at in (self._steps_at, self._elements)
            )
            both = [f.splat(f.load("i32", f.at(row, f.add(number, at), "i32")), lanes) for at in self._sums_at]
            found = []
            for place, before in enumerate(carried[0].split()):
                at = f.add(f.mul(number, width), place * lanes)
                upper = f.add(f.binary("shl", high.split()[place], f.number(words, 8)), middle.split()[place])
                sums = [upper, low.split()[place]]
                if product.zeros != "floats":
                    zeros = [f.mul(self._code(f, at), one) for one in both] if product.zeros == "codes" else both
                    sums = [f.sub(one, zero) for one, zero in zip(sums, zeros, strict=True)]
                first, second = (f.convert("sitofp", real, one) for one in sums)
                moved = f.mul(f.fma(first, f.number(real, 256.0), second), step)
                if product.zeros == "floats":
                    moved = f.sub(moved, f.mul(self._zero(f, at), total))
                found.append(f.fma(moved, f.load(real, f.at(f.parameter("scales"), at)), before))
            return [joined(found)]

        self._summed(f, vectors, block)
        return name

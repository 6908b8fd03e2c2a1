"""One row by a constant B of a few bits for each element: codes are multiplied where they are widened, in registers.

    sum of a[k] (code[k, n] - zero[n]) scale[n]  =  scale[n] (sum of a[k] code[k, n] - zero[n] sum of a[k])

over each block of the depth, so that a code of up to four bits is no more than widened and multiplied: the row is as
fast as B is read, or its codes are widened. Codes of eight bits lose their zero point one by one. A block copies
the row into scratch with zeros behind it, beside the sum of each block of the depth, so that one worker has one block.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kernels.cores import HALF_PAGE
from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Body, Function, Parameter, Value, joined
from kernels.target import Target
from kernels.templates.bits import BitsBuilder, BitsProduct, ColumnPacking, InvalidBits, estimate
from kernels.templates.epilogue import origins
from kernels.templates.gemm import BlockPlace
from kernels.templates.gemm_choice import GemmCandidate, lanes_of
from kernels.templates.gemm_choice import candidates as of_floats
from kernels.templates.grid import Group, balanced, pieces
from kernels.templates.template import Template
from kernels.templates.tile import LINE, ProductTile, write_tile

BLOCKS = 32  # of several workers at the least, where there are so many panels: each copies the row
TOGETHER = 8  # bytes of codes of a lane that a turn of the loop multiplies


def candidates(product: BitsProduct, target: Target) -> tuple[GemmCandidate, ...]:
    """Those of the product of float32, in one part; raises InvalidBits for more rows than one."""
    if product.rows != 1:
        raise InvalidBits(f"a product of {product.rows} rows is no product of one row.")
    found = []
    for one in of_floats(product.gemm, target):
        panels = pieces(balanced(-(-product.columns // lanes_of(product.gemm, target)), one.vectors))
        found.append(replace(one, depth_block=None, panel_stretch=panels))
    return tuple(dict.fromkeys(found))


def share(product: BitsProduct, candidate: GemmCandidate, target: Target) -> GemmCandidate:
    """The candidate with blocks for several workers."""
    return replace(candidate, panel_stretch=max(1, candidate.panel_stretch // BLOCKS))


def build(product: BitsProduct, candidate: GemmCandidate, target: Target, name: str = "bits") -> Kernel:
    """The kernel: operands as `bits` has them."""
    return RowBuilder(product, candidate, target, name).kernel()


BITS_ROW = Template("bits", BitsProduct, candidates, build, estimate, share, variant="row")


class RowBuilder(BitsBuilder):
    """Writes a product of one row whose codes are widened to float32; one on dot products is in `bits_dots.py`."""

    @property
    def _elements(self) -> int:
        """Of the row with the zeros behind it."""
        return self.product.blocks * self.product.block

    @property
    def _subtracts(self) -> bool:
        """Whether zero points are subtracted from codes: sums of large codes would cancel where theirs are."""
        return self.product.bits == 8

    def _packing(self) -> ColumnPacking:
        return replace(super()._packing(), together=1)

    def _panel_bytes(self) -> int:
        """Scratch for the row, and for the sum of each of its blocks."""
        size, line = 4 * (self._elements + self.product.blocks), self.target.vector_bytes
        return -(-size // line) * line

    def _sums_bytes(self) -> int:
        return self._widest()

    def _ready(self, f: Function, a: Value, scratch: Value, rows: tuple[Amount, Amount]) -> Value:
        """Copy the row into scratch, with the sums of its blocks."""
        product, depth = self.product, self.product.depth
        name = f"{self.name}_row"
        if not self.module.has(name):
            given = (Parameter("a", "ptr", "noalias nocapture readonly"), Parameter("row", "ptr", "noalias nocapture"))
            copy = Function(self.module, name, given)

            def some(place: Value, carried: tuple[Value, ...], kind: str = "float") -> list[Value]:
                value = copy.load(kind, copy.at(copy.parameter("a"), place))
                copy.store(value, copy.at(copy.parameter("row"), place), align=4)
                return [copy.add(carried[0], value)]

            def block(number: Value, _: tuple[Value, ...], size: int = product.block) -> None:
                first = copy.mul(number, product.block)
                middle, end = copy.add(first, size // self.lanes * self.lanes), copy.add(first, size)
                wide, zero = types.vector("float", self.lanes), copy.number("float", 0)
                (vector,) = copy.loop(first, middle, self.lanes, partial(some, kind=wide), [copy.number(wide, 0)])
                (total,) = copy.loop(middle, end, 1, some, [zero])
                total = copy.add(total, copy.reduce("fadd", vector))
                copy.store(total, copy.at(copy.parameter("row"), copy.add(number, self._elements)))

            whole, rest = divmod(depth, product.block)
            copy.loop(0, whole, 1, block)
            if rest:
                block(copy.integer(whole), (), rest)
                zero, row = copy.number("float", 0), copy.parameter("row")
                copy.loop(depth, self._elements, 1, lambda place, _: copy.store(zero, copy.at(row, place)))
            copy.finish()
        f.call(name, a, scratch)
        return scratch

    def _part(self, f: Function, place: BlockPlace, group: Group, column: Value, number: Value, ends: bool) -> None:
        """The row by a panel, and the epilogue of its sums."""
        product, gemm, width = self.product, self.problem, group.size * self.lanes
        each = product.block // product.each
        scales = f.mul(column, product.blocks)
        given = [f.at(place.b, f.mul(column, product.blocks * each), "i8"), f.at(place.pointers["scales"], scales)]
        if product.zeros != "middle":
            kind = "i8" if product.zeros == "codes" else "float"
            given.append(f.at(place.pointers["zeros"], scales, kind))
        f.call(self._multiplying(group.size), *given, place.a, place.sums)
        tile = ProductTile(1, group.size, 0, 0, 1, width, gemm.place_c.row, self._valid(group), begins=False)
        name = write_tile(self.module, tile, self.epilogue, gemm.row, gemm.column, prefix=self.name)
        row = f.integer(0)
        found = origins(f, self.epilogue, place.pointers, {gemm.row: row, gemm.column: column, **place.batch})
        nothing, aim = Value(("null",), "ptr"), f.at(place.c, column, types.scalar(self.epilogue.dtype))
        f.call(name, nothing, nothing, aim, place.sums, *(found[buffer.name] for buffer in self.epilogue.buffers))

    def _multiplying(self, vectors: int) -> str:
        """Write, once, f(codes, scales, [zeros,] row, sums): the sums of a panel of so many vectors."""
        name = f"{self.name}_multiply_{vectors}"
        if self.module.has(name):
            return name
        product, lanes = self.product, self.lanes
        names = ("codes", "scales", *(() if product.zeros == "middle" else ("zeros",)), "row")
        given = [Parameter(one, "ptr", "noalias nocapture readonly") for one in names]
        f = Function(self.module, name, (*given, Parameter("sums", "ptr", "noalias nocapture")))
        real, words, width = types.vector("float", lanes), types.vector("i32", lanes), vectors * lanes
        each, nothing = product.block // product.each, joined([f.number(types.vector("float", lanes), 0)] * vectors)
        mask = f.number(words, (1 << product.bits) - 1)

        def block(number: Value, carried: tuple[Value, ...]) -> list[Value]:
            source = f.at(f.parameter("codes"), f.mul(number, each * width), "i8")
            row = f.at(f.parameter("row"), f.mul(number, product.block))
            columns = [f.add(f.mul(number, width), place * lanes) for place in range(vectors)]
            zeros = [self._zero(f, at) for at in columns]

            def some(first: Value, carried: tuple[Value, ...], count: int) -> list[Value]:
                sums = list(carried[0].split())
                here, a = f.at(source, f.mul(first, width), "i8"), f.at(row, f.mul(first, product.each))
                self._ask(f, here, count * width)
                for byte in range(count):
                    elements = [
                        f.splat(f.load("float", f.at(a, byte * product.each + code)), lanes)
                        for code in range(product.each)
                    ]
                    for place in range(vectors):
                        address = f.at(here, byte * width + place * lanes, "i8")
                        whole = f.convert("zext", words, f.load(types.vector("i8", lanes), address, align=1))
                        for code, element in enumerate(elements):
                            bits = f.binary("lshr", whole, f.number(words, code * product.bits)) if code else whole
                            bits = f.binary("and", bits, mask) if code < product.each - 1 else bits
                            value = f.convert("sitofp", real, bits)
                            value = f.sub(value, zeros[place]) if self._subtracts else value
                            sums[place] = f.fma(value, element, sums[place])
                return [joined(sums)]

            whole = each // TOGETHER * TOGETHER
            (sums,) = f.loop(0, whole, TOGETHER, partial(some, count=TOGETHER), [nothing])
            if each > whole:
                (sums,) = some(f.integer(whole), (sums,), each - whole)
            total = f.load("float", f.at(f.parameter("row"), f.add(number, self._elements)))
            found = []
            for at, zero, one, before in zip(columns, zeros, sums.split(), carried[0].split(), strict=True):
                moved = one if self._subtracts else f.sub(one, f.mul(zero, f.splat(total, lanes)))
                found.append(f.fma(moved, f.load(real, f.at(f.parameter("scales"), at)), before))
            return [joined(found)]

        self._summed(f, vectors, block)
        return name

    def _ask(self, f: Function, codes: Value, size: int) -> None:
        """Ask for codes twice as far behind these as memory has bytes under way, unless a near cache has them.

        Widening comes between two reads, so that at the distance itself some come late. Half a page ahead at the most,
        for what lies on the next one comes late; a quarter of that where tiles of few rows ask so near, and into the
        cache that these ask into.
        """
        if self.target.constant_level not in ("l1", "l2"):
            core = self.target.core
            most = HALF_PAGE // 4 if core.few == "half" else HALF_PAGE
            ahead = min(2 * core.under_way, most) // LINE * LINE
            near, _ = core.asks(1)
            for byte in range(0, size, LINE):
                f.prefetch(f.at(codes, ahead + byte, "i8"), locality=3 if near else 2)

    def _summed(self, f: Function, vectors: int, block: Body) -> None:
        """End a function of a panel: sums that begin with nothing, and go through all blocks of the depth."""
        nothing = joined([f.number(types.vector("float", self.lanes), 0)] * vectors)
        (sums,) = f.loop(0, self.product.blocks, 1, block, [nothing])
        for place, one in enumerate(sums.split()):
            f.store(one, f.at(f.parameter("sums"), place * self.lanes), align=4 * self.lanes)
        f.finish()

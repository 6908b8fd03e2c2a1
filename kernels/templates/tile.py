"""The register tile of matrix multiplication: a few rows by a few vectors, accumulated over the whole depth.

One internal function per shape. A is read in place, each element broadcast from a constant distance (packing A costs
more than it saves); B comes as rows of `columns` vectors, either packed or in place. Four arithmetics share the shape,
because each works on groups of the depth as wide as a lane: one float32 or float64; two bfloat16 (vdpbf16ps); four
bytes, unsigned times signed (vpdpbusd), summed in int32.

The accumulators are phis of the loop over the depth, so that nothing but them lives in registers; LLVM's optimizer does
not run. A tile may also be a part of the depth: its sums then go on from scratch, or back to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernels.cores import Core
from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Function, Parameter, Value, joined
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.epilogue import Epilogue, TileLeaves, apply, leaves_of, parameters_of
from kernels.templates.narrow import NARROW, load_wide
from kernels.tensor.expression import Variable

UNROLL = 4  # steps of the depth per turn of the loop
LINE = 64  # bytes that one prefetch asks for

ProductArithmetic = Literal["f32", "f64", "bf16", "u8s8", "rounded"]  # the last on matrix units alone
# Elements of the depth in one group, which is a lane wide.
GROUP: Mapping[ProductArithmetic, int] = {"f32": 1, "f64": 1, "bf16": 2, "u8s8": 4}
_SOURCE: Mapping[ProductArithmetic, str] = {"f32": "float", "f64": "double", "bf16": "bfloat", "u8s8": "i8"}
_SUM: Mapping[ProductArithmetic, DType] = {"f32": DType.F32, "f64": DType.F64, "bf16": DType.F32, "u8s8": DType.I32}


class UnsupportedArithmetic(KernelsError):
    """The target has no instruction for this arithmetic, or a product of bytes is asked of another type."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """A shape of tile. Distances are in elements of the operand that they belong to."""

    rows: int
    columns: int  # vectors
    depth: int | None  # elements; None: a parameter of the function, "f32" only
    a_row: int  # from one row of A to the next
    a_depth: int  # from one element of the depth to the next: 1 when A is stored by rows
    b_depth: int  # from one 32-bit group of B's depth to the next, in 32-bit words
    c_row: int
    valid: int  # lanes of the last vector that are stored
    arithmetic: ProductArithmetic = "f32"
    b_valid: int = 0  # lanes of B's last vector that may be read; 0: all of them
    begins: bool = True  # sums start at zero; otherwise they go on from scratch
    ends: bool = True  # the epilogue is applied and C written; otherwise sums go to scratch
    ahead: int = 0  # lines from the pointer "next" that each turn of the loop asks for
    near: bool = False  # whether into the first cache: for this tile's own next turns
    b_dtype: DType = DType.F32  # as B lies in memory: "f32" widens shorter floats as it loads them

    @property
    def name(self) -> str:
        """A name that tells the shape."""
        masked = f"_m{self.b_valid}" if self.b_valid else ""
        part = f"{'b' if self.begins else ''}{'e' if self.ends else ''}{f'_p{self.ahead}' if self.ahead else ''}"
        part += "n" if self.near else ""
        return (
            f"tile_{self.arithmetic}_{self.rows}x{self.columns}x{self.depth}_{self.a_row}_{self.a_depth}_{self.b_depth}"
            f"_{self.c_row}_{self.valid}{part}{masked}{'' if self.b_dtype is DType.F32 else '_' + self.b_dtype.value}"
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """How tiles ask for packed weights before they need them, so that these come from memory in the meantime."""

    lines: int = 0  # per turn of a tile's loop
    near: bool = False  # whether into the first cache
    apart: int = 0  # bytes from the weights that a tile reads to the first ones that it asks for
    of_row: int = 0  # bytes further for each row before the tile

    def place(self, f: Function, b: Value, row: Value) -> Value:
        """The pointer "next" of a tile that starts at a row and reads weights from `b`."""
        return f.at(f.at(b, self.apart, "i8"), f.mul(row, self.of_row), "i8")


def asked(core: Core, groups: int, bytes_of_group: int, rows: int, tiles: int, following: int | None = None) -> Asked:
    """What a tile of `rows` asks for while it reads so many groups of the depth, of so many bytes each.

    All `tiles` that read the same weights together ask once for those that follow in memory (bytes; None: as many),
    while they work on these. A tile that reads them alone asks for what it needs when memory answers, in the way that
    brings most on this core: its weights are one stream.
    """
    turns, own = groups // UNROLL, groups * bytes_of_group
    if not turns:
        return Asked()
    if tiles == 1:
        return Asked(bytes_of_group * UNROLL // LINE, *core.asks(rows))
    lines = -(-(own if following is None else following) // (LINE * rows * tiles))
    return Asked(-(-lines * rows // turns), False, own, lines * LINE)


def supported(arithmetic: ProductArithmetic, target: Target) -> bool:
    """Whether the target has the instructions."""
    if arithmetic == "bf16":
        return target.has("avx512bf16")
    if arithmetic == "u8s8":
        return target.has("avx512vnni")
    return True


def write_tile(
    module: Module,
    tile: ProductTile,
    epilogue: Epilogue,
    row: Variable,
    column: Variable,
    *,
    prefix: str,
) -> str:
    """Write the function of a tile, once, and return its name.

    f(A, B, C, [depth,] [sums,] [next,] operands of the epilogue...): `sums` where the tile is a part of the depth,
    `next` where it asks for lines ahead, operands where it ends.
    """
    name = f"{prefix}_{tile.name}"
    if module.has(name):
        return name
    if not supported(tile.arithmetic, module.target):
        raise UnsupportedArithmetic(f"{module.target.cpu} has no instruction for {tile.arithmetic}.")
    given = [
        Parameter("a", "ptr", "noalias nocapture readonly"),
        Parameter("b", "ptr", "noalias nocapture readonly"),
        Parameter("c", "ptr", "nocapture"),
        *([Parameter("depth", "i64")] if tile.depth is None else []),
        *([] if tile.begins and tile.ends else [Parameter("sums", "ptr", "noalias nocapture")]),
        *([Parameter("next", "ptr", "nocapture readonly")] if tile.ahead else []),
        *(parameters_of(epilogue) if tile.ends else []),
    ]
    f = Function(module, name, given)
    lanes = module.target.lanes(_SUM[tile.arithmetic])
    accumulator = types.vector(types.scalar(_SUM[tile.arithmetic]), lanes)
    sums = _accumulate(f, tile, [joined([f.number(accumulator, 0)] * tile.columns)] * tile.rows, accumulator)
    if not tile.begins:
        before = _of_parts_before(f, tile, accumulator)
        sums = before if tile.depth == 0 else [f.add(one, other) for one, other in zip(before, sums, strict=True)]
    if tile.ends:
        _store(f, tile, epilogue, sums, leaves_of(f, epilogue, column, lanes), row, lanes)
    else:
        for number, total in enumerate(sums):
            for position, part in enumerate(total.split()):
                f.store(part, _sum_place(f, tile, number, position, lanes), align=module.target.vector_bytes)
    f.finish()
    return name


def _of_parts_before(f: Function, tile: ProductTile, kind: str) -> list[Value]:
    """The sums so far, one value per row, a part per vector.

    They are added to those of this part, and not gone on with: sums of parts lose less than one long sum.
    """
    lanes = types.lanes(kind)
    places = [[_sum_place(f, tile, row, v, lanes) for v in range(tile.columns)] for row in range(tile.rows)]
    return [joined([f.load(kind, place, align=f.module.target.vector_bytes) for place in row]) for row in places]


def _sum_place(f: Function, tile: ProductTile, row: int, vector: int, lanes: int) -> Value:
    place = (row * tile.columns + vector) * lanes
    return f.at(f.parameter("sums"), place, types.scalar(_SUM[tile.arithmetic]))


def _accumulate(f: Function, tile: ProductTile, sums: list[Value], kind: str) -> list[Value]:
    """Run over the depth: whole turns of UNROLL groups, then what is left, then a group that is not whole."""
    group = GROUP[tile.arithmetic]
    a, b = f.parameter("a"), f.parameter("b")
    source = _SOURCE[tile.arithmetic]

    def turn(a_at: Value, b_at: Value, sums: list[Value], steps: int, lines: Value | None = None) -> list[Value]:
        """So many steps, each of which asks for its share of the lines: many at once would wait for one another."""
        for step in range(steps):
            if lines is not None:
                for line in range(-(-step * tile.ahead // steps), -(-(step + 1) * tile.ahead // steps)):
                    f.prefetch(f.at(lines, line * LINE, "i8"), locality=3 if tile.near else 2)
            sums = _step(f, tile, a_at, b_at, step, sums, kind)
        return sums

    def body(k: Value, carried: tuple[Value, ...], steps: int = UNROLL) -> Sequence[Value]:
        a_at = f.at(a, f.mul(k, tile.a_depth * group), source)
        b_at = f.at(b, f.mul(k, tile.b_depth), _word_type(tile))
        lines = f.at(f.parameter("next"), f.mul(k, tile.ahead * LINE // UNROLL), "i8") if tile.ahead else None
        return turn(a_at, b_at, list(carried), steps, lines)

    if tile.depth is None:
        assert group == 1, "a depth known only when the program runs is for float32"
        most = f.binary("and", f.parameter("depth"), f.integer(-UNROLL))
        sums = list(f.loop(0, most, UNROLL, body, sums))
        return list(f.loop(most, f.parameter("depth"), 1, lambda k, carried: body(k, carried, 1), sums))
    groups, rest = divmod(tile.depth, group)
    whole = groups // UNROLL * UNROLL
    sums = list(f.loop(0, whole, UNROLL, body, sums))
    a_at, b_at = f.at(a, whole * tile.a_depth * group, source), f.at(b, whole * tile.b_depth, _word_type(tile))
    sums = turn(a_at, b_at, sums, groups - whole)
    if rest:
        sums = _step(f, tile, a_at, b_at, groups - whole, sums, kind, present=rest)
    return sums


def _step(
    f: Function,
    tile: ProductTile,
    a: Value,
    b: Value,
    step: int,
    sums: list[Value],
    kind: str,
    present: int | None = None,
) -> list[Value]:
    """One group of the depth: all vectors of B, each row's element of A broadcast, rows x columns products."""
    lanes = types.lanes(kind)
    words = types.with_element(kind, _SOURCE[tile.arithmetic] if tile.arithmetic in ("f32", "f64") else "i32")
    vectors = []
    for column in range(tile.columns):
        address = f.at(b, step * tile.b_depth + column * lanes, _word_type(tile))
        if tile.b_dtype in NARROW:
            vectors.append(load_wide(f, address, tile.b_dtype, lanes))
        elif tile.b_valid and column == tile.columns - 1:
            vectors.append(f.masked_load(words, address, f.first_lanes(tile.b_valid, lanes)))
        else:
            vectors.append(f.load(words, address))
    right = joined(vectors)
    group = GROUP[tile.arithmetic]
    found = []
    for row, total in enumerate(sums):
        address = f.at(a, row * tile.a_row + step * group * tile.a_depth, _SOURCE[tile.arithmetic])
        left = f.splat(_word(f, tile, address, group if present is None else present), lanes)
        found.append(product_added(f, tile.arithmetic, left, right, total))
    return found


def _word_type(tile: ProductTile) -> str:
    """The type of a group of B's depth in memory."""
    if tile.arithmetic == "f64":
        return "double"
    return memory_type(tile.b_dtype) if tile.b_dtype in NARROW else "i32"


def _word(f: Function, tile: ProductTile, address: Value, present: int) -> Value:
    """A group of A's depth; elements that are not there are zero."""
    if tile.arithmetic in ("f32", "f64"):
        return f.load(_SOURCE[tile.arithmetic], address)
    kind, group = _SOURCE[tile.arithmetic], GROUP[tile.arithmetic]
    if tile.a_depth == 1 and present == group:
        return f.load("i32", address, align=1)
    bits = types.bits(kind)
    word = f.integer(0)
    for position in range(present):
        one = f.load(f"i{bits}", f.at(address, position * tile.a_depth, kind))
        wide = f.convert("zext", "i64", one)
        word = f.binary("or", word, f.binary("shl", wide, f.integer(position * bits)))
    return f.convert("trunc", "i32", word)


def product_added(f: Function, arithmetic: ProductArithmetic, left: Value, right: Value, total: Value) -> Value:
    """Sums and what two groups of the depth give, as wide as a lane: words where a group is of several numbers."""
    if arithmetic in ("f32", "f64"):
        return f.fma(left, right, total)
    lanes = types.lanes(total.type)
    if arithmetic == "bf16":
        pairs = types.vector("bfloat", 2 * lanes)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        return f.call_outside(name, total.type, total, _cast(f, left, pairs), _cast(f, right, pairs))
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    quads = types.vector("i8", 4 * lanes)
    return f.call_outside(name, total.type, total, _cast(f, left, quads), _cast(f, right, quads))


def _cast(f: Function, value: Value, kind: str) -> Value:
    return f.convert("bitcast", kind, value)


def _store(
    f: Function,
    tile: ProductTile,
    epilogue: Epilogue,
    sums: list[Value],
    leaves: TileLeaves,
    row: Variable,
    lanes: int,
) -> None:
    """Apply the epilogue and store, row by row; the vectors of a row side by side, a cut one alone."""
    c, output = f.parameter("c"), types.scalar(epilogue.dtype)
    for number, total in enumerate(sums):
        parts = total.split()
        whole = list(parts) if tile.valid == lanes else list(parts[:-1])
        for first, vectors, valid in ((0, whole, lanes), (len(whole), list(parts[len(whole) :]), tile.valid)):
            if not vectors:
                continue
            columns = [(first + position) * lanes for position in range(len(vectors))]
            placed = leaves.place(joined(vectors), {row: number}, columns, valid)
            value = apply(f, epilogue, placed, lanes)
            for column, one in zip(columns, value.split(), strict=True):
                address = f.at(c, number * tile.c_row + column, output)
                f.store_lanes(one, address, valid)


def most_accumulators(target: Target, *, asking: bool = False) -> int:
    """How many vectors a tile may accumulate so that nothing spills: operands need a few registers too.

    Of a tile that asks for lines ahead, LLVM keeps a sum on the stack where there are more than 24.
    """
    if target.vector_registers < 32:
        return 12
    return 24 if asking else 27


def most_registers(target: Target) -> int:
    """How many registers the sums of a tile, a row of B and one broadcast may take, as far as LLVM keeps up with it."""
    if target.vector_registers < 32:
        return target.vector_registers
    return target.vector_registers - target.architecture.free_of_product

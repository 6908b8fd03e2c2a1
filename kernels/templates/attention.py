"""Scaled dot-product attention: softmax(scale Q K^T + mask) V, without the scores of more than a few rows in memory.

A block is a batch index, a head of keys and values, and a stretch of query rows. It packs K^T once (panels of two
vectors of keys), then takes a tile of rows at a time: their scores against all keys lie in scratch, get their softmax
there without the division, and multiply V where it lies; the division by the sum is the epilogue of that product. With
one or two rows in a block (a step of decoding) packing would cost more than the products: there the scores are dot
products along the head, a square of keys at a time. Q, K, V and the output are read and written with any strides, so
that the projections before and after need no transposes.

The keys of a row end at the smallest of three: the keys there are, the run's own length (operand "lengths"), and the
row's own position when attention is causal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, entry
from kernels.llvm import types
from kernels.llvm.function import Function, Number, Parameter, Value, joined
from kernels.llvm.module import Module
from kernels.math import exponential
from kernels.target import Target
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.grid import Group, balanced, each_piece, pieces
from kernels.templates.panels import write_panel
from kernels.templates.tile import Tile, most_accumulators, write_tile
from kernels.templates.transposing import transpose
from kernels.tensor.expression import Buffer, Variable

MINUS_INFINITY = -math.inf


class InvalidAttention(KernelsError):
    """An attention whose dims do not fit."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where [batch, head, row, element of the head] lies: strides in elements; the last dim lies densely."""

    batch: int
    head: int
    row: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask over [batch, head, query, key]: f32 to be added, or bool (false: not attended). Strides may be zero."""

    batch: int
    head: int
    query: int
    key: Literal[0, 1] = 1
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of `heads` over `groups` heads of keys and values (equal, or grouped-query), in f32."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int  # of a head
    groups: int = 0  # heads of K and V; 0: as many as of Q
    value_size: int = 0  # of a head of V; 0: the same
    scale: float = 0.0  # 0: 1 / sqrt(size)
    causal: bool = False
    past: int = 0  # how many keys stand before the first query, for causal attention
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: they stay
    with_lengths: bool = False  # an i64 operand "lengths", one per batch index: how many keys count in this run
    mask: Mask | None = None
    q: Place | None = None  # None: dense [batch, head, row, element]
    k: Place | None = None
    v: Place | None = None
    output: Place | None = None

    def __post_init__(self) -> None:
        for name, default in (
            ("groups", self.heads), ("value_size", self.size), ("scale", 1 / math.sqrt(max(self.size, 1)))
        ):  # fmt: skip
            if not getattr(self, name):
                object.__setattr__(self, name, default)
        if self.heads % self.groups:
            raise InvalidAttention(f"{self.heads} heads of queries do not divide among {self.groups} of keys.")

    def place(self, name: Literal["q", "k", "v", "output"]) -> Place:
        """Where an operand lies."""
        given: Place | None = getattr(self, name)
        if given is not None:
            return given
        heads = self.groups if name in ("k", "v") else self.heads
        rows = self.keys if name in ("k", "v") else self.queries
        size = self.size if name in ("q", "k") else self.value_size
        return Place(heads * rows * size, rows * size, size)

    @property
    def shared(self) -> int:
        """How many heads of queries share one of keys."""
        return self.heads // self.groups

    @property
    def flops(self) -> int:
        """Additions and multiplications of both products."""
        pairs = self.queries * self.keys
        if self.causal:
            pairs = sum(min(self.keys, row + 1 + self.past) for row in range(self.queries))
        return 2 * self.batch * self.heads * pairs * (self.size + self.value_size)


@dataclass(frozen=True, slots=True)
class AttentionCandidate:
    """Sizes that decide the speed."""

    rows: int  # of a tile
    row_stretch: int  # row tiles of a block
    scores: Literal["packed", "dot"]
    key_vectors: int = 2  # of a panel of keys

    def __str__(self) -> str:
        return f"{self.scores} {self.rows} rows x {self.key_vectors}, {self.row_stretch} tiles a block"


# A step over keys: (first key, what is carried, the lanes that are there or None for all) -> what is carried.
_Part = Callable[[Value, Value, Value | None], Value]

DOT_ROWS = 2  # up to so many rows a block takes dot products along the head


def candidates(attention: Attention, target: Target) -> tuple[AttentionCandidate, ...]:
    """The tiles worth trying, the likely best first."""
    vectors = -(-attention.value_size // target.lanes())
    wide = min(2, vectors)
    tall = min(attention.queries, (12 if target.vector_registers >= 32 else 6), most_accumulators(target) // wide)
    found = []
    for rows in dict.fromkeys((tall, max(1, tall - 2), max(1, tall * 2 // 3))):
        tiles = pieces(balanced(attention.queries, max(rows, 1)))
        # A stretch amortizes the packing of K; more stretches give more blocks to the workers.
        stretch = max(1, min(tiles, -(-128 // max(rows, 1))))
        found.append(AttentionCandidate(max(rows, 1), stretch, "packed"))
    if attention.queries <= 4 * DOT_ROWS:
        dot = AttentionCandidate(min(max(attention.queries, 1), DOT_ROWS), attention.queries, "dot")
        found.insert(0 if attention.queries * attention.shared <= DOT_ROWS * 2 else len(found), dot)
    return tuple(dict.fromkeys(found))


def build(attention: Attention, candidate: AttentionCandidate, target: Target, name: str = "attention") -> Kernel:
    """The kernel: operands "q", "k", "v", "mask" and "lengths" where the problem has them, "output"."""
    return _Builder(attention, candidate, target, name).kernel()


class _Builder:
    def __init__(self, attention: Attention, candidate: AttentionCandidate, target: Target, name: str) -> None:
        self.attention, self.candidate, self.name = attention, candidate, name
        self.module, self.lanes = Module(target), target.lanes()
        self.vector = types.vector("float", self.lanes)
        self.row_groups = balanced(attention.queries, candidate.rows)
        self.stretches = -(-pieces(self.row_groups) // candidate.row_stretch)
        self.panel = candidate.key_vectors * self.lanes  # keys of a panel
        self.panels = -(-attention.keys // self.panel)
        self.row_bytes = 4 * (self.panels * self.panel + self.lanes)  # of scores; not a multiple of 4 KiB
        self.row_length = self.row_bytes // 4
        self.inverse_at = candidate.rows * self.row_length  # elements of scratch before the sums' inverses
        self.keys_at = self.inverse_at + -(-candidate.rows // self.lanes) * self.lanes
        packed = self.panels * self.panel * attention.size if candidate.scores == "packed" else 0
        self.scratch_bytes = 4 * (self.keys_at + packed)

    def kernel(self) -> Kernel:
        one = self.attention
        operands = [
            Operand("q", "input", DType.F32, self._elements("q", one.heads, one.queries, one.size)),
            Operand("k", "input", DType.F32, self._elements("k", one.groups, one.keys, one.size)),
            Operand("v", "input", DType.F32, self._elements("v", one.groups, one.keys, one.value_size)),
        ]
        if one.mask is not None:
            mask = one.mask
            far = (
                (one.batch - 1) * mask.batch + (one.heads - 1) * mask.head + (one.queries - 1) * mask.query
                + (one.keys - 1) * mask.key + 1
            )  # fmt: skip
            operands.append(Operand("mask", "input", mask.dtype, far if one.keys and one.queries else 0))
        if one.with_lengths:
            operands.append(Operand("lengths", "input", DType.I64, one.batch))
        size = self._elements("output", one.heads, one.queries, one.value_size)
        operands.append(Operand("output", "output", DType.F32, size))
        entry(self.module, self.name, [operand.name for operand in operands], self._entry)
        return Kernel(
            self.name, self.module, tuple(operands), one.batch * one.groups * self.stretches,
            scratch_bytes=self.scratch_bytes, flops=one.flops,
            traffic=sum(operand.bytes for operand in operands), candidate=str(self.candidate),
        )  # fmt: skip

    def _elements(self, name: Literal["q", "k", "v", "output"], heads: int, rows: int, size: int) -> int:
        one, place = self.attention, self.attention.place(name)
        if not (one.batch and heads and rows and size):
            return 0
        return place.offset + (one.batch - 1) * place.batch + (heads - 1) * place.head + (rows - 1) * place.row + size

    def _entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        one = self.attention
        if not (one.batch and one.heads and one.queries and one.value_size):
            return
        rest, stretch = _split(f, block, self.stretches)
        batch, group = _split(f, rest, one.groups)
        keys = f.integer(one.keys)
        if one.with_lengths:
            given = f.load("i64", f.at(pointers["lengths"], batch, "i64"))
            keys = f.maximum(f.minimum(given, keys), f.integer(0))
        k = self._start(f, pointers["k"], "k", batch, group)
        v = self._start(f, pointers["v"], "v", batch, group)
        packed = f.at(scratch, self.keys_at)
        if self.candidate.scores == "packed":
            self._pack(f, k, packed, keys)
        first, last = self._stretch(f, stretch)

        def head(inside: Value, _: tuple[Value, ...]) -> None:
            number = f.add(f.mul(group, one.shared), inside)
            q = self._start(f, pointers["q"], "q", batch, number)
            output = self._start(f, pointers["output"], "output", batch, number)
            mask = None
            if one.mask is not None:
                kind = types.scalar(one.mask.dtype)
                offset = f.add(f.mul(batch, one.mask.batch), f.mul(number, one.mask.head))
                mask = f.at(pointers["mask"], offset, kind)

            def tile(rows: Group, row: Value) -> None:
                self._rows(f, rows.size, row, q, k if self.candidate.scores == "dot" else packed, v, output, mask,
                           keys, scratch)  # fmt: skip

            each_piece(f, self.row_groups, first, last, tile)

        f.loop(0, one.shared, 1, head)

    def _start(
        self, f: Function, base: Value, name: Literal["q", "k", "v", "output"], batch: Value, head: Value
    ) -> Value:
        place = self.attention.place(name)
        return f.at(base, f.add(f.add(f.mul(batch, place.batch), f.mul(head, place.head)), place.offset))

    def _stretch(self, f: Function, stretch: Value) -> tuple[Number, Number]:
        if self.stretches == 1:
            return 0, pieces(self.row_groups)
        first = f.mul(stretch, self.candidate.row_stretch)
        return first, f.minimum(f.add(first, self.candidate.row_stretch), f.integer(pieces(self.row_groups)))

    def _pack(self, f: Function, k: Value, packed: Value, keys: Value) -> None:
        """K^T in panels. Keys after the run's length are packed too: what stands there is never used."""
        one, place = self.attention, self.attention.place("k")
        whole, rest = divmod(one.keys, self.panel)

        def panel(number: Value, valid: int, vectors: int) -> None:
            name = write_panel(
                self.module, one.size, self.candidate.key_vectors, valid, 1, place.row, 1, "float",
                prefix=self.name, present=vectors,
            )  # fmt: skip
            start = f.mul(number, self.panel)
            f.call(name, f.at(k, f.mul(start, place.row)), f.at(packed, f.mul(start, one.size)))

        last = f.integer(whole)
        if one.with_lengths:
            last = f.minimum(last, f.binary("udiv", f.add(keys, self.panel - 1), f.integer(self.panel)))
        f.loop(0, last if one.with_lengths else whole, 1, lambda i, _: panel(i, self.lanes, self.candidate.key_vectors))
        if rest:
            panel(f.integer(whole), (rest - 1) % self.lanes + 1, -(-rest // self.lanes))

    def _rows(
        self,
        f: Function,
        rows: int,
        row: Value,
        q: Value,
        keys_from: Value,
        v: Value,
        output: Value,
        mask: Value | None,
        keys: Value,
        scratch: Value,
    ) -> None:
        """A tile of query rows from scores to output."""
        one, q_place, v_place = self.attention, self.attention.place("q"), self.attention.place("v")
        bound = keys
        if one.causal:  # the last row of the tile sees most
            bound = f.maximum(f.minimum(keys, f.add(row, one.past + rows)), f.integer(0))
        q_at = f.at(q, f.mul(row, q_place.row))
        if self.candidate.scores == "dot":
            f.call(self._dot(rows), q_at, keys_from, scratch, bound)
        else:
            self._scores(f, rows, q_at, keys_from, scratch, bound)
        mask_at = []
        if mask is not None and one.mask is not None:
            mask_at = [f.at(mask, f.mul(row, one.mask.query), types.scalar(one.mask.dtype))]
        limit = f.minimum(bound, f.add(row, one.past + 1)) if one.causal else bound
        f.call(self._softmax(), f.integer(rows), scratch, f.at(scratch, self.inverse_at),
               f.maximum(limit, f.integer(0)), bound, *mask_at)  # fmt: skip
        inverse = Buffer("inverse", DType.F32, (max(one.queries, 1),))
        row_variable, column_variable = Variable("row", one.queries), Variable("column", one.value_size)
        epilogue = Epilogue(ACCUMULATED[()] * inverse[row_variable])
        for group in balanced(-(-one.value_size // self.lanes), self._value_vectors(rows)):
            for number in range(group.count):
                vector = group.start + number * group.size
                rest = one.value_size - vector * self.lanes
                valid = min(self.lanes, rest - (group.size - 1) * self.lanes)
                tile = Tile(
                    rows, group.size, None, self.row_length, 1, v_place.row, self.attention.place("output").row, valid,
                    b_valid=valid if valid < self.lanes else 0,
                )  # fmt: skip
                name = write_tile(self.module, tile, epilogue, row_variable, column_variable, prefix=self.name)
                aim = f.at(output, f.add(f.mul(row, self.attention.place("output").row), vector * self.lanes))
                f.call(name, scratch, f.at(v, vector * self.lanes), aim, bound, f.at(scratch, self.inverse_at))

    def _value_vectors(self, rows: int) -> int:
        return max(1, min(4, most_accumulators(self.module.target) // rows))

    def _scores(self, f: Function, rows: int, q: Value, packed: Value, scratch: Value, bound: Value) -> None:
        """Q K^T for all panels that hold a key before the bound."""
        one = self.attention
        tile = Tile(
            rows, self.candidate.key_vectors, one.size, one.place("q").row, 1, self.panel, self.row_length, self.lanes
        )
        name = write_tile(
            self.module, tile, Epilogue(), Variable("row", one.queries), Variable("column", one.keys),
            prefix=f"{self.name}_s", b_aligned=True,
        )  # fmt: skip
        if one.causal or one.with_lengths:
            last: Number = f.binary("udiv", f.add(bound, self.panel - 1), f.integer(self.panel))
        else:
            last = self.panels

        def panel(number: Value, _: tuple[Value, ...]) -> None:
            start = f.mul(number, self.panel)
            f.call(name, q, f.at(packed, f.mul(start, one.size)), f.at(scratch, start))

        f.loop(0, last, 1, panel)

    def _dot(self, rows: int) -> str:
        """f(q, k, scores, keys): dot products along the head, a square of keys at a time."""
        name = f"{self.name}_dot{rows}"
        if self.module.has(name):
            return name
        f = Function(
            self.module, name,
            (
                Parameter("q", "ptr", "noalias readonly"), Parameter("k", "ptr", "noalias readonly"),
                Parameter("scores", "ptr", "noalias"), Parameter("keys", "i64"),
            ),
        )  # fmt: skip
        one, lanes = self.attention, self.lanes
        whole, rest = divmod(one.size, lanes)
        mask = f.first_lanes(rest, lanes)
        zero = f.number(self.vector, 0.0)

        def pieces_of(address: Value, piece: int) -> Value:
            at = f.at(address, piece * lanes)
            return f.load(self.vector, at) if piece < whole else f.masked_load(self.vector, at, mask)

        count = whole + (rest > 0)

        def square(first: Value, present: int) -> None:
            """`present` keys from `first`: for each row, their products along the head, then one vector of sums."""
            for row in range(rows):
                sums = []
                for key in range(present):
                    k_at = f.at(f.parameter("k"), f.mul(f.add(first, key), one.place("k").row))
                    total = zero
                    for piece in range(count):
                        q_piece = pieces_of(f.at(f.parameter("q"), row * one.place("q").row), piece)
                        total = f.fma(q_piece, pieces_of(k_at, piece), total)
                    sums.append(total)
                aim = f.at(f.parameter("scores"), f.add(first, row * self.row_length))
                if present == 1:
                    f.store(f.reduce("fadd", sums[0]), aim)
                    continue
                turned = transpose(f, sums)
                while len(turned) > 1:
                    turned = [f.add(a, b) for a, b in zip(turned[::2], turned[1::2], strict=True)]
                f.store(turned[0], aim)

        keys = f.parameter("keys")
        most = f.binary("and", keys, f.integer(-lanes))
        f.loop(0, most, lanes, lambda first, _: square(first, lanes))
        f.loop(most, keys, 1, lambda first, _: square(first, 1))
        f.finish()
        return name

    def _softmax(self) -> str:
        """f(rows, scores, inverses, limit, bound, mask): exp(score - maximum) in place, and the inverse of each sum.

        `limit` keys count in the first row (one more in each next one when causal, `bound` at most); up to `bound` the
        rest becomes zero, so that the product with V may run over all of them.
        """
        name = f"{self.name}_softmax"
        if self.module.has(name):
            return name
        one = self.attention
        given = [
            Parameter("rows", "i64"), Parameter("scores", "ptr", "noalias"), Parameter("inverses", "ptr", "noalias"),
            Parameter("limit", "i64"), Parameter("bound", "i64"),
        ]  # fmt: skip
        if one.mask is not None:
            given.append(Parameter("mask", "ptr", "noalias readonly"))
        f = Function(self.module, name, given)
        zero = f.number("float", 0.0)

        def row(number: Value, _: tuple[Value, ...]) -> None:
            scores = f.at(f.parameter("scores"), f.mul(number, self.row_length))
            limit = f.parameter("limit")
            if one.causal:
                limit = f.minimum(f.add(limit, number), f.parameter("bound"))
            mask = None
            if one.mask is not None:
                mask = f.at(f.parameter("mask"), f.mul(number, one.mask.query), types.scalar(one.mask.dtype))
            highest = self._highest(f, scores, limit, mask)
            total = self._exponentials(f, scores, limit, highest)
            f.store(f.div(f.number("float", 1.0), total), f.at(f.parameter("inverses"), number))
            if one.causal:
                f.loop(limit, f.parameter("bound"), 1, lambda key, _: f.store(zero, f.at(scores, key)))

        f.loop(0, f.parameter("rows"), 1, row)
        f.finish()
        return name

    def _highest(self, f: Function, scores: Value, limit: Value, mask: Value | None) -> Value:
        """Scale, cap and mask the scores of a row where anything but scaling is asked for; their maximum.

        Without mask and cap the scores stay as they are, and the scale waits for the exponentials.
        """
        lowest = f.number(self.vector, MINUS_INFINITY)

        def part(key: Value, best: Value, present: Value | None) -> Value:
            count = len(best.parts)
            values = []
            for number in range(count):
                at = f.add(key, number * self.lanes)
                address = f.at(scores, at)
                if present is None:
                    value = f.load(self.vector, address)
                else:
                    value = f.masked_load(self.vector, address, present, otherwise=lowest)
                if self._rewritten:
                    value = self._rewrite(f, value, at, mask, present)
                    if present is None:
                        f.store(value, address)
                    else:
                        f.masked_store(value, address, present)
                values.append(value)
            return f.maximum(best, joined(values))

        best = self._over_keys(f, limit, part, lowest, 4)
        return f.reduce("maximum", best)

    @property
    def _rewritten(self) -> bool:
        return self.attention.mask is not None or self.attention.softcap > 0 or self.attention.scale < 0

    def _rewrite(self, f: Function, value: Value, key: Value, mask: Value | None, present: Value | None) -> Value:
        one = self.attention
        value = f.mul(value, f.number(self.vector, one.scale))
        if one.softcap:
            value = self._capped(f, value)
        if mask is None or one.mask is None:
            return value if present is None else f.select(present, value, f.number(self.vector, MINUS_INFINITY))
        kind = types.scalar(one.mask.dtype)
        if one.mask.key == 0:
            given = f.splat(f.load(kind, mask), self.lanes)
        elif present is None:
            given = f.load(types.vector(kind, self.lanes), f.at(mask, key, kind))
        else:
            given = f.masked_load(types.vector(kind, self.lanes), f.at(mask, key, kind), present)
        if one.mask.dtype is DType.BOOL:
            allowed = f.compare("ne", given, f.number(given.type, 0))
            value = f.select(allowed, value, f.number(self.vector, MINUS_INFINITY))
        else:
            value = f.add(value, given)
        return value if present is None else f.select(present, value, f.number(self.vector, MINUS_INFINITY))

    def _capped(self, f: Function, value: Value) -> Value:
        """cap * tanh(value / cap), by exponentials: 1 - 2 / (1 + exp(2 x)) is exact at both ends."""
        cap = self.attention.softcap
        twice = exponential.exp(f, f.mul(value, f.number(self.vector, 2 / cap)))
        below = f.div(f.number(self.vector, 2 * cap), f.add(twice, f.number(self.vector, 1.0)))
        return f.sub(f.number(self.vector, cap), below)

    def _exponentials(self, f: Function, scores: Value, limit: Value, highest: Value) -> Value:
        """exp(scale * score - scale * maximum) in place; their sum. The scale is 1 where it has been applied."""
        scale = f.number(self.vector, 1.0 if self._rewritten else self.attention.scale)
        turned = f.neg(f.mul(highest, f.number("float", 1.0 if self._rewritten else self.attention.scale)))
        shift = f.splat(turned, self.lanes)
        zero = f.number(self.vector, 0.0)

        def part(key: Value, total: Value, present: Value | None) -> Value:
            addresses = [f.at(scores, f.add(key, number * self.lanes)) for number in range(len(total.parts))]
            if present is None:
                given = joined([f.load(self.vector, address) for address in addresses])
            else:
                given = f.masked_load(self.vector, addresses[0], present)
            made = exponential.exp_nonpositive(f, f.fma(given, scale, shift))
            if present is not None:
                made = f.select(present, made, zero)
                f.masked_store(made, addresses[0], present)
            else:
                for one, address in zip(made.split(), addresses, strict=True):
                    f.store(one, address)
            return f.add(total, made)

        return f.reduce("fadd", self._over_keys(f, limit, part, zero, 4))

    def _over_keys(self, f: Function, limit: Value, part: _Part, initial: Value, interleaved: int) -> Value:
        """Run over the keys of a row: several vectors at a time, then one, then the lanes that are left."""
        lanes = self.lanes
        wide = f.binary("and", limit, f.integer(-lanes * interleaved))
        (several,) = f.loop(
            0, wide, lanes * interleaved, lambda key, carried: [part(key, carried[0], None)],
            [joined([initial] * interleaved)],
        )  # fmt: skip
        whole = f.binary("and", limit, f.integer(-lanes))
        first, *others = several.split()
        (first,) = f.loop(wide, whole, lanes, lambda key, carried: [part(key, carried[0], None)], [first])
        left = f.sub(limit, whole)
        some = f.compare("sgt", left, f.integer(0))
        (first,) = f.when(some, lambda: [part(whole, first, f.first_lanes(left, lanes))], lambda: [first])
        return joined([first, *others])


def _split(f: Function, value: Value, size: int) -> tuple[Value, Value]:
    """value // size and value % size."""
    if size == 1:
        return value, f.integer(0)
    quotient = f.binary("udiv", value, f.integer(size))
    return quotient, f.sub(value, f.mul(quotient, size))

"""Attention as a problem: its dims, where operands lie, masks, and the candidates worth trying."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Operand
from kernels.size import is_free, nothing
from kernels.target import Target
from kernels.templates.grid import balanced, pieces
from kernels.templates.tile import most_accumulators


class InvalidAttention(KernelsError):
    """An attention whose dims do not fit."""


@dataclass(frozen=True, slots=True)
class Strides:
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
    offset: int = 0


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
    q: Strides | None = None  # None: dense [batch, head, row, element]
    k: Strides | None = None
    v: Strides | None = None
    output: Strides | None = None

    def __post_init__(self) -> None:
        for name, default in (
            ("groups", self.heads), ("value_size", self.size), ("scale", 1 / math.sqrt(max(self.size, 1)))
        ):  # fmt: skip
            if nothing(getattr(self, name)):
                object.__setattr__(self, name, default)
        if self.heads % self.groups:
            raise InvalidAttention(f"{self.heads} heads of queries do not divide among {self.groups} of keys.")

    def place(self, name: Literal["q", "k", "v", "output"]) -> Strides:
        """Where an operand lies."""
        given: Strides | None = getattr(self, name)
        if given is not None:
            return given
        heads = self.groups if name in ("k", "v") else self.heads
        rows = self.keys if name in ("k", "v") else self.queries
        size = self.size if name in ("q", "k") else self.value_size
        return Strides(heads * rows * size, rows * size, size)

    @property
    def shared(self) -> int:
        """How many heads of queries share one of keys."""
        return self.heads // self.groups

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The table of arguments."""
        mask = self.mask
        found = [
            Operand("q", "input", DType.F32, self._elements("q", self.heads, self.queries, self.size)),
            Operand("k", "input", DType.F32, self._elements("k", self.groups, self.keys, self.size)),
            Operand("v", "input", DType.F32, self._elements("v", self.groups, self.keys, self.value_size)),
        ]
        if mask is not None:
            far = (
                (self.batch - 1) * mask.batch + (self.heads - 1) * mask.head + (self.queries - 1) * mask.query
                + (self.keys - 1) * mask.key + mask.offset + 1
            )  # fmt: skip
            found.append(Operand("mask", "input", mask.dtype, far if self.keys and self.queries else 0))
        if self.with_lengths:
            found.append(Operand("lengths", "input", DType.I64, self.batch))
        size = self._elements("output", self.heads, self.queries, self.value_size)
        return (*found, Operand("output", "output", DType.F32, size))

    def _elements(self, name: Literal["q", "k", "v", "output"], heads: int, rows: int, size: int) -> int:
        place = self.place(name)
        if nothing(self.batch, heads, rows, size):
            return 0
        return place.offset + (self.batch - 1) * place.batch + (heads - 1) * place.head + (rows - 1) * place.row + size

    @property
    def flops(self) -> int:
        """Additions and multiplications of both products."""
        pairs = self.queries * self.keys
        if self.causal and not is_free(pairs):
            pairs = sum(min(self.keys, row + 1 + self.past) for row in range(self.queries))
        return 2 * self.batch * self.heads * pairs * (self.size + self.value_size)


Scores = Literal["packed", "dot"]  # how they are computed


@dataclass(frozen=True, slots=True)
class AttentionCandidate:
    """Sizes that decide the speed."""

    rows: int  # of a tile
    row_stretch: int  # row tiles of a block
    scores: Scores
    key_vectors: int = 2  # of a panel of keys

    def __str__(self) -> str:
        return f"{self.scores} {self.rows} rows x {self.key_vectors}, {self.row_stretch} tiles a block"


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
        rows = max(attention.queries, 1)
        dot = AttentionCandidate(min(rows, DOT_ROWS), rows, "dot")
        found.insert(0 if attention.queries * attention.shared <= DOT_ROWS * 2 else len(found), dot)
    return tuple(dict.fromkeys(found))

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

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Value
from kernels.size import bound, is_free, nothing
from kernels.target import Target
from kernels.templates.attention.dot import write_dot
from kernels.templates.attention.problem import DOT_ROWS, Attention, AttentionCandidate, Scores, candidates
from kernels.templates.attention.softmax import ScoreSoftmax
from kernels.templates.builder import Builder
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.grid import FreeGroups, Group, balanced, cut, each_piece, pieces, unravel
from kernels.templates.panels import write_panel
from kernels.templates.template import Template
from kernels.templates.tile import ProductTile, most_accumulators, write_tile
from kernels.tensor.expression import Buffer, Variable


def build(attention: Attention, candidate: AttentionCandidate, target: Target, name: str = "attention") -> Kernel:
    """The kernel: operands "q", "k", "v", "mask" and "lengths" where the problem has them, "output"."""
    return _AttentionBuilder(attention, candidate, target, name).kernel()


ATTENTION = Template("attention", Attention, candidates, build)


class _AttentionBuilder(Builder[Attention, AttentionCandidate]):
    def __init__(self, attention: Attention, candidate: AttentionCandidate, target: Target, name: str) -> None:
        super().__init__(attention, candidate, target, name)
        self.vector = types.vector("float", self.lanes)
        self.row_groups = cut(attention.queries, candidate.rows)
        self.stretches = -(-pieces(self.row_groups) // candidate.row_stretch)
        self.panel = candidate.key_vectors * self.lanes  # keys of a panel
        self.panels = -(-bound(attention.keys) // self.panel)
        self.row_bytes = 4 * (self.panels * self.panel + self.lanes)  # of scores; not a multiple of 4 KiB
        self.row_length = self.row_bytes // 4
        self.softmax = ScoreSoftmax(self.module, attention, self.row_length, name)
        self.inverse_at = candidate.rows * self.row_length  # elements of scratch before the sums' inverses
        self.keys_at = self.inverse_at + -(-candidate.rows // self.lanes) * self.lanes
        packed = self.panels * self.panel * attention.size if candidate.scores == "packed" else 0
        self.scratch_bytes = 4 * (self.keys_at + packed)

    def kernel(self) -> Kernel:
        one = self.problem
        blocks = one.batch * one.groups * self.stretches
        return self.written(one.operands, blocks, scratch_bytes=self.scratch_bytes, flops=one.flops)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        one = self.problem
        if nothing(one.batch, one.heads, one.queries, one.value_size):
            return
        if not is_free(one.queries) or self.candidate.scores == "dot":
            self._block(f, pointers, block, scratch, self.candidate.scores)
            return
        few = f.compare("sle", f.integer(one.queries), f.integer(DOT_ROWS))
        f.when(few, lambda: self._block(f, pointers, block, scratch, "dot"),
               lambda: self._block(f, pointers, block, scratch, "packed"))  # fmt: skip

    def _block(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value, scores: Scores) -> None:
        one = self.problem
        batch, group, stretch = unravel(f, block, (one.batch, one.groups, self.stretches))
        keys = f.integer(one.keys)
        if one.with_lengths:
            given = f.load("i64", f.at(pointers["lengths"], batch, "i64"))
            keys = f.maximum(f.minimum(given, keys), f.integer(0))
        k = self._start(f, pointers["k"], "k", batch, group)
        v = self._start(f, pointers["v"], "v", batch, group)
        packed = f.at(scratch, self.keys_at)
        if scores == "packed":
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
                mask = f.at(pointers["mask"], f.add(offset, one.mask.offset), kind)

            def tile(rows: Group, row: Value) -> None:
                self._rows(
                    f, rows.size, row, q, k if scores == "dot" else packed, v, output, mask, keys, scratch, scores
                )

            groups = self.row_groups
            if isinstance(groups, FreeGroups):  # a few rows make one tile
                dot = scores == "dot"
                groups = replace(groups, most=min(DOT_ROWS, groups.most)) if dot else replace(groups, shortest=DOT_ROWS)
            each_piece(f, groups, first, last, tile)

        f.loop(0, one.shared, 1, head)

    def _start(
        self, f: Function, base: Value, name: Literal["q", "k", "v", "output"], batch: Value, head: Value
    ) -> Value:
        place = self.problem.place(name)
        return f.at(base, f.add(f.add(f.mul(batch, place.batch), f.mul(head, place.head)), place.offset))

    def _stretch(self, f: Function, stretch: Value) -> tuple[Amount, Amount]:
        if self.stretches == 1:  # of any size it may be
            return 0, pieces(self.row_groups)
        first = f.mul(stretch, self.candidate.row_stretch)
        return first, f.minimum(f.add(first, self.candidate.row_stretch), f.integer(pieces(self.row_groups)))

    def _pack(self, f: Function, k: Value, packed: Value, keys: Value) -> None:
        """K^T in panels. Keys after the run's length are packed too: what stands there is never used."""
        one, place = self.problem, self.problem.place("k")
        if is_free(one.keys):
            self._pack_any(f, k, packed, keys)
            return
        whole, rest = divmod(one.keys, self.panel)

        def panel(number: Value, valid: int, vectors: int) -> None:
            name = write_panel(self.module, one.size, vectors, valid, 1, place.row, 1, "float", prefix=self.name)
            start = f.mul(number, self.panel)
            f.call(name, f.at(k, f.mul(start, place.row)), f.at(packed, f.mul(start, one.size)))

        last = f.integer(whole)
        if one.with_lengths:
            last = f.minimum(last, f.binary("udiv", f.add(keys, self.panel - 1), f.integer(self.panel)))
        f.loop(0, last if one.with_lengths else whole, 1, lambda i, _: panel(i, self.lanes, self.candidate.key_vectors))
        if rest:
            panel(f.integer(whole), (rest - 1) % self.lanes + 1, -(-rest // self.lanes))

    def _pack_any(self, f: Function, k: Value, packed: Value, keys: Value) -> None:
        """As many keys as the run has: whole panels, and one whose last vector repeats the last key."""
        one, row = self.problem, self.problem.place("k").row

        def panel(number: Value, vectors: int, there: Value) -> None:
            name = write_panel(self.module, one.size, vectors, None, 1, row, 1, "float", prefix=self.name)
            start = f.mul(number, self.panel)
            f.call(name, f.at(k, f.mul(start, row)), f.at(packed, f.mul(start, one.size)), there)

        whole, rest = self._whole(f, keys)
        f.loop(0, whole, 1, lambda i, _: panel(i, self.candidate.key_vectors, f.integer(self.lanes)))
        self._last(f, rest, lambda vectors, there: panel(whole, vectors, there))

    def _whole(self, f: Function, keys: Value) -> tuple[Value, Value]:
        """Whole panels of so many keys, and how many keys are left."""
        whole = f.binary("udiv", keys, f.integer(self.panel))
        return whole, f.sub(keys, f.mul(whole, self.panel))

    def _last(self, f: Function, rest: Value, body: Callable[[int, Value], None]) -> None:
        """body(vectors, keys in the last of them) for the panel that is not whole, where there is one."""

        def of(vectors: int) -> None:
            left = f.sub(rest, (vectors - 1) * self.lanes)
            if vectors == self.candidate.key_vectors:
                body(vectors, left)
                return
            fits = f.compare("sle", left, f.integer(self.lanes))
            f.when(fits, lambda: body(vectors, left), lambda: of(vectors + 1))

        f.when(f.compare("sgt", rest, f.integer(0)), lambda: of(1))

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
        scores: Scores,
    ) -> None:
        """A tile of query rows from scores to output."""
        one, q_place, v_place = self.problem, self.problem.place("q"), self.problem.place("v")
        reach = keys
        if one.causal:  # the last row of the tile sees most
            reach = f.maximum(f.minimum(keys, f.add(row, one.past + rows)), f.integer(0))
        q_at = f.at(q, f.mul(row, q_place.row))
        if scores == "dot":
            f.call(
                write_dot(self.module, one, rows, self.row_length, prefix=self.name), q_at, keys_from, scratch, reach
            )
        else:
            self._scores(f, rows, q_at, keys_from, scratch, reach, keys)
        mask_at = []
        if mask is not None and one.mask is not None:
            mask_at = [f.at(mask, f.mul(row, one.mask.query), types.scalar(one.mask.dtype))]
        limit = f.minimum(reach, f.add(row, one.past + 1)) if one.causal else reach
        f.call(self.softmax.write(), f.integer(rows), scratch, f.at(scratch, self.inverse_at),
               f.maximum(limit, f.integer(0)), reach, *mask_at)  # fmt: skip
        inverse = Buffer("inverse", DType.F32, (max(bound(one.queries), 1),))
        row_variable, column_variable = Variable("row", one.queries), Variable("column", one.value_size)
        epilogue = Epilogue(ACCUMULATED[()] * inverse[row_variable])
        widest = max(1, min(4, most_accumulators(self.module.target) // rows))
        for group in balanced(-(-one.value_size // self.lanes), widest):
            for number in range(group.count):
                vector = group.start + number * group.size
                rest = one.value_size - vector * self.lanes
                valid = min(self.lanes, rest - (group.size - 1) * self.lanes)
                tile = ProductTile(
                    rows, group.size, None, self.row_length, 1, v_place.row, self.problem.place("output").row, valid,
                    b_valid=valid if valid < self.lanes else 0,
                )  # fmt: skip
                name = write_tile(self.module, tile, epilogue, row_variable, column_variable, prefix=self.name)
                aim = f.at(output, f.add(f.mul(row, self.problem.place("output").row), vector * self.lanes))
                f.call(name, scratch, f.at(v, vector * self.lanes), aim, reach, f.at(scratch, self.inverse_at))

    def _scores(
        self, f: Function, rows: int, q: Value, packed: Value, scratch: Value, reach: Value, keys: Value
    ) -> None:
        """Q K^T for all panels that hold a key before the reach."""
        one = self.problem

        def panel(number: Value, vectors: int) -> None:
            tile = ProductTile(
                rows, vectors, one.size, one.place("q").row, 1, vectors * self.lanes, self.row_length, self.lanes
            )
            name = write_tile(
                self.module, tile, Epilogue(), Variable("row", one.queries), Variable("column", one.keys),
                prefix=f"{self.name}_s",
            )  # fmt: skip
            start = f.mul(number, self.panel)
            f.call(name, q, f.at(packed, f.mul(start, one.size)), f.at(scratch, start))

        if is_free(one.keys):
            whole_ones, left = self._whole(f, keys)
            wanted = f.binary("udiv", f.add(reach, self.panel - 1), f.integer(self.panel))
            f.loop(0, f.minimum(wanted, whole_ones), 1, lambda number, _: panel(number, self.candidate.key_vectors))
            beyond = f.select(f.compare("sgt", wanted, whole_ones), left, f.integer(0))
            self._last(f, beyond, lambda vectors, _: panel(whole_ones, vectors))
            return
        whole, rest = divmod(one.keys, self.panel)
        # The last panel has only as many vectors as there are keys for.
        last: Amount = whole
        if one.causal or one.with_lengths:
            needed = f.binary("udiv", f.add(reach, self.panel - 1), f.integer(self.panel))
            last = f.minimum(needed, f.integer(whole))
        f.loop(0, last, 1, lambda number, _: panel(number, self.candidate.key_vectors))
        if not rest:
            return
        vectors = -(-rest // self.lanes)
        if one.causal or one.with_lengths:
            f.when(f.compare("sgt", needed, f.integer(whole)), lambda: panel(f.integer(whole), vectors))
        else:
            panel(f.integer(whole), vectors)

"""Attention: tiles of keys and values in shared memory, and a softmax that goes along with them.

A row is a query of one of the heads that share a head of keys. A block has some rows of one such head; each warp has
`rows` of them, and where there are few of them, several warps share the keys of the same rows. All threads bring the
keys and values of a turn into shared memory, 32 for each share. A lane has a key and its scores; then the lanes have
elements of the values. What the rows have summed so far shrinks as a greater score comes (Milakov and Gimelshein,
2018); the sums of warps that share rows are added in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Value, joined
from kernels.math.exponential import exp, exp_nonpositive
from kernels.ptx.tasks.attention_plan import Plan, planned
from kernels.ptx.tasks.threads import THREADS, WARP, WARPS, Block, NoTask, write_task
from kernels.size import is_free
from kernels.target import Target
from kernels.templates.attention.problem import Attention


def attention(problem: Attention, target: Target, name: str) -> Kernel:
    """The task: operands as the problem lists them. Raises NoTask for sizes that only a run knows."""
    if any(is_free(one) for one in (problem.batch, problem.queries, problem.keys)):
        raise NoTask("sizes that only a run knows have no task.")
    plan = planned(problem, target)
    empty = not (problem.batch and problem.heads and problem.queries and problem.value_size)

    def body(block: Block) -> None:
        if not empty:
            _AttentionWriter(block, plan).write()

    return write_task(
        target, name, problem.operands, 0 if empty else plan.blocks, body, shared=plan.shared, flops=problem.flops,
        candidate=str(plan),
    )  # fmt: skip


class _AttentionWriter:
    """Writes what a block does."""

    def __init__(self, block: Block, plan: Plan) -> None:
        self.block, self.plan, self.problem, f = block, plan, plan.problem, block.f
        self.warp = f.binary("lshr", block.thread, block.word(5))
        self.lane = f.binary("and", block.thread, block.word(WARP - 1))
        if plan.shares == 1:
            self.share, self.team = block.word(0), self.warp
        else:
            self.share = f.binary("and", self.warp, block.word(plan.shares - 1))
            self.team = f.binary("lshr", self.warp, block.word(plan.shares.bit_length() - 1))
        counts = (self.problem.batch, self.problem.groups, plan.stretches)
        self.batch, self.group, stretch = block.split(block.number, counts)
        self.first = f.mul(stretch, plan.block_rows)
        self.total = self.problem.shared * self.problem.queries
        self.most = self._keys()

    def _keys(self) -> Value:
        """How many keys count for any row of this batch index."""
        block, problem, f = self.block, self.problem, self.block.f
        if not problem.with_lengths:
            return block.word(problem.keys)
        given = f.load("i64", block.at(block.pointers["lengths"], self.batch, "i64"))
        inside = f.maximum(f.minimum(given, f.integer(problem.keys)), f.integer(0))
        return f.convert("trunc", "i32", inside)

    def _place(self, name: Literal["q", "k", "v", "output"], head: Value) -> Value:
        """Where a head begins, in elements."""
        f, place = self.block.f, self.problem.place(name)
        return f.add(f.add(f.mul(self.batch, place.batch), f.mul(head, place.head)), place.offset)

    def _row(self, number: Value) -> tuple[Value, Value]:
        """The head of queries and the query of a row; beyond the last one, the last."""
        block, f = self.block, self.block.f
        inside, query = block.split(block.least(number, self.total - 1), (self.problem.shared, self.problem.queries))
        return f.add(f.mul(self.group, self.problem.shared), inside), query

    def _limit(self, query: Value) -> Value:
        """How many keys count for a query."""
        f = self.block.f
        if not self.problem.causal:
            return self.most
        seen = f.minimum(f.add(query, self.problem.past + 1), self.most)
        return f.maximum(seen, self.block.word(0))

    def _reach(self) -> Value:
        """How many keys count for any row of the block."""
        block, f = self.block, self.block.f
        if not self.problem.causal:
            return self.most
        last = block.least(f.add(self.first, self.plan.block_rows - 1), self.total - 1)
        (begin, _), (end, query) = self._row(self.first), self._row(last)
        one_head = f.compare("eq", begin, end)
        return self._limit(f.select(one_head, query, block.word(self.problem.queries - 1)))

    def write(self) -> None:
        """All of it."""
        block, plan, problem, f = self.block, self.plan, self.problem, self.block.f
        self._bring_queries()
        parts = -(-problem.value_size // WARP)
        rows = [f.add(f.add(self.first, f.mul(self.team, plan.rows)), one) for one in range(plan.rows)]
        places = [self._row(one) for one in rows]
        limits = [self._limit(query) for _, query in places]
        zero, none = f.number("float", 0.0), f.number("float", -math.inf)
        start = (joined([none] * plan.rows), joined([zero] * plan.rows), joined([zero] * plan.rows * parts))
        reach = self._reach()

        def turn(first: Value, held: tuple[Value, ...]) -> Sequence[Value]:
            block.barrier()
            self._bring("k", problem.size, plan.padded, plan.stride, 0, first, reach)
            self._bring("v", problem.value_size, problem.value_size, problem.value_size, plan.values_at, first, reach)
            block.barrier()
            key = f.add(f.add(first, f.mul(self.share, WARP)), self.lane)
            return self._turn(key, places, limits, held)

        highest, totals, sums = f.loop(block.word(0), reach, plan.keys, turn, start)
        if plan.shares > 1:
            self._add_up(highest, totals, sums)
            return
        for number, row in enumerate(rows):
            some, total = sums.split()[number * parts : number * parts + parts], totals.split()[number]
            (head, query), there = places[number], block.below(row, self.total)
            f.when(there, partial(self._store, head, query, total, some))

    # -- into shared memory -------------------------------------------------------------------------------------------

    def _shared(self, place: Value | int) -> Value:
        return self.block.at(self.block.shared, place)

    def _each(self, count: int, body: Callable[[Value], Callable[[], None]]) -> None:
        """body(i) for all i below a count, shared by the threads; what bodies give is done after several of them."""
        block, f = self.block, self.block.f
        turn, each = THREADS, 8

        def several(first: Value, many: int) -> None:
            for done in [body(f.add(first, turn * number)) for number in range(many)]:
                done()

        whole, rest = divmod(count, turn)
        loops = whole // each
        f.loop(block.thread, block.word(loops * each * turn), each * turn, lambda at, _: several(at, each))
        if whole % each:
            several(f.add(block.thread, loops * each * turn), whole % each)
        if rest:
            f.when(block.below(block.thread, rest), lambda: several(f.add(block.thread, whole * turn), 1))

    def _bring(
        self, name: Literal["k", "v"], size: int, padded: int, stride: int, begin: int, first: Value, reach: Value
    ) -> None:
        """Keys or values from `first` on, zeros behind the reach and behind a key's last element."""
        block, f = self.block, self.block.f
        base, row = self._place(name, self.group), self.problem.place(name).row

        def one(number: Value) -> Callable[[], None]:
            key, element = block.split(number, (self.plan.keys, padded))
            inside = block.below(f.add(first, key), reach)
            if padded > size:
                inside = f.binary("and", inside, block.below(element, size))
            at = f.add(f.add(base, f.mul(f.add(first, key), row)), element)
            at = f.select(inside, at, block.word(0))
            value = f.select(inside, f.load("float", block.at(block.pointers[name], at)), f.number("float", 0.0))
            aim = self._shared(f.add(f.add(f.mul(key, stride), element), begin))
            return lambda: f.store(value, aim)

        self._each(self.plan.keys * padded, one)

    def _bring_queries(self) -> None:
        block, f, padded = self.block, self.block.f, self.plan.padded
        if not self.problem.size:
            return

        def one(number: Value) -> Callable[[], None]:
            inside, element = block.split(number, (self.plan.block_rows, padded))
            head, query = self._row(f.add(self.first, inside))
            there = block.below(element, self.problem.size)
            at = f.add(self._place("q", head), f.add(f.mul(query, self.problem.place("q").row), element))
            at = f.select(there, at, block.word(0))
            value = f.select(there, f.load("float", block.at(block.pointers["q"], at)), f.number("float", 0.0))
            aim = self._shared(f.add(number, self.plan.queries_at))
            return lambda: f.store(value, aim)

        self._each(self.plan.block_rows * padded, one)

    # -- a turn -------------------------------------------------------------------------------------------------------

    def _turn(
        self, key: Value, places: Sequence[tuple[Value, Value]], limits: Sequence[Value], held: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """The scores of a lane's key, and what the sums become with the values of all lanes' keys."""
        block, plan, f = self.block, self.plan, self.block.f
        highest, totals, sums = (list(one.split()) for one in held)
        scores = self._scores()
        mine = f.mul(self.warp, plan.rows * WARP)
        parts = len(sums) // plan.rows
        for row, ((head, query), limit) in enumerate(zip(places, limits, strict=True)):
            counts = block.below(key, limit)
            score = self._masked(scores[row], head, query, key, counts)
            (best,) = block.combined((score,), WARP, lambda a, b: (f.maximum(a[0], b[0]),))
            best = f.maximum(highest[row], best)
            shut = f.compare("oeq", best, f.number("float", -math.inf))
            shift = f.select(shut, f.number("float", 0.0), best)
            power = exp_nonpositive(f, f.sub(score, shift))
            shrunk = exp_nonpositive(f, f.sub(highest[row], shift))
            (total,) = block.combined((power,), WARP, lambda a, b: (f.add(a[0], b[0]),))
            totals[row], highest[row] = f.fma(totals[row], shrunk, total), best
            for part in range(parts):
                sums[row * parts + part] = f.mul(sums[row * parts + part], shrunk)
            f.store(power, self._shared(f.add(f.add(f.add(mine, row * WARP), self.lane), plan.powers_at)))
        block.warp_barrier()
        sums = self._values(f.add(mine, plan.powers_at), sums)
        return joined(highest), joined(totals), joined(sums)

    def _scores(self) -> list[Value]:
        """The products of the lane's key with the warp's queries."""
        block, plan, f = self.block, self.plan, self.block.f
        zero = f.number("float", 0.0)
        if not self.problem.size:
            return [zero] * plan.rows
        key_at = self._shared(f.mul(f.add(f.mul(self.share, WARP), self.lane), plan.stride))
        query_at = self._shared(f.add(f.mul(self.team, plan.rows * plan.padded), plan.queries_at))

        def four(at: Value, held: tuple[Value, ...]) -> tuple[Value, ...]:
            found = list(held[0].split())
            key = self._four(block.at(key_at, at))
            for row in range(plan.rows):
                query = self._four(block.at(query_at, f.add(at, row * plan.padded)))
                for a, b in zip(key, query, strict=True):
                    found[row] = f.fma(a, b, found[row])
            return (joined(found),)

        (found,) = f.loop(block.word(0), block.word(plan.padded), 4, four, (joined([zero] * plan.rows),))
        return list(found.split())

    def _four(self, address: Value) -> list[Value]:
        f = self.block.f
        some = f.load("<4 x float>", address, align=16)
        return [f.extract(some, lane) for lane in range(4)]

    def _masked(self, score: Value, head: Value, query: Value, key: Value, counts: Value) -> Value:
        """A score scaled, capped and masked; -inf where the key does not count."""
        block, problem, f = self.block, self.problem, self.block.f
        none = f.number("float", -math.inf)
        score = f.mul(score, f.number("float", problem.scale))
        if problem.softcap:  # cap * tanh(x / cap), by exponentials
            cap = problem.softcap
            twice = exp(f, f.mul(score, f.number("float", 2 / cap)))
            below = f.div(f.number("float", 2 * cap), f.add(twice, f.number("float", 1.0)))
            score = f.sub(f.number("float", cap), below)
        mask = problem.mask
        if mask is not None:
            at = f.add(f.mul(self.batch, mask.batch), f.mul(head, mask.head))
            at = f.add(f.add(at, f.mul(query, mask.query)), f.add(f.mul(key, mask.key), mask.offset))
            kind = types.scalar(mask.dtype)
            at = f.select(counts, at, block.word(0))
            given = f.load(kind, block.at(block.pointers["mask"], at, kind))
            if mask.dtype is DType.BOOL:
                score = f.select(f.compare("ne", given, f.number(kind, 0)), score, none)
            else:
                score = f.add(score, given)
        return f.select(counts, score, none)

    def _values(self, powers: Value, sums: list[Value]) -> list[Value]:
        """The sums with the values of the share's keys, times their exponentials, which lie at `powers`."""
        block, plan, f, size = self.block, self.plan, self.block.f, self.problem.value_size
        parts = len(sums) // plan.rows
        elements = [block.least(f.add(self.lane, WARP * part), size - 1) for part in range(parts)]
        base = self._shared(f.add(f.mul(self.share, WARP * size), plan.values_at))
        columns = [block.at(base, one) for one in elements]
        powers_at = self._shared(powers)

        def four(key: Value, held: tuple[Value, ...]) -> tuple[Value, ...]:
            found = list(held[0].split())
            factors = [self._four(block.at(powers_at, f.add(key, row * WARP))) for row in range(plan.rows)]
            for inside in range(4):
                at = f.mul(f.add(key, inside), size)
                for part, column in enumerate(columns):
                    value = f.load("float", block.at(column, at))
                    for row in range(plan.rows):
                        number = row * parts + part
                        found[number] = f.fma(factors[row][inside], value, found[number])
            return (joined(found),)

        (found,) = f.loop(block.word(0), block.word(WARP), 4, four, (joined(sums),))
        return list(found.split())

    # -- results ------------------------------------------------------------------------------------------------------

    def _inverse(self, total: Value) -> Value:
        """1 / total; 0 for a row without any key."""
        f = self.block.f
        zero = f.number("float", 0.0)
        return f.select(f.compare("oeq", total, zero), zero, f.div(f.number("float", 1.0), total))

    def _store(self, head: Value, query: Value, total: Value, sums: Sequence[Value]) -> None:
        """The row's result, of which each lane has elements."""
        block, f, size = self.block, self.block.f, self.problem.value_size
        inverse = self._inverse(total)
        base = f.add(self._place("output", head), f.mul(query, self.problem.place("output").row))
        for part, one in enumerate(sums):
            element, value = f.add(self.lane, WARP * part), f.mul(one, inverse)

            def put(element: Value = element, value: Value = value) -> None:
                f.store(value, block.at(block.pointers["output"], f.add(base, element)))

            if size >= WARP * (part + 1):
                put()
            else:
                f.when(block.below(element, size), put)

    def _add_up(self, highest: Value, totals: Value, sums: Value) -> None:
        """Add the sums of the warps that have the same rows, and store them."""
        block, plan, f, size = self.block, self.plan, self.block.f, self.problem.value_size
        parts, count = len(sums.parts) // plan.rows, WARPS * plan.rows  # row r of warp w is number w * rows + r
        block.barrier()
        leads = f.compare("eq", self.lane, block.word(0))
        for row, (best, total) in enumerate(zip(highest.split(), totals.split(), strict=True)):
            number = f.add(f.mul(self.warp, plan.rows), row)

            def tell(number: Value = number, best: Value = best, total: Value = total) -> None:
                f.store(best, self._shared(number))
                f.store(total, self._shared(f.add(number, count)))

            f.when(leads, tell)
            base = f.add(f.mul(number, size), plan.sums_at)
            for part in range(parts):
                element, one = f.add(self.lane, WARP * part), sums.split()[row * parts + part]

                def put(base: Value = base, element: Value = element, one: Value = one) -> None:
                    f.store(one, self._shared(f.add(base, element)))

                f.when(block.below(element, size), put)
        block.barrier()

        def finish(number: Value, _: tuple[Value, ...]) -> Sequence[Value]:
            row, element = block.split(number, (plan.block_rows, size))
            team, inside = block.split(row, (WARPS // plan.shares, plan.rows))
            lines = [
                f.add(f.mul(f.add(f.mul(team, plan.shares), one), plan.rows), inside) for one in range(plan.shares)
            ]
            bests = [f.load("float", self._shared(line)) for line in lines]
            best = bests[0]
            for one in bests[1:]:
                best = f.maximum(best, one)
            shut = f.compare("oeq", best, f.number("float", -math.inf))
            shift = f.select(shut, f.number("float", 0.0), best)
            whole = result = f.number("float", 0.0)
            for line, one in zip(lines, bests, strict=True):
                shrunk = exp_nonpositive(f, f.sub(one, shift))
                whole = f.fma(f.load("float", self._shared(f.add(line, count))), shrunk, whole)
                at = f.add(f.add(f.mul(line, size), element), plan.sums_at)
                result = f.fma(f.load("float", self._shared(at)), shrunk, result)
            result = f.mul(result, self._inverse(whole))
            there = f.add(self.first, row)
            head, query = self._row(there)
            base = f.add(self._place("output", head), f.mul(query, self.problem.place("output").row))
            aim = block.at(block.pointers["output"], f.add(base, element))
            f.when(block.below(there, self.total), lambda: f.store(result, aim))
            return ()

        block.strided(block.thread, plan.block_rows * size, THREADS, finish)

"""How blocks of threads share an attention: rows of a warp, warps that share keys, and where shared memory has what."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.ptx.tasks.threads import THREADS, WARP, WARPS
from kernels.target import Target
from kernels.templates.attention.problem import Attention

_ROOM = 64 << 10  # of shared memory that a block should take at most: two blocks fit a multiprocessor
_TURN_CYCLES, _LOADED = 1200.0, 4.0  # of a turn's barriers and latency; of an element that is brought
_SUMS = 16  # of the values, of a thread, that registers surely hold


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes that decide the speed, and where everything lies in shared memory, in elements."""

    problem: Attention
    rows: int  # of a warp
    shares: int  # warps that share the keys of the same rows

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.rows * WARPS // self.shares

    @property
    def keys(self) -> int:
        """Keys of a turn."""
        return WARP * self.shares

    @property
    def padded(self) -> int:
        """ThreadElements of a query with the zeros that fill its last vector of four."""
        return -(-self.problem.size // 4) * 4

    @property
    def stride(self) -> int:
        """ThreadElements between keys: vectors of four of neighbouring keys lie in other banks."""
        return self.padded if self.padded // 4 % 2 else self.padded + 4

    @property
    def values_at(self) -> int:
        """Where the values of a turn begin."""
        return self.keys * self.stride

    @property
    def queries_at(self) -> int:
        """Where the queries begin."""
        return -(-(self.values_at + self.keys * self.problem.value_size) // 4) * 4

    @property
    def powers_at(self) -> int:
        """Where the exponentials of a turn begin: 32 of each row, for each warp."""
        return self.queries_at + self.block_rows * self.padded

    @property
    def sums_at(self) -> int:
        """Where the sums begin that warps with the same rows add up: over the keys and values."""
        return WARPS * self.rows * 2

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        turn = self.powers_at + WARPS * self.rows * WARP
        added = self.sums_at + WARPS * self.rows * self.problem.value_size if self.shares > 1 else 0
        return 4 * max(turn, added)

    @property
    def blocks(self) -> int:
        """Blocks of all heads."""
        return self.problem.batch * self.problem.groups * self.stretches

    @property
    def stretches(self) -> int:
        """Blocks of a head of keys."""
        return -(-self.problem.shared * self.problem.queries // self.block_rows)

    def cycles(self, target: Target) -> float:
        """An estimate of all blocks' cycles: turns bring what they read, and compute with it."""
        problem = self.problem
        parts = -(-problem.value_size // WARP)
        brought = self.keys * (problem.size + problem.value_size) / THREADS * _LOADED * 2
        scores = self.padded / 4 * (1 + 5 * self.rows) + 80 * self.rows
        sums = WARP * (parts * (1 + self.rows) + self.rows / 4)
        side_by_side = max(1, min(2, -(-self.blocks // max(1, target.workers))))
        turn = (brought + 2 * (scores + sums)) * side_by_side + _TURN_CYCLES
        waves = -(-self.blocks // (side_by_side * max(1, target.workers)))
        return waves * (-(-problem.keys // self.keys) * turn + _TURN_CYCLES * (1 if self.shares == 1 else 2))

    def __str__(self) -> str:
        return f"{self.block_rows} rows of a block, {self.rows} of a warp, {self.keys} keys a turn"


def planned(problem: Attention, target: Target) -> Plan:
    """The plan with the fewest cycles by estimate, of those with little shared memory."""
    parts = -(-problem.value_size // WARP)
    plans = [
        Plan(problem, rows, shares)
        for rows in (4, 2, 1)
        for shares in (1, 2, 4, 8)
        if rows * parts <= _SUMS or rows == 1
    ]
    fitting = [one for one in plans if one.shared <= min(_ROOM, target.l1)]
    return min(fitting, key=lambda one: one.cycles(target)) if fitting else Plan(problem, 1, 1)

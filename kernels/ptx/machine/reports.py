"""What the machine found, in words: faults with their lines, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.buffers import Anything, DeviceMemory
from kernels.ptx.machine.code import Code
from kernels.ptx.machine.grammar import PtxModule

FaultKind = Literal[
    "race", "shared memory reused", "unwritten", "outside", "misaligned", "divergent barrier", "missed barrier",
    "non-coherent", "unfinished copy", "endless wait", "trap", "lanes apart", "read-only", "table",
    "endless run",
]  # fmt: skip
_SAYS: dict[FaultKind, str] = {
    "race": "{thread} touches {place}, {unordered} {other}",
    "shared memory reused": "{thread} writes {place}, which {other} reads; no barrier lies between",
    "unwritten": "{thread} reads {place}, which nobody has written",
    "outside": "{thread} touches {place}, which lies in no buffer",
    "misaligned": "{thread} touches {place}, which is no multiple of the access",
    "divergent barrier": "{thread} comes to barrier {place} without the threads that it is for",
    "missed barrier": "{thread} waits at a barrier that others of its block never reach",
    "non-coherent": "{thread} touches {place}, which one launch reads past the coherent cache and writes{by}",
    "unfinished copy": "{thread} touches {place} before the copy to it has ended, issued by {other}",
    "endless wait": "{thread} waits for {place}, which nobody can change any more{waiting}",
    "trap": "{thread} comes to a trap",
    "lanes apart": "{thread} names lanes that are not there",
    "read-only": "{thread} writes {place}, which the launch only reads",
    "endless run": "{thread} still runs, after as many instructions as the launch may have",
    "table": "{thread} branches by number {place}, which the table does not have",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its kind, line and text of PTX, the function, its source, a sentence, how often it was seen."""

    kind: FaultKind
    line: int
    text: str
    function: str
    source: str
    sentence: str
    times: int

    def __str__(self) -> str:
        source = f", {self.source}" if self.source else ""
        return f"{self.kind}: line {self.line} in {self.function}{source}: {self.text} -- {self.sentence}."


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses of warps to a space: instructions, transactions, the fewest for as many bytes, and these.

    A transaction is a sector of 32 bytes, or in shared memory a pass over the banks: what is above the least there is
    a bank conflict.
    """

    accesses: int
    transactions: int
    least: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What a launch did: instructions of warps by name, how many lanes they had, traffic by space and direction.

    By line of PTX: traffic, instructions of warps, and what asynchronous copies write in shared memory.
    """

    instructions: dict[str, int]
    lanes: int
    traffic: dict[str, Traffic]
    by_line: dict[int, Traffic]
    executed: dict[int, int]
    copied: dict[int, Traffic]

    @property
    def total(self) -> int:
        """Instructions of warps."""
        return sum(self.instructions.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a launch gave: its faults, in the order in which they were found, and counts."""

    faults: tuple[Fault, ...]
    tally: Tally

    @property
    def kinds(self) -> set[FaultKind]:
        """The kinds of its faults."""
        return {one.kind for one in self.faults}


def outcome(
    module: PtxModule, code: Code, memory: DeviceMemory, state: s.State, threads: int, left: int
) -> Outcome:  # fmt: skip
    """The words for what a run left; `left` is how many blocks found no place."""
    count = int(state.scalars[s.FAULTS])
    found = [_fault(module, code, memory, state, threads, left, row) for row in state.faults[:count].tolist()]
    return Outcome(tuple(found), _tally(code, state.counts))


def _fault(
    module: PtxModule, code: Code, memory: DeviceMemory, state: s.State, threads: int, left: int, row: list[int]
) -> Fault:  # fmt: skip
    kinds: tuple[FaultKind, ...] = get_args(FaultKind)
    kind = kinds[row[s.F_KIND]]
    function, item = code.origins[row[s.F_PC]]
    line = item.line if item else function.line
    file, number = module.sources.get(line, ("", 0))
    other = ""
    if row[s.F_OTHER] >= 0:
        other_function, other_item = code.origins[row[s.F_OTHER_PC]]
        where = f"line {other_item.line} in {other_function.name}" if other_item else other_function.name
        other = f"{_thread(row[s.F_OTHER], threads)} at {where}"
    address = row[s.F_ADDRESS]
    waiting = f"; {left} blocks have no place and cannot begin" if left else ""
    sentence = _SAYS[kind].format(
        thread=_thread(row[s.F_THREAD], threads), place=_place(kind, address, item is not None, memory, state),
        other=other, unordered="in no order with", waiting=waiting, by=f", by {other}" if other else "",
    )  # fmt: skip
    return Fault(
        kind, line, item.text if item else "end", function.name, f"{file}:{number}" if file else "", sentence,
        row[s.F_COUNT],
    )  # fmt: skip


def _thread(number: int, threads: int) -> str:
    return f"thread {number % threads} of block {number // threads}"


def _place(kind: FaultKind, address: int, known: bool, memory: DeviceMemory, state: s.State) -> str:
    if kind in ("divergent barrier", "table", "lanes apart"):
        return str(address)
    scalars = state.scalars
    if kind in ("outside", "misaligned", "endless wait", "endless run"):
        if address < 0:
            return "what never comes"
        if address >= n.GLOBAL_BASE:
            return memory.named(address)
        if address >= n.LOCAL_BASE:
            return f"local+{address - n.LOCAL_BASE}"
        return f"shared+{address - n.SHARED_BASE if address >= n.SHARED_BASE else address}"
    if address >= scalars[s.LOCAL_AT]:
        return f"local+{(address - scalars[s.LOCAL_AT]) % max(scalars[s.LOCAL_SIZE], 1)}"
    if address >= scalars[s.SHARED_AT]:
        return f"shared+{(address - scalars[s.SHARED_AT]) % max(scalars[s.SHARED_SIZE], 1)}"
    return memory.named(address + n.GLOBAL_BASE)


def _tally(code: Code, counts: Anything) -> Tally:
    instructions: Counter[str] = Counter()
    totals: dict[str, list[int]] = {}
    lines: dict[int, list[int]] = {}
    executed: Counter[int] = Counter()
    copied: dict[int, list[int]] = {}
    for row, (_, item), counted in zip(code.rows.tolist(), code.origins, counts.tolist(), strict=True):
        if item is None or not counted[s.N_WARPS]:
            continue
        instructions[".".join((item.name, *item.modifiers))] += counted[s.N_WARPS]
        executed[item.line] += counted[s.N_WARPS]
        if row[n.OP] == n.CP_ASYNC:
            for into in (totals.setdefault("shared copy", [0] * 4), copied.setdefault(item.line, [0] * 4)):
                for place, what in enumerate((s.N_WARPS, s.N_TO_PARTS, s.N_TO_LEAST, s.N_TO_BYTES)):
                    into[place] += counted[what]
        if counted[s.N_PARTS]:
            key = f"{_space(row)} {'write' if row[n.OP] == n.ST else 'read'}"
            for into in (totals.setdefault(key, [0] * 4), lines.setdefault(item.line, [0] * 4)):
                for place, what in enumerate((s.N_WARPS, s.N_PARTS, s.N_LEAST, s.N_BYTES)):
                    into[place] += counted[what]
    lanes = int(counts[:, s.N_LANES].sum())
    return Tally(
        dict(sorted(instructions.items())), lanes, {key: Traffic(*one) for key, one in sorted(totals.items())},
        {line: Traffic(*one) for line, one in sorted(lines.items())}, dict(sorted(executed.items())),
        {line: Traffic(*one) for line, one in sorted(copied.items())},
    )  # fmt: skip


def _space(row: list[int]) -> str:
    if row[n.OP] == n.CP_ASYNC:
        return "global"
    return ("generic", "global", "shared", "local")[row[n.Y]]

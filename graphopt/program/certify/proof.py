"""The proofs: memory, values, deadlock, races. They share no code with what planned the memory, the order or the waits.

Values. Every buffer of the program has, in `meant`, bytes of its own; there one worker's order gives each byte that a
run needs one earlier run that wrote it. In a plan the bytes of several buffers are the same. The plan is right where
every needed byte has the same writer, at the same place of the same operand. This holds for one worker at its places
and in its order, and for several at theirs.

Several workers. A run begins when the runs that it waits for have ended, and one that follows when the row before it
has ended too. So the transitive closure of both says what comes before what, whoever executes it. Every pair of runs
that touch the same bytes, of which one writes them, is in it. So each needed byte has one writer in every execution,
the one of the order in which runs are claimed.

Deadlock. Rows wait for rows before them. The first unfinished row therefore waits for nobody. Its blocks are claimed by
whoever comes to it first, and a worker that has claimed a block waits no more; a row that follows has the worker of the
row before, which has ended that one: for any number of workers.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.program.certify.statement import Refused, Room, Runs, Several, Statement, Touch

Ints = npt.NDArray[np.int64]
NOBODY = -1
# Bytes [begin, end) of an operand, and the (run, operand) that wrote them with the place in that operand; or nobody.
Source = tuple[int, int, tuple[int, int, int] | None]


@dataclass(frozen=True, slots=True)
class Proved:
    """How much was looked at."""

    runs: int
    places: int  # operands of all runs, in all plans
    values: int  # pieces of operands whose writer was compared
    waits: int  # of several workers
    pairs: int  # of runs that touch the same bytes, one of them writing, and are ordered


def prove(statement: Statement) -> Proved:
    """Raises Refused, which names what does not hold."""
    several = statement.several
    outputs = tuple(
        Touch(Room("output", number), 0, size, written=False) for number, size in enumerate(statement.outputs)
    )
    plans: list[tuple[Runs, Sequence[int], dict[Room, int]]] = [
        (statement.alone, range(len(statement.names)), statement.sizes)
    ]
    pairs = 0
    if several is not None:
        _check_rows(statement, several)
        plans.append((several.runs, several.order, statement.sizes | {Room("arena"): several.arena_bytes}))
    for runs, _, sizes in plans:
        _check_fixed(statement, runs)
        _check_inside(statement, runs, sizes)
        _check_own_operands(statement, runs)
    _check_buffers(statement)
    if several is not None:
        pairs = _check_races(statement, several)
    meant = _sources((*statement.meant, outputs), range(len(statement.names)))
    _check_written(statement, meant)
    values = 0
    for runs, order, _ in plans:
        values += _check_values(statement, meant, _sources((*runs, outputs), order))
    return Proved(
        len(statement.names), len(plans) * sum(map(len, statement.alone)), values,
        0 if several is None else sum(map(len, several.waits)), pairs,
    )  # fmt: skip


def _check_rows(statement: Statement, several: Several) -> None:
    """Every run is claimed once, after waits for what was claimed before; the end of a call waits for all."""
    claimed: set[int] = set()
    for row, run in enumerate(several.order):
        if run in claimed:
            raise Refused(f"{statement.named(run)} is claimed twice, the second time at row {row}.")
        claimed.add(run)
    missing = sorted(set(range(len(statement.names))) - claimed)
    if missing:
        raise Refused(f"no worker claims {statement.named(missing[0])}.")
    for row, waits in enumerate(several.waits):
        late = [earlier for earlier in waits if earlier >= row]
        if late:
            who = statement.named(several.order[row]) if row < len(several.order) else "the caller"
            raise Refused(f"{who} at row {row} waits for row {late[0]}, which nobody has claimed by then: a deadlock.")
    before = _closure(several)
    for row, run in enumerate(several.order):
        if not _comes_before(before, len(several.order), np.array([row]))[0]:
            raise Refused(
                f"a call may return before {statement.named(run)} has ended: nothing at its end waits for it."
            )


def _closure(several: Several) -> npt.NDArray[np.uint64]:
    """By row the rows that have ended when it begins, as bits."""
    before = np.zeros((len(several.waits), len(several.waits) // 64 + 1), np.uint64)
    for row, waits in enumerate(several.waits):
        for earlier in (*waits, row - 1) if row in several.follows else waits:
            before[row] |= before[earlier]
            before[row, earlier >> 6] |= np.uint64(1 << (earlier & 63))
    return before


def _comes_before(before: npt.NDArray[np.uint64], row: int, others: Ints) -> npt.NDArray[np.bool_]:
    bits: npt.NDArray[np.uint64] = before[row, others >> 6] >> (others & 63).astype(np.uint64)
    return (bits & np.uint64(1)).astype(np.bool_)


def _check_inside(statement: Statement, runs: Runs, sizes: dict[Room, int]) -> None:
    for run, touches in enumerate(runs):
        for number, touch in enumerate(touches):
            room = sizes.get(touch.room)
            if room is None or not 0 <= touch.begin <= touch.end <= room:
                raise Refused(
                    f"operand {number} of {statement.named(run)} lies at {touch}, which "
                    f"{'does not exist' if room is None else f'has {room:,}'}."
                )
            if touch.written and touch.room.kind in ("weights", "input", "sizes"):
                raise Refused(f"{statement.named(run)} writes {touch}, which is only read.")


def _check_fixed(statement: Statement, runs: Runs) -> None:
    """Operands outside of the arena lie where the program means them to, and all have the bytes that it means."""
    for run, (meant, placed) in enumerate(zip(statement.meant, runs, strict=True)):
        if len(meant) != len(placed):
            raise Refused(
                f"{statement.named(run)} has {len(placed)} operands in the library and {len(meant)} in the manifest."
            )
        for number, (wanted, touch) in enumerate(zip(meant, placed, strict=True)):
            room = Room("arena") if wanted.room.kind == "buffer" else wanted.room
            same = touch.room == room and touch.written == wanted.written
            if not same or touch.end - touch.begin != wanted.end - wanted.begin:
                raise Refused(f"operand {number} of {statement.named(run)} is {touch}; it is meant to be {wanted}.")
            if wanted.room.kind != "buffer" and touch.begin != wanted.begin:
                raise Refused(f"operand {number} of {statement.named(run)} is {touch}; it is meant to be {wanted}.")


def _check_own_operands(statement: Statement, runs: Runs) -> None:
    """Operands of one run share bytes only where the program means them to: its blocks run at the same time."""
    for run, touches in enumerate(runs):
        for number, first in enumerate(touches):
            for other in range(number):
                second, meant = touches[other], statement.meant[run]
                if not _meet(first, second):
                    continue
                apart = meant[number].begin - meant[other].begin
                if meant[number].room != meant[other].room or apart != first.begin - second.begin:
                    raise Refused(
                        f"operands {other} and {number} of {statement.named(run)} share bytes, {second} and "
                        f"{first}, and one of them is written."
                    )


def _meet(first: Touch, second: Touch) -> bool:
    same = first.room == second.room and (first.written or second.written)
    return same and first.begin < second.end and second.begin < first.end


def _check_buffers(statement: Statement) -> None:
    """One worker's plan: every buffer is there from its first touch to its last, and where the table has it."""
    used: dict[int, list[tuple[int, Touch]]] = defaultdict(list)
    for run, (meant, alone) in enumerate(zip(statement.meant, statement.alone, strict=True)):
        for touch, placed in zip(meant, alone, strict=True):
            if touch.room.kind != "buffer":
                continue
            if touch.room.number >= len(statement.buffers):
                raise Refused(f"{statement.named(run)} works on {touch.room}, which the plan does not have.")
            offset = statement.buffers[touch.room.number][0]
            if placed.begin != offset + touch.begin:
                raise Refused(
                    f"{statement.named(run)} finds {touch} at byte {placed.begin:,} of the arena; by the plan it "
                    f"is at {offset + touch.begin:,}."
                )
            used[touch.room.number].append((run, touch))
    top = 0
    for number, (offset, size, begin, end) in enumerate(statement.buffers):
        runs = [run for run, _ in used[number]]
        if not runs or (min(runs), max(runs) + 1) != (begin, end):
            raise Refused(
                f"buffer {number} is planned for runs {begin} to {end}, and is used "
                f"{f'from {min(runs)} to {max(runs) + 1}' if runs else 'never'}."
            )
        last = max(touch.end for _, touch in used[number])
        if last != size or min(touch.begin for _, touch in used[number]) != 0:
            raise Refused(f"buffer {number} is planned with {size:,} bytes; runs touch {last:,}.")
        top = max(top, offset + size)
        for other in range(number):
            start, length, first, after = statement.buffers[other]
            if begin < after and first < end and offset < start + length and start < offset + size:
                raise Refused(
                    f"buffers {other} and {number} are alive at the same time, and share bytes {max(offset, start):,} "
                    f"to {min(offset + size, start + length):,} of the arena."
                )
    if -(-top // 64) * 64 != -(-statement.sizes[Room("arena")] // 64) * 64:
        raise Refused(f"the plan ends at byte {top:,}; the arena has {statement.sizes[Room('arena')]:,}.")


def _check_races(statement: Statement, several: Several) -> int:
    """How many pairs there are, all of them ordered by waits; of those that are not, the closest one is named."""
    before = _closure(several)
    rooms: dict[Room, list[tuple[int, int, bool, int]]] = defaultdict(list)
    for row, run in enumerate(several.order):
        for touch in several.runs[run]:
            if touch.begin < touch.end:
                rooms[touch.room].append((touch.begin, touch.end, touch.written, row))
    pairs = 0
    lost: list[tuple[int, Ints, Ints, Room]] = []  # rows between two runs without an order, and what they touch
    for room, touches in rooms.items():
        table = np.array(touches, np.int64)
        begins, ends, written, rows = table.T
        for number in np.flatnonzero(written):
            row, begin, end = int(rows[number]), int(begins[number]), int(ends[number])
            meeting = np.flatnonzero((begins < end) & (ends > begin) & (rows != row))
            others = rows[meeting]
            ordered = np.where(others > row, _is_after(before, others, row), _comes_before(before, row, others))
            lost += [(abs(int(rows[place]) - row), table[number], table[place], room) for place in meeting[~ordered]]
            pairs += len(meeting)
    if lost:
        _, one, other, room = min(lost, key=lambda pair: pair[0])
        _refuse_race(statement, several, one, other, room)
    return pairs


def _is_after(before: npt.NDArray[np.uint64], rows: Ints, row: int) -> npt.NDArray[np.bool_]:
    bits: npt.NDArray[np.uint64] = before[rows, row >> 6] >> np.uint64(row & 63)
    return (bits & np.uint64(1)).astype(np.bool_)


def _refuse_race(statement: Statement, several: Several, one: Ints, other: Ints, room: Room) -> None:
    first, second = sorted((one, other), key=lambda entry: int(entry[3]))
    low, high = max(int(one[0]), int(other[0])), min(int(one[1]), int(other[1]))
    words = ["writes" if entry[2] else "reads" for entry in (first, second)]
    runs = [statement.named(several.order[int(entry[3])]) for entry in (first, second)]
    raise Refused(
        f"{runs[0]} {words[0]} and {runs[1]} {words[1]} bytes {low:,} to {high:,} of {room}, and nothing orders them: "
        f"no chain of waits leads from row {int(second[3])} to row {int(first[3])}."
    )


def _sources(runs: Runs, order: Sequence[int]) -> tuple[tuple[tuple[Source, ...], ...], ...]:
    """By run and operand who wrote the bytes before, one run after the other; the last of `runs` is the caller."""
    edges: dict[Room, set[int]] = defaultdict(set)
    for touches in runs:
        for touch in touches:
            edges[touch.room] |= {touch.begin, touch.end}
    cells: dict[Room, Ints] = {room: np.array(sorted(places), np.int64) for room, places in edges.items()}
    writer = {room: np.full(len(places), NOBODY, np.int64) for room, places in cells.items()}
    writes: list[tuple[int, int, int]] = []  # run, operand, where it begins
    found: list[tuple[tuple[Source, ...], ...]] = [() for _ in runs]
    for run in (*order, len(runs) - 1):
        found[run] = tuple(tuple(_pieces(touch, cells[touch.room], writer[touch.room], writes)) for touch in runs[run])
        for number, touch in enumerate(runs[run]):
            if touch.written:
                first, last = np.searchsorted(cells[touch.room], (touch.begin, touch.end))
                writer[touch.room][first:last] = len(writes)
                writes.append((run, number, touch.begin))
    return tuple(found)


def _pieces(touch: Touch, edges: Ints, writer: Ints, writes: list[tuple[int, int, int]]) -> Iterator[Source]:
    """The bytes of an operand, cut where their writer changes; counted from its start."""
    first, last = (int(place) for place in np.searchsorted(edges, (touch.begin, touch.end)))
    if first == last:
        return
    inside = writer[first:last]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(inside)) + 1, [last - first]))
    for begin, end in itertools.pairwise(cuts.tolist()):
        start = int(edges[first + begin]) - touch.begin
        source = None
        if inside[begin] != NOBODY:
            run, number, origin = writes[int(inside[begin])]
            source = (run, number, touch.begin + start - origin)
        yield start, int(edges[first + end]) - touch.begin, source


def _check_written(statement: Statement, meant: Sequence[Sequence[Sequence[Source]]]) -> None:
    """Every byte that is read was written."""
    caller = len(statement.names)
    for run, operands in enumerate(meant):
        for number, pieces in enumerate(operands):
            if run < caller:
                touch = statement.meant[run][number]
                if touch.written or touch.room.kind in ("weights", "input", "sizes") or _is_carried(statement, touch):
                    continue
                what = str(touch.room)
            else:
                what = f"output {number}"
            for begin, end, source in pieces:
                if source is None:
                    raise Refused(
                        f"{statement.named(run)} reads bytes {begin:,} to {end:,} of operand {number}, in {what}, "
                        "which no run has written."
                    )


def _check_values(
    statement: Statement, meant: Sequence[Sequence[Sequence[Source]]], planned: Sequence[Sequence[Sequence[Source]]]
) -> int:
    """How many pieces of operands were compared: each has the same writer in a plan as the program means."""
    compared = 0
    for run, (wanted, given) in enumerate(zip(meant, planned, strict=True)):
        for number, (pieces, others) in enumerate(zip(wanted, given, strict=True)):
            held = run < len(statement.names) and _is_carried(statement, statement.meant[run][number])
            for begin, end, source in pieces:
                if source is None and not held:
                    continue
                for low, high, other in others:
                    start, stop = max(begin, low), min(end, high)
                    if start >= stop:
                        continue
                    compared += 1
                    right = None if source is None else (source[0], source[1], source[2] + start - begin)
                    there = None if other is None else (other[0], other[1], other[2] + start - low)
                    if there != right:
                        raise Refused(
                            f"{statement.named(run)} finds in bytes {start:,} to {stop:,} of operand {number} "
                            f"{_told(statement, other)}; it needs {_told(statement, source)}."
                        )
    return compared


def _is_carried(statement: Statement, touch: Touch) -> bool:
    """Whether an operand holds what the caller gave until a run writes it."""
    return touch.room.kind == "output" and touch.room.number in statement.carried


def _told(statement: Statement, source: tuple[int, int, int] | None) -> str:
    if source is None:
        return "what nobody wrote"
    return f"what {statement.named(source[0])} wrote from byte {source[2]:,} of operand {source[1]} on"

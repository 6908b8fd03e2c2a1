"""The proofs on programs small enough to try every order in which workers can run them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.program.certify.proof import prove
from graphopt.program.certify.statement import Refused, Room, Runs, Several, Statement, Touch

ARENA, OUT = Room("arena"), Room("output")
Byte = tuple[Room, int]
Value = tuple[object, ...] | None  # who wrote a byte, with what it may have kept; None: nobody


def buffer(number: int, begin: int, end: int, *, written: bool = False) -> Touch:
    return Touch(Room("buffer", number), begin, end, written)


def placed(runs: Runs, offsets: dict[int, int]) -> Runs:
    """The runs where each buffer starts at its offset in the arena."""

    def place(touch: Touch) -> Touch:
        if touch.room.kind != "buffer":
            return touch
        start = offsets[touch.room.number]
        return Touch(ARENA, touch.begin + start, touch.end + start, touch.written)

    return tuple(tuple(map(place, run)) for run in runs)


def stated(meant: Runs, outputs: tuple[int, ...], several: Several | None) -> Statement:
    """The statement in which one worker has every buffer in bytes of its own, one after the other."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for run, touches in enumerate(meant):
        for touch in touches:
            if touch.room.kind == "buffer":
                uses.setdefault(touch.room.number, []).append((run, touch.end))
    buffers, offsets, top = [], {}, 0
    for number in sorted(uses):
        size = max(end for _, end in uses[number])
        runs = [run for run, _ in uses[number]]
        buffers.append((top, size, min(runs), max(runs) + 1))
        offsets[number] = top
        top += size
    sizes = {ARENA: top} | {Room("output", number): size for number, size in enumerate(outputs)}
    names = tuple(f"k{run}" for run in range(len(meant)))
    return Statement(names, meant, placed(meant, offsets), sizes, outputs, tuple(buffers), several)


@st.composite
def programs(draw: st.DrawFn) -> Statement:
    """Up to five runs on up to three buffers, at drawn places, in a drawn order with drawn waits."""
    count = draw(st.integers(2, 5))
    meant: list[tuple[Touch, ...]] = []
    sizes: dict[int, int] = {}
    whole: list[Touch] = []  # what may be read, because it was written
    for run in range(count):
        touches = []
        for source in draw(st.lists(st.sampled_from(whole), max_size=2)) if whole else []:
            begin = draw(st.integers(source.begin, source.end - 1))
            touches.append(Touch(source.room, begin, draw(st.integers(begin + 1, source.end)), written=False))
        if run == count - 1:
            touches.append(Touch(OUT, 0, 2, written=True))
        else:
            number = draw(st.integers(0, min(2, len(sizes))))
            begin = 0 if number not in sizes else draw(st.integers(0, 1))
            target = buffer(number, begin, draw(st.integers(begin + 1, 3)), written=True)
            sizes[number] = max(sizes.get(number, 0), target.end)
            whole.append(target)
            touches.append(target)
        meant.append(tuple(touches))
    order = draw(st.permutations(range(count)) | st.just(list(range(count))))
    waits = [
        tuple(range(row)) if row == 0 or draw(st.booleans()) else tuple(sorted(draw(st.sets(st.integers(0, row - 1)))))
        for row in range(count)
    ]
    end = tuple(range(count)) if draw(st.integers(0, 4)) else tuple(sorted(draw(st.sets(st.integers(0, count - 1)))))
    offsets = {number: draw(st.integers(0, 6)) for number in sizes}
    follows = draw(st.sets(st.integers(1, count - 1)))
    several = Several(tuple(order), (*waits, end), placed(tuple(meant), offsets), 9, frozenset(follows))
    return stated(tuple(meant), (2,), several)


@dataclass
class Memory:
    """Bytes that remember who wrote them; what a write may keep counts only where the program means it to be there."""

    kept: dict[tuple[int, int, int], bool]
    bytes: dict[Byte, Value]

    def run(self, number: int, touches: tuple[Touch, ...], *, learn: bool = False) -> list[Value]:
        """What the run reads, and what its writes may keep; they are done at once."""
        reads = [self.bytes.get(byte) for touch in touches if not touch.written for byte in _bytes(touch)]
        before = dict(self.bytes)
        for place, touch in enumerate(touches):
            for distance, byte in enumerate(_bytes(touch)):
                if touch.written:
                    if learn:
                        self.kept[number, place, distance] = before.get(byte) is not None
                    old = before.get(byte) if self.kept[number, place, distance] else None
                    reads.append(old)
                    self.bytes[byte] = (number, place, distance, old)
        return reads


def _bytes(touch: Touch) -> list[Byte]:
    return [(touch.room, place) for place in range(touch.begin, touch.end)]


def _executions(several: Several) -> list[tuple[int, ...]]:
    """Every order of the rows in which each comes after all that it waits for, and after the one that it follows."""
    count = len(several.order)
    after = [(earlier, row) for row in range(count) for earlier in several.waits[row]]
    after += [(row - 1, row) for row in several.follows]
    return [
        rows for rows in itertools.permutations(range(count))
        if all(rows.index(earlier) < rows.index(row) for earlier, row in after)
    ]  # fmt: skip


def _right(statement: Statement) -> bool:
    """Whether every execution reads and leaves what the program means, and no two runs may touch bytes at one time."""
    several = statement.several
    assert several is not None
    memory = Memory({}, {})
    expected = [memory.run(run, touches, learn=True) for run, touches in enumerate(statement.meant)]
    last = [memory.bytes.get((OUT, place)) for place in range(2)]
    executions = _executions(several)
    for rows in executions:
        tried = Memory(memory.kept, {})
        for row in rows:
            if tried.run(several.order[row], several.runs[several.order[row]]) != expected[several.order[row]]:
                return False
        if [tried.bytes.get((OUT, place)) for place in range(2)] != last:
            return False
    for one, other in itertools.combinations(range(len(several.order)), 2):
        if len({rows.index(one) < rows.index(other) for rows in executions}) == 2 and _clash(several, one, other):
            return False
    return _apart(statement, several) and _ends(several)


def _clash(several: Several, one: int, other: int) -> bool:
    pairs = itertools.product(several.runs[several.order[one]], several.runs[several.order[other]])
    return any(first.written | second.written and set(_bytes(first)) & set(_bytes(second)) for first, second in pairs)


def _apart(statement: Statement, several: Several) -> bool:
    """No byte of a written operand is another byte of the same run, unless it is meant to be."""
    for meant, touches in zip(statement.meant, several.runs, strict=True):
        for one, other in itertools.combinations(range(len(touches)), 2):
            if touches[one].written or touches[other].written:
                shared, wanted = (
                    {
                        (first, second)
                        for (first, a), (second, b) in itertools.product(
                            enumerate(_bytes(pair[one])), enumerate(_bytes(pair[other]))
                        )
                        if a == b
                    }
                    for pair in (touches, meant)
                )
                if shared and shared != wanted:
                    return False
    return True


def _ends(several: Several) -> bool:
    """Whether the end of a call waits for every row, directly or not."""
    reached, waiting = set(), list(several.waits[-1])
    while waiting:
        row = waiting.pop()
        reached.add(row)
        waiting += [*several.waits[row], *([row - 1] if row in several.follows else [])]
    return reached == set(range(len(several.order)))


@settings(max_examples=300, deadline=None)
@given(programs())
def test_what_is_proved_is_what_every_execution_does(statement: Statement) -> None:
    try:
        prove(statement)
    except Refused:
        assert not _right(statement)
    else:
        assert _right(statement)


# run 0 writes a, run 1 writes b, run 2 reads a and writes c, run 3 reads b and c and writes the output.
MEANT: Runs = (
    (buffer(0, 0, 64, written=True),),
    (buffer(1, 0, 64, written=True),),
    (buffer(0, 0, 64), buffer(2, 0, 64, written=True)),
    (buffer(1, 0, 64), buffer(2, 0, 64), Touch(OUT, 0, 64, written=True)),
)
SEVERAL = Several((0, 1, 2, 3), ((), (), (0,), (1, 2), (3,)), placed(MEANT, {0: 0, 1: 64, 2: 128}), 192)
RIGHT = stated(MEANT, (64,), SEVERAL)


def test_a_right_program_is_proved() -> None:
    proved = prove(RIGHT)
    assert (proved.runs, proved.waits, proved.places) == (4, 4, 14)
    assert proved.pairs == 3, "each value has one writer and one reader"
    assert prove(replace(RIGHT, several=None)).pairs == 0


def several(**changes: object) -> Statement:
    return replace(RIGHT, several=replace(SEVERAL, **changes))  # type: ignore[arg-type]


def touch(runs: Runs, run: int, operand: int, other: Touch) -> Runs:
    touches = list(runs[run])
    touches[operand] = other
    return (*runs[:run], tuple(touches), *runs[run + 1 :])


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (several(order=(0, 1, 1, 3)), "run 1 ('k1') is claimed twice, the second time at row 2."),
        (several(order=(0, 1, 2), waits=((), (), (0,), (2,))), "no worker claims run 3 ('k3')."),
        (
            several(waits=((), (), (3,), (1, 2), (3,))),
            "run 2 ('k2') at row 2 waits for row 3, which nobody has claimed by then: a deadlock.",
        ),
        (several(waits=((), (), (0,), (1, 2), (2,))), "a call may return before run 1 ('k1') has ended: nothing at its "
         "end waits for it."),
        (
            several(waits=((), (), (0,), (2,), (1, 3))),
            "run 1 ('k1') writes and run 3 ('k3') reads bytes 64 to 128 of the arena, and nothing orders them: no "
            "chain of waits leads from row 3 to row 1.",
        ),
        (
            several(runs=placed(MEANT, {0: 0, 1: 0, 2: 128})),
            "run 0 ('k0') writes and run 1 ('k1') writes bytes 0 to 64 of the arena, and nothing orders them: no chain "
            "of waits leads from row 1 to row 0.",
        ),
        (
            several(runs=placed(MEANT, {0: 0, 1: 0, 2: 128}), waits=((), (0,), (1,), (2,), (3,))),
            "run 2 ('k2') finds in bytes 0 to 64 of operand 0 what run 1 ('k1') wrote from byte 0 of operand 0 on; it "
            "needs what run 0 ('k0') wrote from byte 0 of operand 0 on.",
        ),
        (
            several(arena_bytes=190),
            "operand 1 of run 2 ('k2') lies at bytes 128 to 192 of the arena, which has 190.",
        ),
        (
            several(runs=placed(MEANT, {0: 0, 1: 64, 2: 32}), waits=((), (0,), (1,), (2,), (3,))),
            "operands 0 and 1 of run 2 ('k2') share bytes, bytes 0 to 64 of the arena and bytes 32 to 96 of the arena, "
            "and one of them is written.",
        ),
        (
            several(runs=touch(SEVERAL.runs, 3, 2, Touch(OUT, 0, 32, written=True))),
            "operand 2 of run 3 ('k3') is bytes 0 to 32 of output 0; it is meant to be bytes 0 to 64 of output 0.",
        ),
        (
            several(runs=(*SEVERAL.runs[:3], SEVERAL.runs[3][:2])),
            "run 3 ('k3') has 2 operands in the library and 3 in the manifest.",
        ),
        (
            replace(RIGHT, alone=touch(RIGHT.alone, 2, 0, Touch(ARENA, 8, 72, written=False))),
            "run 2 ('k2') finds bytes 0 to 64 of buffer 0 at byte 8 of the arena; by the plan it is at 0.",
        ),
        (
            replace(RIGHT, buffers=((0, 64, 0, 3), (64, 64, 2, 4), (128, 64, 2, 4))),
            "buffer 1 is planned for runs 2 to 4, and is used from 1 to 4.",
        ),
        (
            replace(RIGHT, buffers=((0, 64, 0, 3), (64, 60, 1, 4), (128, 64, 2, 4))),
            "buffer 1 is planned with 60 bytes; runs touch 64.",
        ),
        (
            replace(RIGHT, buffers=(*RIGHT.buffers, (192, 64, 0, 1))),
            "buffer 3 is planned for runs 0 to 1, and is used never.",
        ),
        (
            replace(RIGHT, buffers=RIGHT.buffers[:2]),
            "run 2 ('k2') works on buffer 2, which the plan does not have.",
        ),
        (
            replace(RIGHT, several=None, alone=placed(MEANT, {0: 0, 1: 0, 2: 128}),
                    buffers=((0, 64, 0, 3), (0, 64, 1, 4), (128, 64, 2, 4))),
            "buffers 0 and 1 are alive at the same time, and share bytes 0 to 64 of the arena.",
        ),
        (
            replace(RIGHT, sizes=RIGHT.sizes | {ARENA: 400}),
            "the plan ends at byte 192; the arena has 400.",
        ),
        (
            stated(touch(MEANT, 0, 0, buffer(0, 0, 64)), (64,), None),
            "run 0 ('k0') reads bytes 0 to 64 of operand 0, in buffer 0, which no run has written.",
        ),
        (
            stated(MEANT, (65,), None),
            "the caller reads bytes 64 to 65 of operand 0, in output 0, which no run has written.",
        ),
        (
            replace(stated((*MEANT, (Touch(Room("input"), 0, 4, written=True),)), (64,), None),
                    sizes=RIGHT.sizes | {Room("input"): 4}),
            "run 4 ('k4') writes bytes 0 to 4 of input 0, which is only read.",
        ),
        (
            stated((*MEANT, (Touch(Room("input", 7), 0, 4, written=False),)), (64,), None),
            "operand 0 of run 4 ('k4') lies at bytes 0 to 4 of input 7, which does not exist.",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(statement: Statement, sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        prove(statement)
    assert str(caught.value) == sentence


def test_bytes_that_a_write_may_keep_are_held_too() -> None:
    """Two parts of a row each: another run between them would take what the first one wrote into the gaps."""
    meant: Runs = (
        (buffer(0, 0, 48, written=True),),
        (buffer(1, 0, 64, written=True),),
        (buffer(0, 16, 64, written=True),),
        (buffer(0, 0, 64), buffer(1, 0, 64), Touch(OUT, 0, 64, written=True)),
    )
    chain = ((), (0,), (1,), (2,), (3,))
    assert prove(stated(meant, (64,), Several((0, 1, 2, 3), chain, placed(meant, {0: 0, 1: 64}), 128))).waits == 4
    with pytest.raises(Refused, match=r"run 2 \('k2'\) finds in bytes 16 to 32 of operand 0 what run 1 \('k1'\)"):
        prove(stated(meant, (64,), Several((0, 1, 2, 3), chain, placed(meant, {0: 0, 1: 32}), 128)))


def test_what_a_caller_gave_is_read_before_a_run_writes_in_its_place() -> None:
    """Run 0 reads what the caller gave in output 0, run 1 writes there, run 2 gives output 1 what run 0 made."""
    meant = (
        (Touch(OUT, 0, 2, written=False), buffer(0, 0, 2, written=True)),
        (Touch(OUT, 0, 2, written=True),),
        (buffer(0, 0, 2), Touch(Room("output", 1), 0, 2, written=True)),
    )
    chain = ((), (0,), (0, 1), (0, 1, 2))

    def program(order: tuple[int, ...], waits: tuple[tuple[int, ...], ...]) -> Statement:
        several = Several(order, waits, placed(meant, {0: 0}), 2)
        return replace(stated(meant, (2, 2), several), carried=frozenset({0}))

    assert prove(program((0, 1, 2), chain)).waits == 6
    with pytest.raises(Refused, match=r"finds in bytes 0 to 2 of operand 0 what run 1 .* it needs what nobody wrote"):
        prove(program((1, 0, 2), chain))
    with pytest.raises(Refused):  # run 1 may write while run 0 reads
        prove(program((0, 1, 2), ((), (), (0, 1), (0, 1, 2))))
    with pytest.raises(Refused, match="which no run has written"):
        prove(replace(program((0, 1, 2), chain), carried=frozenset()))

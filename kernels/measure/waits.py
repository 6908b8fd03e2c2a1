"""Two threads on two cores that wait for each other: by a counter, for a run's blocks, asleep.

    signals(state, side, rounds)   add to a counter that the other side looks at, by turns
    waits(state, side, rounds)     the same, and a block is claimed before its end is signalled: as from run to run
    wakes(state, side, rounds)     side 0 wakes side 1, which sleeps; the nanoseconds of each round are left in `state`

Side 0 begins. `state` is zeroed memory of `STATE_BYTES`, aligned to 64 bytes. A wait looks as a program's does
(kernels/llvm/threads.py): with a pause between two looks, giving the core away after long ones.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import add, futex, read, spin, write, write_clock
from kernels.target import Target

_LINE = 64
_SHIFT = 8
_PLACES = 1 << _SHIFT  # counters that turns go through: how far a line has to go depends on its address
_TURN = 3 * _LINE  # bytes of a turn's place: a counter of either side, and claims
_BELL, _ASLEEP, _BEGAN, _DONE = (_PLACES * _TURN + 2 * _LINE * place for place in range(4))
TIMES = _DONE + _LINE  # offset of the nanoseconds of each round
MOST_ROUNDS = 1000
STATE_BYTES = TIMES + _LINE * (8 * MOST_ROUNDS // _LINE)
REST_NS = 200_000  # for which a sleeper is left alone, so that its core rests as well
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to the process
_GIVEN = (Parameter("state"), Parameter("side", "i64"), Parameter("rounds", "i64"))


def waits_module(target: Target) -> Module:
    """A module with the three functions, exported."""
    module = Module(target)
    module.declare("syscall", "i64", ["i64", "..."])
    module.declare("sched_yield", "i32", [])
    write_clock(module)
    _write_turns(module, "signals", _count)
    _write_turns(module, "waits", _claim)
    _write_wakes(module)
    return module


def _at(f: Function, offset: int) -> Value:
    return f.at(f.parameter("state"), offset, "i8")


def _write_turns(module: Module, name: str, work: Callable[[Function, Value], None]) -> None:
    """Each side does its turn `number` when the other's has ended; side 0 is one turn ahead."""
    f = Function(module, name, _GIVEN, exported=True)
    side = f.parameter("side")

    def counter(number: Value, whose: Value) -> Value:
        return f.at(_place(f, number), f.mul(whose, _LINE), "i8")

    def turn(number: Value, _: tuple[Value, ...]) -> None:
        before = f.add(f.sub(number, 1), side)  # the other side's turn that has to end first; none before turn 0
        wanted = f.add(f.binary("ashr", before, f.integer(_SHIFT)), 1)
        theirs = counter(before, f.sub(f.integer(1), side))
        spin(f, lambda: f.compare("sge", read(f, "i64", theirs, "acquire"), wanted))
        work(f, number)
        add(f, counter(number, side), f.integer(1), "release")

    f.loop(f.integer(0), f.parameter("rounds"), 1, turn)
    f.finish()


def _place(f: Function, number: Value) -> Value:
    """What belongs to a turn, by turns each of the places."""
    return f.at(f.parameter("state"), f.mul(f.binary("and", number, f.integer(_PLACES - 1)), _TURN), "i8")


def _count(f: Function, number: Value) -> None:
    """Nothing beside the counter."""


def _claim(f: Function, number: Value) -> None:
    """A block of a run that both sides claim from."""
    place = f.at(_place(f, number), 2 * _LINE, "i8")
    seen = read(f, "i64", place, "acquire")
    new = f.add(seen, 1)
    f.value("{ i64, i1 }", f"cmpxchg ptr {place.text}, i64 {seen.text}, i64 {new.text} acq_rel acquire, align 8")


def _write_wakes(module: Module) -> None:
    f = Function(module, "wakes", _GIVEN, exported=True)
    side, rounds = f.parameter("side"), f.parameter("rounds")
    bell, asleep, began, done = (_at(f, place) for place in (_BELL, _ASLEEP, _BEGAN, _DONE))

    def rouse() -> None:
        def turn(number: Value, _: tuple[Value, ...]) -> None:
            spin(f, lambda: f.compare("sgt", read(f, "i64", asleep), number))
            until = f.add(_now(f), REST_NS)
            spin(f, lambda: f.compare("sge", _now(f), until))
            write(f, _now(f), began)
            add(f, bell, f.number("i32", 1))
            futex(f, bell, _FUTEX_WAKE, f.number("i32", 1))
            spin(f, lambda: f.compare("sgt", read(f, "i64", done), number))

        f.loop(f.integer(0), rounds, 1, turn)

    def sleep() -> None:
        def turn(number: Value, _: tuple[Value, ...]) -> None:
            last = f.convert("trunc", "i32", number)
            add(f, asleep, f.integer(1))
            again, out = f.fresh("sleep"), f.fresh("woken")
            f.line(f"br label %{again}")
            f.label(again)
            futex(f, bell, _FUTEX_WAIT, last)
            same = f.compare("eq", read(f, "i32", bell), last)
            f.line(f"br i1 {same.text}, label %{again}, label %{out}")
            f.label(out)
            f.store(f.sub(_now(f), read(f, "i64", began)), f.at(_at(f, TIMES), number, "i64"))
            add(f, done, f.integer(1))

        f.loop(f.integer(0), rounds, 1, turn)

    f.when(f.compare("eq", side, f.integer(0)), rouse, sleep)
    f.finish()


def _now(f: Function) -> Value:
    found = f.call("clock_now", result="i64")
    assert found is not None, "it gives a result"
    return found

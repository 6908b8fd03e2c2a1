"""Vector clocks: what each thread knows of every other one's past.

A thread's time grows whenever it releases; an access is of its thread's time. Thread t's access of time x happens
before what thread u does if u's clock has x or more for t. Threads of a block share a clock from barrier to barrier;
one that learns more in between gets a copy. Flanagan and Freund, FastTrack: efficient and precise dynamic race
detection (2009); with scopes as in the memory model of PTX.
"""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s

_FREE, _HEAD = s.FREE_CLOCKS, s.CLOCK_HEAD
_CLOCK, _OWN = s.CLOCK, s.OWN
_MINUS = n.MINUS
_NONE = n.NONE
_SOME = n.SOME


@inner
def new_clock(scalars: Any, clocks: Any, like: int) -> int:
    """A clock with the times of another one, or with none where that is -1."""
    count = clocks.shape[1] - 2
    clock = scalars[_HEAD]
    scalars[_HEAD] = clocks[clock, count + 1]
    scalars[_FREE] -= 1
    clocks[clock, count] = 1
    if like >= 0:
        for one in range(count):
            clocks[clock, one] = clocks[like, one]
    else:
        for one in range(count):
            clocks[clock, one] = 0
    return clock  # type: ignore[no-any-return]


@inner
def use_clock(clocks: Any, clock: int, more: int) -> int:
    """So many more use a clock; how many do then."""
    clocks[clock, clocks.shape[1] - 2] += more
    return clocks[clock, clocks.shape[1] - 2]  # type: ignore[no-any-return]


@inner
def drop_clock(scalars: Any, clocks: Any, clock: int) -> None:
    """One fewer uses it; -1 is none."""
    if clock < 0:
        return
    if use_clock(clocks, clock, _MINUS) == 0:
        clocks[clock, clocks.shape[1] - 1] = scalars[_HEAD]
        scalars[_HEAD] = clock
        scalars[_FREE] += 1


@inner
def known(clocks: Any, threads: Any, thread: int, other: int, time: int) -> bool:
    """Whether what another thread did at a time happens before what this one does."""
    return thread == other or clocks[threads[thread, _CLOCK], other] >= time


@inner
def covers(clocks: Any, large: int, small: int) -> bool:
    """Whether a clock knows all that another one does."""
    behind = 0
    for one in range(clocks.shape[1] - 2):
        behind |= int(clocks[small, one] > clocks[large, one])
    return behind == 0


@inner
def raise_to(clocks: Any, clock: int, more: int) -> None:
    """A clock learns all that another one knows."""
    for one in range(clocks.shape[1] - 2):
        if clocks[more, one] > clocks[clock, one]:
            clocks[clock, one] = clocks[more, one]


@inner
def learn(state: s.State, thread: int, more: int) -> None:
    """A thread learns what a clock knows; -1 is nothing."""
    if more < 0:
        return
    clock = state.threads[thread, _CLOCK]
    if clock == more or covers(state.clocks, clock, more):
        return
    if use_clock(state.clocks, clock, _NONE) > 1:
        use_clock(state.clocks, clock, _MINUS)
        clock = new_clock(state.scalars, state.clocks, clock)
        state.threads[thread, _CLOCK] = clock
    raise_to(state.clocks, clock, more)


@inner
def snapshot(state: s.State, thread: int) -> int:
    """A clock with all that a thread knows and has done; its time goes on."""
    like = state.threads[thread, _CLOCK]
    clock = new_clock(state.scalars, state.clocks, like)
    state.clocks[clock, thread] = state.threads[thread, _OWN]
    state.threads[thread, _OWN] += 1
    return clock


@inner
def gathered(state: s.State, kept: int, more: int) -> int:
    """A clock that knows what both do, in place of the first; -1 is nothing. The second stays what it is."""
    if more < 0 or kept == more:
        return kept
    if kept < 0:
        use_clock(state.clocks, more, _SOME)
        return more
    if covers(state.clocks, kept, more):
        return kept
    if use_clock(state.clocks, kept, _NONE) > 1:
        use_clock(state.clocks, kept, _MINUS)
        kept = new_clock(state.scalars, state.clocks, kept)
    raise_to(state.clocks, kept, more)
    return kept

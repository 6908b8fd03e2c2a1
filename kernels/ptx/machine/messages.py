"""How threads synchronize through memory: what a strong write hands on, what a strong read learns, fences.

A release is a write or a fence before one; an acquire is a read or a fence behind one. They synchronize where the read
sees the write, or a chain of atomics that begins with it, and each lies in the scope of the other: within a block at
any scope, between blocks only where both are of the device. So a message has a clock for readers of the writer's block
and one for all others.
"""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.clocks import drop_clock, gathered, learn, new_clock, raise_to, snapshot, use_clock
from kernels.ptx.machine.races import new_node

_ACQUIRE, _RELEASE, _ACQ_REL, _SEQ_CST, _GPU = n.ACQUIRE, n.RELEASE, n.ACQ_REL, n.SEQ_CST, n.GPU
NEXT, KIND, BLOCK, MASK, TIME, MESSAGE, LIST = s.NEXT, s.KIND, s.BLOCK, s.MASK, s.TIME, s.MESSAGE, s.LIST
REL_CTA, REL_GPU, PEND_CTA, PEND_GPU = s.REL_CTA, s.REL_GPU, s.PEND_CTA, s.PEND_GPU
_THREADS, _SEQ, _CLOCK, _OWN = s.THREADS, s.SEQ_CLOCK, s.CLOCK, s.OWN
_NONE = n.NONE
_SOME = n.SOME


@inner
def _message(state: s.State, granule: int) -> Any:
    node = state.shadow[granule, LIST]
    while node >= 0 and state.nodes[node, KIND] != MESSAGE:
        node = state.nodes[node, NEXT]
    return node


@inner
def _drop(state: s.State, clock: int) -> None:
    drop_clock(state.scalars, state.clocks, clock)


@inner
def publish(state: s.State, granule: int, thread: int, order: int, scope: int, chained: int) -> None:
    """A strong write leaves its message; an atomic's joins the one that it read."""
    threads, nodes = state.threads, state.nodes
    near, far = threads[thread, REL_CTA], threads[thread, REL_GPU]
    if near >= 0:
        use_clock(state.clocks, near, _SOME)
    if far >= 0:
        use_clock(state.clocks, far, _SOME)
    if order >= _RELEASE:
        mine = snapshot(state, thread)
        _drop(state, near)
        near = mine
        if scope == _GPU:
            _drop(state, far)
            far = mine
            use_clock(state.clocks, mine, _SOME)
    block = thread // state.scalars[_THREADS]
    node = _message(state, granule)
    if node < 0:
        if near < 0 and far < 0:
            return
        node = new_node(state)
        nodes[node, NEXT], nodes[node, KIND] = state.shadow[granule, LIST], MESSAGE
        state.shadow[granule, LIST] = node
    else:
        if chained:
            far = gathered(state, far, nodes[node, TIME])
            if nodes[node, BLOCK] == block:
                near = gathered(state, near, nodes[node, MASK])
            near = gathered(state, near, nodes[node, TIME])
        _drop(state, nodes[node, MASK])
        _drop(state, nodes[node, TIME])
    nodes[node, BLOCK], nodes[node, MASK], nodes[node, TIME] = block, near, far


@inner
def observe(state: s.State, granule: int, thread: int, order: int, scope: int) -> None:
    """A strong read learns what the message says, or keeps it for a fence."""
    node = _message(state, granule)
    if node < 0:
        return
    threads, nodes = state.threads, state.nodes
    near = -1
    if nodes[node, BLOCK] == thread // state.scalars[_THREADS]:
        near = nodes[node, MASK]
    far = nodes[node, TIME] if scope == _GPU else -1
    if order == _ACQUIRE or order >= _ACQ_REL:
        learn(state, thread, near)
        learn(state, thread, far)
    else:
        threads[thread, PEND_CTA] = gathered(state, threads[thread, PEND_CTA], near)
        threads[thread, PEND_GPU] = gathered(state, threads[thread, PEND_GPU], far)


@inner
def fence(state: s.State, thread: int, order: int, scope: int) -> None:
    """Reads before it acquire, writes behind it release; sequentially consistent ones are ordered among themselves."""
    threads = state.threads
    if order != _RELEASE:
        learn(state, thread, threads[thread, PEND_CTA])
        if scope == _GPU:
            learn(state, thread, threads[thread, PEND_GPU])
    if order == _SEQ_CST and scope == _GPU:
        learn(state, thread, state.scalars[_SEQ])
    if order == _ACQUIRE:
        return
    mine = snapshot(state, thread)
    _drop(state, threads[thread, REL_CTA])
    threads[thread, REL_CTA] = mine
    if scope == _GPU:
        _drop(state, threads[thread, REL_GPU])
        threads[thread, REL_GPU] = mine
        use_clock(state.clocks, mine, _SOME)
        if order == _SEQ_CST:
            if state.scalars[_SEQ] < 0:
                state.scalars[_SEQ] = new_clock(state.scalars, state.clocks, mine)
            else:
                raise_to(state.clocks, state.scalars[_SEQ], mine)


@inner
def meet(state: s.State, members: Any, count: int, extra: int) -> None:
    """Threads at a barrier: all know what each has done, and what the clock `extra` knows; their times go on."""
    threads = state.threads
    first = threads[members[0], _CLOCK]
    alike = True
    for one in range(1, count):
        alike = alike and threads[members[one], _CLOCK] == first
    if alike and use_clock(state.clocks, first, _NONE) == count:
        clock = first
    else:
        clock = new_clock(state.scalars, state.clocks, first)
        before = first
        for one in range(count):
            mine = threads[members[one], _CLOCK]
            if mine != before:
                raise_to(state.clocks, clock, mine)
                before = mine
        for one in range(count):
            _drop(state, threads[members[one], _CLOCK])
        use_clock(state.clocks, clock, count - 1)
    if extra >= 0:
        raise_to(state.clocks, clock, extra)
    latest = 0
    for one in range(count):
        latest = max(latest, threads[members[one], _OWN])
    for one in range(count):
        threads[members[one], _CLOCK] = clock
        state.clocks[clock, members[one]] = latest
        threads[members[one], _OWN] = latest + 1

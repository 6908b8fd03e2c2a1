"""What the machine knows while a kernel runs: arrays, and the numbers of their columns."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernels.ptx.machine.numbers import constant, numbered

# Scalars of the machine.
(
    THREADS, BLOCKS, RESIDENT, WARPS, GLOBAL_SIZE, SHARED_AT, SHARED_SIZE, LOCAL_AT, LOCAL_SIZE, SHIFT, CHANGES, FAULTS,
    FREE_CLOCKS, FREE_NODES, SEQ_CLOCK, STEPS, SINCE, SLOTS, DONE, DRAWN, POLICY, ROUNDS, LATE, CLOCK_HEAD,
    AGAIN, CURRENT, LEFT, NODE_HEAD, STOPPED, NEXT_BLOCK, LAST_SEEN, VICTIM,
) = numbered(32)  # fmt: skip
SCALARS = 48

# Of a granule of memory: who wrote it last and when, who read it last, a list of all other accesses.
(W_THREAD, W_TIME, W_PC, R_THREAD, R_TIME, R_PC, LIST, FLAGS) = numbered(8)
NEVER, HOST, NOWHERE = (
    constant(-1),
    constant(-2),
    constant(-3),
)  # in place of a thread that wrote: unwritten, before the launch, outside of buffers
UNFINISHED = constant(2147483647)  # in place of a time: an asynchronous copy under way
NC_READ, CONSTANT = constant(1), constant(2)  # flags of a granule

# Of an entry in a granule's list.
(NEXT, KIND, BLOCK, MASK, WARP, TIME, PC, SPARE) = numbered(8)
WEAK_READ, STRONG_READ, STRONG_WRITE, MESSAGE = (
    constant(0),
    constant(1),
    constant(3),
    constant(5),
)  # the two strong ones: of a block, and of the device one more

# Of a thread: its clock, its own time, clocks that fences have set aside, its asynchronous copies.
(CLOCK, OWN, REL_CTA, REL_GPU, PEND_CTA, PEND_GPU, COPIES, GROUPS) = numbered(8)

# Of an asynchronous copy.
(C_NEXT, C_TO, C_FROM, C_SIZE, C_GIVEN, C_GROUP, C_PC, C_SPARE) = numbered(8)

# Of a fault.
(F_KIND, F_PC, F_THREAD, F_ADDRESS, F_OTHER, F_OTHER_PC, F_COUNT, F_EXTRA) = numbered(8)
MOST_FAULTS = 64

# Of a part of a warp: its place, its lanes, where it meets others, the part that it came from.
(P_STATE, P_PC, P_MASK, P_MEET, P_PARENT, P_CHILDREN, P_BARRIER, P_SEEN, P_YIELDED, P_WAITS_AT) = numbered(10)
FREE, RUNS, PARTED, WAITS = numbered(4)
PARTS = 72  # of a warp, and columns of each
PART = 10

# Of a place for a block: which one, its threads that have not ended.
(S_BLOCK, S_LIVE, S_ORDER, S_RUNNING) = numbered(4)

# Of a barrier: threads that are there, how many it is for, a clock of those that only arrived.
(B_HERE, B_FOR, B_CLOCK, B_VALUE) = numbered(4)
BARRIERS = 16

# Counted of each row of code: warps, lanes, transactions, the fewest that would do, bytes; and what of these an
# asynchronous copy takes in shared memory.
(N_WARPS, N_LANES, N_PARTS, N_LEAST, N_BYTES, N_TO_PARTS, N_TO_LEAST, N_TO_BYTES) = numbered(8)
HERE, THERE = constant(0), constant(3)  # columns behind N_PARTS

# Of a granule of global memory: whether the launch has read or written it.
READ, WRITTEN = constant(1), constant(2)


class State(NamedTuple):
    """All of it; numba takes a named tuple apart.

    `scalars` are numbers by the names above; `words` is one memory, global buffers first, then shared memory of each
    resident block, then local memory; `shadow` has a row for each granule of it, `nodes` are entries of its lists and
    asynchronous copies; `clocks` have a time for each thread of the grid, how many use the clock, and the next free
    one. `room` is scratch; `touched` says of each granule of global memory whether it was read or written.
    """

    scalars: Any
    words: Any
    shadow: Any
    nodes: Any
    clocks: Any
    threads: Any
    faults: Any
    counts: Any
    room: Any
    touched: Any

"""Mistakes of signalling between blocks that others have made, or that LLVM makes for one: each is reported.

Of public code of Rammer: no check of residency, waits on later blocks, a signal without a barrier or a fence before
it, tasks that share memory without a barrier between them, threads that leave before a barrier. Of others: volatile
flags and additions without fences. Of LLVM: additions lose their order, pointers marked noalias are read through the
cache that is not coherent, shared variables do not begin with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.ptx.emit import ptx
from kernels.ptx.machine.launching import ORDERS, Adversary, Launch, Machine
from kernels.ptx.persistent import module
from tests.kernels.ptx.machine.kernels import entry, run
from tests.kernels.ptx.programs import RUN, WAIT, Tables

REGIONS, BEFORE = (2, 2), {1: (0,)}
PINNED = [[(RUN, 0, 0), (RUN, 1, 0)], [(WAIT, 0, 2), (RUN, 2, 0), (RUN, 3, 0)]]
ITEMS: list[tuple[int, list[tuple[int, int]]]] = [(0, []), (1, []), (2, [(0, 2)]), (3, [(0, 2)])]


@pytest.fixture(scope="module")
def text() -> str:
    return ptx(module())


def changed(text: str, old: str, new: str, within: str, many: int = 1) -> str:
    """The text with a change in one function."""
    begin = text.index(f" {within}(")
    end = text.index("\n}", begin)
    body = text[begin:end]
    assert body.count(old) >= many
    return text[:begin] + body.replace(old, new) + text[end:]


def kinds(text: str, order: Any = "in order") -> set[str]:
    found: set[str] = set()
    for seed in range(2):
        tables = Tables(text, REGIONS, BEFORE)
        found |= tables.pinned(PINNED, Adversary(order, seed)).outcome.kinds
        found |= Tables(text, REGIONS, BEFORE).ticketed(ITEMS, 2, Adversary(order, seed)).outcome.kinds
    return found


def test_the_program_itself_has_no_fault(text: str) -> None:
    for order in ORDERS:
        assert kinds(text, order) == set()


@pytest.mark.parametrize("order", ["in order", "reversed", "random", "starved", "every instruction"])
def test_a_block_that_has_no_place_is_waited_for_in_vain(text: str, order: Any) -> None:
    """More blocks than are resident: what waits for one that has no place never ends, unless tickets say the order."""
    chain = [[(WAIT, 0, 2), (RUN, 2, 0), (RUN, 3, 0)], [(RUN, 0, 0), (RUN, 1, 0)]]
    found = set()
    for seed in range(6):
        ran = Tables(text, REGIONS, BEFORE).pinned(chain, Adversary(order, seed), resident=1)
        found |= ran.outcome.kinds
        ran = Tables(text, REGIONS, BEFORE).ticketed(ITEMS, 4, Adversary(order, seed), resident=1)
        assert not ran.outcome.faults
    assert ("endless wait" in found) == (order != "reversed"), "in reverse, the one that is waited for comes first"


def test_a_signal_needs_a_barrier_before_it(text: str) -> None:
    assert "race" in kinds(changed(text, "bar.sync \t0;", "", "signal"))


def test_a_signal_needs_a_fence_before_it(text: str) -> None:
    assert "race" in kinds(changed(text, "fence.acq_rel.gpu;", "", "signal"))
    assert "race" in kinds(changed(text, "fence.acq_rel.gpu;", "fence.acq_rel.cta;", "signal"))


def test_a_wait_needs_an_acquire(text: str) -> None:
    for weaker in ("ld.volatile.global", "ld.relaxed.gpu.global", "ld.acquire.cta.global"):
        assert "race" in kinds(changed(text, "ld.acquire.gpu.global", weaker, "await")), weaker


def test_a_weak_poll_is_a_race(text: str) -> None:
    assert "race" in kinds(changed(text, "ld.acquire.gpu.global", "ld.global", "await"))


def test_a_wait_needs_a_barrier_behind_it(text: str) -> None:
    assert "race" in kinds(changed(text, "bar.sync \t0;", "", "pinned"), "random")


def test_a_ticket_in_shared_memory_needs_both_barriers(text: str) -> None:
    first, second, third = (at for at in _places(text, "bar.sync \t0;", "ticketed"))
    for at in (first, second):
        found = kinds(text[:at] + text[at:].replace("bar.sync \t0;", "", 1), "random")
        assert found & {"race", "shared memory reused", "unwritten"}
    assert third > second


def _places(text: str, what: str, within: str) -> list[int]:
    begin = text.index(f".entry {within}(")
    end = text.index("\n}", begin)
    found = []
    at = text.find(what, begin)
    while 0 <= at < end:
        found.append(at)
        at = text.find(what, at + 1)
    return found


def test_counters_of_an_earlier_launch_let_go_too_early(text: str) -> None:
    """The epoch is left out of what a wait is for: the second launch reads what the first has not written anew."""
    assert "race" in kinds(changed(text, "add.s32 \t%r5, %r3, -1;", "mov.b32 \t%r5, 0;", "fulfil"), "reversed")


def test_additions_lose_their_order_in_llvm(text: str) -> None:
    ir = module().replace("  fence syncscope(\"device\") acq_rel\n", "").replace(
        "atomicrmw add ptr addrspace(1) %counter, i32 1 syncscope(\"device\") monotonic",
        "atomicrmw add ptr addrspace(1) %counter, i32 1 syncscope(\"device\") release",
    )  # fmt: skip
    assert "race" in kinds(ptx(ir))


def test_pointers_without_aliases_are_read_through_the_other_cache() -> None:
    ir = """
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @k(ptr addrspace(1) noalias %x, ptr addrspace(1) %y) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %i = zext i32 %t to i64
  %p = getelementptr i32, ptr addrspace(1) %x, i64 %i
  %q = getelementptr i32, ptr addrspace(1) %y, i64 %i
  %v = load i32, ptr addrspace(1) %p
  store i32 %v, ptr addrspace(1) %q
  ret void
}
"""
    machine = Machine(ptx(ir))
    both = machine.memory.place("both", np.zeros(64, np.uint32))
    outcome = machine.run(Launch("k", (1, 1, 1), (32, 1, 1), (both, both), 1))
    assert outcome.kinds == {"non-coherent"}


def test_threads_that_leave_early_miss_the_barriers_of_a_loop() -> None:
    body = """ setp.ge.u32 %p1, %r0, 32; @%p1 bra $EARLY; mov.b32 %r2, 0;
$L1: bar.sync 0; add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 3; @%p2 bra $L1; bra $END;
$EARLY: bar.sync 0;
$END:"""
    outcome, _ = run(entry(body, 0), [], threads=64)
    assert "missed barrier" in outcome.kinds, "the barrier is passed once by one warp and three times by the other"


def test_tasks_that_share_memory_need_a_barrier_between_them() -> None:
    task = """ st.shared.b32 [%r7], %r0; bar.sync 0; ld.shared.b32 %r2, [%r8];"""
    places = " shl.b32 %r6, %r0, 2; mov.b32 %r7, tile; add.s32 %r7, %r7, %r6; xor.b32 %r8, %r7, 128;"
    outcome, _ = run(entry(f"{places}{task}{task}", 0, 512), [], threads=64)
    assert "shared memory reused" in outcome.kinds
    outcome, _ = run(entry(f"{places}{task} bar.sync 0;{task}", 0, 512), [], threads=64)
    assert not outcome.faults


def test_shared_variables_do_not_begin_with_zeros() -> None:
    outcome, _ = run(entry(" ld.shared.b32 %r2, [tile];", 0, 64), [])
    assert outcome.kinds == {"unwritten"}

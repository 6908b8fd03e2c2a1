"""What the machine reports: for each fault a kernel that has it and one that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.ptx.machine.launching import ORDERS, Adversary, BadLaunch, Launch, Machine
from tests.kernels.ptx.machine.kernels import entry, run

ROW = " add.s64 %d21, %d0, %d20;"  # the word of this thread
ZEROS = np.zeros(64, np.uint32)
SHARED = (
    " shl.b32 %r6, %r0, 2; mov.b32 %r7, tile; add.s32 %r7, %r7, %r6; xor.b32 %r8, %r7, 128;"  # ours, another warp's
)

CASES: dict[str, tuple[str, str]] = {
    "outside": (" st.global.b32 [%d21+256], %r0;", " st.global.b32 [%d21], %r0;"),
    "misaligned": (" st.global.b32 [%d21+2], %r0;", " st.global.b16 [%d21+2], 1;"),
    "unwritten": (" ld.global.b32 %r2, [%d1];", " st.global.b32 [%d21], 1; ld.global.b32 %r2, [%d21];"),
    "race": (" st.global.b32 [%d0], %r0;", " atom.global.add.u32 %r2, [%d0], 1;"),
    "shared memory reused": (
        f"{SHARED} st.shared.b32 [%r7], %r0; bar.sync 0; ld.shared.b32 %r2, [%r8]; st.shared.b32 [%r7], %r2;",
        f"{SHARED} st.shared.b32 [%r7], %r0; bar.sync 0; ld.shared.b32 %r2, [%r8]; bar.sync 0;"
        " st.shared.b32 [%r7], %r2;",
    ),
    "divergent barrier": (
        " setp.lt.u32 %p1, %r0, 7; @%p1 bra $L1; bar.sync 0;\n$L1:", " setp.lt.u32 %p1, %r0, 32; bar.sync 0;",
    ),
    "missed barrier": (
        " setp.lt.u32 %p1, %r0, 32; @%p1 bra $L1; bar.sync 0;\n$L1:",
        " setp.lt.u32 %p1, %r0, 32; @%p1 bra $L1; bar.sync 1, 32;\n$L1:",
    ),
    "non-coherent": (
        " ld.global.nc.b32 %r2, [%d21]; add.s32 %r2, %r2, 1; st.global.b32 [%d21], %r2;",
        " ld.global.b32 %r2, [%d21]; add.s32 %r2, %r2, 1; st.global.b32 [%d21], %r2;",
    ),
    "endless wait": (
        "$L1: ld.acquire.gpu.global.b32 %r2, [%d0]; setp.eq.b32 %p1, %r2, 0; @%p1 bra $L1;",
        " atom.global.add.u32 %r3, [%d0], 1;\n"
        "$L1: ld.acquire.gpu.global.b32 %r2, [%d0]; setp.lt.u32 %p1, %r2, 64; nanosleep.u32 10; @%p1 bra $L1;",
    ),
    "trap": (" setp.eq.b32 %p1, %r0, 9; @%p1 trap;", " setp.eq.b32 %p1, %r0, 99; @%p1 trap;"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_fault_is_reported_and_its_absence_is_not(kind: str, order: Any) -> None:
    wrong, right = CASES[kind]
    adversary = Adversary(order, 5)
    outcome, _ = run(entry(ROW + wrong, 2, 512), [ZEROS, 64], threads=64, adversary=adversary)
    assert kind in outcome.kinds
    outcome, _ = run(entry(ROW + right, 2, 512), [ZEROS, 64], threads=64, adversary=adversary)
    assert not outcome.faults, [str(one) for one in outcome.faults]


def test_a_report_names_line_instruction_function_and_place() -> None:
    outcome, _ = run(entry(" st.global.b32 [%d0+8], %r0;", 1), [ZEROS], threads=64)
    (fault,) = outcome.faults
    assert fault.text == "st.global.b32 [%d0+8], %r0;" and fault.function == "k"
    assert f"line {fault.line} in k: st.global.b32" in str(fault)
    assert "thread 1 of block 0 touches p0+8, in no order with thread 0 of block 0" in str(fault)
    assert fault.times == 63, "each other thread once"


def test_a_report_names_the_source_that_the_text_names() -> None:
    text = entry(" .loc 1 42 3\n st.global.b32 [%d0], %r0;", 1).replace(".visible", '.file 1 "softmax"\n.visible')
    outcome, _ = run(text, [ZEROS], threads=64)
    assert outcome.faults[0].source == "softmax:42"


def test_what_a_launch_only_reads_is_not_written() -> None:
    machine = Machine(entry(" st.global.b32 [%d0], 1;", 1))
    weights = machine.memory.place("weights", ZEROS, constant=True)
    outcome = machine.run(Launch("k", (1, 1, 1), (1, 1, 1), (weights,), 1))
    assert outcome.kinds == {"read-only"}


def test_a_spin_without_a_strong_load_ends_too() -> None:
    outcome, _ = run(entry("$L1: bra $L1;", 0), [], patience=1000)
    assert outcome.kinds == {"endless wait"}


def test_a_loop_that_goes_on_writing_ends_where_the_launch_says() -> None:
    text = entry(f"{ROW} mov.b32 %r2, 0;\n$L1: add.s32 %r2, %r2, 1; st.global.b32 [%d21], %r2; bra $L1;", 1)
    machine = Machine(text)
    placed = machine.memory.place("p0", ZEROS)
    outcome = machine.run(Launch("k", (1, 1, 1), (32, 1, 1), (placed,), 1, most=10_000))
    assert outcome.kinds == {"endless run"} and outcome.tally.total < 200_000


def test_shared_memory_of_a_block_is_unwritten_when_the_next_begins() -> None:
    body = f"{SHARED} setp.eq.b32 %p1, %r1, 0; @%p1 st.shared.b32 [%r7], %r0; ld.shared.b32 %r2, [%r7];"
    outcome, _ = run(entry(body, 0, 512), [], blocks=2, resident=1)
    assert outcome.kinds == {"unwritten"}


def test_blocks_that_follow_in_one_place_are_in_no_order() -> None:
    body = " setp.ne.b32 %p1, %r0, 0; @%p1 bra $L1; st.global.b32 [%d0], %r1;\n$L1: bar.sync 0;"
    outcome, _ = run(entry(body, 1), [ZEROS], blocks=2, resident=1)
    assert outcome.kinds == {"race"}


def test_transactions_and_bank_conflicts_are_counted() -> None:
    def tally(body: str, size: int = 4096) -> Any:
        outcome, _ = run(entry(body, 1, 8192), [np.zeros(size, np.uint32)])
        assert not outcome.faults
        return outcome.tally

    along = tally(f"{ROW} ld.global.b32 %r2, [%d21];").traffic["global read"]
    assert (along.accesses, along.transactions, along.least, along.bytes) == (1, 4, 4, 128)
    apart = tally(" mul.wide.u32 %d5, %r0, 128; add.s64 %d5, %d5, %d0; ld.global.b32 %r2, [%d5];").traffic[
        "global read"
    ]
    assert (apart.transactions, apart.least) == (32, 4)
    same = tally(" ld.global.b32 %r2, [%d0];").traffic["global read"]
    assert (same.transactions, same.least) == (1, 1)

    def passes(stride: int, width: str = "b32") -> tuple[int, int]:
        text = f" mul.lo.s32 %r6, %r0, {stride}; mov.b32 %r7, tile; add.s32 %r7, %r7, %r6;"
        value = "{%r0, %r0, %r0, %r0}" if width == "v4.b32" else "%r0"
        shared = tally(f"{text} st.shared.{width} [%r7], {value};").traffic["shared write"]
        return shared.transactions, shared.least

    assert passes(4) == (1, 1) and passes(8) == (2, 1) and passes(128) == (32, 1) and passes(132) == (1, 1)
    assert passes(16, "v4.b32") == (4, 4) and passes(128, "v4.b32") == (32, 4)


def test_instructions_are_counted_by_name() -> None:
    outcome, _ = run(entry(" add.s32 %r2, %r0, 1; add.s32 %r2, %r2, 1; bar.sync 0;", 0), [], blocks=3, threads=64)
    assert outcome.tally.instructions["add.s32"] == 12 and outcome.tally.instructions["bar.sync"] == 6


def test_launches_that_cannot_be_are_refused() -> None:
    machine = Machine(entry("", 1))
    with pytest.raises(BadLaunch, match="takes 1 arguments; the launch has 0"):
        machine.run(Launch("k", (1, 1, 1), (32, 1, 1), (), 1))
    with pytest.raises(BadLaunch, match="1 to 1024 threads"):
        machine.run(Launch("k", (1, 1, 1), (2048, 1, 1), (0,), 1))


def test_atomics() -> None:
    def after(operation: str, begin: int = 10, kind: str = "u32") -> int:
        _, found = run(entry(f" atom.global.{operation};", 1), [np.array([begin], np.uint32)])
        return int(found[0][0])

    assert after("add.u32 %r2, [%d0], %r0") == 10 + 31 * 16
    assert after("max.u32 %r2, [%d0], %r0") == 31 and after("min.u32 %r2, [%d0], %r0") == 0
    assert after("min.s32 %r2, [%d0], -5") == 0xFFFFFFFB
    assert after("or.b32 %r2, [%d0], %r0") == 31 and after("and.b32 %r2, [%d0], 6") == 2
    assert after("inc.u32 %r2, [%d0], 20") == (10 + 32) % 21 and after("cas.b32 %r2, [%d0], 10, 99") == 99
    _, found = run(entry(" red.global.add.f32 [%d0], 0f3FC00000;", 1), [np.array([1.0], np.float32)])
    assert found[0][0] == 1 + 32 * 1.5


def test_barriers_with_a_result() -> None:
    body = " setp.lt.u32 %p1, %r0, 40; barrier.cta.red.popc.aligned.u32 %r2, 0, %p1; bar.red.and.pred %p2, 1, %p1;"
    body += " selp.b32 %r3, 100, 0, %p2; add.s32 %r2, %r2, %r3;" + ROW + " st.global.b32 [%d21], %r2;"
    outcome, found = run(entry(body, 1), [ZEROS], threads=64)
    assert not outcome.faults and (found[0] == 40).all()


def test_a_warp_tells_another_one_through_arrivals() -> None:
    """The first warp writes and only arrives; the second one waits for it."""
    body = f"""{SHARED} setp.ge.u32 %p1, %r0, 32; @%p1 bra $L1;
 st.shared.b32 [%r7], %r0; bar.arrive 1, 64; bra $L2;
$L1: bar.sync 1, 64; ld.shared.b32 %r2, [%r8];{ROW} st.global.b32 [%d21], %r2;
$L2:"""
    for order in ORDERS:
        outcome, found = run(entry(body, 1, 512), [ZEROS], threads=64, adversary=Adversary(order, 2))
        assert not outcome.faults and (found[0][32:] == np.arange(32)).all()
    outcome, _ = run(entry(body.replace("bar.arrive 1, 64;", ""), 1, 512), [ZEROS], threads=64)
    assert "missed barrier" in outcome.kinds

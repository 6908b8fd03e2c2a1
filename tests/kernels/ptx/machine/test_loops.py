"""Loops of PTX, what the machine counts of them, and the banks that asynchronous copies write."""

from __future__ import annotations

import numpy as np

from kernels.ptx.machine.loops import inner_loops, loops
from kernels.ptx.machine.reading import read
from tests.kernels.ptx.machine.kernels import entry, run

BODY = """
 mov.b32 %r10, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
$OUTER:
 mov.b32 %r8, 0;
$INNER:
 fma.rn.f32 %r10, %r10, %r10, %r10;
 add.s32 %r8, %r8, 1;
 setp.lt.u32 %p1, %r8, 5;
 @%p1 bra $INNER;
 add.s32 %r7, %r7, 1;
 setp.lt.u32 %p1, %r7, 3;
 @%p1 bra $OUTER;
$LAST:
 add.s32 %r6, %r6, 1;
 setp.lt.u32 %p1, %r6, 2;
 @%p1 bra $LAST;"""


def test_inner_loops_are_those_that_multiply() -> None:
    text = entry(BODY, 1)
    outcome, _ = run(text, [np.zeros(4, np.uint32)])
    assert not outcome.faults
    (function,) = read(text).functions.values()
    assert [sum(one.name == "fma" for one in body) for body in loops(function)] == [1, 0]
    (found,) = inner_loops(function, outcome.tally)
    assert dict(found.instructions) == {"add": 15, "bra": 15, "fma": 15, "setp": 15}
    assert found.multiplies / found.total == 0.25


def test_a_loop_whose_blocks_lie_apart_is_found() -> None:
    body = """ mov.b32 %r6, 0;
$HEAD: add.s32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 5; @%p1 bra $FAR; bra.uni $END;
$FAR: fma.rn.f32 %r10, %r10, %r10, %r10; bra.uni $HEAD;
$END: add.s32 %r6, %r6, 1;"""
    (function,) = read(entry(body, 1)).functions.values()
    (found,) = loops(function)
    assert [one.name for one in found] == ["add", "setp", "bra", "fma", "bra"], "not the branch out of the loop"


def test_without_a_loop_there_is_none() -> None:
    text = entry(" mov.b32 %r10, 0; fma.rn.f32 %r10, %r10, %r10, %r10;", 1)
    outcome, _ = run(text, [np.zeros(4, np.uint32)])
    (function,) = read(text).functions.values()
    assert not loops(function) and not inner_loops(function, outcome.tally)


def test_copies_that_write_one_bank_are_counted() -> None:
    def passes(stride: int) -> tuple[int, int]:
        body = f""" mul.wide.u32 %d5, %r0, 4; add.s64 %d5, %d5, %d0; mul.lo.s32 %r6, %r0, {stride};
 mov.b32 %r7, tile; add.s32 %r7, %r7, %r6;
 cp.async.ca.shared.global [%r7], [%d5], 4; cp.async.commit_group; cp.async.wait_group 0;"""
        outcome, _ = run(entry(body, 1, 8192), [np.zeros(64, np.uint32)])
        assert not outcome.faults
        traffic = outcome.tally.traffic
        assert traffic["global read"].transactions == 4
        return traffic["shared copy"].transactions, traffic["shared copy"].least

    assert passes(4) == (1, 1) and passes(8) == (2, 1) and passes(132) == (1, 1) and passes(128) == (32, 1)


def test_copies_of_vectors_that_straddle_two_lines_are_counted() -> None:
    def passes(begin: int) -> tuple[int, int]:
        body = f""" mul.wide.u32 %d5, %r0, 16; add.s64 %d5, %d5, %d0; mul.lo.s32 %r6, %r0, 16;
 mov.b32 %r7, tile; add.s32 %r7, %r7, %r6; add.s32 %r7, %r7, {begin};
 cp.async.cg.shared.global [%r7], [%d5], 16; cp.async.commit_group; cp.async.wait_group 0;"""
        outcome, _ = run(entry(body, 1, 1024), [np.zeros(128, np.uint32)])
        assert not outcome.faults
        traffic = outcome.tally.traffic["shared copy"]
        return traffic.transactions, traffic.least

    assert passes(0) == passes(128) == (4, 4) and passes(16) == passes(64) == (8, 4)

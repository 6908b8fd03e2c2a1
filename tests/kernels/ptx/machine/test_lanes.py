"""Divergence, and what the lanes of a warp do together: shuffles, votes, products of tiles, loads of tiles, copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels.ptx.machine.grammar import NotPtx
from kernels.ptx.machine.launching import ORDERS, Adversary
from tests.kernels.ptx.machine.kernels import entry, lanes, run

Anything = npt.NDArray[Any]
DRAW = np.random.default_rng(7)
LANE = np.arange(32)
X = DRAW.integers(0, 1 << 32, 32).astype(np.uint32)


def stored(register: str) -> str:
    return f" add.s64 %d21, %d0, %d20; st.global.b32 [%d21], {register};"


def given(body: str, *arrays: Anything, threads: int = 32, shared: int = 0) -> Anything:
    outcome, found = run(entry(body, 1 + len(arrays), shared), [np.zeros(threads, np.uint32), *arrays], threads=threads)
    assert not outcome.faults, [str(one) for one in outcome.faults]
    return found[0]


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_leave_a_loop_one_by_one_and_meet_again(order: Any) -> None:
    body = """ mov.b32 %r2, 0; mov.b32 %r3, 1;
$L1: setp.gt.u32 %p1, %r2, %r0; @%p1 bra $L2;
 mul.lo.s32 %r3, %r3, 3; add.s32 %r2, %r2, 1; bra $L1;
$L2: activemask.b32 %r5; setp.eq.b32 %p2, %r5, -1; @%p2 add.s32 %r3, %r3, 1;
""" + stored("%r3")
    outcome, found = run(entry(body, 1), [np.zeros(32, np.uint32)], adversary=Adversary(order, 3))
    assert not outcome.faults
    assert (found[0] == (3 ** (LANE + 1).astype(object) % (1 << 32) + 1).astype(np.uint32)).all()


def test_branches_within_branches_and_by_table() -> None:
    body = """ and.b32 %r2, %r0, 3; and.b32 %r3, %r0, 16; mov.b32 %r4, 0; setp.eq.b32 %p1, %r3, 0;
 @%p1 bra $OTHER;
$table: .branchtargets $A, $B, $C, $B;
 brx.idx %r2, $table;
$A: add.s32 %r4, %r4, 100; bra $END;
$B: add.s32 %r4, %r4, 200; bra $END;
$C: add.s32 %r4, %r4, 300; bra $END;
$OTHER: setp.eq.b32 %p2, %r2, 1; @!%p2 add.s32 %r4, %r4, 7; @%p2 bra $END; add.s32 %r4, %r4, 1;
$END:
""" + stored("%r4")
    table = np.array([100, 200, 300, 200])[LANE % 4]
    assert (given(body) == np.where(LANE < 16, np.where(LANE % 4 == 1, 0, 8), table)).all()


def test_calls_of_parted_lanes() -> None:
    double = """.func (.param .b32 result) twice(.param .b32 value) {
 .reg .b32 %r<3>; .reg .pred %p<2>; ld.param.b32 %r1, [value]; add.s32 %r2, %r1, %r1;
 setp.gt.u32 %p1, %r1, 40; @%p1 bra $E; st.param.b32 [result], %r2; ret;
$E: st.param.b32 [result], 1; ret; }
"""
    call = """{ .param .b32 param0; st.param.b32 [param0], %r2; .param .b32 retval0;
 call.uni (retval0), twice, (param0); ld.param.b32 %r2, [retval0]; }
"""
    body = f""" mov.b32 %r2, %r0; setp.lt.u32 %p1, %r0, 16; @%p1 bra $L1; {call} {call}
$L1: {call}{stored("%r2")}"""
    text = entry(body, 1, outside=double)
    outcome, found = run(text, [np.zeros(32, np.uint32)])

    def twice(x: Anything) -> Anything:
        return np.where(x > 40, 1, 2 * x)

    assert not outcome.faults
    assert (found[0] == twice(np.where(LANE < 16, LANE, twice(twice(LANE))))).all()


def test_calls_that_read_a_part_of_what_is_passed() -> None:
    """A parameter or result of 64 bits of which only a half is read, as LLVM does where the rest is not needed."""
    halves = """.func (.param .b64 result) halves(.param .b64 value) {
 .reg .b32 %r<4>; .reg .b64 %d<2>;
 ld.param.b32 %r1, [value+4]; ld.param.b32 %r2, [value]; mad.lo.s32 %r3, %r1, 100, %r2;
 mov.b64 %d1, {%r3, %r1}; st.param.b64 [result], %d1; ret; }
"""
    body = """ mov.b32 %r2, 7; mov.b64 %d5, {%r0, %r2}; { .param .b64 param0; st.param.b64 [param0], %d5;
 .param .b64 retval0; call.uni (retval0), halves, (param0); ld.param.b32 %r3, [retval0]; }
 { .param .b64 param0; st.param.b64 [param0], 5; .param .b64 retval0;
 call.uni (retval0), halves, (param0); ld.param.b32 %r4, [retval0+4]; ld.param.b32 %r5, [retval0]; }
 add.s32 %r4, %r4, %r5; mul.lo.s32 %r4, %r4, 1000; add.s32 %r3, %r3, %r4;"""
    outcome, found = run(entry(body + stored("%r3"), 1, outside=halves), [np.zeros(32, np.uint32)])
    assert not outcome.faults
    assert (found[0] == LANE + 700 + 5000).all()


def test_registers_without_a_percent_sign() -> None:
    """As LLVM takes a word of 64 bits apart for processors before sm_90."""
    body = " mov.b64 %d5, {7, %r0}; { .reg .b32 tmp; mov.b64 {tmp, %r3}, %d5; add.s32 %r3, %r3, tmp; }"
    outcome, found = run(entry(body + stored("%r3"), 1), [np.zeros(32, np.uint32)])
    assert not outcome.faults and (found[0] == LANE + 7).all()


def test_calls_that_read_what_is_not_passed() -> None:
    takes = ".func takes(.param .b64 value) { .reg .b64 %d<2>; ld.param.b64 %d1, [value]; ret; }\n"
    body = " { .param .b32 param0; st.param.b32 [param0], %r0; call.uni takes, (param0); }"
    with pytest.raises(NotPtx, match="bytes 0 to 8 of 'param0', which are not written as one"):
        run(entry(body, 1, outside=takes), [np.zeros(32, np.uint32)])


def test_shuffles() -> None:
    one = {"%r11": X}
    found = lanes("shfl.sync.down.b32 %r10|%p1, %r11, 5, 31, -1; @!%p1 add.s32 %r10, %r10, 1;", one, "%r10", 32)
    assert (found == np.where(LANE + 5 < 32, X[(LANE + 5) % 32], X + 1)).all()
    assert (lanes("shfl.sync.bfly.b32 %r10, %r11, 3, 31, -1;", one, "%r10", 32) == X[LANE ^ 3]).all()
    assert (lanes("shfl.sync.idx.b32 %r10, %r11, 9, 31, -1;", one, "%r10", 32) == X[9]).all()
    found = lanes("shfl.sync.up.b32 %r10, %r11, 2, 0, -1;", one, "%r10", 32)
    assert (found == np.where(LANE >= 2, X[LANE - 2], X)).all()
    found = lanes("shfl.sync.down.b32 %r10, %r11, 4, 0x181F, -1;", one, "%r10", 32)  # in eights
    assert (found == np.where(LANE % 8 + 4 < 8, X[(LANE + 4) % 32], X)).all()


def test_votes_matches_and_reductions() -> None:
    odd = "and.b32 %r9, %r11, 1; setp.eq.b32 %p1, %r9, 1;"
    bits = int(sum(1 << lane for lane in range(32) if X[lane] & 1))
    assert (lanes(f"{odd} vote.sync.ballot.b32 %r10, %p1, -1;", {"%r11": X}, "%r10", 32) == bits).all()
    assert (lanes(f"{odd} vote.sync.any.pred %p2, %p1, -1;", {"%r11": X}, "%p2", 32) == 1).all()
    assert (lanes(f"{odd} vote.sync.all.pred %p2, %p1, -1;", {"%r11": X}, "%p2", 32) == 0).all()
    same = [sum(1 << other for other in range(32) if other % 3 == lane % 3) for lane in range(32)]
    found = lanes("match.any.sync.b32 %r10, %r11, -1;", {"%r11": (LANE % 3).astype(np.uint32)}, "%r10", 32)
    assert (found == same).all()
    assert (lanes("redux.sync.add.s32 %r10, %r11, -1;", {"%r11": X}, "%r10", 32) == X.sum(dtype=np.uint32)).all()
    assert (lanes("redux.sync.max.u32 %r10, %r11, -1;", {"%r11": X}, "%r10", 32) == X.max()).all()


def test_a_shuffle_of_lanes_that_are_elsewhere_is_reported() -> None:
    body = """ setp.lt.u32 %p1, %r0, 16; mov.b32 %r2, %r0; @%p1 bra $L1;
 shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;
$L1:""" + stored("%r2")
    outcome, _ = run(entry(body, 1), [np.zeros(32, np.uint32)])
    assert outcome.kinds == {"lanes apart"}


def tile(kind: str) -> tuple[Anything, Anything, Anything]:
    depth = {"tf32": 8, "bf16": 16, "f16": 16}[kind]
    a, b = DRAW.integers(-8, 8, (16, depth)) / 4, DRAW.integers(-8, 8, (depth, 8)) / 4
    return a, b, DRAW.normal(0, 1, (16, 8)).astype(np.float32)


def packed(values: Anything, kind: str) -> Anything:
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint32)
    if kind == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    halves = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(halves).view(np.uint32)


@pytest.mark.parametrize("kind", ["tf32", "bf16", "f16"])
def test_products_of_tiles(kind: str) -> None:
    """A lane holds rows g and g + 8 of A, column g of B, g its group of four, as PTX's manual draws them."""
    a, b, c = tile(kind)
    group, inside = LANE // 4, LANE % 4
    wide_a, wide_b = packed(a, kind), packed(np.ascontiguousarray(b.T), kind)  # words of A's rows, of B's columns
    step = 4
    inputs = {
        "%r11": wide_a[group, inside], "%r12": wide_a[group + 8, inside], "%r13": wide_a[group, inside + step],
        "%r14": wide_a[group + 8, inside + step], "%r15": wide_b[group, inside], "%r16": wide_b[group, inside + step],
        "%r17": c[group, 2 * inside], "%r18": c[group, 2 * inside + 1], "%r19": c[group + 8, 2 * inside],
        "%r20": c[group + 8, 2 * inside + 1],
    }  # fmt: skip
    depth = "k8" if kind == "tf32" else "k16"
    text = (
        f"mma.sync.aligned.m16n8{depth}.row.col.f32.{kind}.{kind}.f32 {{%r21, %r22, %r23, %r24}}, "
        "{%r11, %r12, %r13, %r14}, {%r15, %r16}, {%r17, %r18, %r19, %r20};"
    )
    exact = (a @ b + c).astype(np.float32)
    places = ((group, 2 * inside), (group, 2 * inside + 1), (group + 8, 2 * inside), (group + 8, 2 * inside + 1))
    for register, place in zip(("%r21", "%r22", "%r23", "%r24"), places, strict=True):
        found = lanes(text, {name: np.ascontiguousarray(one) for name, one in inputs.items()}, register, 32)
        assert (found.view(np.float32) == exact[place]).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_are_loaded_as_products_want_them(transposed: bool) -> None:
    values = DRAW.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    form = "x4.trans" if transposed else "x4"
    body = f""" mul.wide.u32 %d5, %r0, 16; add.s64 %d6, %d1, %d5; ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%d6];
 shl.b32 %r6, %r0, 4; mov.b32 %r7, tile; add.s32 %r7, %r7, %r6; st.shared.v4.b32 [%r7], {{%r2, %r3, %r4, %r5}};
 bar.warp.sync -1;
 ldmatrix.sync.aligned.m8n8.{form}.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r7];
 add.s64 %d6, %d0, %d5; st.global.v4.b32 [%d6], {{%r8, %r9, %r10, %r11}};"""
    outcome, found = run(entry(body, 2, 512), [np.zeros(128, np.uint32), values.view(np.uint32).reshape(-1)])
    assert not outcome.faults
    halves = found[0].view(np.uint16).reshape(32, 4, 2)
    for one in range(4):
        expected = values[one].T if transposed else values[one]
        assert (halves[:, one] == expected.reshape(32, 2)).all()


COPY = """ shl.b32 %r6, %r0, 2; mov.b32 %r7, tile; add.s32 %r7, %r7, %r6; add.s64 %d6, %d1, %d20;
 cp.async.ca.shared.global [%r7], [%d6], 4; cp.async.commit_group;
 cp.async.ca.shared.global [%r7+128], [%d6], 4, 0; cp.async.commit_group;
 {wait} {barrier}
 xor.b32 %r8, %r6, {other}; mov.b32 %r9, tile; add.s32 %r9, %r9, %r8; ld.shared.b32 %r10, [%r9];
"""


@pytest.mark.parametrize(
    ("wait", "barrier", "other", "kinds"),
    [
        ("cp.async.wait_group 1;", "bar.warp.sync -1;", 4, set()),
        ("cp.async.wait_all;", "bar.sync 0;", 4, set()),
        ("cp.async.wait_group 0;", "", 0, set()),  # each lane reads what it copied itself
        ("cp.async.wait_group 2;", "bar.sync 0;", 4, {"unfinished copy"}),
        ("", "bar.sync 0;", 4, {"unfinished copy"}),
        ("cp.async.wait_group 1;", "", 4, {"race"}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_asynchronous_copies_are_waited_for(wait: str, barrier: str, other: int, kinds: set[str], seed: int) -> None:
    body = COPY.format(wait=wait, barrier=barrier, other=other) + stored("%r10")
    outcome, found = run(entry(body, 2, 256), [np.zeros(32, np.uint32), X], adversary=Adversary("in order", seed))
    assert outcome.kinds == kinds
    assert kinds or (found[0] == X[LANE ^ (other // 4)]).all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("barrier.cluster.arrive;", "cluster"), ("ld.shared::cluster.b32 %r2, [%r3];", "cluster"),
        ("fence.acq_rel.cluster;", "cluster"), ("frobnicate.b32 %r2, %r3;", "does not know"),
        ("cp.async.bulk.commit_group;", "does not know"), ("add.rz.f32 %r2, %r3, %r4;", "rz"),
        ("mov.b32 %r2, %r99;", "%r99"), ("call.uni nothing, ();", "no body"),
        ("/* two\n lines */ # %r2;", "line 11: '#' begins no word of PTX"), ("ret; ~", "'~' begins no word of PTX"),
    ],
)  # fmt: skip
def test_what_the_machine_does_not_know_is_refused_with_its_line(line: str, said: str) -> None:
    with pytest.raises(NotPtx, match=said):
        run(entry(f" {line}", 0), [])

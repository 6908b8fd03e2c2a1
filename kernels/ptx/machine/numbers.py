"""Numbers that encoded instructions are made of, for what encodes them and what runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def numbered(end: int, begin: int = 0) -> Iterator[Any]:
    """Constants of NumPy's type: for Python's own numbers numba would compile a function once for each."""
    return (np.int64(one) for one in range(begin, end))


def constant(value: int) -> Any:
    """One such constant."""
    return np.int64(value)


MINUS, NONE, SOME = constant(-1), constant(0), constant(1)

# Columns of an encoded instruction. Slots of registers are multiplied by the 32 lanes.
(OP, GUARD, NEGATED, D, A, B, C, BITS, SIGNED, D_BITS, X, Y, Z, E, KIND, LINE, ORDER, SCOPE, MEET) = numbered(19)
SLOTS = 19  # from here on the members of a vector, a tile or a result
COLUMNS = 36
LANES = 32

# Whole numbers.
(
    MOV, ADD, SUB, MUL, MUL_HI, MUL_WIDE, MAD, MAD_HI, MAD_WIDE, DIV, REM, MIN, MAX, ABS, NEG, AND, OR, XOR, NOT, SHL,
    SHR, FUNNEL_L, FUNNEL_R, BFE, BFI, BREV, CLZ, POPC, PRMT, SAD, LOP3, SELP, SETP, PACK, UNPACK, CLOCK, SPACEP,
) = numbered(37)  # fmt: skip
WHOLE_END = constant(64)
# Real numbers.
(
    F_ADD, F_SUB, F_MUL, F_FMA, F_DIV, F_RCP, F_SQRT, F_RSQRT, F_SIN, F_COS, F_EX2, F_LG2, F_TANH, F_MIN, F_MAX,
    F_MIN_NAN, F_MAX_NAN, F_ABS, F_NEG, F_COPYSIGN, F_TEST, F_SETP, CVT, CVT_PAIR,
) = numbered(88, 64)  # fmt: skip
REAL_END = constant(128)
# Lanes of a warp.
(SHFL, VOTE, MATCH, REDUX, ACTIVE, WARP_SYNC, MMA) = numbered(135, 128)
LANES_END = constant(160)
# Memory.
(LD, ST, ATOM, LDMATRIX, FENCE, CP_ASYNC, CP_COMMIT, CP_WAIT, STMATRIX) = numbered(169, 160)
MEMORY_END = constant(192)
# The course of a thread.
(BRA, BRX, CALL, RET, EXIT, BARRIER, NANOSLEEP, TRAP, NOP) = numbered(201, 192)

# Comparisons: with their counterparts for NaN 8 further.
(EQ, NE, LT, LE, GT, GE, NUM, NAN) = numbered(8)
UNORDERED = constant(8)
# Types of real numbers.
(F32, F64, F16, BF16, F16X2, BF16X2, TF32) = numbered(7)
# Rounding.
(NEAREST, ZERO, DOWN, UP, AWAY) = numbered(5)
# Spaces.
(GENERIC, GLOBAL, SHARED, LOCAL) = numbered(4)
# What an access orders.
(WEAK, RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST) = numbered(6)
# How far it reaches: a block, the device.
(CTA, GPU) = numbered(2)
# What an atomic does.
(A_ADD, A_AND, A_OR, A_XOR, A_EXCH, A_MIN, A_MAX, A_INC, A_DEC, A_CAS) = numbered(10)
# Barriers.
(SYNC, ARRIVE, RED_POPC, RED_AND, RED_OR) = numbered(5)
# Votes, shuffles.
(ALL, ANY, UNI, BALLOT) = numbered(4)
(S_UP, S_DOWN, S_BFLY, S_IDX) = numbered(4)

# Where spaces begin among generic addresses.
GLOBAL_BASE = 1 << 44
SHARED_BASE = 1 << 40
LOCAL_BASE = 1 << 41

# Special registers, in the order of their numbers.
SPECIALS = (
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x",
    "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%lanemask_eq",
    "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size", "%total_smem_size",
)  # fmt: skip
CLOCKS = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")

# Faults.
(
    RACE, REUSE, UNWRITTEN, OUTSIDE, MISALIGNED, DIVERGENT, MISSING, NON_COHERENT, PENDING, ENDLESS, TRAPPED, APART,
    READ_ONLY, TABLE, TOO_LONG,
) = numbered(15)  # fmt: skip

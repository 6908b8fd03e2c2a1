"""Numbers as LLVM writes them: the bits of each type, rounded to nearest even."""

from __future__ import annotations

import struct
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.llvm.types import constant

BITS = {"half": ("0xH", np.float16, np.uint16), "bfloat": ("0xR", ml_dtypes.bfloat16, np.uint16)}


@given(st.floats(width=32, allow_nan=False), st.sampled_from(sorted(BITS)))
def test_a_float_of_two_bytes_is_rounded_to_nearest_even(value: float, kind: str) -> None:
    prefix, dtype, words = BITS[kind]
    with np.errstate(over="ignore"):
        assert constant(kind, value) == f"{prefix}{int(np.array(value, np.float32).astype(dtype).view(words)):04X}"


@pytest.mark.parametrize("kind", BITS)
def test_what_lies_in_the_middle_of_two_floats(kind: str) -> None:
    """Ties go to the even one, whichever side that is on; infinities stay, and NaN stays NaN."""
    prefix, dtype, words = BITS[kind]
    one = int(np.array(1, dtype).view(words))
    steps = [float(np.array(one + number, words).view(dtype)) for number in range(3)]
    assert [constant(kind, (a + b) / 2) for a, b in pairwise(steps)] == [
        f"{prefix}{one:04X}", f"{prefix}{one + 2:04X}",
    ]  # fmt: skip
    for value in (float("inf"), float("-inf"), float("nan")):
        found = np.array(int(constant(kind, value)[3:], 16), words).view(dtype)
        np.testing.assert_array_equal(float(found), value)


def test_other_numbers() -> None:
    assert constant("double", 0.1) == f"0x{struct.unpack('<Q', struct.pack('<d', 0.1))[0]:016X}"
    assert constant("float", 0.1) == constant("double", float(np.float32(0.1)))
    assert (constant("i1", 1), constant("i1", 0), constant("i8", -3)) == ("true", "false", "-3")
    assert constant("<4 x i32>", 7) == "splat (i32 7)"

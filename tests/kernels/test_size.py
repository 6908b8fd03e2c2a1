"""Numbers that only a run knows: arithmetic against plain integers, decisions over the whole range, LLVM's values."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.errors import Undecided
from kernels.kernel import Operand, write_kernel
from kernels.llvm.module import Module
from kernels.run import Executable
from kernels.size import Dim, Size, at, bound, free, greatest, is_free, least, range_of
from kernels.substitution import in_dims
from kernels.target import host

B, S = Dim("b", 1, 5, 0), Dim("s", 1, 9, 1)
RUNS = [{"b": b, "s": s} for b in range(1, 6) for s in range(1, 10)]
OPERATIONS: tuple[Callable[[Size | int, Size | int], Size | int], ...] = (
    operator.add, operator.mul, operator.sub, operator.floordiv, operator.mod, least, greatest,
)  # fmt: skip


@st.composite
def numbers(draw: st.DrawFn, depth: int = 3) -> tuple[Size | int, list[int]]:
    """A number, and its value in every run by plain arithmetic."""
    if not depth or draw(st.booleans()):
        which = draw(st.sampled_from(("b", "s", "number")))
        if which == "number":
            known = draw(st.integers(1, 12))
            return known, [known] * len(RUNS)
        return free(B if which == "b" else S), [run[which] for run in RUNS]
    operation = draw(st.sampled_from(OPERATIONS))
    (left, mine), (right, other) = draw(numbers(depth - 1)), draw(numbers(depth - 1))
    plain = {least: min, greatest: max}.get(operation, operation)
    if plain in (operator.floordiv, operator.mod) and any(one <= 0 for one in other):
        return left, mine
    try:
        return operation(left, right), [plain(a, b) for a, b in zip(mine, other, strict=True)]
    except Undecided:
        return left, mine


@settings(deadline=None, max_examples=300)
@given(numbers())
def test_a_size_is_what_plain_numbers_give(number: tuple[Size | int, list[int]]) -> None:
    size, values = number
    assert [at(size, run) for run in RUNS] == values
    low, high = range_of(size)
    assert low <= min(values) and max(values) <= high == bound(size)


@settings(deadline=None, max_examples=200)
@given(numbers())
def test_a_size_in_dims_of_a_longer_range_is_the_same_number(number: tuple[Size | int, list[int]]) -> None:
    size, values = number
    try:
        moved = in_dims(size, {"b": free(Dim("b", 1, 6, 0)), "s": free(Dim("s", 1, 13, 1))})
    except Undecided:  # of a divisor that may be 0 there
        return
    assert [at(moved, run) for run in RUNS] == values


def test_a_product_with_a_negative_number_reaches_down_by_its_greatest_factor() -> None:
    """5 times the least of 5 and 1 - 5 is -20."""
    size = operator.mul(free(B), least(free(B), operator.sub(free(S), free(B))))
    assert range_of(size) == (-20, 25)


@settings(deadline=None, max_examples=300)
@given(numbers(), numbers())
def test_a_comparison_holds_in_every_run(
    one: tuple[Size | int, list[int]], other: tuple[Size | int, list[int]]
) -> None:
    (left, mine), (right, theirs) = one, other
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            said = compare(left, right)
        except Undecided:
            continue
        assert all(compare(a, b) == said for a, b in zip(mine, theirs, strict=True))
    if left == right:
        assert mine == theirs


@settings(deadline=None, max_examples=25)
@given(st.lists(numbers(), min_size=1, max_size=6))
def test_llvm_computes_the_same(drawn: list[tuple[Size | int, list[int]]]) -> None:
    found = [(size, values) for size, values in drawn if is_free(size)]
    if not found:
        return
    module = Module(host())
    operands = [Operand("y", "output", DType.I64, len(found))]

    def body(f, pointers, block, scratch) -> None:  # type: ignore[no-untyped-def]
        for place, (size, _) in enumerate(found):
            f.store(f.integer(size), f.at(pointers["y"], place, "i64"))

    kernel = write_kernel(module, "sizes", operands, 1, body)
    run = Executable([kernel])
    for number, sizes in enumerate(RUNS):
        y = np.zeros(len(found), np.int64)
        run({"y": y, "sizes": np.array([sizes["b"], sizes["s"]], np.int64)})
        assert y.tolist() == [values[number] for _, values in found]


def test_a_size_reads_as_a_formula() -> None:
    rows = free(B) * free(S)
    assert isinstance(rows, Size)
    assert rows.formula == "b*s" and (rows * 768 + 1).formula == "768*b*s + 1"  # type: ignore[union-attr]
    assert rows - free(S) * free(B) == 0
    assert (rows * 6) // 3 == rows * 2


def test_what_changes_with_the_size_is_not_decided() -> None:
    with pytest.raises(Undecided, match="whether s > 4 depends on the sizes of a run"):
        max(4, free(S))  # type: ignore[call-overload]
    with pytest.raises(Undecided, match="s is known only when the program runs"):
        range(free(S))  # type: ignore[call-overload]
    with pytest.raises(Undecided, match="whether s \\+ -1 is 0"):
        bool(free(S) - 1)
    with pytest.raises(Undecided, match="1 / s is known only"):
        1 / free(S)  # type: ignore[operator]
    assert free(S) and free(S) > 0 and not free(S) > 9


def test_terms_of_both_signs_are_bounded_together() -> None:
    """The last element of the first 8 rows: b*s*4 - s*4 + 4*min(s, 8) - 1."""
    b, s = free(B), free(S)
    assert range_of(b * s - s) == (0, 36) and range_of(b * s - b) == (0, 40)
    assert range_of(s * s - 3 * s) == (-2, 54) and range_of(b * s * s - 3 * b * s + 2 * b) == (0, 280)
    rows = least(s, 4)
    assert range_of(b * s * 4 - s * 4 + 4 * rows - 1) == (3, 4 * 36 + 15)
    assert range_of(s - rows) == (-3, 8)  # of two that grow together: numbers that it lies between


def test_quotients_of_both_signs_are_bounded_by_all_sizes() -> None:
    """Rows of windows: as many as a stride of two leaves, less those of a stride of two again."""
    height, width = (free(Dim(name, 20, 90, number)) for number, name in enumerate("hw"))
    half = (height - 3) // 2
    rows = 3 * half * width - 2 * ((half + 1) // 2) * width - 5 * half
    every = [
        3 * ((h - 3) // 2) * w - 2 * (((h - 3) // 2 + 1) // 2) * w - 5 * ((h - 3) // 2)
        for h in range(20, 91) for w in range(20, 91)
    ]  # fmt: skip
    assert range_of(rows) == (min(every), max(every))

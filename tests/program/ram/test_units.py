"""What blocks read of a constant, and the units that it is fetched in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.program.ram.units import constants_of, others_of, ranges
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.listing import Place, Run
from kernels.llvm.module import Module
from kernels.target import host
from kernels.templates.gemm import Gemm, build, candidates
from kernels.templates.indexed import build as build_indexed
from kernels.templates.indexed import gather, gather_elements
from tests.kernels.guard import run_guarded

sizes = st.one_of(st.integers(1, 3), st.integers(4, 90))


@settings(deadline=None, max_examples=30)
@given(rows=sizes, columns=st.integers(1, 400), depth=sizes, choice=st.integers(0, 9), data=st.data())
def test_a_block_of_a_product_reads_no_more_than_its_part(
    rows: int, columns: int, depth: int, choice: int, data: st.DataObject
) -> None:
    gemm = Gemm(rows, columns, depth)
    found = [one for one in candidates(gemm, host()) if one.b == "constant"]
    kernel = build(gemm, found[choice % len(found)], host())
    operand = kernel.operand("b")
    assert operand.parts is not None and len(operand.parts) == kernel.blocks and operand.packing is not None
    assert min(begin for begin, _ in operand.parts) == 0 and max(end for _, end in operand.parts) == operand.bytes
    generator = np.random.default_rng(rows + 100 * columns)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (depth, columns)))
    packed = operand.packing.pack(b)
    whole = run_guarded(kernel, {"a": a, "b": packed})["c"]
    begin, end = data.draw(st.sampled_from(sorted(set(operand.parts))))
    elsewhere = packed.copy().view(np.uint8)
    elsewhere[:begin], elsewhere[end:] = 0xFF, 0xFF  # not a number, wherever it is read
    others = run_guarded(kernel, {"a": a, "b": elsewhere.view(np.float32)})["c"]
    kept = ~np.isnan(others)
    assert np.array_equal(whole[kept], others[kept])
    blocks = sum(part == (begin, end) for part in operand.parts)
    share = (end - begin) / operand.bytes
    assert kept.any() and blocks * share > 0 and (kept.mean() > 0.99) == (share > 0.99)


@pytest.mark.parametrize(("rows", "columns"), [(3, 0), (0, 3), (0, 0)])
def test_a_product_without_results_has_no_parts(rows: int, columns: int) -> None:
    gemm = Gemm(rows, columns, 5)
    for one in candidates(gemm, host()):
        assert build(gemm, one, host()).operand("b").parts is None


def test_only_gathers_of_whole_rows_say_how_long_a_row_is() -> None:
    rows = build_indexed(gather((50, 7), 0, (3,), DType.F32), host()).operand("data").rows
    assert rows == 28
    for problem in (gather((50, 7), 1, (3,), DType.F32), gather_elements((50, 7), 0, (3, 7), DType.F32)):
        assert build_indexed(problem, host()).operand("data").rows == 0


def test_numbers_become_ranges() -> None:
    assert ranges([]) == [] and ranges([3]) == [(3, 4)]
    assert ranges([0, 1, 2, 5, 6, 9]) == [(0, 3), (5, 7), (9, 10)]


def _kernel(name: str, parts: tuple[tuple[int, int], ...] | None, size: int, blocks: int) -> Kernel:
    operands = (
        Operand("b", "constant", DType.F32, size // 4, parts=parts), Operand("y", "output", DType.F32, 16),
    )  # fmt: skip
    return Kernel(name, Module(host()), operands, blocks)


@pytest.mark.parametrize("repeated", [1, 2])
def test_units_are_stretches_of_blocks_that_read_the_same(repeated: int) -> None:
    part = 24 << 10
    parts = tuple((part * one, part * (one + 1)) for one in range(8)) * repeated
    kernels = {"k": _kernel("k", parts, 8 * part, 8 * repeated)}
    runs = [Run("k", (Place("weights", 640), Place("arena")))]
    constants = constants_of(runs, kernels, {"k": 5.0}, (), 4 * part)
    (one,) = constants.values()
    assert (one.start, one.size, one.uses, one.nanoseconds) == (640, 8 * part, 1, 5.0)
    assert [(unit.begin, unit.end) for unit in one.units] == [(0, 4 * part), (4 * part, 8 * part)]
    first = [(8 * turn, 8 * turn + 4) for turn in range(repeated)]
    assert [list(unit.blocks) for unit in one.units] == [first, [(a + 4, b + 4) for a, b in first]]
    one.fetched = 1
    assert one.kept_bytes == 4 * part and others_of(runs, kernels, constants) == []


def test_what_overlaps_and_what_is_small_stays() -> None:
    large, small = 200 << 10, 1 << 10
    kernels = {"a": _kernel("a", None, large, 3), "b": _kernel("b", None, large, 3), "c": _kernel("c", None, small, 1)}
    runs = [
        Run("a", (Place("weights", 0), Place("arena"))), Run("b", (Place("weights", 64), Place("arena"))),
        Run("c", (Place("weights", 1 << 20), Place("arena"))),
    ]  # fmt: skip
    constants = constants_of(runs, kernels, dict.fromkeys("abc", 1.0), (), 1 << 20)
    assert list(constants) == [(64, large)], "the first one reaches into the second"
    assert others_of(runs, kernels, constants) == [(0, large), (1 << 20, small)]
    assert constants[64, large].units[0].blocks == ((0, 3),)

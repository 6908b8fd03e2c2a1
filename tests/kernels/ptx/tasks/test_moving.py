"""Gathers, scatters and resizing as tasks on the PTX machine, beside the processor's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.ptx.tasks.indexed import indexed
from kernels.ptx.tasks.table import task
from kernels.templates.convolution.layout import Layout
from kernels.templates.indexed import INDEXED, Indexed, gather, gather_elements, gather_nd, scatter_elements, scatter_nd
from kernels.templates.resize import RESIZE, Resize
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Case, beside, check

DTYPES = [DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.F16]


@st.composite
def moves(draw: Any) -> tuple[Indexed, int]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=3)))
    axis, dtype = draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from([DType.I32, DType.I64]))
    indices = tuple(draw(st.integers(1, one)) for one in shape)
    few = (*(draw(st.integers(1, 4)) for _ in range(draw(st.integers(0, 2)))), draw(st.integers(1, len(shape))))
    reduction = draw(st.sampled_from(["none", "add", "mul", "min", "max"])) if dtype is not DType.F16 else "none"
    problem = draw(
        st.sampled_from(
            [
                gather(shape, axis, indices[:1], dtype, kind), gather(shape, axis, (), dtype, kind),
                gather_elements(shape, axis, indices, dtype, kind), gather_nd(shape, few, dtype, kind),
                scatter_elements(shape, axis, indices, dtype, kind, reduction),
                scatter_nd(shape, few, dtype, kind, reduction),
            ]
        )
    )  # fmt: skip
    return problem, draw(st.integers(0, 1000))


def moved(problem: Indexed, seed: int, name: str, target: Any = SM_90) -> Case:
    """Indices beyond both ends of the shortest dim among them."""
    least = min(one.size for one in problem.components)
    draw = np.random.default_rng(seed)
    indices = draw.integers(-least - 1, least + 1, problem.index_elements).astype(problem.index_dtype.numpy)
    return beside(INDEXED, problem, name, seed, 0.0, target, indices=indices)


@settings(deadline=None, max_examples=4)
@given(st.lists(moves(), min_size=6, max_size=6), st.sampled_from([SM_80, SM_90]))
def test_any_gather_and_scatter(some: list[tuple[Indexed, int]], target: Any) -> None:
    check([moved(problem, seed, f"move_{number}", target) for number, (problem, seed) in enumerate(some)], target)


def test_scatters_onto_one_number_have_no_data() -> None:
    problems = [
        replace(scatter_nd((3, 40), (5, 1), DType.F32, reduction="add"), filler=0),
        replace(scatter_nd((3, 40), (5, 1), DType.I64), filler=(1 << 64) - 3),
        replace(scatter_elements((6, 5), 0, (4, 5), DType.U8), filler=200),
    ]
    assert all("data" not in [one.name for one in indexed(problem, SM_90, "move").operands] for problem in problems)
    check([moved(problem, 3, f"move_{number}") for number, problem in enumerate(problems)])


def test_of_several_updates_of_an_element_the_last_counts() -> None:
    problem = scatter_nd((3, 40), (50, 1), DType.F32)
    case = moved(problem, 1, "move")
    assert len(set(case.given["indices"].tolist())) < 50
    check([case])


def test_long_rows_take_several_blocks() -> None:
    problem = gather((50, 1003), 0, (5,), DType.F32)
    assert indexed(problem, SM_90, "move").blocks > 10
    check([moved(problem, 0, "move")])


def test_many_updates_are_a_threads() -> None:
    kernel = task(INDEXED, scatter_elements((5000,), 0, (5000,), DType.F32), SM_90, "move")
    assert "single threads" in kernel.candidate


@st.composite
def images(draw: Any) -> tuple[Resize, int]:
    order = draw(st.sampled_from(("NCHW", "NHWC")))
    channels, batch = draw(st.integers(1, 9)), draw(st.integers(1, 2))

    def some(high: int) -> tuple[int, int, int]:
        return draw(st.sampled_from((1, 1, 3))), draw(st.integers(1, high)), draw(st.integers(1, high))

    halo = draw(st.integers(0, 1))
    inner = Layout(batch, channels, some(7), order, 0, (0, halo, halo), (0, halo, 0))
    outer = Layout(batch, channels, some(11), order, 0)
    coordinates = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
    rounding = draw(st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")))
    mode = draw(st.sampled_from(("nearest", "linear")))
    return Resize(inner, outer, mode, draw(st.sampled_from(coordinates)), rounding), draw(st.integers(0, 99))


@settings(deadline=None, max_examples=3)
@given(st.lists(images(), min_size=4, max_size=4), st.sampled_from([SM_80, SM_90]))
def test_any_resizing(some: list[tuple[Resize, int]], target: Any) -> None:
    cases = []
    for number, (problem, seed) in enumerate(some):
        layout = problem.input
        shape = (layout.batch, layout.channels, *layout.size)
        x = layout.store(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
        cases.append(beside(RESIZE, problem, f"resize_{number}", seed, 1e-6, target, x=x))
    check(cases, target)

"""Softmax, normalization and reductions as tasks on the PTX machine, beside the processor's kernels."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.templates.elementwise import Output
from kernels.templates.normalization import NORMALIZATION, NORMALIZED, Normalization
from kernels.templates.reduction import REDUCTION, Op, Reduction, reduced
from kernels.templates.softmax import SOFTMAX, SOFTMAX_ROWS, Softmax
from kernels.tensor import storage
from kernels.tensor.expression import Buffer, Cast, Variable
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Case, beside, check
from tests.kernels.templates.row_cases import FLOATS, floats, layouts

TARGETS = st.sampled_from([SM_80, SM_90])
NAMES = "ijk"
STEPS = {DType.F32: 0.0, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


def axes_of(draw: Any, *, most: int = 3) -> tuple[tuple[Variable, ...], tuple[Variable, ...], tuple[Variable, ...]]:
    """Loops, and those of them that are rows and columns: short rows, rows of a warp, and rows of a block."""
    rank = draw(st.integers(1, most))
    sizes = {1: (1, 5, 31, 33, 300, 1200), 2: (1, 3, 16, 33, 70, 1100)}.get(rank, (1, 2, 5, 17))
    loops = tuple(Variable(name, draw(st.sampled_from(sizes))) for name in NAMES[:rank])
    chosen = draw(st.sets(st.integers(0, rank - 1), min_size=1))
    rows = tuple(one for number, one in enumerate(loops) if number not in chosen)
    return loops, rows, tuple(one for number, one in enumerate(loops) if number in chosen)


@st.composite
def softmaxes(draw: Any) -> Any:
    loops, rows, columns = axes_of(draw)
    dtype, shape = draw(st.sampled_from(FLOATS)), tuple(one.extent for one in loops)
    x, y = (draw(layouts(name, dtype, shape)) for name in "xy")
    output = Output(y, Cast(dtype, SOFTMAX[()]), y[loops].indices)
    problem = Softmax(rows, columns, x[loops], (output,), draw(st.booleans()))
    return problem, x, floats(shape, dtype, draw(st.integers(0, 99)), (-np.inf, -80.0, 60.0, np.nan))


@st.composite
def normalizations(draw: Any) -> Any:
    loops, rows, columns = axes_of(draw)
    dtype, shape = draw(st.sampled_from(FLOATS)), tuple(one.extent for one in loops)
    x, y = (draw(layouts(name, dtype, shape)) for name in "xy")
    scale = Buffer("scale", DType.F32, tuple(one.extent for one in columns))
    value = Cast(dtype, NORMALIZED[()] * scale[columns])
    center = draw(st.sampled_from(("mean", "none")))
    problem = Normalization(rows, columns, x[loops], (Output(y, value, y[loops].indices),), 1e-3, center)
    return problem, x, floats(shape, dtype, draw(st.integers(0, 99)), draw(st.sampled_from(((), (np.nan, np.inf)))))


@st.composite
def reductions(draw: Any) -> Any:
    loops, rows, columns = axes_of(draw)
    op = draw(st.sampled_from(get_args(Op)))
    kinds = (DType.F32, DType.F32, DType.F16, DType.BF16)
    if op not in ("mean", "l2", "log_sum_exp"):
        kinds += (DType.I32, DType.I64, DType.U8)
    dtype, shape = draw(st.sampled_from(kinds)), tuple(one.extent for one in loops)
    x, stand_in = draw(layouts("x", dtype, shape)), reduced(op, dtype)
    y = draw(layouts("y", stand_in.dtype, tuple(one.extent for one in rows)))
    last = op in ("argmax", "argmin") and draw(st.booleans())
    problem = Reduction(rows, columns, op, x[loops], (Output(y, stand_in[()]),), last)
    seed = draw(st.integers(0, 99))
    if not dtype.is_float:
        return problem, x, np.random.default_rng(seed).integers(0, 5, shape).astype(dtype.numpy)
    special = draw(st.sampled_from(((), (np.nan,), (np.inf,), (-np.inf, 0.0))))
    return problem, x, floats(shape, dtype, seed, special)


def cases(template: Any, some: list[Any], target: Any, tolerance: float) -> list[Case]:
    found = []
    for number, (problem, x, array) in enumerate(some):
        more = STEPS.get(problem.outputs[0].buffer.dtype, 0.0)
        found.append(beside(template, problem, f"row_{number}", 1, tolerance + more, target, x=storage.store(x, array)))
    return found


@settings(deadline=None, max_examples=3)
@given(st.lists(softmaxes(), min_size=4, max_size=4), TARGETS)
def test_any_softmax(some: list[Any], target: Any) -> None:
    check(cases(SOFTMAX_ROWS, some, target, 2e-6), target)


@settings(deadline=None, max_examples=3)
@given(st.lists(normalizations(), min_size=4, max_size=4), TARGETS)
def test_any_normalization(some: list[Any], target: Any) -> None:
    check(cases(NORMALIZATION, some, target, 1e-5), target)


@settings(deadline=None, max_examples=4)
@given(st.lists(reductions(), min_size=6, max_size=6), TARGETS)
def test_any_reduction(some: list[Any], target: Any) -> None:
    check(cases(REDUCTION, some, target, 1e-5), target)


def test_of_equal_extremes_the_first_or_the_last() -> None:
    some = []
    for columns in (3, 40, 1100):
        for op in ("argmax", "argmin"):
            i, j = Variable("i", 5), Variable("j", columns)
            x, y = Buffer("x", DType.F32, (5, columns)), Buffer("y", DType.I64, (5,))
            array = np.random.default_rng(1).integers(0, 3, (5, columns)).astype(np.float32)
            array[1], array[2], array[3, ::2] = np.inf, -np.inf, np.nan
            for last in (False, True):
                problem = Reduction((i,), (j,), op, x[i, j], (Output(y, reduced(op, DType.F32)[()]),), last)
                some.append((problem, x, array))
    check(cases(REDUCTION, some, SM_90, 0.0))


def test_of_no_elements() -> None:
    some = []
    for op in ("sum", "prod", "max", "mean", "l2"):
        i, j = Variable("i", 3), Variable("j", 0)
        x, y = Buffer("x", DType.F32, (3, 0)), Buffer("y", DType.F32, (3,))
        problem = Reduction((i,), (j,), op, x[i, j], (Output(y, reduced(op, DType.F32)[()]),))
        some.append((problem, x, np.zeros((3, 0), np.float32)))
    check(cases(REDUCTION, some, SM_90, 0.0))

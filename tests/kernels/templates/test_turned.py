"""What turns two axes: any order of axes, sizes that fill no square, parts of larger arrays, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.size import Dim, free
from kernels.target import Target, x86_64_v4
from kernels.templates.axes import fused, place
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, ElementwiseCandidate, Output
from kernels.templates.turned import Squares, squares_of, strips_of_block
from kernels.tensor.expression import Buffer, Index, Load, Variable, index
from tests.kernels.guard import run_guarded
from tests.kernels.machine_code import spills
from tests.kernels.targets import HERE

Shape = tuple[int, ...]
DTYPES = (DType.F32, DType.I32, DType.F64, DType.I64, DType.U8, DType.I8, DType.F16, DType.BF16, DType.BOOL)


def copy(shape: Shape, order: Shape, starts: Shape, steps: Shape, dtype: DType) -> tuple[Elementwise, Shape]:
    """y = x[starts::steps] with its axes in another order; also the shape of x. Steps along the last axis are 1."""
    source = tuple(start + (size - 1) * step + 2 for size, start, step in zip(shape, starts, steps, strict=True))
    x = Buffer("x", dtype, source)
    axes = tuple(Variable(f"a{number}", shape[number]) for number in order)
    by_number = dict(zip(order, axes, strict=True))
    places: list[Index] = [
        index(by_number[number]) * steps[number] + starts[number] for number in range(len(shape))
    ]  # fmt: skip
    y = Buffer("y", dtype, tuple(shape[number] for number in order))
    return Elementwise(axes, (Output(y, x[tuple(places)]),)), source


def squares(problem: Elementwise, target: Target) -> Squares | None:
    (output,) = problem.outputs
    store, load = problem.load(output), output.value
    assert isinstance(load, Load), "a copy"
    return squares_of(fused(problem.axes, [place(load), place(store)]), [load], store, target)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Shape, Shape, Shape, Shape, DType]:
    rank = draw(st.integers(2, 4))
    shape = tuple(draw(st.integers(1, 40)) for _ in range(2)) + tuple(draw(st.integers(1, 4)) for _ in range(rank - 2))
    shape = tuple(draw(st.permutations(shape)))
    order = tuple(draw(st.permutations(range(rank))))
    starts = tuple(draw(st.integers(0, 2)) for _ in range(rank))
    steps = (*(draw(st.sampled_from((1, 1, 2))) for _ in range(rank - 1)), 1)
    return shape, order, starts, steps, draw(st.sampled_from(DTYPES))


@given(cases(), st.sampled_from(HERE), st.sampled_from((1, 600, 8192)))
@settings(deadline=None, max_examples=60)
def test_any_order_of_axes(case: tuple[Shape, Shape, Shape, Shape, DType], target: Target, block: int) -> None:
    shape, order, starts, steps, dtype = case
    problem, source = copy(shape, order, starts, steps, dtype)
    x = np.random.default_rng(shape).integers(0, 200, source).astype(dtype.numpy)
    kernel = ELEMENTWISE.build(problem, ElementwiseCandidate(4, block), target, "turned")
    cut = tuple(slice(a, a + (n - 1) * s + 1, s) for n, a, s in zip(shape, starts, steps, strict=True))
    found = run_guarded(kernel, {"x": x, "y": np.zeros(np.prod(shape), dtype.numpy)})["y"]
    assert np.array_equal(found.reshape([shape[one] for one in order]), x[cut].transpose(order))


@pytest.mark.parametrize("target", HERE, ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (37, 29), (8, 100), (64, 9), (17, 33)])
def test_squares_with_rests_on_both_sides(shape: Shape, target: Target) -> None:
    problem, source = copy(shape, (1, 0), (1, 2), (1, 1), DType.F32)
    assert squares(problem, target) is not None
    x = np.random.default_rng(0).standard_normal(source).astype(np.float32)
    for block in (1, 8192):
        kernel = ELEMENTWISE.build(problem, ElementwiseCandidate(4, block), target, "turned")
        found = run_guarded(kernel, {"x": x, "y": np.zeros(shape[0] * shape[1], np.float32)})["y"]
        assert np.array_equal(found.reshape(shape[::-1]), x[1 : 1 + shape[0], 2 : 2 + shape[1]].T)


def computed(groups: int, rows: int, lanes: int) -> Elementwise:
    """y[g, r, l] = (x[g, l, r] - a[g, r]) * b[l] + c[g, r, l] * d[l, r], in an array with room behind its rows."""
    axes = Variable("g", groups), Variable("r", rows), Variable("l", lanes)
    group, row, lane = axes
    x, d = Buffer("x", DType.F32, (groups, lanes, rows)), Buffer("d", DType.F32, (lanes, rows))
    a, b = Buffer("a", DType.F32, (groups, rows)), Buffer("b", DType.F32, (lanes,))
    c, y = Buffer("c", DType.F32, (groups, rows, lanes + 3)), Buffer("y", DType.F32, (groups, rows, lanes))
    value = (x[group, lane, row] - a[group, row]) * b[(lane,)] + c[axes] * d[lane, row]
    return Elementwise(axes, (Output(y, value),))


@given(
    st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.sampled_from(HERE), st.sampled_from((1, 600, 8192)),
    st.integers(0, 1 << 20),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_what_is_computed_of_what_turns(
    groups: int, rows: int, lanes: int, target: Target, block: int, seed: int
) -> None:
    """Two operands that turn, one in the result's order, a number for each row and one for each lane."""
    kernel = ELEMENTWISE.build(computed(groups, rows, lanes), ElementwiseCandidate(4, block), target, "turned")
    draw = np.random.default_rng(seed)
    shapes = {"x": (groups, lanes, rows), "a": (groups, rows), "b": (lanes,), "c": (groups, rows, lanes + 3),
              "d": (lanes, rows)}  # fmt: skip
    given = {name: draw.integers(-8, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    found = run_guarded(kernel, {**given, "y": np.zeros(groups * rows * lanes, np.float32)})["y"]
    x, a, b, c, d = given.values()
    expected = (x.transpose(0, 2, 1) - a[..., None]) * b + c[..., :lanes] * d.T
    assert np.array_equal(found.reshape(expected.shape), expected)


def test_what_is_computed_passes_in_squares_where_it_is_light() -> None:
    target = x86_64_v4()
    text = assembly(ELEMENTWISE.kernel(computed(2, 48, 64), target).module.text(), target)
    assert "gather" not in text and "insertps" not in text


def test_what_turns_nothing_has_no_squares() -> None:
    """Rows that stay, few rows, sizes that a run decides."""
    target = x86_64_v4()
    assert squares(copy((40, 40), (0, 1), (0, 0), (1, 1), DType.F32)[0], target) is None
    assert squares(copy((40, 3), (1, 0), (0, 0), (1, 1), DType.F32)[0], target) is None
    any_rows = Variable("i", free(Dim("n", 1, 40, 0))), Variable("j", 40)
    x, y = Buffer("x", DType.F32, (40, 40)), Buffer("y", DType.F32, (40, 40))
    turned = Elementwise(any_rows[::-1], (Output(y, x[any_rows]),))
    assert squares(turned, target) is None
    wide = Buffer("x", DType.F32, (40, free(Dim("n", 1, 40, 0)), 40))  # steps that a run decides
    i, j = Variable("i", 40), Variable("j", 40)
    assert squares(Elementwise((j, i), (Output(y, wide[i, 0, j]),)), target) is None


def test_a_block_has_whole_strips() -> None:
    found = squares(copy((100, 64, 3), (2, 1, 0), (0, 0, 0), (1, 1, 1), DType.F32)[0], x86_64_v4())
    assert found is None  # three channels fill no square
    found = squares(copy((100, 64), (1, 0), (0, 0), (1, 1), DType.F32)[0], x86_64_v4())
    assert found is not None and found.strips == 4
    assert [strips_of_block(found, elements) for elements in (1, 3200, 10_000)] == [1, 2, 4]


def test_a_square_stays_in_registers() -> None:
    problem, _ = copy((64, 64), (1, 0), (0, 0), (1, 1), DType.F32)
    text = assembly(ELEMENTWISE.kernel(problem, x86_64_v4()).module.text(), x86_64_v4())
    assert not spills(text) and "insertps" not in text

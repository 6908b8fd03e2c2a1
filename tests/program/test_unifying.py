"""One list of regions for a range of sizes: held to what lowering gives at every size of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from graphopt.errors import NotLowered
from graphopt.flows.asked import optimized
from graphopt.flows.ranges import FreeDims
from graphopt.flows.source import resize
from graphopt.model.load import load
from graphopt.program.choosing import problem_at
from graphopt.program.polynomials import Differs, Fit, Point
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.steps import steps_of
from graphopt.program.unifying import Lower, sample_points, unified
from graphopt.program.unifying_control import in_one_order
from kernels.control import Choose, Inner, Seat
from kernels.size import Dim, Size, at
from kernels.target import host
from models import families
from tests import support


def lowering(model: ir.Model, names: tuple[str, ...]) -> Lower:
    """The regions of a model at one size."""

    def at_size(point: Point) -> Lowered:
        here = model.clone()
        resize(here, {}, dict(zip(names, point, strict=True)))
        return lower(optimized(here), host(), exact=False)

    return at_size


def test_every_problem_is_that_of_lowering_at_every_size() -> None:
    """At sizes that nothing was interpolated at; passes join products of fewer rows, whose lists are others."""
    names = ("batch", "seq")
    dims, at_size = (
        (Dim("batch", 1, 3, 0), Dim("seq", 1, 40, 1)),
        lowering(load(families.build("masked_encoder", 0)), names),
    )
    whole = unified(dims, at_size)
    assert whole.dims == dims and any(region.kernel.run_blocks is not None for region in whole.regions)
    for point in itertools.product((2, 3), (25, 33, 38)):
        sizes, alone = dict(zip(names, point, strict=True)), at_size(point)
        for mine, its in zip(whole.regions, alone.regions, strict=True):
            assert problem_at(whole.problems[mine.kernel.name][1], sizes) == alone.problems[its.kernel.name][1]
            for operand in its.kernel.operands:
                assert operand.elements <= mine.kernel.operand(operand.name).elements
        for ours, theirs in zip((*whole.inputs, *whole.outputs), (*alone.inputs, *alone.outputs), strict=True):
            free = {axis: at(size, sizes) for axis, size in ours.free}
            assert tuple(free.get(axis, dim) for axis, dim in enumerate(ours.shape)) == theirs.shape


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 200)), min_size=1, max_size=3, unique_by=lambda one: one[1])
)
def test_samples_are_the_greatest_size_and_others(ranges: list[tuple[int, int]]) -> None:
    dims = [Dim(f"d{number}", least, least + more, number) for number, (least, more) in enumerate(ranges)]
    points = sample_points(dims)
    assert points[0] == tuple(dim.most for dim in dims) and len(set(points)) == len(points)
    for number in range(len(dims)):
        assert len({point[number] for point in points}) >= 3  # a polynomial of the second degree, and of one held out
        assert min(point[number] for point in points) >= 2  # dims of one are dropped


def test_a_square_is_found_and_a_power_is_not() -> None:
    dim = Dim("s", 1, 40, 0)
    fit = Fit((dim,), tuple(sample_points([dim])))
    sizes = [point[0] for point in fit.points]
    found = fit.number([3 * s * s + 5 for s in sizes], "a stride")
    assert isinstance(found, Size)
    assert all(at(found, {"s": s}) == 3 * s * s + 5 for s in range(1, 41))
    with pytest.raises(Differs, match="a stride is no polynomial of the sizes"):
        fit.number([s // 3 for s in sizes], "a stride")


def test_a_number_that_grows_in_steps_is_one_of_quotients() -> None:
    text = """g (float[1,1,s] x, float[1,1,3] w) => (float[1,1,t] y)
    { c = Conv<strides = [3]>(x, w) y = Conv<strides = [2], pads = [1, 1]>(c, w) }"""
    dim = Dim("s", 9, 90, 0)
    model = ir.from_proto(support.model(text, 18))
    steps = steps_of(model, FreeDims((dim,), {}).formula)
    assert [step.text for step in steps] == ["((s) // (3))", "((((s) // (3)) + 1) // (2))"]
    points = sample_points([dim], (), steps)
    fit = Fit((dim,), tuple(points), (), steps)
    rows = [(s // 3 + 1) * ((s // 3 - 1) // 2) + s for (s,) in points]
    found = fit.number(rows, "the rows")
    assert all(at(found, {"s": s}) == (s // 3 + 1) * ((s // 3 - 1) // 2) + s for s in range(9, 91))
    with pytest.raises(Differs, match="the rows is no polynomial"):
        Fit((dim,), tuple(points)).number(rows, "the rows")


def test_numbers_of_two_dims_that_both_grow_in_steps() -> None:
    """Rows of pixels at several levels of a pyramid; squares of what grows in steps, which no other dim is in."""
    text = """g (float[1,1,h,v] x, float[1,1,3,3] w) => (float y)
    { c = Conv<strides = [2, 2]>(x, w) d = Conv<strides = [2, 2]>(c, w) y = Conv<strides = [2, 2]>(d, w) }"""
    dims = Dim("h", 40, 90, 0), Dim("v", 50, 120, 1)
    steps = steps_of(ir.from_proto(support.model(text, 18)), FreeDims(dims, {}).formula)
    fit = Fit(dims, tuple(sample_points(dims, (), steps)), (), steps)

    def halved(size: int, times: int) -> int:
        return size if times == 0 else halved((size - 3) // 2 + 1, times - 1)

    def held(number: Callable[[int, int], int]) -> None:
        found = fit.number([number(h, v) for h, v in fit.points], "pixels")
        for h, v in itertools.product(range(40, 91, 3), range(50, 121, 7)):
            assert at(found, {"h": h, "v": v}) == number(h, v)

    for one, other in itertools.product(range(4), repeat=2):
        held(lambda h, v, one=one, other=other: 5 * halved(h, one) * halved(v, other) + 2 * halved(v, other))
    held(lambda h, v: halved(h, 2) ** 2 * v + 3)
    with pytest.raises(Differs, match="pixels is no polynomial"):
        held(lambda h, v: (h * v) // 3)


def test_samples_leave_every_remainder_that_quotients_can() -> None:
    """Twice what a last stride leaves is one pixel less, or none: at 256, three quarters and half of it always one."""
    strides = (2, 1, 2, 1, 2, 2, 2)  # Inception's
    levels = " ".join(f"c{level + 1} = Conv<strides = [{one}]>(c{level}, w)" for level, one in enumerate(strides))
    text = f"g (float[1,1,h] c0, float[1,1,3] w) => (float y) {{ {levels} y = ReduceSum<keepdims = 0>(c7) }}"
    dim = Dim("h", 80, 256, 0)
    steps = steps_of(ir.from_proto(support.model(text, 18)), FreeDims((dim,), {}).formula)
    points = sample_points([dim], (), steps)
    for step in steps:
        rests = [{at(step.left, {"h": h}) % at(step.right, {"h": h}) for h in some}
                 for some in (range(80, 257), [h for (h,) in points])]  # fmt: skip
        assert rests[0] == rests[1], step.text

    def twice(size: int) -> int:
        for stride in strides:
            size = (size - 3) // stride + 1
        return 2 * size

    found = Fit((dim,), tuple(points), (), steps).number([twice(h) for (h,) in points], "pixels")
    assert all(at(found, {"h": h}) == twice(h) for h in range(80, 257))


def test_quotients_that_differ_at_one_remainder_of_many_are_told_apart() -> None:
    """A resampler by 6: blocks of what a last Pad leaves, and those that its Conv fills."""
    text = """g (float[1,1,n] x, float[1,1,6] w, float[1,1,1] v) => (float[1,1,a] y, float[1,1,b] z)
    { y = Conv<strides = [6], pads = [3, 3]>(x, w) z = Conv<strides = [6]>(x, v) }"""
    dim = Dim("n", 4000, 32000, 0)
    steps = steps_of(ir.from_proto(support.model(text, 18)), FreeDims((dim,), {}).formula)
    points = sample_points([dim], (), steps)
    fit = Fit((dim,), tuple(points), (), steps)
    for number in (lambda n: n // 6 + 1, lambda n: (n + 5) // 6, lambda n: 3 * (n // 6) - (n + 5) // 6):
        found = fit.number([number(n) for (n,) in points], "blocks")
        assert all(at(found, {"n": n}) == number(n) for n in range(4000, 32001))


def test_a_region_that_cannot_be_of_any_size_is_named() -> None:
    text = "g (float[1,4,s,3,3] x) => (float[1,4,t,2,2] y) { y = AveragePool<kernel_shape = [2, 2, 2]>(x) }"
    model = ir.from_proto(support.model(text, 23, 10))
    with pytest.raises(NotLowered) as refused:
        unified((Dim("s", 1, 30, 0),), lowering(model, ("s",)))
    said = str(refused.value)
    assert (
        "AveragePool y cannot be of any size" in said
        and "give the sizes that you need one by one, s=30 for example" in said
    )


def test_runs_of_a_body_stand_in_the_order_of_the_greatest_sizes() -> None:
    """Each size has an order of its own that takes least memory; the runs are the same ones."""
    model = ir.from_proto(support.model("g (float[s,4] x) => (float[s,4] y) { y = Exp(x) }", 23, 10))
    kernel = lowering(model, ("s",))((3,)).regions[0].kernel
    first, second, third = (Inner(kernel, (Seat(operand),)) for operand in range(3))
    whole = Choose((), Seat(0), (second, first, third), ())
    other = Choose((), Seat(0), (first, third, second), ())
    orders = [[(1, 0, 2), ()], [(0, 2, 1), ()]]
    assert in_one_order([whole, other], orders) == [whole, whole]
    with pytest.raises(Differs, match="the steps of its body"):
        in_one_order([whole, other], [[(1, 0, 2), ()], [(0, 1), ()]])


def test_a_size_that_has_no_program_is_named() -> None:
    def refused(point: Point) -> Lowered:
        raise NotLowered("the dims of 'y' are not all numbers.")

    with pytest.raises(NotLowered, match=r"'y' are not all numbers for n=\d+ as one of many: .* n=9 for example"):
        unified((Dim("n", 1, 9, 0),), refused)


def test_another_number_of_steps_is_refused() -> None:
    def at_size(point: Point) -> Lowered:
        text = "g (float[s] x) => (float[s] y) { y = Exp(x) }" if point[0] == 30 else \
            "g (float[s] x) => (float[s] y, float[s] z) { y = Exp(x) z = Relu(x) }"  # fmt: skip
        return lowering(ir.from_proto(support.model(text, 18)), ("s",))(point)

    with pytest.raises(NotLowered, match="the program has 2 steps for s=23 and 1 for s=30"):
        unified((Dim("s", 1, 30, 0),), at_size)


def test_pixels_are_compared_with_each_other() -> None:
    """The scores of an image's attention are as many as its pixels squared: squares of both of its sides."""
    text = """g (float[b,8,h,v] x) => (float y) { t = Constant<value_ints = [0, 8, -1]>() q = Reshape(x, t)
        k = Transpose<perm = [0, 2, 1]>(q) s = MatMul(k, q) p = Softmax<axis = -1>(s) y = MatMul(p, k) }"""
    model = support.model(text, 18)
    made, session = graphopt.compile(model, dims={"b": (1, 3), "h": (2, 9), "v": (2, 7)}), support.session(model)
    drawn = np.random.default_rng(0)
    for sides in ((1, 2, 2), (3, 9, 7), (2, 5, 3)):
        x = drawn.standard_normal((sides[0], 8, *sides[1:])).astype("f4")
        mine, its = made.run(None, {"x": x})[0], session.run(None, {"x": x})[0]
        scores = np.square(x).sum(1).max()  # the largest, of eight products: its rounding moves shares in proportion
        np.testing.assert_allclose(mine, its, rtol=0, atol=8 * 2.0**-24 * scores * np.abs(x).max())

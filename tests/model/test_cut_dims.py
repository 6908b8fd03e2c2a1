"""Dims of what is cut, and remainders of dims, held to NumPy at every small size."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import sympy
from hypothesis import given
from hypothesis import strategies as st

from graphopt.model import dims
from graphopt.model.facts import Facts
from tests import support

N = dims.symbol("n")
BOUNDS = st.one_of(st.integers(-9, 9), st.sampled_from([2**31 - 1, 2**63 - 1, -(2**31) + 1, -(2**63)]))
SIZES = range(14)


def _known(body: str, opset: int = 17, **initializers: np.ndarray) -> tuple[Facts, ir.Value]:
    model = ir.from_proto(support.model(body, opset, **initializers))
    return Facts(model), model.graph.outputs[0]


def _cut(start: int, end: int, step: int) -> dims.Dim:
    bounds = {name: np.array([number]) for name, number in (("s", start), ("e", end), ("t", step))}
    facts, value = _known("g (float[n,3] x) => (float y) { y = Slice(x, s, e, a, t) }", **bounds, a=np.array([0]))
    shape = facts.shape(value)
    assert shape is not None and shape[1] == 3
    return shape[0]


def _is_fresh(dim: dims.Dim) -> bool:
    return "?" in str(dim)


@given(BOUNDS, BOUNDS, st.sampled_from([1, 2, 3, 5, -1, -2, -3]))
def test_the_length_of_a_slice_is_that_of_numpy(start: int, end: int, step: int) -> None:
    found = _cut(start, end, step)
    if _is_fresh(found):  # what is left between two bounds that are both within, and parts of what goes backwards
        assert (abs(start) < 10 and abs(end) < 10) or step < 0
        return
    for size in SIZES:
        assert sympy.sympify(found).subs(N, size) == len(range(size)[start:end:step])


def test_what_leaves_out_one_end_is_as_long_as_what_leaves_out_the_other() -> None:
    assert _cut(1, 2**63 - 1, 1) == _cut(0, -1, 1) == N - sympy.Min(N, 1)


def test_all_in_reverse_is_as_long_as_before() -> None:
    assert _cut(-1, -(2**63), -1) == N


def test_a_filter_of_differences_keeps_the_length() -> None:
    """As an audio frontend emphasises what changes: the first sample, and behind it each less the one before."""
    facts, value = _known(
        """g (float[2,n] x) => (float y) {
        first = Slice(x, zero, one, one) rest = Slice(x, one, all, one) before = Slice(x, zero, minus, one)
        less = Sub(rest, before) y = Concat<axis=1>(first, less) }""",
        zero=np.array([0]), one=np.array([1]), minus=np.array([-1]), all=np.array([2**63 - 1]),
    )  # fmt: skip
    assert facts.shape(value) == (2, N)


def test_a_step_of_zero_says_nothing() -> None:
    facts, value = _known("g (float[n] x) => (float y) { y = Slice(x, s, e, a, a) }",
                          s=np.array([0]), e=np.array([4]), a=np.array([0]))  # fmt: skip
    assert facts.shape(value) is None or not dims.is_static(facts.shape(value))


@given(st.integers(-9, 9), st.integers(1, 6), st.booleans())
def test_remainders_of_dims_are_those_of_numpy(added: int, divisor: int, of_dividend: bool) -> None:
    facts, value = _known(
        f"""g (float[n,3] x) => (int64[1] y) {{
        rows = Shape<start=0, end=1>(x) sum = Add(rows, added) y = Mod<fmod={int(of_dividend)}>(sum, divisor) }}""",
        added=np.array([added]), divisor=np.array([divisor]),
    )  # fmt: skip
    held = facts.content(value)
    if held is None:
        assert of_dividend and added < 0
        return
    remainder = np.fmod if of_dividend else np.mod
    for size in SIZES:
        assert sympy.sympify(held.item()).subs(N, size) == remainder(size + added, divisor)


def test_a_reshape_to_a_scalar_is_left_to_the_schema() -> None:
    facts, value = _known("g (float[n,4] x) => (float y) { k = Constant<value_int=12>() y = Reshape(x, k) }")
    assert facts.shape(value) in (None, (12,))


def test_pools_and_transposes_with_lists_of_another_length_say_nothing() -> None:
    for line in (
        "y = AveragePool<kernel_shape=[2]>(x)",
        "y = MaxPool<kernel_shape=[2, 2], strides=[2]>(x)",
        "y = Transpose<perm=[0, 4, 1, 2]>(x)",
    ):
        facts, value = _known(f"g (float[n,3,n,8] x) => (float y) {{ {line} }}")
        assert facts.shape(value) is None


def test_a_slope_wider_than_what_it_is_of_widens_it() -> None:
    """ONNX broadcasts the slope to the operand alone, ONNX Runtime each to the other."""
    facts, value = _known("g (float[n,4,1] x) => (float y) { y = PRelu(x, s) }", s=np.ones(5, np.float32))
    assert facts.shape(value) == (N, 4, 5)

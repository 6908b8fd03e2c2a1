"""Shape arithmetic with dynamic dims."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.model import dims
from graphopt.passes.shapes import reshape_target
from tests import support

N, M = dims.symbol("n"), dims.symbol("m")


@pytest.mark.parametrize(
    ("source", "target", "numbers"),
    [
        ((N, 4, 6), (N, 24), (0, 24)),
        ((N, 4, 6), (N * 4, 6), (-1, 6)),
        ((N, M, 6), (N, M, 2, 3), (0, 0, 2, 3)),
        ((N, M, 6), (M, N, 6), None),
        ((N, M, 6), (N * M, 6), (-1, 6)),
        (None, (N, 6), (-1, 6)),
        ((2, 3), (-1, 2), (-1, 2)),
        ((N, 3), (N, -1), (0, -1)),
    ],
)
def test_targets(source: dims.Dims | None, target: tuple[dims.Dim, ...], numbers: tuple[int, ...] | None) -> None:
    assert reshape_target(source, target) == numbers


def _optimized(text: str, opset: int = 17, **initializers: np.ndarray) -> list[str]:
    proto = support.model(text, opset, **initializers)
    result = graphopt.optimize(proto)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    return support.op_types(result.to_proto())


def test_the_usual_chain_before_a_reshape() -> None:
    assert _optimized(
        """g (float[batch,seq,64] x) => (float[batch,seq,4,16] y) {
            s = Shape(x)
            b = Gather(s, zero) t = Gather(s, one)
            bu = Unsqueeze(b, axis) tu = Unsqueeze(t, axis)
            target = Concat<axis = 0>(bu, tu, four, sixteen)
            y = Reshape(x, target)
        }""",
        zero=np.array(0), one=np.array(1), axis=np.array([0]), four=np.array([4]), sixteen=np.array([16]),
    ) == ["Reshape"]  # fmt: skip


@pytest.mark.fires("shape-of-some-dims")
def test_an_output_that_is_declared_with_another_rank_keeps_a_target_that_hides_it() -> None:
    """As an OCR network does: onnx accepts the file only because nobody can tell the rank that the target gives."""
    text = """g (float[batch,seq,64] x) => (RANK y) {
        s = Shape(x) b = Gather(s, zero) bu = Unsqueeze(b, axis)
        target = Concat<axis = 0>(bu, rest) y = Reshape(x, target)
    }"""
    constants = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1, 64])}
    assert _optimized(text.replace("RANK", "float[a,b,64]"), **constants) == ["Reshape"]
    assert "Concat" in _optimized(text.replace("RANK", "float[a,64]"), **constants)


def test_a_known_dim_beside_an_unknown_one_is_folded() -> None:
    assert _optimized(
        """g (float[batch,8] x) => (float[batch,8] y) {
            s = Shape(x) c = Gather(s, one) f = Cast<to = 1>(c) r = Sqrt(f) y = Div(x, r)
        }""",
        one=np.array(1),
    ) == ["Div"]  # fmt: skip


def test_the_guard_of_an_exported_expand_is_decided() -> None:
    """Where(Equal(target, -1), 1, target): dims are never -1, so the target itself is used."""
    assert _optimized(
        """g (float[batch,1] x, float[batch,8] z) => (float[batch,8] y) {
            target = Shape(z)
            flag = Equal(target, minus) safe = Where(flag, ones, target)
            wide = Expand(x, safe)
            y = Add(wide, z)
        }""",
        minus=np.array([-1]), ones=np.array([1, 1]),
    ) == ["Add"]  # fmt: skip


def test_the_same_dims_computed_twice_are_computed_once() -> None:
    operators = _optimized(
        """g (float[batch,4] x, float[1] z) => (float[batch,2] y, float[batch,2] v) {
            s = Shape(x)
            a = Gather(s, zero) au = Unsqueeze(a, axis) first = Concat<axis = 0>(au, two)
            b = Slice(s, axis, one) second = Concat<axis = 0>(b, two)
            y = Expand(z, first) v0 = Expand(z, second) v = Neg(v0)
        }""",
        zero=np.array(0), axis=np.array([0]), one=np.array([1]), two=np.array([2]),
    )  # fmt: skip
    assert operators.count("Concat") == 1
    assert operators.count("Expand") == 1


def test_two_unknown_dims_of_equal_spelling_are_not_confused() -> None:
    operators = _optimized(
        """g (float[?,4] x, float[?,4] z) => (int64[2] y) {
            a = Shape(x) b = Shape(z) y = Sub(a, b)
        }"""
    )
    assert operators == ["Shape", "Shape", "Sub"]


def test_declared_output_dims_are_not_believed() -> None:
    """The file says [2, 3]; what the Reshape gives is for the input to decide."""
    text = """g (float[a,b] x, int64[2] target) => (float[2,3] y) { z = Reshape(x, target) y = Relu(z) }"""
    assert _optimized(text) == ["Reshape", "Relu"]


def test_dims_that_become_known_decide_what_was_computed_from_them() -> None:
    """Which branch gives the pads is found first; then Shape, Gather and Range below become numbers."""
    assert _optimized(
        """g (float[1,3,4] x, int64[1] z) => (float[1,a] y) {
            s = Shape(x) w = Gather(s, two) odd = Equal(w, five)
            pads = If(odd)<
                then_branch = t () => (int64[6] p) { p = Concat<axis = 0>(z, first, first, first, first, first) },
                else_branch = e () => (int64[6] q) { q = Constant<value_ints = [0, 0, 0, 0, 0, 2]>() }>
            wide = Pad(x, pads)
            u = Shape(wide) v = Gather(u, two) rows = Gather(u, one) n = Mul(v, rows) m = Unsqueeze(n, axis)
            target = Concat<axis = 0>(first, m)
            tall = Reshape(wide, target)
            k = Shape(tall) h = Gather(k, one) l = Range(zero, h, one) f = Cast<to = 1>(l) y = Add(tall, f)
        }""",
        zero=np.array(0), one=np.array(1), two=np.array(2), five=np.array(5), axis=np.array([0]), first=np.array([1]),
    ) == ["Pad", "Reshape", "Add"]  # fmt: skip

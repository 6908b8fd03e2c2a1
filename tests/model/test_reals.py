"""Sizes that exporters compute in floats, and one form for quotients of dims."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
import sympy

from graphopt.model import dims
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.reals import Real, whole
from tests import support

S = dims.symbol("s")


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        ("q = Div(f, two) c = Ceil(q)", "floor(s/2 + 1/2)"),
        ("q = Div(f, three) c = Ceil(q)", "floor(s/3 + 2/3)"),
        ("q = Div(f, three) c = Floor(q)", "floor(s/3)"),
        ("q = Mul(f, two) c = Identity(q)", "2*s"),
        ("h = Mul(f, half) q = Add(h, half) c = Floor(q)", "floor(s/2 + 1/2)"),
        ("q = Sub(f, two) n = Neg(q) c = Neg(n)", "s - 2"),
        ("q = Div(f, two) c = Identity(q)", "floor(s/2)"),  # as a cast to integers truncates it
        ("q = Div(f, three) c = Mul(q, three)", None),  # may be rounded
        ("q = Mul(f, tenth) c = Floor(q)", None),
        ("q = Mul(f, f) c = Identity(q)", None),
        ("q = Div(two, f) c = Ceil(q)", None),
        ("q = Exp(f) c = Ceil(q)", None),
    ],
)
def test_a_size_in_floats_is_known(steps: str, value: str | None) -> None:
    text = f"""g (float[s] x) => (int64[n] y) {{
        two = Constant<value_float = 2.0>() three = Constant<value_float = 3.0>()
        half = Constant<value_float = 0.5>() tenth = Constant<value_float = 0.7>()
        d = Shape(x) f = Cast<to = 1>(d) {steps} y = Cast<to = 7>(c) }}"""
    proto = support.model(text, 18)
    model = load(proto)
    held = Facts(model).content(model.graph.outputs[0])
    assert (None if held is None else str(held[0])) == value
    if value is not None:
        session = ort.InferenceSession(proto.SerializeToString())
        for size in range(1, 70):
            (found,) = session.run(None, {"x": np.zeros(size, np.float32)})
            assert found[0] == sympy.sympify(value).subs({sympy.Symbol("s"): size})


def test_products_of_dims_and_long_factors_are_no_reals() -> None:
    other = dims.symbol("t")
    assert Real.of(S * other) is None and Real.of(S + other) is not None
    assert Real.of(0.7) is None and Real.of(1e6) is None and Real.of(float("nan")) is None and Real.of(True) is None
    assert whole(Real(S + 1)) == S + 1 and whole(Real(S / 2)) is None
    with pytest.raises(ValueError, match="may be rounded"):
        Real(S / 256) * Real(sympy.Rational(1, 256))


def test_a_range_of_floats_has_the_length_that_dims_give() -> None:
    text = """g (float[s] x) => (float[n] y) { d = Shape(x) zero = Constant<value_float = 0.0>()
        one = Constant<value_float = 1.0>() e = Squeeze(d) f = Cast<to = 1>(e) y = Range(zero, f, one) }"""
    model = load(support.model(text, 18))
    assert Facts(model).shape(model.graph.outputs[0]) == (S,)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (S / 2 - sympy.Rational(7, 2), "floor(s/2 + 1/2) - 4"),
        (sympy.floor(S / 2 + sympy.Rational(1, 2)) / 2 + sympy.Rational(1, 2), "floor(s/4 + 3/4)"),
        (sympy.floor(S / 3) / 2 - sympy.Rational(1, 2) + S, "s + floor(s/6 + 1/2) - 1"),
        (sympy.floor(S / 2) * 2 / 3, "floor(2*floor(s/2)/3)"),
        (S / 2 + S * sympy.floor(S / 2), "s*floor(s/2) + floor(s/2)"),
    ],
)
def test_quotients_have_one_form(given: sympy.Expr, form: str) -> None:
    found = dims.floor(given)
    assert str(found) == form
    for size in range(1, 40):
        assert sympy.sympify(found).subs({S: size}) == sympy.floor(given.subs({S: size}))


@pytest.mark.parametrize("halvings", [2, 3, 4])
def test_layers_of_stride_two_have_the_quotient_that_an_exporter_writes(halvings: int) -> None:
    layers = " ".join(f"c{one + 1} = Conv<strides = [2], pads = [1, 1]>(c{one}, w)" for one in range(halvings))
    text = f"g (float[1,1,s] c0, float[1,1,3] w) => (float[1,1,t] y) {{ {layers} y = Relu(c{halvings}) }}"
    model = load(support.model(text, 18))
    shape = Facts(model).shape(model.graph.outputs[0])
    parts = 1 << halvings
    assert shape is not None and shape[2] == dims.floor((S + parts - 1) / sympy.Integer(parts))
    for size in range(1, 50):
        assert sympy.sympify(shape[2]).subs({S: size}) == -(-size // parts)

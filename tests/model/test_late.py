"""Nodes that follow from constants, or read inputs alone, stand before their first readers; all else where it stood."""

from __future__ import annotations

import numpy as np
import onnx

import graphopt
from graphopt.model.late import order_late
from tests import support


def ordered(text: str, opset: int = 17, **weights: object) -> list[str]:
    """The first results of a model's nodes, in the order that it is given."""
    proto = support.model(text, opset=opset)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    model = graphopt.load(proto)
    order_late(model.graph)
    return [node.outputs[0].name or "" for node in model.graph]


W = np.ones((2, 2), np.float32)


def test_what_follows_from_weights_stands_before_its_reader() -> None:
    found = ordered(
        """g (float[2, 2] x) => (float[2, 2] y) {
            first = Neg(w)
            second = Neg(v)
            third = Abs(second)
            a = MatMul(x, first)
            y = MatMul(a, third)
        }""",
        w=W, v=W,
    )  # fmt: skip
    assert found == ["first", "a", "second", "third", "y"]


def test_the_first_of_several_readers_decides() -> None:
    found = ordered(
        """g (float[2, 2] x) => (float[2, 2] y) {
            turned = Neg(w)
            a = Abs(x)
            b = Add(a, turned)
            y = Add(b, turned)
        }""",
        w=W,
    )  # fmt: skip
    assert found == ["a", "turned", "b", "y"]


def test_a_body_reads_too() -> None:
    found = ordered(
        """g (float[2, 2] x, bool c) => (float[2, 2] y) {
            turned = Neg(w)
            a = Abs(x)
            b = If(c) <then_branch = t () => (float[2, 2] p) { p = Identity(turned) },
                       else_branch = e () => (float[2, 2] q) { q = Identity(a) }>
            y = Add(b, turned)
        }""",
        w=W,
    )  # fmt: skip
    assert found == ["a", "turned", "b", "y"]


def test_what_a_caller_may_give_is_no_constant() -> None:
    found = ordered(
        """g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) {
            turned = Neg(w)
            a = Abs(x)
            y = Add(a, turned)
        }""",
        w=W,
    )  # fmt: skip
    assert found == ["turned", "a", "y"]


def test_what_nothing_reads_stays() -> None:
    found = ordered(
        """g (float[2, 2] x) => (float[2, 2] y, float[2, 2] z) {
            z = Neg(w)
            a = Abs(x)
            y = Neg(a)
        }""",
        w=W,
    )  # fmt: skip
    assert found == ["z", "a", "y"]


def test_what_reads_inputs_alone_waits_for_its_reader_and_so_does_a_product_of_its_cast() -> None:
    """As what remains of an average in a training step; what follows from the product stays where it stands."""
    found = ordered(
        """g (float[2, 2] x, float[2, 2] m) => (float[2, 2] y, float[2, 2] z) {
            wide = Cast<to = 11>(m)
            remains = Abs(wide)
            kept = Mul(m, w)
            further = Neg(kept)
            a = MatMul(x, w)
            b = MatMul(a, w)
            c = Cast<to = 11>(b)
            d = Add(c, remains)
            y = Cast<to = 1>(d)
            z = Add(further, b)
        }""",
        w=W,
    )  # fmt: skip
    assert found == ["kept", "further", "a", "b", "c", "wide", "remains", "d", "y", "z"]

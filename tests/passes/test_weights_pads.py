"""Pad joins the pads of the convolution or pooling behind it where that says the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.weights import RULES
from tests.support import apply_rules, assert_equal, model, op_types

WEIGHT = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)
SPACE = np.array([0, 0, 1, 0, 0, 0, 1, 2])
LOWEST = np.float32(-np.inf).reshape(())


def check(proto: onnx.ModelProto, *kept: str) -> None:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == list(kept)
    assert_equal(proto, result, rtol=1e-5, atol=1e-6)  # ONNX Runtime sums a padded window in another order


def net(body: str, opset: int = 17, **initializers: np.ndarray) -> onnx.ModelProto:
    text = f"agraph (float[1,2,6,6] x) => (float[A,B,C,D] y) {{ {body} }}"
    return model(text, opset, w=WEIGHT, p=SPACE, **initializers)


FOLDS = {
    "conv": ("d = Pad(x, p)  y = Conv(d, w)", 17),
    "conv with pads": ("d = Pad(x, p, zero)  y = Conv <pads = [1,1,1,1]> (d, w)", 17),
    "conv, attribute form": ("d = Pad <pads = [0,0,1,1,0,0,1,1]> (x)  y = Conv(d, w)", 10),
    "conv, some axes": ("d = Pad(x, few, , axes)  y = Conv <auto_pad = \"VALID\"> (d, w)", 18),
    "average": ("d = Pad(x, p)  y = AveragePool <kernel_shape = [3,3]> (d)", 17),
    "average that counts": (
        "d = Pad(x, p)  y = AveragePool <kernel_shape = [4,4], pads = [0,1,0,1], count_include_pad = 1> (d)", 17,
    ),
    "maximum": ("d = Pad(x, p, low)  y = MaxPool <kernel_shape = [3,3]> (d)", 17),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_a_pad_becomes_pads(name: str) -> None:
    body, opset = FOLDS[name]
    more = {"zero": np.zeros((), np.float32), "low": LOWEST, "few": np.array([1, 2]), "axes": np.array([-2])}
    check(net(body, opset, **more), body.split(" y = ")[1].split(" ")[0].split("(")[0])


def test_zeros_in_front_of_a_maximum_fold_where_the_data_is_not_negative() -> None:
    check(net("r = Relu(x)  d = Pad(r, p)  y = MaxPool <kernel_shape = [3,3]> (d)"), "Relu", "MaxPool")
    check(
        net("c = Sigmoid(x)  e = Add(c, c)  d = Pad(e, p)  y = MaxPool <kernel_shape = [3,3]> (d)"),
        "Sigmoid",
        "Add",
        "MaxPool",
    )
    check(net("d = Pad(x, p)  y = MaxPool <kernel_shape = [3,3]> (d)"), "Pad", "MaxPool")


STAYS = {
    "another number": "d = Pad(x, p, one)  y = Conv(d, w)",
    "reflection": 'd = Pad <mode = "reflect"> (x, p)  y = Conv(d, w)',
    "cropping": "d = Pad(x, crop)  y = Conv(d, w)",
    "channels": "e = Conv(x, w)  d = Pad(e, channel)  y = AveragePool <kernel_shape = [3,3]> (d)",
    "same padding": 'd = Pad(x, p)  y = Conv <auto_pad = "SAME_UPPER"> (d, w)',
    "average that does not count": "d = Pad(x, p)  y = AveragePool <kernel_shape = [4,4], pads = [1,1,1,1]> (d)",
    "average rounded up": "d = Pad(x, p)  y = AveragePool <kernel_shape = [3,3], strides = [2,2], ceil_mode = 1> (d)",
    "pads as wide as the kernel": "d = Pad(x, p)  y = AveragePool <kernel_shape = [2,2]> (d)",
    "maximum with gaps": "d = Pad(x, p, low)  y = MaxPool <kernel_shape = [3,3], dilations = [2,2]> (d)",
    "a second reader": "d = Pad(x, p)  c = Conv <pads = [1,1,1,1]> (d, w)  y = Add(c, d)",
}


@pytest.mark.parametrize("name", STAYS)
def test_a_pad_that_must_stay(name: str) -> None:
    more = {
        "one": np.ones((), np.float32), "low": LOWEST, "crop": np.array([0, 0, -1, 0, 0, 0, 1, 0]),
        "channel": np.array([0, 1, 0, 0, 0, 0, 0, 0]),
    }  # fmt: skip
    proto = net(STAYS[name], **more)
    result, log = apply_rules(proto, RULES)
    assert not log
    assert op_types(result) == op_types(proto)

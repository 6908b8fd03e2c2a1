"""Arithmetic per channel behind a layer whose result is reshaped or transposed first folds into the layer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.passes.refusing import refusal, refuses
from tests.passes.test_weights_affine import batchnorm, folds_to, numbers
from tests.support import model

ROWS = {"w": numbers(4, 6), "to": np.array([-1, 6]), **batchnorm(6, seed=5)}
PRODUCT = """agraph (float[N,5,4] x) => (float[M,6] y) {
    a = MatMul(x, w) r = Reshape(a, to) y = BatchNormalization(r, g, b, m, v)
}"""
IMAGE = """agraph (float[N,4,3,3] x) => (float[N,9,6] y) {
    a = Conv(x, w, z) r = Reshape(a, to) t = Transpose<perm = [0, 2, 1]>(r) y = ROOT
}"""
PIXELS = {"w": numbers(6, 4, 1, 1), "z": numbers(6, seed=1), "to": np.array([0, 6, 9]), "k": numbers(6, seed=2)}


def test_a_normalization_behind_reshaped_rows_becomes_weights_and_a_sum() -> None:
    folds_to(model(PRODUCT, 17, **ROWS), "MatMul", "Add", "Reshape", N=2)


def test_the_channels_may_be_moved_to_the_front() -> None:
    text = """agraph (float[N,5,4] x) => (float[N,6,5] y) {
        a = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(a) y = BatchNormalization(t, g, b, m, v)
    }"""
    folds_to(model(text, 17, **ROWS), "MatMul", "Add", "Transpose", N=2)


def test_the_weight_may_stand_in_front() -> None:
    text = """agraph (float[4,5] x) => (float[1,6,5,1] y) {
        a = MatMul(w, x) u = Unsqueeze(a, axes) y = Mul(u, k)
    }"""
    arrays = {"w": numbers(6, 4), "axes": np.array([0, 3]), "k": numbers(6, 1, 1, seed=3)}
    folds_to(model(text, 17, **arrays), "MatMul", "Unsqueeze")


@pytest.mark.parametrize("root", ["Mul(t, k)", "Div(t, k)", "Add(k, t)", "Sub(t, k)", "Sub(k, t)"])
def test_arithmetic_behind_moved_images_folds(root: str) -> None:
    folds_to(model(IMAGE.replace("ROOT", root), 17, **PIXELS), "Conv", "Reshape", "Transpose", N=2)


PARTS = "agraph (float[N,5,4] x) => (float[M,Q] y) { a = MatMul(x, w) r = Reshape(a, to) y = Mul(r, k) }"
REFUSALS = [
    ("Reshape 'r' does not keep the channels on one axis",
     model(PARTS, 17, **{**ROWS, "to": np.array([-1, 3])}, k=numbers(3))),
    ("Reshape 'r' does not keep the channels on one axis",
     model(PARTS.replace("float[N,5", "float[2,5"), 17, **{**ROWS, "to": np.array([2, 30])}, k=numbers(30))),
    ("the axis is not that of the layer's channels",
     model(PARTS.replace("float[N,5", "float[1,5"), 17, **{**ROWS, "to": np.array([5, 6])}, k=numbers(5, 1))),
    ("the constant does not differ along one axis alone", model(PARTS, 17, **ROWS, k=np.float32(3).reshape(()))),
    ("the constant has more dims than the tensor", model(PARTS, 17, **ROWS, k=numbers(1, 1, 6))),
    ("the constant may widen 'r'",
     model(PARTS, 17, **{**ROWS, "w": numbers(4, 1), "to": np.array([-1, 1])}, k=numbers(6))),
    ("the channels do not agree", model(PRODUCT, 17, **{**ROWS, **batchnorm(3)})),
    ("a sum behind a product would only change its place",
     model(PARTS.replace("y = Mul", "y = Add"), 17, **ROWS, k=numbers(6))),
    ("MatMul 'a' is in front, which moves nothing",
     model("agraph (float[N,4] x) => (float[N,6] y) { a = MatMul(x, w) y = Mul(a, k) }", 17, **ROWS, k=numbers(6))),
    ("the result of Reshape 'r' is read elsewhere too",
     model(PARTS.replace("(float[M,Q] y)", "(float[M,Q] y, float[M,Q] r)"), 17, **ROWS, k=numbers(6))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason", "proto"), [refusal("affine-after-moved-layer", reason, proto) for reason, proto in REFUSALS]
)
def test_what_does_not_fold_says_why(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)

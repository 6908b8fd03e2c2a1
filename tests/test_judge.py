"""The judge of the benches: what it takes for a model's own rounding, and what it calls wrong."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from bench.judge import judge_here
from tests import support

STEEP = "g (float[n,64] x) => (float[n,64] y) { k = Constant<value_float=K>() a = Mul(x, k) y = Sin(a) }"


def _judged(folder: Path, original: onnx.ModelProto, candidate: onnx.ModelProto) -> tuple[str, int]:
    for name, proto in (("a.onnx", original), ("b.onnx", candidate)):
        onnx.save(proto, folder / name)
    found = judge_here(str(folder / "a.onnx"), str(folder / "b.onnx"))
    return found["verdict"], found["feeds"]


def test_what_rounding_alone_does_is_right(tmp_path: Path) -> None:
    text = STEEP.replace("K", "1000.0").replace(
        "y = Sin(a)", "c = Constant<value_float=100.0>() b = Mul(a, c) y = Sin(b)"
    )
    verdict, feeds = _judged(tmp_path, support.model(STEEP.replace("K", "100000.0")), support.model(text))
    assert verdict == "ok" and feeds > 0


@pytest.mark.parametrize(("right", "wrong"), [("100000.0", "100001.0"), ("1.0", "1.1")])
def test_another_number_is_wrong(tmp_path: Path, right: str, wrong: str) -> None:
    models = [support.model(STEEP.replace("K", number)) for number in (right, wrong)]
    assert _judged(tmp_path, *models)[0] == "wrong"


def test_a_model_that_takes_many_samples_only_is_fed(tmp_path: Path) -> None:
    text = """g (float[batch,samples] x) => (float[batch,2] y) {
        start = Constant<value_ints=[12000]>() end = Constant<value_ints=[12002]>() axis = Constant<value_ints=[1]>()
        cut = Slice(x, start, end, axis) shape = Constant<value_ints=[-1,2]>() y = Reshape(cut, shape)
        rows = Constant<value_ints=[1,2]>() z = Reshape(cut, rows)
    }"""
    verdict, feeds = _judged(tmp_path, support.model(text), support.model(text))
    assert verdict == "ok" and feeds > 0


def test_a_dim_of_minus_one_is_an_unknown_one(tmp_path: Path) -> None:
    original = support.model("g (float[n] x) => (float[n] y) { y = Abs(x) }")
    original.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    original.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    candidate = support.model("g (float[n] x) => (float[n] y) { y = Abs(x) }")
    for value in (*candidate.graph.input, *candidate.graph.output):
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    assert _judged(tmp_path, original, candidate)[0] == "ok"

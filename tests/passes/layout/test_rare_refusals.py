"""Operators that keep a layout for reasons that few models have: each is told of the Transposes around them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes.layout import elementwise, push, region
from graphopt.rewrite.editor import Editor
from tests import support


def told(proto: onnx.ModelProto) -> str:
    """What keeps the Transposes; nothing is changed."""
    editor = Editor(ir.from_proto(proto))
    before = [node.op_type for node in editor.model.graph]
    push.push_transposes(editor, list(editor.model.graph))
    assert not editor.log and [node.op_type for node in editor.model.graph] == before
    return " ".join(left.reason for left in push.why_not_pushed(editor, list(editor.model.graph)).values())


def between(operator: str, inputs: str = "", opset: int = 17, **constants: np.ndarray) -> onnx.ModelProto:
    return support.model(
        f"""g (float[2,3,4,6] x{inputs}) => (float[A,B,C,D] y) {{
            t = Transpose<perm = [0, 2, 3, 1]>(x) {operator} y = Transpose<perm = [0, 3, 1, 2]>(r) }}""",
        opset, **constants,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (between("r = Slice(t, low, high)", ", int64[k] low, int64[k] high"), "the number of its axes is not known"),
        (between("s = Squeeze(w) q = QuantizeLinear(t, s) r = DequantizeLinear(q, s)", ", float[n,1] w"),
         "the rank of the scale is not known"),
        (between("r = Tile(t, times)", ", int64[4] times"), "the list of repeats is not constant"),
        (between("r = Pad<paddings = [0, 0, 1, 0, 0, 0, 0, 1]>(t)", opset=1), "its pads are not those of every axis"),
        (between("r = Expand(t, to)", to=np.array([2, 1, 4, 6, 3])), "its result has a higher rank"),
    ],
)  # fmt: skip
def test_what_is_not_known_of_an_operator_is_said(proto: onnx.ModelProto, reason: str) -> None:
    assert reason in told(proto)


@pytest.mark.parametrize("shape", [(3,), (1, 1, 1, 3)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_constant_that_is_too_large_to_permute_keeps_its_layout(
    shape: tuple[int, ...], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 bytes: a constant that others read too would be there twice."""
    other = "q = Abs(c) p = Mul(t, q) r = Add(p, c)" if shared else "r = Add(t, c)"
    proto = between(other, c=np.arange(3, dtype=np.float32).reshape(shape))
    for module in (region, elementwise):
        monkeypatch.setattr(module, "GROWTH" if shared else "READ_LIMIT", 12)
    editor = Editor(ir.from_proto(proto))
    push.push_transposes(editor, list(editor.model.graph))
    assert editor.log
    for module in (region, elementwise):
        monkeypatch.setattr(module, "GROWTH" if shared else "READ_LIMIT", 11)
    assert "too large to permute" in told(proto)

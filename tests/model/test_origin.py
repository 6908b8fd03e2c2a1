"""Where a node comes from, as exporters write it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.model.origin import NAMESPACE, SCOPES, STACK, Provenance, origin_of

TORCH = ": nets.Net/encoder: nets.Encoder/encoder.layer.0: Layer/linear_3: aten.linear.default"
FRAMES = """  File "/home/me/train.py", line 80, in <module>
    net(x)
  File "/home/me/net.py", line 12, in forward
    return self.conv(x)
"""


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("n", {SCOPES: "['', 'encoder', 'encoder.layer.0', 'linear_3']"}, "encoder.layer.0"),
        ("n", {SCOPES: "['', 'relu']"}, ""),  # in the outermost module, which has no name
        ("n", {SCOPES: "['relu']"}, ""),
        ("n", {SCOPES: "__import__('os').getcwd()"}, ""),  # no list: not written
        ("n", {SCOPES: "["}, ""),
        ("n", {SCOPES: "{'a': 1}"}, ""),
        ("n", {NAMESPACE: TORCH}, "encoder.layer.0"),
        ("n", {SCOPES: "['', 'a', 'b']", NAMESPACE: TORCH}, "a"),
        ("/encoder/layer.0/MatMul", {}, "encoder.layer.0"),
        ("/MatMul", {}, ""),
        ("encoder/MatMul", {}, ""),  # not the form of torch: a name like any other
        ("", {}, ""),
    ],
)
def test_the_module_is_the_innermost_scope_that_has_a_name(name: str, metadata: dict[str, str], expected: str) -> None:
    assert origin_of(ir.Node("", "Relu", [], name=name, metadata_props=metadata)).module == expected


def test_the_line_is_that_of_the_innermost_frame() -> None:
    found = origin_of(ir.Node("", "Relu", [], name="n", metadata_props={STACK: FRAMES}))
    assert found == Provenance("", "/home/me/net.py:12")
    assert origin_of(ir.Node("", "Relu", [], metadata_props={STACK: "nothing to see"})).source == ""

"""`--layout` on the command line: what changed in the signature and which Transposes stay is told."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from tests.passes.layout.pushing import build, transposes, weight

TEXT = "g (float[N, 3, 8, 8] image) => (float[N, 4, 6, 6] map) { a = Conv(image, w) map = Relu(a) }"


@pytest.fixture
def conv(shell: Shell) -> Shell:
    shell.write("conv.onnx", build(TEXT, w=weight(4, 3, 3, 3)))
    return shell


def test_channels_last_in_functions(conv: Shell) -> None:
    answer = conv.run("optimize", "conv.onnx", "out.onnx", "--layout", "nhwc")
    assert (answer.status, answer.err) == (0, "")
    after = conv.read("out.onnx")
    assert [node.op_type for node in after.graph.node] == ["NhwcConv", "Relu"]
    assert "signature     input image: float[N, 3, 8, 8] -> float[N, 8, 8, 3], as asked" in answer.out
    assert "transpose " not in answer.out


def test_without_functions_the_transposes_are_listed(conv: Shell) -> None:
    options = ("--layout", "nhwc", "--layout-functions", "off")
    answer = conv.run("optimize", "conv.onnx", "out.onnx", *options)
    lines = [line for line in answer.out.splitlines() if line.startswith("transpose ")]
    assert len(lines) == 2 == transposes(conv.read("out.onnx"))
    assert "between input 'image' and Conv 'a' (it is defined for channels first)" in lines[0]
    record = conv.run("optimize", "conv.onnx", "out.onnx", *options, "--json").json
    assert [f"transpose     {text}" for text in record["kept_transposes"]] == lines
    assert not record["signature_unchanged"]

"""`graphopt quantize`: what is written, said and refused; sizes are minimized, so that no clock chooses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.cli.shell import Shell
from tests.quantization import networks


@pytest.fixture
def network(shell: Shell) -> Shell:
    """A shell with two convolutions and a product, and calibration data for them."""
    shell.write("net.onnx", networks.convolutions())
    np.savez(shell.folder / "calibration.npz", **networks.images(8))
    return shell


def test_a_table_says_what_became_of_each_node(network: Shell) -> None:
    answer = network.run("quantize", "net.onnx", "out.onnx", "--data", "calibration.npz", "--minimize", "size",
                         "--format", "static", "--budget-error", "0.1", "--report", "all.json")  # fmt: skip
    assert answer.status == 0, answer.err
    assert "net.onnx -> out.onnx" in answer.out and "error alone" in answer.out
    assert "quantized     3 of 3 nodes, " in answer.out
    assert "calibrated on 6 feeds; errors measured on 2 feeds in ONNX Runtime" in answer.out
    assert "report        written to all.json" in answer.out
    written = onnx.load(network.folder / "out.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert any(node.op_type == "QuantizeLinear" for node in written.graph.node)


def test_json_has_every_node_in_every_format(network: Shell) -> None:
    words = ("--data", "calibration.npz", "--minimize", "size", "--json")
    answer = network.run("quantize", "net.onnx", "out.onnx", *words)
    assert answer.status == 0, answer.err
    assert answer.json["schema"] == "graphopt.quantize/1" and answer.json["minimized"] == "size"
    product = answer.json["nodes"][-1]
    assert [form["form"] for form in product["forms"]] == [
        "static (minmax)", "static (percentile)", "dynamic", "int8-weights", "int4-weights"
    ]  # fmt: skip
    assert "in ONNX Runtime" in answer.err


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("net.onnx", "net.onnx"), 2, "OUT: 'net.onnx' is the input itself; choose another file."),
        (("net.onnx", "out.onnx", "--report", "out.onnx"), 2, "--report: 'out.onnx' is written by OUT too;"),
        (("net.onnx", "out.onnx", "--format", "static"), 1, "without calibration data only products can be quantized"),
        (("net.onnx", "out.onnx", "--minimize", "size", "--budget-error", "1e-9"), 1, "no choice keeps the err"),
        (("net.onnx", "out.onnx", "--data", "no.npz"), 1, "'no.npz' cannot be read: there is no such file or folder."),
    ],
)  # fmt: skip
def test_a_refusal_is_a_sentence_and_writes_nothing(
    network: Shell, words: tuple[str, ...], status: int, sentence: str
) -> None:
    before = (network.folder / "net.onnx").read_bytes()
    answer = network.run("quantize", *words)
    assert answer.status == status
    assert answer.err.startswith(f"error: {sentence}"), answer.err
    assert not (network.folder / "out.onnx").exists() and (network.folder / "net.onnx").read_bytes() == before


def test_the_way_out_is_an_option_of_the_command(network: Shell) -> None:
    answer = network.run("quantize", "net.onnx", "out.onnx", "--minimize", "size", "--budget-error", "1e-9")
    assert answer.err.endswith("give a larger --budget-error.\n")

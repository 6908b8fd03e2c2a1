"""What a check holds: a process of its own runs each model, and its greatest resident memory is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.check import held
from graphopt.check import reference as reference_module
from graphopt.check.noise import Case
from graphopt.check.reference import Reference
from graphopt.check.runner import Workplace
from tests import support

MIB = 1 << 20
LAYERS, SIDE = 16, 1024  # weights of a MiB each, four when they are floats
RUN = """
import sys
import numpy as np
import graphopt
from graphopt.check.runner import Workplace

def greatest():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

model = graphopt.load(sys.argv[1])
with Workplace() as workplace:
    runner = workplace.runner(model, True)
    before = greatest()
    (y,) = runner.run({"x": np.ones((1, int(sys.argv[2])), np.float32)})
    print(greatest() - before)
"""


def dequantized(first: bool) -> onnx.ModelProto:
    """Products by weights in bytes, which are dequantized in front of all products, or each before its own."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.integers(-9, 9, (SIDE, SIDE), np.int8), f"w{n}") for n in range(LAYERS)]
    widened = [helper.make_node("DequantizeLinear", [f"w{n}", "s"], [f"f{n}"]) for n in range(LAYERS)]
    products = [
        helper.make_node("MatMul", [f"x{n}" if n else "x", f"f{n}"], [f"x{n + 1}" if n < LAYERS - 1 else "y"])
        for n in range(LAYERS)
    ]
    nodes = [*widened, *products] if first else [one for pair in zip(widened, products, strict=True) for one in pair]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, SIDE]) for name in ("x", "y")]
    scale = numpy_helper.from_array(np.array(0.001, np.float32), "s")
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:], [*weights, scale])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("first", [True, False])
def test_a_chain_in_bytes_is_not_dequantized_as_a_whole(first: bool, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(dequantized(first), file, save_as_external_data=True, location="m.data", size_threshold=1024)
    done = subprocess.run([sys.executable, "-c", RUN, str(file), str(SIDE)], capture_output=True, text=True, check=True)
    # The file's pages, and floats of a layer or two; all layers are 64 MiB of floats.
    assert int(done.stdout) < (LAYERS + 4 * LAYERS // 3) * MIB


def test_what_inputs_hold_anyway_is_not_kept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "LARGE", 64)
    known, drawn = np.ones(100), np.ones(100)
    kept = held.Held(most=0).feed({"a": known, "b": drawn}, [known])
    assert kept["a"] is known and kept["b"] is not drawn
    np.testing.assert_array_equal(kept["b"], drawn)


def test_samples_are_made_with_arrays_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "LARGE", 64)
    monkeypatch.setattr(reference_module, "Held", lambda: held.Held(most=0))
    model = graphopt.load(support.model("g (float[4, 64] x) => (float[4, 64] y) { a = Exp(x) y = Softmax(a) }"))
    with Workplace() as workplace:
        reference = Reference(workplace, model, 60.0)
        case: Case = reference.cases[0]
        assert not case.outputs[0].flags.writeable, "it is mapped"  # type: ignore[attr-defined]
        samples = [np.asarray(one[0]) for one in reference.noise.samples(case)]
        assert samples and reference.check(model.clone()).status == "verified"
    plain = support.session(graphopt.optimize(model, verify=False).to_proto()).run(None, case.feed)[0]
    *relative, by_the_range, flushed = samples  # one moves a Softmax by half a unit of its range, whatever it is
    for sample in (*relative, flushed):
        np.testing.assert_allclose(sample, plain, rtol=1e-4)
    assert 0 < np.abs(by_the_range - plain).max() <= 2.0**-23

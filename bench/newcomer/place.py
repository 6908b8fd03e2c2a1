"""Where rows are checked: a folder with small models, and commands that run there as a newcomer's would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent.parent
# As it is in this checkout; what is installed may be of an earlier one.
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIMIT = 600  # seconds for one command; a guard against hanging
HIDDEN = 64  # elements


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


class Place:
    """A folder with `layers.onnx`, `image.onnx`, `split.onnx` (of two files), `classifier.onnx`, `chain.onnx`."""

    def __init__(self, folder: Path, quick: bool = False) -> None:
        self.folder, self.quick = folder, quick
        draw = np.random.default_rng(0)

        def drawn(*shape: int) -> np.ndarray:
            return draw.standard_normal(shape).astype(np.float32) / 4

        text = f"""g (float[batch,{HIDDEN}] x) => (float[batch,{HIDDEN}] y) {{
            i = Identity(x) m = MatMul(i, w) a = Add(m, b) r = Relu(a) y = MatMul(r, v)
        }}"""
        layers = model(text, w=drawn(HIDDEN, HIDDEN), b=drawn(HIDDEN), v=drawn(HIDDEN, HIDDEN))
        onnx.save(layers, folder / "layers.onnx")
        onnx.save(
            layers, folder / "split.onnx", save_as_external_data=True, location="split.onnx.data", size_threshold=1024
        )
        image = """g (float[1,16,16,16] x) => (float[1,16,16,16] y) {
            a = Conv<pads = [1,1,1,1]>(x, k) b = Relu(a) c = Conv<pads = [1,1,1,1]>(b, l) y = Add(c, x)
        }"""
        onnx.save(model(image, k=drawn(16, 16, 3, 3), l=drawn(16, 16, 3, 3)), folder / "image.onnx")
        chain = "g (float[1,8] x) => (float[1,8] y) { a = Relu(x) b = Neg(a) c = Abs(b) d = Sigmoid(c) y = Mul(d, c) }"
        onnx.save(model(chain), folder / "chain.onnx")
        onnx.save(model(chain.replace("Sigmoid", "Tanh")), folder / "other.onnx")
        onnx.save(_classifier(), folder / "classifier.onnx")
        partly = "g (float[2,8] x) => (int64[2,m] y, float[2,8] r) { r = Relu(x) y = NonZero(r) }"
        onnx.save(model(partly, 20), folder / "partly.onnx")

    def graphopt(self, *words: str, **options: Any) -> Done:
        """One command line of graphopt, in a process of its own."""
        return self.run(sys.executable, "-m", "graphopt", *words, **options)

    def python(self, code: str, **options: Any) -> Done:
        """A program in Python."""
        return self.run(sys.executable, "-c", code, **options)

    def run(self, *words: str, given: bytes | None = None, **environment: str) -> Done:
        """A command with these bytes on stdin, in the folder."""
        there = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **environment}
        done = subprocess.run(
            words, cwd=self.folder, env=there, capture_output=True, check=False, timeout=LIMIT, input=given
        )
        return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


def model(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    """A model from the body of ONNX text and its weights."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


def _classifier() -> onnx.ModelProto:
    """A linear classifier with a ZipMap, as scikit-learn's converter writes it by default."""
    names = ["ant", "bee", "cat"]
    nodes = [
        helper.make_node("Identity", ["x"], ["features"]),
        helper.make_node(
            "LinearClassifier", ["features"], ["label", "scores"], domain="ai.onnx.ml", post_transform="SOFTMAX",
            coefficients=[0.5, 1.0, -1.0, 0.25, 0.0, 2.0], intercepts=[0.1, 0.2, 0.3], classlabels_strings=names,
        ),
        helper.make_node("ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_strings=names),
    ]  # fmt: skip
    chance = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
        helper.make_value_info("chances", helper.make_sequence_type_proto(chance)),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)

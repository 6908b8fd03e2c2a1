"""Hands for the tests of layouts: one pass over a model from text, and how many Transposes are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.passes.layout.push import push_transposes
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import Rewrite
from tests.support import assert_equal, model

Run = Callable[[Editor, Sequence[ir.Node]], None]

# How the texts write the two Transposes.
LAST, FIRST = "Transpose<perm = [0, 2, 3, 1]>", "Transpose<perm = [0, 3, 1, 2]>"


def build(text: str, opset: int = 17, /, ir_version: int = 8, **weights: object) -> onnx.ModelProto:
    """A model from ONNX text, LAST and FIRST written out; lists of integers become int64 weights."""
    written = text.replace("LAST", LAST).replace("FIRST", FIRST)
    arrays = {
        name: np.array(weight, np.int64) if isinstance(weight, list) else np.asarray(weight)
        for name, weight in weights.items()
    }
    return model(written, opset, ir_version, **arrays)


def pushed(proto: onnx.ModelProto, run: Run = push_transposes) -> tuple[onnx.ModelProto, list[Rewrite]]:
    """The model after the pass alone, valid, and what was done."""
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    editor = Editor(copy)
    run_passes(editor, [Pass("test", 1, run=run)])
    result = ir.to_proto(copy)
    onnx.checker.check_model(result, full_check=True)
    return result, editor.log


def transposes(proto: onnx.ModelProto) -> int:
    """How many Transposes the main graph has."""
    return sum(node.op_type == "Transpose" for node in proto.graph.node)


def leaves(proto: onnx.ModelProto, count: int, **dims: int) -> onnx.ModelProto:
    """The pass leaves so many Transposes and an equal model."""
    after, _ = pushed(proto)
    assert transposes(after) == count, onnx.printer.to_text(after.graph)
    assert_equal(proto, after, rtol=2e-6, atol=1e-6, **dims)  # sums over permuted axes round in another order
    return after


def weight(*dims: int, seed: int = 0) -> np.ndarray:
    """Seeded float weights."""
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)

"""What is computed of expanded values is computed before, and attention expands its mask itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.memory.tiling.expansions import with_expansions_late
from graphopt.model.load import load
from graphopt.model.save import to_proto
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

DRAW = np.random.default_rng(11)
ARRAYS = {
    "dims": np.array([2, 1, 6, 6]), "zero": np.array(0.0, np.float32), "low": np.array(-1e4, np.float32),
    "square": DRAW.standard_normal((6, 6)).astype(np.float32),
}  # fmt: skip
MASK = "e = Expand(m, dims) w = Where(e, zero, low)"
HEAD = "g (bool[2,1,1,6] m, float[2,1,6,6] x) => (float[2,1,6,6] y)"


def test_a_mask_is_expanded_where_it_is_read() -> None:
    model = load(support.model(f"{HEAD} {{ {MASK} y = Add(x, w) }}", **ARRAYS))
    late = with_expansions_late(model)
    assert [node.op_type for node in late.graph] == ["Where", "Expand", "Add"]
    _same(model, late)


def test_attention_expands_a_mask_itself() -> None:
    """As programs compute it; ONNX Runtime asks for a row for each query."""
    proto = support.model(f"{HEAD} {{ {MASK} y = Attention(x, x, x, w) }}", opset=23, **ARRAYS)
    late = with_expansions_late(load(proto))
    assert [node.op_type for node in late.graph] == ["Where", "Attention"]
    feed = _feed()
    (expected,) = support.session(proto).run(None, feed)
    np.testing.assert_allclose(run_lowered(lower(late, host()), feed)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "w = Where(m, zero, low) y = Add(x, w)",  # nothing is expanded
        "e = Expand(m, dims) w = Where(e, x, low) y = Add(x, w)",  # an operand has elements of its own
        "e = Expand(m, dims) w = Where(e, square, low) y = Add(x, w)",  # so has a constant
        "n = Cast<to = 1>(m) e = Expand(n, dims) f = Expand(zero, dims) w = Sub(e, f) y = Add(x, w)",  # from other dims
    ],
)
def test_other_nodes_stay_where_they_are(body: str) -> None:
    model = load(support.model(f"{HEAD} {{ {body} }}", **ARRAYS))
    assert [node.op_type for node in with_expansions_late(model).graph] == [node.op_type for node in model.graph]


def _feed() -> dict[str, np.ndarray]:
    mask = np.array([1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0], bool).reshape(2, 1, 1, 6)
    return {"m": mask, "x": DRAW.standard_normal((2, 1, 6, 6)).astype(np.float32)}


def _same(model: ir.Model, other: ir.Model) -> None:
    feed = _feed()
    before, after = (support.session(to_proto(one)).run(None, feed)[0] for one in (model, other))
    np.testing.assert_allclose(after, before, rtol=1e-6)

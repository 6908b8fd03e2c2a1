"""Rows without keys, as the operators define them: Attention gives 0, a Softmax that is spelled out NaN.

Each case is compared with ONNX's reference and, where it runs the model, with ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.errors import NotLowered
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.kernels.targets import HERE
from tests.program.regions.running import run_lowered

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 2, 3, 5, 4
SHAPES = {2: (QUERIES, KEYS), 3: (HEADS, QUERIES, KEYS), 4: (BATCH, HEADS, QUERIES, KEYS)}


def _feeds() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = {"q": QUERIES, "k": KEYS, "v": KEYS}
    return {
        name: generator.standard_normal((BATCH, HEADS, count, SIZE)).astype(np.float32) for name, count in rows.items()
    }


def _mask(rank: int, kind: str) -> np.ndarray:
    """One row of every matrix is shut out, the next one but for one key."""
    open_ = np.ones(SHAPES[rank], bool)
    open_[..., 0, :] = False
    open_[..., 1, 1:] = False
    return open_ if kind == "bool" else np.where(open_, 0, -np.inf).astype(np.float32)


def _model(mask: np.ndarray, opset: int, attributes: str = "") -> onnx.ModelProto:
    kind = "bool" if mask.dtype == bool else "float"
    dims = ",".join(map(str, mask.shape))
    return support.model(
        f"""g (float[{BATCH},{HEADS},{QUERIES},{SIZE}] q, float[{BATCH},{HEADS},{KEYS},{SIZE}] k,
               float[{BATCH},{HEADS},{KEYS},{SIZE}] v, {kind}[{dims}] m)
            => (float[{BATCH},{HEADS},{QUERIES},{SIZE}] y) {{ y = Attention{attributes}(q, k, v, m) }}""",
        opset, 12,
    )  # fmt: skip


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("opset", [23, 24])
def test_attention_gives_zero_for_a_row_that_is_shut_out(opset: int, rank: int, kind: str, target: object) -> None:
    mask = _mask(rank, kind)
    proto, feeds = _model(mask, opset), {**_feeds(), "m": mask}
    lowered = lower(ir.from_proto(proto), target)  # type: ignore[arg-type]
    (found,) = run_lowered(lowered, feeds)
    assert (found[:, :, 0] == 0).all()
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    session = support.session(proto, optimized=True)
    np.testing.assert_allclose(found, session.run(None, feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_program_that_was_compared_on_other_masks_gives_zero_too() -> None:
    mask = np.zeros(SHAPES[2], bool)
    program = graphopt.compile(_model(mask, 23))
    assert not program.fallback
    assert (program.run(None, {**_feeds(), "m": mask})[0] == 0).all()


@pytest.mark.parametrize("where", ["Where(c, s, low)", "Add(s, m)"], ids=["where", "add"])
def test_a_softmax_of_minus_infinities_is_nan(where: str) -> None:
    """As it is for the operators that are written there; the passes may not make an Attention of it."""
    mask = "bool[3,5] c" if "Where" in where else "float[3,5] m"
    proto = support.model(
        f"""g (float[2,3,4] q, float[2,4,5] k, float[2,5,4] v, {mask}) => (float[2,3,4] y) {{
            s = MatMul(q, k) l = {where} p = Softmax<axis = -1>(l) y = MatMul(p, v)
        }}""",
        21, 10, **({"low": np.float32(-np.inf)} if "Where" in where else {}),
    )  # fmt: skip
    generator = np.random.default_rng(0)
    feeds = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in {"q": (2, 3, 4), "k": (2, 4, 5), "v": (2, 5, 4)}.items()
    }
    open_ = np.ones((3, 5), bool)
    open_[1] = False
    feeds |= {"c": open_} if "Where" in where else {"m": np.where(open_, 0, -np.inf).astype(np.float32)}
    found = graphopt.compile(proto).run(None, feeds)[0]
    assert np.isnan(found[:, 1]).all() and np.isfinite(found[:, [0, 2]]).all()
    session = support.session(proto, optimized=True)
    np.testing.assert_allclose(found, session.run(None, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attribute", ["left_window_size", "right_window_size"])
def test_attention_with_a_window(attribute: str) -> None:
    mask = np.ones(SHAPES[2], bool)
    proto = _model(mask, 24, "<scale = 0.5>")
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute(attribute, 1))
    proto.opset_import[0].version = 25  # whose text our parser may not know yet
    _holds_to_the_reference(proto, mask)


@pytest.mark.parametrize("keys", [1, 4])
def test_attention_with_a_mask_for_fewer_keys(keys: int) -> None:
    """ONNX fills it up with minus infinity, a mask for one key as well: it is not broadcast."""
    mask = np.ones((QUERIES, keys), bool)
    _holds_to_the_reference(_model(mask, 24), mask)


def _holds_to_the_reference(proto: onnx.ModelProto, mask: np.ndarray) -> None:
    feeds = {**_feeds(), "m": mask}
    (found,) = run_lowered(lower(ir.from_proto(proto), host()), feeds)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(QUERIES + 1, KEYS), (3, QUERIES, KEYS), (1, BATCH, HEADS, QUERIES, KEYS)])
def test_attention_with_a_mask_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(NotLowered, match=r"has a mask of \[.*5\], which does not fit scores of \[2, 2, 3, 5\]"):
        lower(ir.from_proto(_model(np.ones(shape, bool), 24)), host())


def test_attention_with_a_mask_of_integers() -> None:
    """ONNX adds them."""
    mask = np.arange(QUERIES * KEYS, dtype=np.int16).reshape(SHAPES[2]) % 3
    proto = _model(mask.astype(np.float32), 23)
    feeds = {**_feeds(), "m": mask.astype(np.float32)}
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    proto.graph.input[3].type.tensor_type.elem_type = onnx.TensorProto.INT16
    (found,) = run_lowered(lower(ir.from_proto(proto), host()), {**feeds, "m": mask})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("k", (BATCH, KEYS, SIZE), "has no 0 heads"), ("v", (BATCH, HEADS, KEYS + 1, SIZE), "do not fit one another")],
)
def test_attention_of_operands_that_do_not_fit_has_no_kernel(name: str, shape: tuple[int, ...], message: str) -> None:
    proto = _model(np.ones(SHAPES[2], bool), 23)
    value = next(one for one in proto.graph.input if one.name == name)
    value.CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    with pytest.raises(NotLowered, match=message):
        lower(ir.from_proto(proto), host())

"""Quantized operators of com.microsoft beside ONNX Runtime without optimizations."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from graphopt.program.expansion import expanded
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered


def compare(
    op: str, inputs: list[np.ndarray | None], tolerance: float = 0.0, known: bool = True, **attributes: object
) -> None:
    """One node whose first input alone is known only when it runs, or every one; the result's dims are inferred."""
    names = ["" if one is None else f"x{at}" for at, one in enumerate(inputs)]
    kind = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    given = helper.make_tensor_value_info("x0", kind, inputs[0].shape)
    result = helper.make_tensor_value_info("y", kind, None)
    later = list(zip(names, inputs, strict=True))[1:]
    feeds = {"x0": inputs[0]} | ({} if known else {name: one for name, one in later if one is not None})
    kept = [
        helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape, one.tobytes(), raw=True)
        for name, one in later
        if one is not None and known
    ]
    others = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in later
        if one is not None and not known
    ]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", [given, *others], [result], kept)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, ir_version=10, opset_imports=imports)
    session = support.session(proto, optimized=True)
    (wanted,) = session.run(None, feeds)
    (found,) = run_lowered(lower(expanded(ir.from_proto(proto)), host()), feeds)
    if tolerance:
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    else:
        assert int(np.abs(found.astype(int) - wanted.astype(int)).max()) <= 1, "a step beside, where it falls between"


# Of 8 bits ONNX Runtime takes no numbers as zero points.
@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "codes"), (4, "numbers"), (8, "none"), (8, "codes")])
@pytest.mark.parametrize(("rows", "depth", "block"), [((3,), 64, 32), ((2, 5), 40, 16), ((1,), 128, 128)])
def test_weights_of_few_bits(bits: int, zeros: str, rows: tuple[int, ...], depth: int, block: int) -> None:
    generator = np.random.default_rng(bits + depth)
    columns, blocks = 7, -(-depth // block)
    a = generator.standard_normal((*rows, depth)).astype(np.float32)
    packed = generator.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scales = (generator.random((columns, blocks)) * 0.1).astype(np.float32)
    zero = {
        "none": None, "numbers": (generator.random((columns, blocks)) * 9).astype(np.float32),
        "codes": generator.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8),
    }[zeros]  # fmt: skip
    inputs = [a, packed, scales] if zero is None else [a, packed, scales, zero]
    for known in (True, False):  # by the template, and by loops
        compare("MatMulNBits", inputs, 1e-4, known, K=depth, N=columns, bits=bits, block_size=block)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_functions_of_two_quantized_operands(op: str, kind: type) -> None:
    generator = np.random.default_rng(0)
    limits = np.iinfo(kind)
    a, b = (
        generator.integers(limits.min, limits.max, dims, endpoint=True).astype(kind) for dims in ((2, 3, 5), (3, 1))
    )
    scales = [np.array(one, np.float32) for one in (0.03, 0.05, 0.11)]
    zeros = [np.array(one, kind) for one in (3, 7, 11)]
    compare(op, [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("per_column", [False, True])
def test_a_recurrent_layer_of_bytes(direction: str, kind: type, per_column: bool) -> None:
    """One sequence: the states of several ONNX Runtime quantizes in groups that follow its threads."""
    generator = np.random.default_rng(0)
    count, hidden, inputs = 2 if direction == "bidirectional" else 1, 9, 6
    limits = np.iinfo(kind)

    def bytes_of(depth: int) -> list[np.ndarray]:
        weights = generator.integers(limits.min, limits.max, (count, depth, 4 * hidden), endpoint=True).astype(kind)
        numbers = (count, 4 * hidden) if per_column else (count,)
        scales = (0.005 + 0.01 * generator.random(numbers)).astype(np.float32)
        return [weights, scales, np.full(numbers, 0 if kind is np.int8 else 128, kind)]

    w, r = bytes_of(inputs), bytes_of(hidden)
    bias = generator.standard_normal((count, 8 * hidden)).astype(np.float32)
    start = [generator.standard_normal((count, 1, hidden)).astype(np.float32) for _ in range(2)]
    x = generator.standard_normal((7, 1, inputs)).astype(np.float32)
    given = [x, w[0], r[0], bias, None, *start, None, w[1], w[2], r[1], r[2]]
    for known in (True, False):  # bytes that are packed when the program is made, and by the run
        compare("DynamicQuantizeLSTM", given, 1e-4, known, hidden_size=hidden, direction=direction)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
def test_gemm_of_bytes(transposed: int, per_channel: bool) -> None:
    generator = np.random.default_rng(transposed)
    a, b = generator.integers(0, 256, (5, 24)).astype(np.uint8), generator.integers(-128, 128, (24, 7)).astype(np.int8)
    scale = (generator.random(7 if per_channel else ()) * 0.01 + 0.001).astype(np.float32)
    bias = generator.integers(-900, 900, 7).astype(np.int32)
    zeros = np.array(117, np.uint8), np.zeros(scale.shape, np.int8), np.array(121, np.uint8)
    given = [a, np.array(0.017, np.float32), zeros[0], b.T.copy() if transposed else b, scale, zeros[1], bias,
             np.array(0.11, np.float32), zeros[2]]  # fmt: skip
    compare("QGemm", given, transB=transposed)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 3, 4, 4)])
def test_inverses(shape: tuple[int, ...]) -> None:
    """Ours is relative to the largest element of well-conditioned matrices, with a row that has to be exchanged."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32) + 3 * np.eye(shape[-1], dtype=np.float32)
    compare("Inverse", [x[..., ::-1, :].copy()], 1e-5)

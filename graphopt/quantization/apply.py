"""A model with nodes in the forms that were chosen, written by ONNX Runtime's quantizers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantizationMode, QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from graphopt.quantization.calibration import quiet
from graphopt.quantization.formats import BITS, Candidate, Choice, RangeName
from graphopt.quantization.graph import BLOCK, array_of

Ranges = Mapping[RangeName, TensorsData]


def quantized(
    proto: onnx.ModelProto, candidates: Sequence[Candidate], choice: Choice, ranges: Ranges,
    carriers: Collection[str] = (),
) -> onnx.ModelProto:  # fmt: skip
    """A copy in which these nodes are quantized, and `carriers` between static ones compute in bytes.

    Quantizers append: nodes stand in an order that ONNX Runtime and `load` accept, and onnx does not.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    by_format: dict[str, list[Candidate]] = {}
    for one in candidates:
        if one.name in choice:
            by_format.setdefault(choice[one.name].format, []).append(one)
    static = by_format.pop("static", [])
    _gemms_as_products(made, {one.name for group in by_format.values() for one in group})
    with quiet():
        for kind, group in by_format.items():
            names = [one.name for one in group]
            made = _dynamic(made, names) if kind == "dynamic" else _in_blocks(made, names, BITS[kind])  # type: ignore[index]
        if static:
            made = _static(made, static, choice, ranges, carriers)
    return made


def _gemms_as_products(proto: onnx.ModelProto, names: Collection[str]) -> None:
    """Gemm(x, w, bias)  -->  Add(MatMul(x, w), bias): the other formats are of MatMul alone."""
    graph = proto.graph
    weights = {one.name: one for one in graph.initializer}
    for node in [one for one in graph.node if one.op_type == "Gemm" and one.name in names]:
        if any(one.name == "transB" and one.i for one in node.attribute):
            turned = f"{node.input[1]}:turned"
            if turned not in weights:
                array = np.ascontiguousarray(array_of(weights[node.input[1]]).T)
                graph.initializer.append(numpy_helper.from_array(array, turned))
                weights[turned] = graph.initializer[-1]
            node.input[1] = turned
        bias = node.input[2] if len(node.input) > 2 else ""
        node.op_type = "MatMul"
        del node.attribute[:], node.input[2:]
        if bias:
            result, place = node.output[0], list(graph.node).index(node)
            node.output[0] = f"{result}:product"
            added = helper.make_node("Add", [node.output[0], bias], [result], f"{node.name}:bias")
            graph.node.insert(place + 1, added)
    used = {name for node in graph.node for name in node.input}
    for one in [one for one in graph.initializer if one.name not in used and f"{one.name}:turned" in weights]:
        graph.initializer.remove(one)


def _dynamic(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """DynamicQuantizeLinear and MatMulInteger; the weights with a scale for each column."""
    quantizer: Any = ONNXQuantizer(
        proto, True, False, QuantizationMode.IntegerOps, False, QuantType.QInt8, QuantType.QUInt8, None, list(names),
        [], ["MatMul"], {"MatMulConstBOnly": True},
    )  # fmt: skip
    made: onnx.ModelProto = quantizer.quantize_model()
    return made


def _in_blocks(proto: onnx.ModelProto, names: Sequence[str], bits: int) -> onnx.ModelProto:
    """MatMulNBits: blocks of weights with a scale and a zero point each."""
    others = [node.name for node in proto.graph.node if node.name not in names]
    quantizer: Any = MatMulNBitsQuantizer(
        proto, bits=bits, block_size=BLOCK, is_symmetric=False, nodes_to_exclude=others,
        op_types_to_quantize=("MatMul",),
    )  # fmt: skip
    quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


def _static(
    proto: onnx.ModelProto, group: Sequence[Candidate], choice: Choice, ranges: Ranges, carriers: Collection[str]
) -> onnx.ModelProto:
    """QuantizeLinear and DequantizeLinear around the nodes: uint8 activations, int8 weights with a scale a channel."""
    names = {name for one in group for name in (one.name, one.tail) if name is not None} | set(carriers)
    kinds = sorted({node.op_type for node in proto.graph.node if node.name in names})
    quantizer: Any = QDQQuantizer(
        proto, True, False, QuantType.QInt8, QuantType.QUInt8, _joined(group, choice, ranges), sorted(names), [], kinds,
        {},
    )  # fmt: skip
    made: onnx.ModelProto = quantizer.quantize_model()
    return made


def _joined(group: Sequence[Candidate], choice: Choice, ranges: Ranges) -> TensorsData:
    """The range of each tensor by the calibration of the node that reads it, or else of the one that gives it."""
    first = next(iter(ranges.values()))
    data = {name: first[name] for name in first}
    for names in ("y", "x"):
        for one in group:
            method, name = choice[one.name].ranges, getattr(one, names)
            if method is not None and name in ranges[method]:
                data[name] = ranges[method][name]
    return TensorsData(first.calibration_method, data)

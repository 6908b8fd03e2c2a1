"""Evaluating nodes on constant inputs: NumPy for what it does exactly, ONNX Runtime or the reference for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.lazy import Lazy
from graphopt.model import constants, nodes
from graphopt.model.inside import attribute_inside
from graphopt.model.operators.arrays import MOST, Arrays, stored_elements
from graphopt.model.operators.table import operator_of
from graphopt.model.schema import Operand, results_of

if TYPE_CHECKING:
    from onnx import reference
else:  # the schemas of all operators, for what ONNX Runtime cannot run
    reference = Lazy("onnx.reference")

_KNOWN_TO_INFERENCE = 64  # elements; what tells of sizes is small


def evaluate(node: ir.Node, inputs: Arrays, opset: int) -> tuple[np.ndarray, ...] | None:
    """The outputs of `node`, or None when nothing here can compute them.

    NumPy computes only operators whose result is defined exactly (data movement, integers, single IEEE operations),
    those with `Operator.evaluate`. Everything with a rounding of its own is left to ONNX Runtime, which will also run
    the original.
    """
    operator = operator_of(node) if opset >= 7 else None
    if operator is not None and operator.evaluate is not None:
        try:
            with np.errstate(all="ignore"):
                result = operator.evaluate(node, inputs, opset)
        except (ValueError, IndexError, TypeError):
            result = None  # malformed for NumPy; ONNX Runtime decides
        if result is not None:
            return (result,)
    present = [array for array in inputs if array is not None]
    given = sum(array.size for array in present)
    if given > MOST and given > sum(stored_elements(array) for array in present):
        return None  # would have to write out what repeats
    if not _may_run(node, inputs, opset):
        return None
    pairs = zip(node.inputs, inputs, strict=True)
    known = {value: array for value, array in pairs if value is not None and array is not None}
    outputs = [output for index, output in enumerate(node.outputs) if _is_wanted(output) or index == 0]
    for engine in (_in_onnxruntime, _in_reference):
        results = _run([node], known, outputs, opset, engine)
        if results is not None:
            by_output = dict(zip(outputs, results, strict=True))
            return tuple(by_output.get(output, np.zeros(0)) for output in node.outputs)
    return None


def _may_run(node: ir.Node, inputs: Arrays, opset: int) -> bool:
    """Whether the operator's schema accepts the node and its result is not too large; what it refuses ends engines."""
    operands: list[Operand | None] = []
    for array, value in zip(inputs, node.inputs, strict=True):
        if array is None:
            operands.append(None)
            continue
        kind = _kind(value, array)
        data = constants.to_proto(array, kind, "") if array.size <= _KNOWN_TO_INFERENCE else None
        operands.append(Operand(onnx.helper.make_tensor_type_proto(int(kind), array.shape), data, array.ndim))
    attributes = [ir.to_proto(attribute_inside(attribute)) for attribute in node.attributes.values()]
    results = results_of(node, opset, operands, attributes)
    if results is None:
        return False
    largest = max((_elements(kind) for kind in results if kind is not None), default=0)
    return largest <= max(MOST, sum(stored_elements(array) for array in inputs if array is not None))


def _elements(kind: onnx.TypeProto) -> int:
    return math.prod(max(dim.dim_value, 1) for dim in kind.tensor_type.shape.dim)


def evaluate_together(
    chain: Sequence[ir.Node], known: Mapping[ir.Value, np.ndarray], outputs: Sequence[ir.Value], opset: int
) -> tuple[np.ndarray, ...] | None:
    """The values that several nodes compute, in one run of ONNX Runtime; None when it cannot.

    For half precision, where ONNX Runtime keeps float32 between operators that it has no half kernels for: node by
    node, every intermediate result would be rounded once more than in the original.
    """
    return _run(chain, known, outputs, opset, _in_onnxruntime)


def _run(
    chain: Sequence[ir.Node], known: Mapping[ir.Value, np.ndarray], outputs: Sequence[ir.Value], opset: int,
    engine: Callable[[onnx.ModelProto], Sequence[object]],
) -> tuple[np.ndarray, ...] | None:  # fmt: skip
    """The outputs of a chain by an engine; None where it cannot say, or they are no tensors."""
    try:
        results = engine(_model(chain, known, outputs, opset))
    except Exception:  # any failure means only that this evaluator cannot say; the engines' errors share no base class
        return None
    arrays = tuple(result for result in results if isinstance(result, np.ndarray))
    return arrays if len(arrays) == len(results) else None


def _model(
    chain: Sequence[ir.Node], known: Mapping[ir.Value, np.ndarray], outputs: Sequence[ir.Value], opset: int
) -> onnx.ModelProto:
    graph = onnx.GraphProto(name="fold")
    names = {value: f"v{index}" for index, value in enumerate(known)}
    for value, array in known.items():
        graph.initializer.append(constants.to_proto(array, _kind(value, array), names[value]))
    for node in chain:
        proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        proto.input.extend("" if value is None else names.get(value, "") for value in node.inputs)
        for output in node.outputs:
            names[output] = f"v{len(names)}" if _is_wanted(output) or output in outputs else ""
            proto.output.append(names[output])
        proto.attribute.extend(ir.to_proto(attribute_inside(attribute)) for attribute in node.attributes.values())
        graph.node.append(proto)
    graph.output.extend(onnx.ValueInfoProto(name=names[output]) for output in outputs)
    imports = {"": 17} | {node.domain: opset for node in chain}
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return onnx.helper.make_model(graph, opset_imports=versions, ir_version=10)


def _is_wanted(output: ir.Value) -> bool:
    return bool(output.name) or nodes.is_used(output)


def _kind(value: ir.Value | None, array: np.ndarray) -> ir.DataType:
    if value is not None and value.dtype is not None:
        return value.dtype
    return ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)


def _in_onnxruntime(model: onnx.ModelProto) -> Sequence[object]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {}))


def _in_reference(model: onnx.ModelProto) -> Sequence[object]:
    return list(reference.ReferenceEvaluator(model).run(None, {}))

"""Inference through the operator's own ONNX schema, one node at a time (about 10 us a call)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from graphopt.model import content, dims, nodes
from graphopt.model.going import fixed_trips
from graphopt.model.known import UNKNOWN, Knowledge, Known
from graphopt.model.maps import type_of, type_proto


class Operand(NamedTuple):
    """What the schemas are told of an operand."""

    type: onnx.TypeProto
    data: onnx.TensorProto | None  # small ones, that tell of sizes
    rank: int | None


def infer(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """What the schema says of each output; unknown where it says nothing or the node is malformed."""
    if nodes.has_subgraphs(node):
        return _with_subgraphs(node, facts)
    names: dict[str, dims.Dim] = {}
    operands: list[Operand | None] = []
    for value in node.inputs:
        if value is None:
            operands.append(None)
            continue
        known = facts.known(value)
        kind = told_type(known, names)
        if kind is None:
            return _unknown(node, facts)
        operands.append(Operand(kind, _data(value, known, facts), None if known.shape is None else len(known.shape)))
    attributes = [ir.serde.serialize_attribute(one) for one in node.attributes.values() if not one.is_ref()]
    version = facts.opset(node, node.domain)
    results = results_of(node, version, operands, attributes, facts.ir_version or 8)
    return _unknown(node, facts) if results is None else tuple(_known(kind, names, facts) for kind in results)


def _data(value: ir.Value, known: Known, facts: Knowledge) -> onnx.TensorProto | None:
    array = None if known.content is None or known.dtype is None else content.to_array(known.content, known.dtype)
    if array is not None and known.dtype is not None:
        return ir.serde.serialize_tensor(ir.Tensor(array, dtype=known.dtype))
    if known.shape is not None and known.dtype == ir.DataType.FLOAT:
        tensor = facts.tensor(value)
        if tensor is not None and tensor.size <= 16:  # Resize scales and the like
            return ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=known.dtype))
    return None


def results_of(
    node: ir.Node, version: int, operands: Sequence[Operand | None], attributes: Sequence[onnx.AttributeProto],
    ir_version: int = 8,
) -> tuple[onnx.TypeProto | None, ...] | None:  # fmt: skip
    """The types of the outputs by the schema of a version, None for one of which it says nothing.

    None instead where the schema refuses the node, or axes count from the back and the rank is not known.
    """
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=attributes)
    named = {f"i{index}": operand for index, operand in enumerate(operands) if operand is not None}
    proto.input.extend(f"i{index}" if f"i{index}" in named else "" for index in range(len(operands)))
    for index, output in enumerate(node.outputs):
        proto.output.append(f"o{index}" if output.name or nodes.is_used(output) or index == 0 else "")
    if version < 11 and not _count_axes_from_the_front(proto, operands[0] if operands else None):
        return None
    types = {name: operand.type for name, operand in named.items()}
    data = {name: operand.data for name, operand in named.items() if operand.data is not None}
    imports = [onnx.helper.make_opsetid(node.domain, version)]
    try:
        schema = _schema(node, version)
        results = infer_node_outputs(schema, proto, types, data, None, imports, ir_version)
    except (InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError, RuntimeError, ValueError, KeyError):
        return None
    return tuple(results.get(name) for name in proto.output)


def _schema(node: ir.Node, version: int) -> onnx.defs.OpSchema:
    """That of a version, or the newest where the operator is younger: ONNX Runtime writes LayerNormalization anywhere.

    Raises SchemaError for an operator that ONNX lacks.
    """
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return onnx.defs.get_schema(node.op_type, node.domain)


def _count_axes_from_the_front(proto: onnx.NodeProto, first: Operand | None) -> bool:
    """Rewrite negative axes; before opset 11 the schemas take them for positive ones, while ONNX Runtime runs them."""
    for attribute in proto.attribute:
        if attribute.name not in ("axes", "axis"):
            continue
        axes = list(attribute.ints) if attribute.name == "axes" else [attribute.i]
        if all(axis >= 0 for axis in axes):
            continue
        if first is None or first.rank is None:
            return False
        rank = first.rank + (len(axes) if proto.op_type == "Unsqueeze" else 0)
        axes = [axis % max(rank, 1) for axis in axes]
        if attribute.name == "axes":
            attribute.ints[:] = axes
        else:
            attribute.i = axes[0]
    return True


def _with_subgraphs(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """If: what both branches agree on. Loop and Scan: what the file declares, else what operands and body tell."""
    if node.op_type == "Scan" and facts.opset(node) >= 9:
        return _of_scan(node, facts)
    if node.op_type == "Loop":
        return _of_loop(node, facts)
    if node.op_type != "If":
        return tuple(facts.declared(output) for output in node.outputs)
    branches = list(nodes.subgraphs(node))
    results = []
    for index in range(len(node.outputs)):
        candidates = [facts.known(branch.outputs[index]) for branch in branches]
        first = candidates[0]
        if all(other.type == first.type for other in candidates):
            shape = first.shape
            if any(other.shape != shape for other in candidates):
                ranks = {None if other.shape is None else len(other.shape) for other in candidates}
                shape = None
                if len(ranks) == 1 and None not in ranks:
                    columns = zip(*(other.shape or () for other in candidates), strict=True)
                    shape = tuple(c[0] if all(d == c[0] for d in c) else facts.fresh() for c in columns)
            results.append(Known(first.type, shape, None))
        else:
            results.append(UNKNOWN)
    return tuple(results)


def _of_scan(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """States keep the dims that they start with; what is collected has one row for each row that is read."""
    (body,) = nodes.subgraphs(node)
    count = len(node.inputs) - nodes.int_attribute(node, "num_scan_inputs", 1)
    axes = [nodes.ints_attribute(node, name, ()) for name in ("scan_input_axes", "scan_output_axes")]
    moved = any(axis for listed in axes for axis in listed)
    rows = facts.shape(nodes.given_input(node, count))
    results = []
    for at, output in enumerate(node.outputs):
        told, inner = facts.declared(output), facts.known(body.outputs[at])
        if told.shape is not None:
            results.append(told)
        elif at < count:
            start = facts.known(nodes.given_input(node, at))
            results.append(Known(start.type, start.shape, None))
        elif inner.shape is None or rows is None or moved:
            results.append(Known(inner.type, None, None))
        else:
            results.append(Known(inner.type, (rows[0], *inner.shape), None))
    return tuple(results)


def _of_loop(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """States whose dims the body keeps have those that they start with; what is collected has a row for each step."""
    (body,) = nodes.subgraphs(node)
    count = len(node.inputs) - 2
    rows: dims.Dim | None = fixed_trips(node, facts)
    results = []
    for at, output in enumerate(node.outputs):
        told = facts.declared(output)
        inner = facts.known(body.outputs[1 + at]) if 1 + at < len(body.outputs) else UNKNOWN
        if told.shape is not None or inner.shape is None or not isinstance(inner.type, ir.TensorType):
            results.append(told)
        elif at >= count:
            rows = facts.fresh() if rows is None else rows
            results.append(Known(inner.type, (rows, *inner.shape), None))
        else:
            start = nodes.input_at(node, 2 + at)
            known = UNKNOWN if start is None else facts.known(start)
            kept = known.shape is not None and dims.same(known.shape, inner.shape)
            results.append(Known(inner.type, known.shape, None) if kept else told)
    return tuple(results)


def _unknown(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """Only the declared type survives: a declared shape is not trusted for an operator of the standard."""
    return tuple(Known(output.type, None, None) for output in node.outputs)


def told_type(known: Known, names: dict[str, dims.Dim]) -> onnx.TypeProto | None:
    """What a schema is told of a value; symbols go by their names, which `names` then holds. None for no type."""
    if known.type is None:
        return None
    result = type_proto(known.type)
    if isinstance(known.type, ir.TensorType) and known.shape is not None:
        result.tensor_type.shape.SetInParent()
        for dim in known.shape:
            target = result.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                target.dim_value = dim
            else:
                target.dim_param = str(dim)
                names[target.dim_param] = dim
    return result


def _known(proto: onnx.TypeProto | None, names: dict[str, dims.Dim], facts: Knowledge) -> Known:
    if proto is None or proto.WhichOneof("value") is None:
        return UNKNOWN
    kind = type_of(proto)
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return Known(kind, None, None)
    shape: list[dims.Dim] = []
    for dim in proto.tensor_type.shape.dim:
        which = dim.WhichOneof("value")
        if which == "dim_value":
            shape.append(dim.dim_value if dim.dim_value >= 0 else facts.fresh())
        elif which == "dim_param" and dim.dim_param in names:
            shape.append(names[dim.dim_param])
        else:
            shape.append(facts.fresh())
    return Known(kind, tuple(shape), None)


def least_outputs(node: ir.Node, opset: int) -> int:
    """How many outputs the operator must have.

    A Split's outputs say how it splits, so none may go. A BatchNormalization that trains needs all of them, and before
    opset 14 it is their number that says whether it trains.
    """
    if node.op_type == "Split":
        return len(node.outputs)
    if node.op_type == "BatchNormalization" and (opset < 14 or nodes.int_attribute(node, "training_mode", 0)):
        return len(node.outputs)
    try:
        return int(onnx.defs.get_schema(node.op_type, opset, "").min_output)
    except onnx.defs.SchemaError:
        return len(node.outputs)

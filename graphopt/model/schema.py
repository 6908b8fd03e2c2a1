"""Inference through the operator's own ONNX schema, one node at a time (about 10 us a call)."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from graphopt.model import content, dims, nodes
from graphopt.model.known import UNKNOWN, Knowledge, Known
from graphopt.model.maps import type_of, type_proto


def infer(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """What the schema says of each output; unknown where it says nothing or the node is malformed."""
    if nodes.has_subgraphs(node):
        return _with_subgraphs(node, facts)
    version = facts.opset(node)
    names: dict[str, dims.Dim] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    for index, value in enumerate(node.inputs):
        name = "" if value is None else f"i{index}"
        proto.input.append(name)
        if value is None:
            continue
        known = facts.known(value)
        kind = _type_proto(known, names)
        if kind is None:
            return _unknown(node, facts)
        types[name] = kind
        array = None if known.content is None or known.dtype is None else content.to_array(known.content, known.dtype)
        if array is not None and known.dtype is not None:
            data[name] = ir.serde.serialize_tensor(ir.Tensor(array, dtype=known.dtype, name=name))
        elif known.shape is not None and known.dtype == ir.DataType.FLOAT:
            tensor = facts.tensor(value)
            if tensor is not None and tensor.size <= 16:  # Resize scales and the like
                data[name] = ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), name=name))
    for index, output in enumerate(node.outputs):
        proto.output.append(f"o{index}" if output.name or nodes.is_used(output) or index == 0 else "")
    for attribute in node.attributes.values():
        if not attribute.is_ref():
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
    if version < 11 and not _count_axes_from_the_front(node, proto, facts):
        return _unknown(node, facts)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        results = infer_node_outputs(
            schema, proto, types, data, None, [onnx.helper.make_opsetid(node.domain, version)], facts.ir_version or 8
        )
    except (InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError, RuntimeError, ValueError, KeyError):
        return _unknown(node, facts)
    return tuple(_known(results.get(name), names, facts) for name in proto.output)


def _count_axes_from_the_front(node: ir.Node, proto: onnx.NodeProto, facts: Knowledge) -> bool:
    """Rewrite negative axes; before opset 11 the schemas take them for positive ones, while ONNX Runtime runs them."""
    for attribute in proto.attribute:
        if attribute.name not in ("axes", "axis"):
            continue
        axes = list(attribute.ints) if attribute.name == "axes" else [attribute.i]
        if all(axis >= 0 for axis in axes):
            continue
        rank = None if node.inputs[0] is None else facts.rank(node.inputs[0])
        if rank is None:
            return False
        if node.op_type == "Unsqueeze":
            rank += len(axes)
        axes = [axis % max(rank, 1) for axis in axes]
        if attribute.name == "axes":
            attribute.ints[:] = axes
        else:
            attribute.i = axes[0]
    return True


def _with_subgraphs(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """If: what both branches agree on. Loop and Scan: what the file declares."""
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


def _unknown(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """Only the declared type survives: a declared shape is not trusted for an operator of the standard."""
    return tuple(Known(output.type, None, None) for output in node.outputs)


def _type_proto(known: Known, names: dict[str, dims.Dim]) -> onnx.TypeProto | None:
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

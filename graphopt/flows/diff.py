"""What differs between two models as they are written: nodes are matched by the names of the values they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from graphopt.flows.records.models import DiffRecord, NodeChange, NodeLine, TensorLine, TypeCount
from graphopt.model import nodes
from graphopt.model.signature import signature_of

NUMBERS = 4  # of a tensor in an attribute that are shown
LONGEST = 60  # characters of an attribute's value


def difference(first: ir.Model, second: ir.Model, name_a: str, name_b: str) -> DiffRecord:
    """Everything that differs; all lists in the order of the model they speak of."""
    only_a = [node for node, other in _partners(first, second) if other is None]
    only_b = [node for node, other in _partners(second, first) if other is None]
    changed = []
    for node, other in _partners(first, second):
        changes = () if other is None else _changes(node, other)
        if other is not None and changes:
            changed.append(NodeChange(_outputs(node)[0], node.op_type, other.op_type, changes))
    signature = signature_of(first).differences(signature_of(second))
    header = _header(first, second)
    removed, added, modified = _initializers(first, second)
    everything = (signature, header, only_a, only_b, changed, removed, added, modified)
    return DiffRecord(
        a=name_a,
        b=name_b,
        identical=not any(everything),
        signature=signature,
        header=header,
        types=_types(first, second),
        only_in_a=tuple(_line(node) for node in only_a),
        only_in_b=tuple(_line(node) for node in only_b),
        changed=tuple(changed),
        initializers_removed=removed,
        initializers_added=added,
        initializers_changed=modified,
    )


def _graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph]]:
    """Every graph with a name for its place: subgraphs are found by the value of the node that holds them."""
    pending = [("", model.graph)]
    pending.extend((f"function {'::'.join(map(str, key))}", item.graph) for key, item in model.functions.items())
    while pending:
        place, graph = pending.pop(0)
        yield place, graph
        for node in graph:
            for number, inner in enumerate(nodes.subgraphs(node)):
                pending.append((f"{place}/{_outputs(node)[0]}#{number}", inner))


def _partners(model: ir.Model, other: ir.Model) -> Iterator[tuple[ir.Node, ir.Node | None]]:
    """Each node with the node of the other model that computes one of its values, if any does."""
    theirs = {(place, name): node for place, graph in _graphs(other) for node in graph for name in _outputs(node)}
    for place, graph in _graphs(model):
        for node in graph:
            yield node, next((theirs[place, name] for name in _outputs(node) if (place, name) in theirs), None)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    for _, graph in _graphs(model):
        yield from graph


def _outputs(node: ir.Node) -> tuple[str, ...]:
    """The names of the node's values; its own name where it computes nothing that has one."""
    return tuple(output.name for output in node.outputs if output.name) or (node.name or "",)


def _line(node: ir.Node) -> NodeLine:
    return NodeLine(_outputs(node), node.op_type, node.name or "")


def _changes(first: ir.Node, second: ir.Node) -> tuple[str, ...]:
    """How two nodes that compute the same value differ."""
    found = []
    if (first.domain, first.op_type) != (second.domain, second.op_type):
        found.append(f"operator {_operator(first)} -> {_operator(second)}")
    for position in range(max(len(first.inputs), len(second.inputs))):
        before, after = _input(first, position), _input(second, position)
        if before != after:
            found.append(f"input {position} {before} -> {after}")
    if _outputs(first) != _outputs(second):
        found.append(f"outputs {', '.join(_outputs(first))} -> {', '.join(_outputs(second))}")
    for name in sorted({*first.attributes, *second.attributes}):
        one, other = first.attributes.get(name), second.attributes.get(name)
        before, after = _attribute(one), _attribute(other)
        if before != after or not _same_tensors(one, other):
            found.append(f"{name} {_short(before)} -> {_short(after)}")
    return tuple(found)


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _input(node: ir.Node, position: int) -> str:
    if position >= len(node.inputs):
        return "none"
    value = node.inputs[position]
    return "none" if value is None else f"'{value.name}'"


def _attribute(attribute: ir.Attr | None) -> str:
    """The value as text; tensors with their first numbers, graphs with the names of what they take and give."""
    if attribute is None:
        return "not given"
    if attribute.is_ref():
        return f"the function's {attribute.ref_attr_name}"
    if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
        return "; ".join(
            f"{_tensor_type(tensor)} {tensor.numpy().reshape(-1)[:NUMBERS].tolist()}" for tensor in _held(attribute)
        )
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        graphs = [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()
        return "; ".join(f"graph ({_names(graph.inputs)}) => ({_names(graph.outputs)})" for graph in graphs)
    return str(attribute.value)


def _held(attribute: ir.Attr | None) -> tuple[ir.TensorProtocol, ...]:
    """The tensors in an attribute."""
    if attribute is None or attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.TENSOR:
        return (attribute.as_tensor(),)
    return tuple(attribute.as_tensors()) if attribute.type == ir.AttributeType.TENSORS else ()


def _same_tensors(one: ir.Attr | None, other: ir.Attr | None) -> bool:
    left, right = _held(one), _held(other)
    return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))


def _names(values: Iterable[ir.Value]) -> str:
    return ", ".join(value.name or "" for value in values)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _tensor_type(tensor: ir.TensorProtocol) -> str:
    return f"{str(tensor.dtype).lower()}[{','.join(str(dim) for dim in tensor.shape.numpy())}]"


def _header(first: ir.Model, second: ir.Model) -> tuple[str, ...]:
    found = []
    if first.ir_version != second.ir_version:
        found.append(f"IR version {first.ir_version} -> {second.ir_version}")
    one, other = first.graph.opset_imports, second.graph.opset_imports
    for domain in sorted({*one, *other}):
        if one.get(domain) != other.get(domain):
            before, after = one.get(domain, "not imported"), other.get(domain, "not imported")
            found.append(f"opset of {domain or 'ai.onnx'} {before} -> {after}")
    mine, theirs = ({"::".join(map(str, key)) for key in model.functions} for model in (first, second))
    found.extend(f"function {name} only in A" for name in sorted(mine - theirs))
    found.extend(f"function {name} only in B" for name in sorted(theirs - mine))
    if dict(first.metadata_props) != dict(second.metadata_props):
        found.append("the model's metadata differ")
    return tuple(found)


def _types(first: ir.Model, second: ir.Model) -> tuple[TypeCount, ...]:
    one, other = (Counter(node.op_type for node in _nodes(model)) for model in (first, second))
    return tuple(TypeCount(kind, one[kind], other[kind]) for kind in sorted({*one, *other}) if one[kind] != other[kind])


def _tensors(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    return {
        f"{place}/{name}" if place else name: value.const_value
        for place, graph in _graphs(model)
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }


def _initializers(
    first: ir.Model, second: ir.Model
) -> tuple[tuple[TensorLine, ...], tuple[TensorLine, ...], tuple[TensorLine, ...]]:
    """Removed, added and changed."""
    one, other = _tensors(first), _tensors(second)
    removed = tuple(_tensor_line(name, tensor) for name, tensor in one.items() if name not in other)
    added = tuple(_tensor_line(name, tensor) for name, tensor in other.items() if name not in one)
    changed = tuple(
        _tensor_line(name, other[name])
        for name, tensor in one.items()
        if name in other and not _same(tensor, other[name])
    )
    return removed, added, changed


def _tensor_line(name: str, tensor: ir.TensorProtocol) -> TensorLine:
    return TensorLine(name, _tensor_type(tensor), tensor.nbytes)


def _same(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if one.dtype != other.dtype or list(one.shape.numpy()) != list(other.shape.numpy()):
        return False
    left, right = one.numpy(), other.numpy()
    if one.dtype == ir.DataType.STRING:
        return bool(np.array_equal(left, right))
    return bool(np.array_equal(_bits(left), _bits(right)))


def _bits(array: np.ndarray) -> np.ndarray:
    """The bytes, so that NaN equals NaN and -0 differs from 0."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

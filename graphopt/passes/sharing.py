"""Computing once: common subexpressions and equal initializers."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence

import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.operators.table import COMMUTATIVE
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone

SAMPLE = 4096  # elements that decide whether two large tensors are worth comparing
LARGE = 1 << 20  # bytes
FREE_TO_READ = 64 << 20  # bytes of large weights that are read without a sign that they repeat
FEW = 3  # large weights of one shape that are always compared: tied embeddings come in twos and threes
TELLING = 8  # elements; equal vectors of fewer are no sign of a repeated layer


def merge_common_subexpressions(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """y1 = f(x), y2 = f(x)  -->  y1 for both; Add(a, b) equals Add(b, a).

    Inside a subgraph, also what an outer graph has computed before. Leaves alone: random and unknown custom operators,
    nodes with subgraphs, two graph outputs (each must keep its name), and what a memory budget computes again.
    """
    if not worklist:
        return
    for graph in (editor.model.graph, *(function.graph for function in editor.model.functions.values())):
        _merge_in(editor, graph, [])


def _merge_in(editor: Editor, graph: ir.Graph, outer: list[dict[Hashable, ir.Node]]) -> None:
    table: dict[Hashable, ir.Node] = {}
    scopes = [*outer, table]
    for node in list(graph):
        if node.graph is None or editor.finished:
            continue
        for inner in nodes.subgraphs(node):
            _merge_in(editor, inner, scopes)
        key = _key(editor, node)
        if key is None:
            continue
        first = next((scope[key] for scope in reversed(scopes) if key in scope), None)
        if first is None or first.graph is None:  # none yet, or swept away since
            table[key] = node
        elif not _merge(editor, node, first):
            table.setdefault(key, node)


def why_not_merged(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each node: it must not be merged, has no twin, or is a graph output beside its twin."""
    wanted = set(listed)
    found: dict[ir.Node, LeftAlone] = {}
    for graph in (editor.model.graph, *(function.graph for function in editor.model.functions.values())):
        for node, twin, alike in _twins(editor, graph, []):
            if node not in wanted:
                continue
            if twin is not None:
                reason = f"{nodes.describe(twin)} computes the same, but both results have names that must stay"
                found[node] = LeftAlone(reason, True)
            elif nodes.has_subgraphs(node):
                found[node] = LeftAlone("it holds a graph", False)
            elif not editor.facts.is_pure(node):
                found[node] = LeftAlone("it may give another result in each run", False)
            elif nodes.is_kept_apart(node):
                found[node] = LeftAlone("it computes a value again or in tiles on purpose, to save memory", False)
            elif alike is not None:
                reason = f"{nodes.describe(alike)} reads the same, but the attributes differ"
                found[node] = LeftAlone(reason, False)
            else:
                found[node] = LeftAlone("nothing before it computes the same", False)
    return found


def _twins(
    editor: Editor, graph: ir.Graph, outer: list[dict[Hashable, ir.Node]]
) -> Iterator[tuple[ir.Node, ir.Node | None, ir.Node | None]]:
    """Each node with an earlier one that computes the same, and one that does so on the same inputs, if there are."""
    table: dict[Hashable, ir.Node] = {}
    scopes = [*outer, table]
    readers: dict[Hashable, ir.Node] = {}
    for node in graph:
        for inner in nodes.subgraphs(node):
            yield from _twins(editor, inner, scopes)
        key = _key(editor, node)
        inputs = (node.domain, node.op_type, tuple(node.inputs))
        twin = None if key is None else next((scope[key] for scope in scopes if key in scope), None)
        yield node, twin, readers.get(inputs)
        readers.setdefault(inputs, node)
        if key is not None:
            table.setdefault(key, node)


def _key(editor: Editor, node: ir.Node) -> Hashable | None:
    """Equal for nodes that compute the same; None for nodes that must not be merged."""
    if nodes.has_subgraphs(node) or not editor.facts.is_pure(node) or nodes.is_kept_apart(node):
        return None
    inputs: list[int | None] = [None if value is None else id(value) for value in node.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    if node.op_type in COMMUTATIVE and nodes.is_standard(node) and editor.facts.opset(node) >= 7:
        inputs.sort(key=lambda item: -1 if item is None else item)
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        value = _attribute_key(attribute)
        if value is None:
            return None
        attributes.append((name, value))
    return (node.domain, node.op_type, node.overload, tuple(inputs), tuple(attributes), len(node.outputs))


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    if attribute.is_ref():
        return ("reference", attribute.ref_attr_name)
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype == ir.DataType.STRING:
            return ("STRING", tuple(tensor.shape.numpy()), tuple(tensor.numpy().reshape(-1).tolist()))
        return (str(tensor.dtype), tuple(tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest())
    if attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.INT, ir.AttributeType.STRING):
        return (attribute.type.name, repr(attribute.value))
    if attribute.type in (ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS):
        return (attribute.type.name, repr(tuple(attribute.value)))
    return None


def _merge(editor: Editor, node: ir.Node, first: ir.Node) -> bool:
    pairs = [(old, new) for old, new in zip(node.outputs, first.outputs, strict=True) if nodes.is_used(old)]
    if any(old.is_graph_output() and (new.is_graph_output() or old.graph is not new.graph) for old, new in pairs):
        return False
    if not pairs or not editor.accept(
        "merge-common-subexpressions",
        node.outputs[0],
        [node],
        [first],
        reason=f"{nodes.describe(first)} computes the same",
    ):
        return False
    for old, new in pairs:
        editor.replace_value(old, new)
    editor.sweep([node])
    return True


def share_equal_initializers(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Two initializers with the same type, dims and bytes  -->  one.

    Large tensors are compared in full only when a sample of them agrees, so that memory-mapped weights are rarely read.
    Weights inside a ModelProto must be copied out of it to be looked at. Beyond the first 64 MB, those of 1 MB and more
    are only read when something says that layers repeat: few have this shape, different operators read them (tied
    embeddings), or smaller weights that are not one repeated number were equal (a layer written out several times).
    """
    graph = editor.model.graph
    first: dict[Hashable, list[ir.Value]] = {}
    for value in list(graph.initializers.values()):
        tensor = constants.of_initializer(value)
        if tensor is None or value.is_graph_output() or isinstance(tensor, ir.LazyTensor):
            continue  # a weight that is computed when needed had a source of its own, or the rule would have refused
        candidates = first.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), [])
        candidates.append(value)
    groups = sorted((group for group in first.values() if len(group) > 1), key=_bytes_each)
    left, repeats = FREE_TO_READ, False
    for group in groups:
        size = _bytes_each(group)
        if size >= LARGE and not isinstance(group[0].const_value, ir.ExternalTensor):
            left -= size * len(group)
            if left < 0 and not repeats and len(group) > FEW and len(_reader_types(group)) == 1:
                continue
        repeats |= _share_group(editor, group)


def _bytes_each(group: Sequence[ir.Value]) -> int:
    tensor = group[0].const_value
    assert tensor is not None, "only initializers with data are grouped"
    return tensor.nbytes


def _reader_types(group: Sequence[ir.Value]) -> set[str]:
    return {node.op_type for value in group for node in value.consumers()}


def _share_group(editor: Editor, group: Sequence[ir.Value]) -> bool:
    """Share what is equal in the group; True when that was more than one repeated number."""
    telling = False
    kept: dict[Hashable, list[ir.Value]] = {}
    for value in group:
        tensor = value.const_value
        assert tensor is not None, "only initializers with data are grouped"
        alike = kept.setdefault(_sample_of(editor, tensor), [])
        twin = next((other for other in alike if _equal(other.const_value, tensor)), None)
        if twin is None:
            alike.append(value)
        elif not value.is_graph_input() and editor.accept(
            "share-equal-initializers", value, [f"initializer '{value.name}'"], [f"initializer '{twin.name}'"]
        ):
            readers = value.consumers()
            value.replace_all_uses_with(twin)
            assert value.graph is not None and value.name is not None, "it is an initializer of a graph"
            value.graph.initializers.pop(value.name)
            editor.touched.extend(readers)
            telling = telling or _is_telling(tensor)
    return telling


def _is_telling(tensor: ir.TensorProtocol) -> bool:
    """Whether two layers hardly have such a tensor by chance: not short, and not one number repeated."""
    if tensor.size < TELLING or tensor.dtype == ir.DataType.STRING:
        return False
    array = tensor.numpy().reshape(-1)
    return bool((array != array[0]).any())


def _sample_of(editor: Editor, tensor: ir.TensorProtocol) -> Hashable:
    """The tensor's sample, taken once: a weight may have to be copied out of its file for it."""
    held = editor.samples.get(id(tensor))
    if held is None:
        held = editor.samples[id(tensor)] = (tensor, _sample(tensor))
    return held[1]


def _sample(tensor: ir.TensorProtocol) -> Hashable:
    if tensor.dtype == ir.DataType.STRING:
        return tuple(tensor.numpy().reshape(-1)[:SAMPLE].tolist())
    array = tensor.numpy().reshape(-1)
    step = max(1, array.size // SAMPLE)
    return array[::step].tobytes()


def _equal(left: ir.TensorProtocol | None, right: ir.TensorProtocol) -> bool:
    if left is None:
        return False
    if right.size <= SAMPLE:
        return True  # the sample was everything
    one, other = left.numpy().reshape(-1), right.numpy().reshape(-1)
    chunk = 1 << 22
    return all(
        one[start : start + chunk].tobytes() == other[start : start + chunk].tobytes()
        for start in range(0, one.size, chunk)
    )

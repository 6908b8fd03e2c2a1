"""Clean-up: Constant nodes lifted to initializers; nodes, outputs, initializers, functions and imports nobody uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes, schema
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import Match, bind


def lift_constants(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Constant node  -->  initializer of the same graph.

    Leaves alone Constants of functions, which cannot have initializers.
    """
    for node in worklist:
        if node.op_type != "Constant" or not nodes.is_standard(node) or node.graph is None:
            continue
        value = node.outputs[0]
        if editor.is_in_function(node.graph) or nodes.has_reference_attributes(node):
            continue
        tensor = constants.of_constant_node(node)
        if tensor is None:
            continue  # a sparse tensor
        if not editor.accept("lift-constants", value, [node]):
            continue
        name = value.name
        value.name = None
        tensor = constants.renamed(tensor, name)
        initializer = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        node.graph.register_initializer(initializer)
        editor.raise_ir_version()
        readers = value.consumers()
        if value.is_graph_output():
            initializer.type, initializer.shape = value.type, value.shape
        value.replace_all_uses_with(initializer, replace_graph_outputs=True)
        editor.remove(node)
        editor.touched.extend(readers)


def why_not_lifted(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each Constant that stays: where it is, or what it holds."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        if node.op_type == "Constant" and nodes.is_standard(node) and node.graph is not None:
            inside = editor.is_in_function(node.graph)
            reason = "functions have no initializers" if inside else "its value is sparse, or given by a caller"
            found[node] = LeftAlone(reason, True)
    return found


def remove_dead_nodes(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """A node whose outputs nothing reads  -->  nothing. Custom operators stay: they may have effects."""
    for node in reversed(worklist):
        if node.graph is None or not editor.is_dead(node):
            continue
        site = node.outputs[0] if node.outputs else node.name or ""
        if editor.accept("remove-dead-nodes", site, [node]):
            editor.sweep([node])


def why_not_removed(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each node: who reads it, or that it may have effects."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        used = next(iter(nodes.used_outputs(node)), None)
        if used is None:
            found[node] = LeftAlone("nothing reads it, but a custom operator may have effects", True)
        elif used.is_graph_output():
            found[node] = LeftAlone(f"'{used.name}' is an output of the graph", False)
        else:
            found[node] = LeftAlone(f"{nodes.describe(used.consumers()[0])} reads '{used.name}'", False)
    return found


def drop_unused_outputs(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """MaxPool's indices, Dropout's mask, LSTM's states that nothing reads  -->  not asked for."""
    for node in worklist:
        if node.graph is None or len(node.outputs) < 2 or not nodes.is_standard(node):
            continue
        if nodes.has_subgraphs(node):
            _drop_results_of_subgraphs(editor, node)
            continue
        keep = len(node.outputs)
        while keep > 1 and not nodes.is_used(node.outputs[keep - 1]):
            keep -= 1
        if keep == len(node.outputs) or keep < schema.least_outputs(node, editor.facts.opset(node)):
            continue
        if editor.accept("drop-unused-outputs", node.outputs[0], [node], [node], reason=_dropping(node, keep)):
            node.resize_outputs(keep)


def _drop_results_of_subgraphs(editor: Editor, node: ir.Node) -> None:
    """The last results of an If, or scan results of a Loop, that nothing reads: the subgraphs need not give them."""
    if node.op_type == "If":
        least, carried = 1, 0
    elif node.op_type == "Loop":
        carried = len(node.inputs) - 2  # values that go round the loop; the body needs them itself
        least = max(carried, 1)
    else:
        return
    keep = len(node.outputs)
    while keep > least and not nodes.is_used(node.outputs[keep - 1]):
        keep -= 1
    dropped = len(node.outputs) - keep
    if not dropped or not editor.accept(
        "drop-unused-outputs", node.outputs[0], [node], [node], reason=_dropping(node, keep)
    ):
        return
    for graph in nodes.subgraphs(node):
        producers = [graph.outputs.pop().producer() for _ in range(dropped)]
        editor.sweep(producer for producer in producers if producer is not None)
    node.resize_outputs(keep)


def _dropping(node: ir.Node, keep: int) -> str:
    return f"nothing reads {', '.join(repr(output.name) for output in node.outputs[keep:])}"


def remove_unused_definitions(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Initializers, model-local functions and opset imports that nothing uses  -->  nothing.

    An initializer that is also an input stays: it is that input's default.
    """
    for graph in editor.graphs():
        for name, value in list(graph.initializers.items()):
            if nodes.is_used(value) or value.is_graph_input():
                continue
            if editor.accept("remove-unused-initializers", value, [f"initializer '{name}'"]):
                graph.initializers.pop(name)
    _remove_functions(editor)
    _remove_imports(editor)


def _remove_functions(editor: Editor) -> None:
    model = editor.model
    used: set[ir.OperatorIdentifier] = set()
    pending: list[ir.Graph] = [model.graph]
    while pending:
        for node in nodes.nodes_of(pending.pop()):
            identifier = node.op_identifier()
            if identifier in model.functions and identifier not in used:
                used.add(identifier)
                pending.append(model.functions[identifier].graph)
    for identifier in [identifier for identifier in model.functions if identifier not in used]:
        if editor.accept("remove-unused-functions", "::".join(filter(None, identifier))):
            del model.functions[identifier]
            editor.forget_graphs()


def _remove_imports(editor: Editor) -> None:
    """The standard domain's import stays: a model must have one."""
    model = editor.model
    domains = {node.domain for node in nodes.nodes_of(model.graph)}
    domains |= {node.domain for function in model.functions.values() for node in nodes.nodes_of(function.graph)}
    domains |= {identifier[0] for identifier in model.functions}
    for domain in [domain for domain in model.graph.opset_imports if domain not in ("", "ai.onnx", *domains)]:
        if editor.accept("remove-unused-imports", domain):
            del model.graph.opset_imports[domain]


def write_out_small_splats(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """ConstantOfShape of a small known shape  -->  initializer, smallest first, while the budget for growth lasts.

    Likewise Expand of a constant.
    """
    found: list[tuple[int, int, ir.Node]] = []
    for node in worklist:
        if node.graph is None or not nodes.is_standard(node) or nodes.has_reference_attributes(node):
            continue
        size = _repeated_size(editor, node)
        if size is not None and not node.outputs[0].is_graph_output():
            found.append((size, len(found), node))
    for size, _, node in sorted(found, key=lambda item: item[:2]):
        if size > editor.budget:
            editor.refuse_growth(size)
            return
        if size > editor.facts.memory_left:
            return
        array, kind = _repeated(editor, node), editor.facts.dtype(node.outputs[0])
        match = Match(node, bind(node), editor.facts)
        if editor.apply("write-out-small-splats", match, match.constant(array, kind)):
            editor.budget -= size


def _repeated(editor: Editor, node: ir.Node) -> np.ndarray:
    """What the node gives, written out."""
    array = editor.facts.array(node.outputs[0] if node.op_type == "ConstantOfShape" else node.inputs[0])
    shape = editor.facts.static_shape(node.outputs[0])
    assert array is not None and shape is not None, "its size is known"
    return np.ascontiguousarray(np.broadcast_to(array, shape))


def _repeated_size(editor: Editor, node: ir.Node) -> int | None:
    """The bytes that a node would take if it were written out; None when it repeats nothing that is known."""
    if node.op_type == "ConstantOfShape":
        array = editor.facts.array(node.outputs[0])
        return None if array is None else array.nbytes
    if node.op_type != "Expand" or node.inputs[0] is None or not editor.facts.is_constant(node.inputs[0]):
        return None
    shape, kind = editor.facts.static_shape(node.outputs[0]), editor.facts.dtype(node.outputs[0])
    if shape is None or kind is None or kind == ir.DataType.STRING or kind.itemsize < 1:
        return None
    return math.prod(shape) * int(kind.itemsize)


def reuse_initializer_inputs(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """A folded weight beside the input that held the unfolded one  -->  the weight in that input's place

    Only before IR version 4, where every initializer is an input that must stay and that no caller can override: the
    old weight would be carried along unused, next to the new one of the same type and dims.
    """
    graph = editor.model.graph
    spare: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = constants.of_initializer(value)
        if tensor is not None and value.is_graph_input() and not nodes.is_used(value):
            spare.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), []).append(value)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output() or not value.uses():
            continue
        places = spare.get((tensor.dtype, tuple(tensor.shape.numpy())))
        if places and editor.accept("reuse-initializer-inputs", value, [f"initializer '{name}'"]):
            place = places.pop(0)
            graph.initializers.pop(name)
            place.const_value = tensor
            editor.facts.forget(place)
            value.replace_all_uses_with(place)
    editor.lower_ir_version()

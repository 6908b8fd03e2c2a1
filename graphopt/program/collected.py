"""Sequences that a loop only adds to are what it collects: tensors of one size, stacked.

    s = Loop(..., SequenceEmpty()) { t' = SequenceInsert(t, x) }      x' = Loop(...) { x }
    y = ConcatFromSequence(s)                                    -->  y = Reshape(x', [-1, ...])

Exporters write an EmbeddingBag so. A sequence is no tensor and would run in ONNX Runtime alone, with the loop around
it. Left alone: tensors that may be of several sizes, another place than the end, and a sequence that is read elsewhere.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.dims import Dims, is_static
from graphopt.model.facts import Facts

_READERS = frozenset({"ConcatFromSequence", "SequenceAt"})


def collected(model: ir.Model) -> ir.Model:
    """A model without such sequences; the same one where there are none."""
    if not any(_sequences(Facts(model), loop) for loop in _loops(model)):
        return model
    work = model.clone()
    facts = Facts(work)
    for loop in _loops(work):
        places = _sequences(facts, loop)
        if places:
            _collect(loop, places, facts)
    return work


def _loops(model: ir.Model) -> list[ir.Node]:
    return [node for graph in nodes.graphs_of(model) for node in graph
            if node.op_type == "Loop" and nodes.is_standard(node)]  # fmt: skip


def _sequences(facts: Facts, loop: ir.Node) -> list[int]:
    """The places of states that are such sequences, the last first."""
    (body,) = nodes.subgraphs(loop)
    count = len(loop.inputs) - 2
    return [place for place in reversed(range(count)) if _is_collected(facts, loop, body, place)]


def _is_collected(facts: Facts, loop: ir.Node, body: ir.Graph, place: int) -> bool:
    given = loop.inputs[2 + place]
    begun = None if given is None else given.producer()
    state, result = body.inputs[2 + place], loop.outputs[place]
    insert = body.outputs[1 + place].producer()
    if begun is None or begun.op_type != "SequenceEmpty" or insert is None or insert.op_type != "SequenceInsert":
        return False
    alone = insert.graph is body and insert.inputs[0] is state and len(state.uses()) == 1
    alone = alone and not insert.outputs[0].uses() and sum(one is insert.outputs[0] for one in body.outputs) == 1
    readers = result.consumers()
    read = not result.is_graph_output() and all(
        one.op_type in _READERS and nodes.is_standard(one) and one.graph is loop.graph for one in readers
    )
    added = insert.inputs[1]
    dims = None if added is None else facts.shape(added)
    if not alone or not read or nodes.input_at(insert, 2) is not None or dims is None:
        return False
    return all(_is_of_one_size(one, dims) for one in readers)


def _is_of_one_size(reader: ir.Node, dims: Dims) -> bool:
    """Whether all tensors of a sequence with this reader have the same dims: those that are not joined are the same."""
    if reader.op_type == "SequenceAt":
        return is_static(dims)
    axis = nodes.int_attribute(reader, "axis", 0)
    if _stacks(reader):
        return -len(dims) <= axis <= len(dims)
    return -len(dims) <= axis < len(dims) and (dims[axis] == 1 or is_static(dims))


def _stacks(reader: ir.Node) -> bool:
    return bool(nodes.int_attribute(reader, "new_axis", 0))


def _collect(loop: ir.Node, places: list[int], facts: Facts) -> None:
    """Put a loop that collects in the place of one."""
    (body,) = nodes.subgraphs(loop)
    graph = loop.graph
    assert graph is not None, "a loop of the model"
    inputs, kept, ends = list(loop.inputs), list(loop.outputs), list[tuple[ir.Value, Dims]]()
    for place in places:
        insert = body.outputs[1 + place].producer()
        assert insert is not None and insert.inputs[1] is not None, "asked before"
        added = insert.inputs[1]
        dims = facts.shape(added)
        assert dims is not None, "asked before"
        copy = ir.node("Identity", [added])
        copy.outputs[0].name = f"{insert.outputs[0].name}:row"
        copy.outputs[0].type, copy.outputs[0].shape = added.type, added.shape
        body.insert_before(insert, copy)
        del body.outputs[1 + place], body.inputs[2 + place], inputs[2 + place]
        body.remove(insert, safe=True)
        body.outputs.append(copy.outputs[0])
        ends.append((kept.pop(place), dims))
    made = ir.Node(
        "", "Loop", inputs, list(loop.attributes.values()), num_outputs=len(kept) + len(ends), name=loop.name
    )
    rows = made.outputs[len(kept) :]
    for old, new in zip(kept, made.outputs, strict=False):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    graph.insert_before(loop, made)
    for (old, dims), new in zip(ends, rows, strict=True):
        new.name = f"{old.name}:rows"
        for reader in old.consumers():
            _read(reader, new, dims)
    for old, new in zip(kept, made.outputs, strict=False):
        ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    graph.remove(loop, safe=True)


def _read(reader: ir.Node, rows: ir.Value, dims: Dims) -> None:
    """The reader's result, of rows that are stacked."""
    graph, result = reader.graph, reader.outputs[0]
    assert graph is not None, "a node of the model"
    axis, made = nodes.int_attribute(reader, "axis", 0), list[ir.Node]()
    if reader.op_type == "SequenceAt":
        made.append(ir.node("Gather", [rows, reader.inputs[1]], {"axis": 0}))
    else:
        axis %= len(dims) + 1 if _stacks(reader) else len(dims)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims) + 1)]
        made.append(ir.node("Transpose", [rows], {"perm": order}))
        if not _stacks(reader) and dims[axis] == 1:
            made.append(ir.node("Constant", [], {"value": ir.tensor(np.array([axis + 1], np.int64))}))
            made.append(ir.node("Squeeze", [made[0].outputs[0], made[1].outputs[0]]))
        elif not _stacks(reader):
            target = np.array([*dims[:axis], -1, *dims[axis + 1 :]], np.int64)
            made.append(ir.node("Constant", [], {"value": ir.tensor(target)}))
            made.append(ir.node("Reshape", [made[0].outputs[0], made[1].outputs[0]]))
    for number, one in enumerate(made):
        one.outputs[0].name = f"{result.name}:part{number}"
    graph.insert_before(reader, made)
    last = made[-1].outputs[0]
    ir.convenience.replace_all_uses_with([result], [last], replace_graph_outputs=True)
    graph.remove(reader, safe=True)
    last.name, last.type = result.name, result.type

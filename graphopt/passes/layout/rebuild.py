"""A region in its new layouts: operators built anew on the other form, Transposes where they are still needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.layout.assign import Tensor, state
from graphopt.passes.layout.flip import Flat
from graphopt.passes.layout.permute import inverse
from graphopt.passes.layout.region import Region
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, bind


@dataclass(slots=True)
class Draft:
    """What is built and not yet in the graph."""

    editor: Editor
    region: Region
    states: dict[ir.Node, int]
    tensors: dict[ir.Value, Tensor]
    matches: dict[ir.Node, Match] = field(default_factory=dict)  # by the node in front of which they will stand
    copies: dict[ir.Node, ir.Node] = field(default_factory=dict)
    turned: dict[ir.Value, ir.Value] = field(default_factory=dict)  # by root: its other form
    reads: list[tuple[ir.Node, int, ir.Value]] = field(default_factory=list)
    values: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)

    def match(self, node: ir.Node) -> Match:
        """The match that collects what is built in front of a node."""
        if node not in self.matches:
            self.matches[node] = Match(node, bind(node), self.editor.facts)
        return self.matches[node]

    def form(self, value: ir.Value, wanted: int, at: ir.Node) -> ir.Value:
        """The value's tensor in the wanted form; a Transpose for it is put in front of `at`."""
        root = self.region.root(value)
        tensor, form = self.tensors[root], self.region.forms[root]
        given = state(self.states, tensor.giver)
        producer = root.producer()
        copy = None if producer is None else self.copies.get(producer)
        source = root if copy is None or isinstance(tensor.giver, int) else copy.outputs[root.index() or 0]
        if wanted == given:
            return source
        if root not in self.turned:
            if isinstance(form.label, Flat):
                raise Refused("columns of a flattened tensor cannot be turned")
            perm = form.label if given == form.side else inverse(form.label)
            self.turned[root] = self.match(at).op("Transpose", source, attributes={"perm": perm})
        return self.turned[root]

    def discard(self) -> None:
        """Take everything apart again."""
        for match in self.matches.values():
            self.editor.discard(match)

    @property
    def made(self) -> list[ir.Node]:
        """All new nodes."""
        return [node for match in self.matches.values() for node in match.new_nodes]


def draft(
    editor: Editor, region: Region, tensors: Mapping[ir.Value, Tensor], states: dict[ir.Node, int],
    place: Mapping[ir.Node, int],
) -> Draft:  # fmt: skip
    """Build what the states ask for, first to last; raises Refused where something cannot be built."""
    made = Draft(editor, region, states, dict(tensors))
    flipped = {node for node in region.flips if states[node] != region.sides[node]}
    jobs: dict[ir.Node, list[tuple[int, ir.Value]]] = {node: [] for node in flipped}
    kept: dict[ir.Node, list[ir.Value]] = {}
    for tensor in tensors.values():
        if not _affected(region, tensor, flipped):
            continue
        for value in tensor.members:
            graph_level = value.is_graph_output()
            for node, index in value.uses():
                if node not in place:
                    graph_level = True  # a subgraph reads it
                elif node not in region.ties and node not in flipped:
                    jobs.setdefault(node, []).append((index, value))
            producer = value.producer()
            if graph_level and producer in place and producer is not None:
                kept.setdefault(producer, []).append(value)
    try:
        for node in sorted({*jobs, *kept}, key=place.__getitem__):
            if node in flipped:
                _flip(made, node)
            for index, value in jobs.get(node, ()):
                _read(made, node, index, value)
            for value in kept.get(node, ()):
                _keep(made, node, value)
    except Refused:
        made.discard()
        raise
    return made


def _affected(region: Region, tensor: Tensor, flipped: set[ir.Node]) -> bool:
    ties = sum(value is not tensor.root for value in tensor.members)
    return tensor.giver in flipped or any(reader in flipped for reader in tensor.readers) or ties > 1


def _flip(made: Draft, node: ir.Node) -> None:
    region, match = made.region, made.match(node)
    flip, wanted = region.flips[node], made.states[node]
    inputs = list(node.inputs)
    for index, label in flip.inputs.items():
        value = inputs[index]
        if value is None:
            continue
        if value in region.forms:
            inputs[index] = made.form(value, wanted, node)
        elif not isinstance(label, Flat):
            array = np.transpose(match.array(value), label)
            inputs[index] = match.constant(array, match.dtype(value))
    for index, value in enumerate(inputs):
        if index not in flip.inputs and value is not None and value in region.forms:
            inputs[index] = made.form(value, region.forms[value].side, node)
    copy = flip.build(match, inputs)
    copy.name, copy.doc_string = node.name, node.doc_string
    copy.metadata_props.update(node.metadata_props)
    made.copies[node] = copy
    for index, output in enumerate(node.outputs):
        if index not in flip.outputs:
            made.values.append((output, copy.outputs[index]))


def _read(made: Draft, node: ir.Node, index: int, value: ir.Value) -> None:
    """A node that stays reads its operand in the form it always did."""
    flip = made.region.flips.get(node)
    own = flip is not None and index in flip.inputs
    side = made.region.sides[node] if own else made.region.forms[value].side
    found = made.form(value, side, node)
    if found is not value:
        made.reads.append((node, index, found))


def _keep(made: Draft, node: ir.Node, value: ir.Value) -> None:
    """The graph returns the value, or a subgraph reads it: it must be there in the form it always had."""
    found = made.form(value, made.region.forms[value].side, node)
    if found is value:
        return
    if value.is_graph_output() and not _can_carry_name(made, value, found):
        found = made.match(node).op("Identity", found)
    made.values.append((value, found))


def _can_carry_name(made: Draft, output: ir.Value, found: ir.Value) -> bool:
    """Whether `found` can become the graph's output: it is computed here, and is not an output already."""
    if found.is_graph_output() or any(other is found and one.is_graph_output() for one, other in made.values):
        return False
    producer = found.producer()
    return producer is not None and producer.graph in (None, output.graph)


def apply(made: Draft) -> None:
    """Put the draft into the graph."""
    editor, region = made.editor, made.region
    for node, copy in made.copies.items():
        copy.name, node.name = node.name, None
    readers = [node for tensor in made.tensors.values() for value in tensor.members for node in value.consumers()]
    for match in made.matches.values():
        editor.insert(match)
    for node, index, value in made.reads:
        node.replace_input_with(index, value)
    for old, new in made.values:
        if nodes.is_used(old):
            editor.replace_value(old, new)
    editor.touched.extend(made.made)
    editor.touched.extend(node for node in readers if node.graph is not None)
    old_nodes = [*made.copies, *region.ties]
    editor.sweep(reversed(old_nodes))

"""Which branches of a model's Ifs the feeds lead to: a copy tells after its own outputs.

For every If, two booleans say whether its condition was true, and whether it was false. They are handed up from where
the If stands to the main graph: the other branch of an If around it gives two times false, a Loop or a Scan gives them
for each of its steps, and what was true in one step counts; a function gives them to each of its callers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes

_BOOL = ir.TensorType(ir.DataType.BOOL)
_LISTS_OF_OUTPUTS = frozenset({"scan_output_axes", "scan_output_directions"})  # of a Scan, one number for each


@dataclass(frozen=True, slots=True)
class Watched:
    """A copy, and for each two booleans after its own outputs the If that they tell of."""

    model: ir.Model
    ifs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What tells of one If in some graph."""

    number: int
    flags: tuple[ir.Value, ...]  # it was true, it was false


class Branches:
    """What the conditions were so far."""

    def __init__(self, ifs: Sequence[int] = ()) -> None:
        self._ifs = tuple(ifs)
        self._taken: set[tuple[int, bool]] = set()

    def note(self, flags: Sequence[object]) -> None:
        """Add what one run told: two booleans for each entry of the Ifs."""
        for place, flag in enumerate(flags):
            if np.asarray(flag).any():
                self._taken.add((self._ifs[place // 2], place % 2 == 0))

    @property
    def reached(self) -> tuple[int, int]:
        """Branches that were taken, and all."""
        return len(self._taken), 2 * len(set(self._ifs))


def watched(model: ir.Model) -> Watched | None:
    """The copy; None where no If has a condition that is computed or given."""
    if not any(node.op_type == "If" and node.domain == "" for graph in nodes.graphs_of(model) for node in graph):
        return None
    copy = model.clone()
    found = _Watcher(copy).of(copy.graph)
    for seen in found:
        copy.graph.outputs.extend(seen.flags)
    return Watched(copy, tuple(seen.number for seen in found)) if found else None


class _Watcher:
    """Hands up what tells of Ifs, graph by graph."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = itertools.count()
        self._ifs = itertools.count()
        self._functions: dict[ir.OperatorIdentifier, list[int]] = {}

    def of(self, graph: ir.Graph | ir.Function) -> list[_Seen]:
        """What tells of all Ifs in the graph, and in those inside of it and in functions that it calls."""
        found: list[_Seen] = []
        for node in tuple(graph):
            if node.op_identifier() in self._model.functions:
                found += self._called(node)
            elif node.domain == "" and node.op_type == "If":
                found += self._condition(graph, node) + self._in_branches(node)
            elif (
                node.domain == "" and node.op_type in ("Loop", "Scan") and _LISTS_OF_OUTPUTS.isdisjoint(node.attributes)
            ):
                found += self._in_steps(graph, node)
        return found

    def _condition(self, graph: ir.Graph | ir.Function, node: ir.Node) -> list[_Seen]:
        condition = node.inputs[0]
        if condition is None or condition.is_initializer():
            return []
        true = self._node("Squeeze", condition)
        false = self._node("Not", true.outputs[0])
        graph.insert_before(node, [true, false])
        return [_Seen(next(self._ifs), (true.outputs[0], false.outputs[0]))]

    def _in_branches(self, node: ir.Node) -> list[_Seen]:
        branches = nodes.subgraphs(node)
        found = []
        for branch, seen in [(inside, seen) for inside in branches for seen in self.of(inside)]:
            for flag in seen.flags:
                branch.outputs.append(flag)
                for other in branches:
                    if other is not branch:
                        no = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.array(False)))])
                        other.append(self._named(no))
                        other.outputs.append(no.outputs[0])
            found.append(_Seen(seen.number, self._more_outputs(node, ())))
        return found

    def _in_steps(self, graph: ir.Graph | ir.Function, node: ir.Node) -> list[_Seen]:
        """Each step gives its booleans; they are counted, for no step may be taken at all."""
        found = []
        for seen in self.of(nodes.subgraphs(node)[0]):
            nodes.subgraphs(node)[0].outputs.extend(seen.flags)
            flags = []
            after = node
            for steps in self._more_outputs(node, (None,)):
                numbers = self._node("Cast", steps, ir.AttrInt64("to", int(ir.DataType.INT64)))
                count = self._node("ReduceSum", numbers.outputs[0], ir.AttrInt64("keepdims", 0))
                some = self._node("Cast", count.outputs[0], ir.AttrInt64("to", int(ir.DataType.BOOL)))
                for added, kind in ((numbers, ir.DataType.INT64), (count, ir.DataType.INT64)):
                    added.outputs[0].type = ir.TensorType(kind)
                numbers.outputs[0].shape = ir.Shape([None])
                graph.insert_after(after, [numbers, count, some])
                after = some
                flags.append(some.outputs[0])
            found.append(_Seen(seen.number, tuple(flags)))
        return found

    def _called(self, node: ir.Node) -> list[_Seen]:
        name = node.op_identifier()
        if name not in self._functions:
            function = self._model.functions[name]
            seen = self.of(function) if "" in function.opset_imports else []
            for one in seen:
                function.outputs.extend(one.flags)
            self._functions[name] = [one.number for one in seen]
        return [_Seen(number, self._more_outputs(node, ())) for number in self._functions[name]]

    def _more_outputs(self, node: ir.Node, shape: Sequence[None]) -> tuple[ir.Value, ...]:
        """Two more outputs of a node."""
        node.resize_outputs(len(node.outputs) + 2)
        for value in node.outputs[-2:]:
            self._describe(value, shape)
        return tuple(node.outputs[-2:])

    def _node(self, op_type: str, value: ir.Value, *attributes: ir.Attr) -> ir.Node:
        return self._named(ir.Node("", op_type, [value], attributes))

    def _named(self, node: ir.Node) -> ir.Node:
        self._describe(node.outputs[0], ())
        return node

    def _describe(self, value: ir.Value, shape: Sequence[None]) -> None:
        value.name = f"graphopt/watched/{next(self._names)}"
        value.type, value.shape = _BOOL, ir.Shape(shape)

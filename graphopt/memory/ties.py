"""An order of nodes made binding for runtimes that choose their own: a node that waits says so by what it reads.

ONNX Runtime does not run nodes in file order: it goes back from the outputs, and which operand of a node comes first
depends on where its own optimizations put new nodes. It also makes one Split of Slices at constant places that cover a
value, whose results are all there at once, and one node of two that compute the same. Slices of tiles, nodes that
compute a value again, and a branch that begins behind joined tiles are therefore tied to the node before them: they
read a number or a shape that is computed from the size of its result. No runtime knows it sooner, and ONNX Runtime does
not fold Size.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.facts import Facts

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
LEAST_OPSET = 10  # Slice with its places as operands


def tie(model: ir.Model) -> int:
    """Tie tiles, nodes that compute again, and branches behind tiles to what stands before them, in place.

    Returns how many nodes were added.

    Outputs keep their bits: a tied node reads the same numbers. A value whose dims are not all known ties nothing.
    """
    if model.graph.opset_imports.get("", 1) < LEAST_OPSET:
        return 0
    return _Ties(model).write()


def tie_all(model: ir.Model, large: int) -> int:
    """Tie each node that reads or makes a value of `large` bytes or more to the last one before it, in place.

    Going back from the outputs, ONNX Runtime would leave for the end what only outputs need, as gradients of weights
    are, and what that reads. Its own optimizations move nodes too, so that `visited_order` does not tell all of them.
    Returns how many nodes were added.
    """
    if model.graph.opset_imports.get("", 1) < LEAST_OPSET:
        return 0
    return _Ties(model).write_all(large)


def visited_order(graph: ir.Graph) -> list[ir.Node]:
    """The order in which ONNX Runtime runs the nodes of a graph that it does not change.

    Depth first from the nodes whose results no node reads, the last of the file first, and of the nodes that one reads
    from the last of the file first: a node runs when all of these have.
    """
    place = {node: at for at, node in enumerate(graph)}
    ends = [node for node in graph if not any(user in place for value in node.outputs for user, _ in value.uses())]
    order: list[ir.Node] = []
    seen: set[ir.Node] = set()
    stack = [(node, False) for node in ends]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            read = (value.producer() for value in (*node.inputs, *nodes.implicit_inputs(node)) if value is not None)
            makers = {maker for maker in read if maker is not None and maker in place}
            stack += [(maker, False) for maker in sorted(makers, key=place.__getitem__) if maker not in seen]
    return order


def _is_view(node: ir.Node) -> bool:
    return nodes.is_standard(node) and node.op_type in VIEWS


def _known(node: ir.Node) -> set[ir.Value]:
    """What must have been made before a node runs, without looking back: what it reads, by views too, and waits for."""
    found: set[ir.Value] = set()
    pending = [value for value in node.inputs if value is not None]
    while pending:
        value = pending.pop()
        maker = value.producer()
        found.add(value)
        if maker is not None and (_is_view(maker) or nodes.TIED in maker.metadata_props):
            pending += [one for one in maker.inputs if one is not None and one not in found]
    return found


class _Ties:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._facts = Facts(model)
        self._names = {value.name for node in model.graph for value in node.outputs} | set(model.graph.initializers)
        self._names.update(value.name for value in model.graph.inputs)
        self._names.update(node.name for node in model.graph)
        self._constants: dict[tuple[int, ...], ir.Value] = {}
        self._sizes: dict[ir.Value, ir.Value] = {}
        self._numbers: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        self._sequence: list[ir.Node] = []

    def write(self) -> int:
        before = len(self._graph)
        latest: ir.Value | None = None  # a result of the last node that is no Slice
        joined: ir.Value | None = None  # of tiles, until something reads it
        since: set[ir.Value | None] = set()  # what is made after it
        for node in tuple(self._graph):
            is_cut = node.op_type == "Slice" and nodes.TILED in node.metadata_props
            joined = None if joined in node.inputs else joined
            if latest is not None and is_cut:
                self._tie_slice(node, latest)
            elif latest is not None and nodes.RECOMPUTED in node.metadata_props:
                self._tie_operand(node, latest)
            elif joined is not None and since.isdisjoint(node.inputs):
                self._tie_operand(node, joined)
            if node.op_type == "Concat" and nodes.TILED in node.metadata_props:
                joined, since = node.outputs[0], set()
            since.update(node.outputs)
            self._sequence.append(node)
            made = nodes.used_outputs(node)
            if made and not is_cut and self._elements(made[0]):
                latest = made[0]
        return self._finished(before)

    def write_all(self, large: int) -> int:
        """Tie every node that touches a large value to the last one before it, where nothing else makes it wait."""
        before, given = len(self._graph), tuple(self._graph)
        latest: list[ir.Value] = []  # of the last node that could be tied, and of those behind it
        for node in given:
            if not _is_view(node) and nodes.TIED not in node.metadata_props and self._touches(node, large):
                known = _known(node)
                waits = [self._tie_any(node, one) for one in latest if one not in known]
                latest = latest if not all(waits) else []
                latest += [made for made in (self._anchor(node),) if made is not None]
            self._sequence.append(node)
        return self._finished(before)

    def _anchor(self, node: ir.Node) -> ir.Value | None:
        """A result whose size says that the node has run."""
        made = nodes.used_outputs(node) or [value for value in node.outputs if value.is_graph_output()]
        return made[0] if made and self._elements(made[0]) else None

    def _touches(self, node: ir.Node, large: int) -> bool:
        """Whether a node reads or makes a large value."""
        values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.const_value is None]
        return any(self._bytes(value) >= large for value in values)

    def _bytes(self, value: ir.Value) -> int:
        dtype = self._facts.dtype(value)
        return 0 if dtype is None else int(self._elements(value) * dtype.itemsize)

    def _tie_any(self, node: ir.Node, latest: ir.Value) -> bool:
        if node.op_type == "Slice" and self._tie_slice(node, latest):
            return True
        return self._tie_operand(node, latest, again=True)

    def _tie_slice(self, node: ir.Node, latest: ir.Value) -> bool:
        """By its begin; tells whether it waits then."""
        begin = node.inputs[1]
        tensor = None if begin is None else constants.of_initializer(begin)
        if tensor is None or node.inputs[0] is latest:
            return False
        node.replace_input_with(1, self._number(latest, tuple(tensor.numpy().tolist()), node))
        return True

    def _tie_operand(self, node: ir.Node, latest: ir.Value, *, again: bool = False) -> bool:
        """By the shape of its first operand; unless that has been computed again itself, or is tied `again`.

        Tells whether it waits then.

        ONNX Runtime makes one of a Reshape and the view behind it, whose shape it takes for known: what the node alone
        has by views it has by the one Reshape that waits, and a view waits for nothing.
        """
        if _is_view(node):
            return False
        for position, value in enumerate(node.inputs):
            if value is None or constants.of_initializer(value) is not None:
                continue
            producer, shape = value.producer(), self._facts.static_shape(value)
            if producer is not None and nodes.RECOMPUTED in producer.metadata_props and not again:
                return False
            if not shape or 0 in shape or value.const_value is not None:
                continue
            view = self._own_view(value)
            if view is not None and nodes.TIED in view.metadata_props:
                self._wait_for_both(view, latest, node)
                return True
            kind = self._facts.dtype(value)  # files may declare none
            type = value.type if kind is None else ir.TensorType(kind)
            source = self._without_views(value)
            same = self._add("Reshape", [source, self._number(latest, shape, node)], node, type, ir.Shape(shape))
            node.replace_input_with(position, same)
            return True
        return False

    def _own_view(self, value: ir.Value) -> ir.Node | None:
        """The view that makes the value, if nothing else reads it."""
        maker = value.producer()
        if maker is None or not _is_view(maker) or len(tuple(value.uses())) != 1 or value.is_graph_output():
            return None
        return maker

    def _without_views(self, value: ir.Value) -> ir.Value:
        """What views of the value read that nothing else reads; the views go with their last user."""
        while (view := self._own_view(value)) is not None and nodes.TIED not in view.metadata_props:
            source = view.inputs[0]
            if source is None or constants.of_initializer(source) is not None:
                break
            value = source
        return value

    def _wait_for_both(self, view: ir.Node, latest: ir.Value, node: ir.Node) -> None:
        """Let the Reshape of a tied operand wait for one more result."""
        before, shape = view.inputs[1], self._facts.static_shape(view.outputs[0])
        assert before is not None and shape is not None, "it was made here"
        del self._sequence[next(at for at in reversed(range(len(self._sequence))) if self._sequence[at] is view)]
        zeros = self._number(latest, (0,) * len(shape), node)
        type = ir.TensorType(ir.DataType.INT64)
        view.replace_input_with(1, self._add("Add", [before, zeros], node, type, ir.Shape([len(shape)])))
        self._sequence.append(view)

    def _number(self, latest: ir.Value, numbers: tuple[int, ...], node: ir.Node) -> ir.Value:
        """The numbers, from the size of a value."""
        integers = ir.TensorType(ir.DataType.INT64)
        if latest not in self._sizes:
            self._sizes[latest] = self._add("Size", [latest], node, integers, ir.Shape([]))
        if (latest, numbers) not in self._numbers:
            size = self._elements(latest)
            less = self._constant(tuple(size - number for number in numbers))
            shape = ir.Shape([len(numbers)])
            self._numbers[latest, numbers] = self._add("Sub", [self._sizes[latest], less], node, integers, shape)
        return self._numbers[latest, numbers]

    def _elements(self, value: ir.Value) -> int:
        """How many; 0 where that is not known."""
        shape = self._facts.static_shape(value)
        return 0 if shape is None or value.const_value is not None else prod(shape)

    def _add(
        self, operator: str, inputs: list[ir.Value], tied: ir.Node, type: ir.TypeProtocol | None, shape: ir.Shape
    ) -> ir.Value:
        of = tied.name or tied.op_type
        name = self._new(f"{of}_waits_{operator.lower()}")
        node = ir.Node("", operator, inputs, name=name, metadata_props={nodes.TIED: of})
        value = node.outputs[0]
        value.name, value.type, value.shape = self._new(f"{name}_result"), type, shape
        self._sequence.append(node)
        return value

    def _finished(self, before: int) -> int:
        """The nodes in their new order, without the views that nothing reads any more; how many were added."""
        self._graph.extend(self._sequence)
        for node in reversed(self._sequence):
            if _is_view(node) and not any(nodes.is_used(value) or value.is_graph_output() for value in node.outputs):
                self._graph.remove(node, safe=True)
        return len(self._graph) - before

    def _constant(self, numbers: tuple[int, ...]) -> ir.Value:
        if numbers not in self._constants:
            name = self._new("waits_" + "_".join(map(str, numbers)))
            value = ir.Value(name=name, const_value=ir.Tensor(np.array(numbers, np.int64), name=name))
            self._graph.register_initializer(value)
            self._constants[numbers] = value
        return self._constants[numbers]

    def _new(self, name: str) -> str:
        new, number = name, 1
        while new in self._names:
            number += 1
            new = f"{name}_{number}"
        self._names.add(new)
        return new

"""Which form every operator of a region works on, with the least cost of Transposes between them: a minimum cut.

Each operator that can work on either form is a vertex; those that cannot, inputs and outputs belong to the source (form
0) or to the sink (form 1). A tensor that one operator gives and several read costs one Transpose when some reader wants
the other form, which is the usual gadget with two auxiliary vertices (one for each direction).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.passes.layout.cut import SINK, SOURCE, Network
from graphopt.passes.layout.flip import Flat
from graphopt.passes.layout.region import Region, elements

LAUNCH = 4096  # elements; what running one more node costs, whatever it moves
FINE = 1 << 12  # a flip costs one such part of an element, so that nothing is flipped for nothing
FOREVER = 1 << 80
COUNT = 1 << 50  # with Transposes counted first, elements second


@dataclass(frozen=True, slots=True)
class Tensor:
    """All values that are forms of one tensor, who gives it, and who reads it in which form."""

    root: ir.Value
    members: tuple[ir.Value, ...]
    giver: ir.Node | int  # the form, where it is not a node that can flip
    readers: tuple[ir.Node | int, ...]
    elements: int
    flat: bool


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Transposes (and nodes added to avoid them), and what they move."""

    nodes: int
    elements: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The form that each operator works on, and the cost."""

    states: dict[ir.Node, int]
    cost: Cost
    turned: int  # operators that came to the layout that was asked for


def tensors(facts: Facts, region: Region) -> list[Tensor]:
    """The tensors of a region, in the order in which their values were found."""
    members: dict[ir.Value, list[ir.Value]] = {}
    for value in region.forms:
        members.setdefault(region.root(value), []).append(value)
    return [_tensor(facts, region, root, tuple(values)) for root, values in members.items()]


def _tensor(facts: Facts, region: Region, root: ir.Value, members: tuple[ir.Value, ...]) -> Tensor:
    form = region.forms[root]
    producer = root.producer()
    giver: ir.Node | int = form.side
    if producer is not None and producer in region.flips and root.index() in region.flips[producer].outputs:
        giver = producer
    readers: dict[ir.Node | int, None] = {}
    for value in members:
        side = region.forms[value].side
        if value.is_graph_output():
            readers[side] = None
        for node, place in value.uses():
            if node in region.ties:
                continue
            flip = region.flips.get(node)
            readers[node if flip is not None and place in flip.inputs else side] = None
    return Tensor(root, members, giver, tuple(readers), elements(facts, root), isinstance(form.label, Flat))


def now(facts: Facts, region: Region) -> Cost:
    """What the region costs as it is."""
    return Cost(len(region.ties), sum(elements(facts, node.outputs[0]) for node in region.ties))


def solve(region: Region, found: list[Tensor], *, count_first: bool, turning: bool) -> Assignment | None:
    """The cheapest assignment, None when that is the one there is.

    With `turning`, operators that may turn to the wanted layout do so where it costs nothing else.
    """
    network = Network()
    vertices = {node: network.vertex() for node in region.flips}

    def vertex(who: ir.Node | int) -> int:
        if isinstance(who, int):
            return SINK if who else SOURCE
        return vertices[who]

    step = COUNT if count_first else LAUNCH
    known = 0  # the cost of the region as it is
    for node, flip in region.flips.items():
        price = 1 + flip.added * step * FINE
        if turning and flip.turns:
            _unary(network, vertices[node], 1 - region.sides[node], 2)
            known += 2
        _unary(network, vertices[node], region.sides[node], price)
    for tensor in found:
        price = FOREVER if tensor.flat else (step + tensor.elements) * FINE
        giver = vertex(tensor.giver)
        if any(state(region.sides, reader) != state(region.sides, tensor.giver) for reader in tensor.readers):
            known += price
        readers = sorted({vertex(reader) for reader in tensor.readers} - {giver})
        if len(readers) == 1:
            network.edge(giver, readers[0], price)
            network.edge(readers[0], giver, price)
        elif readers:
            first, second = network.vertex(), network.vertex()
            network.edge(giver, first, price)
            network.edge(second, giver, price)
            for reader in readers:
                network.edge(first, reader, FOREVER)
                network.edge(reader, second, FOREVER)
    side = network.sink_side(known)
    if side is None:
        return None
    states = {node: int(side[place]) for node, place in vertices.items()}
    return Assignment(states, _cost(region, found, states), _turned(region, states))


def _unary(network: Network, vertex: int, side: int, price: int) -> None:
    """What it costs to leave a side."""
    if side:
        network.edge(vertex, SINK, price)
    else:
        network.edge(SOURCE, vertex, price)


def state(states: dict[ir.Node, int], who: ir.Node | int) -> int:
    """The form on which a node works, or the form itself."""
    return who if isinstance(who, int) else states[who]


def _cost(region: Region, found: list[Tensor], states: dict[ir.Node, int]) -> Cost:
    added = sum(flip.added for node, flip in region.flips.items() if states[node] != region.sides[node])
    turned = [
        tensor.elements
        for tensor in found
        if any(state(states, reader) != state(states, tensor.giver) for reader in tensor.readers)
    ]
    return Cost(len(turned) + added, sum(turned))


def _turned(region: Region, states: dict[ir.Node, int]) -> int:
    return sum(flip.turns and states[node] != region.sides[node] for node, flip in region.flips.items())

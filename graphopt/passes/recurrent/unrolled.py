"""A chain of equal cells, each step written out, becomes one GRU or LSTM operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.constants import Array
from graphopt.passes.operands import GROWTH
from graphopt.passes.recurrent import cells
from graphopt.passes.recurrent.affine import Offset
from graphopt.passes.recurrent.cells import Cell, Gate
from graphopt.passes.recurrent.first_step import is_zero, step_before
from graphopt.passes.recurrent.steps import Joined, join
from graphopt.rewrite import provenance
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "roll-up-cells"
LEAST = 3  # steps; fewer are not worth an operator


def roll_up_cells(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """cell(x1, h0) ... cell(xn, hn-1), each of a dozen nodes  -->  GRU(X, W, R, B, h0)      (LSTM alike)

    From opset 7 on, for float cells of the standard activations in every association, gates packed or apart, biases
    anywhere, the reset gate before or after the product. The inputs of the steps become one tensor, which they are
    already when they were cut from one. Leaves alone chains whose inputs depend on their own states (decoders), and
    whose inner values are read elsewhere.
    """
    if not any(node.op_type == "Tanh" for node in worklist) or not any(n.op_type == "Sigmoid" for n in worklist):
        return
    done: set[ir.Node] = set()
    for graph in dict.fromkeys(node.graph for node in worklist if isinstance(node.graph, ir.Graph)):
        while True:
            chain = next((c for c in _chains(editor, graph) if c[-1].root not in done), None)
            if chain is None:
                break
            done.add(chain[-1].root)
            _attempt(editor, chain)


def _attempt(editor: Editor, chain: Sequence[Cell]) -> None:
    root = chain[-1].root
    match = Match(root, bind(root), editor.facts)
    try:
        _roll_up(editor, match, chain)
    except Refused:
        editor.discard(match)


# -- chains -----------------------------------------------------------------------------------------------------------


def _chains(editor: Editor, graph: ir.Graph) -> list[list[Cell]]:
    """The chains of a graph in the order of their first steps, the longest of those that share a step."""
    found: list[Cell] = []
    for node in graph:
        if node.op_type in ("Add", "Sub", "Mul") and nodes.is_standard(node) and editor.facts.opset(node) >= 7:
            found.extend(cells.find(editor.facts, node))
    by_state: dict[ir.Value, list[Cell]] = {}
    for cell in found:
        by_state.setdefault(cell.new_h, []).append(cell)
    following: dict[int, Cell] = {}
    first: list[Cell] = []
    for cell in found:
        assert cell.h is not None, "a cell is found by its state"
        before = [p for p in by_state.get(cell.h, ()) if p.key == cell.key and p.new_c is cell.c]
        for earlier in before:
            following[id(earlier)] = cell
        if not before:
            first.append(cell)
    chains: list[list[Cell]] = []
    taken: set[ir.Node] = set()
    for chain in sorted((_followed(cell, following) for cell in first), key=len, reverse=True):
        if len(chain) < LEAST - 1:
            continue
        earlier_step = step_before(editor.facts, chain[0])
        if earlier_step is not None:
            chain.insert(0, earlier_step)
        if len(chain) >= LEAST and not any(cell.root in taken for cell in chain):
            taken.update(cell.root for cell in chain)
            chains.append(chain)
    order = {cell.root: place for place, cell in enumerate(found)}
    return sorted(chains, key=lambda chain: order[chain[-1].root])


def _followed(cell: Cell, following: dict[int, Cell]) -> list[Cell]:
    chain = [cell]
    while id(chain[-1]) in following:
        chain.append(following[id(chain[-1])])
    return chain


def _depends(chain: Sequence[Cell]) -> bool:
    """Whether an input of the chain is computed from one of its states."""
    inputs = {cell.x for cell in chain}
    inside = {node for cell in chain for node in cell.inner}
    pending = [user for cell in chain for user in cell.new_h.consumers() if user not in inside]
    seen = set(pending)
    while pending:
        for output in pending.pop().outputs:
            if output in inputs:
                return True
            for user in output.consumers():
                if user not in seen and user not in inside:
                    seen.add(user)
                    pending.append(user)
    return False


# -- the operator -----------------------------------------------------------------------------------------------------


def _roll_up(editor: Editor, match: Match, chain: Sequence[Cell]) -> None:
    first, last = chain[0], chain[-1]
    match.require(not editor.is_blocked(RULE, last.new_h.name or ""), "it was taken back before")
    match.require(match.dtype(last.new_h) == ir.DataType.FLOAT, "runtimes have the operator for float only")
    _require_private(match, chain)
    match.require(not _depends(chain), "an input depends on the state of an earlier step")
    hidden, batch = _sizes(match, chain)
    parts = _weights(match, last, hidden)
    start = [_initial(match, first.h, batch, hidden)]
    if first.kind == "LSTM":
        start.append(_initial(match, first.c, batch, hidden))
    joined = join(match, [cell.x for cell in chain])
    given: list[ir.Value | None] = [joined.value, *parts, None, *start]
    attributes: dict[str, int | str | None] = {"hidden_size": hidden}
    if joined.reverse:
        attributes["direction"] = "reverse"
    if first.kind == "GRU":
        attributes["linear_before_reset"] = 1 if first.linear_before_reset else None
    operator = match.node_of(first.kind, *given, attributes=attributes, outputs=2 if first.kind == "GRU" else 3)
    new = _states(match, chain, operator, joined)
    before = [f"{len(chain)} steps of {first.kind}, {sum(len(cell.inner) for cell in chain)} nodes"]
    if not editor.accept(RULE, last.new_h, before, [node.op_type for node in match.new_nodes]):
        editor.discard(match)
        return
    provenance.trace(RULE, operator, [node for cell in chain for node in cell.inner])
    editor.insert(match)
    for old, value in new:
        editor.replace_value(old, value)
    editor.touched.extend(match.new_nodes)
    editor.sweep([node for cell in reversed(chain) for node in cell.inner])
    graph = operator.graph
    assert isinstance(graph, ir.Graph), "the operator has joined a graph"
    graph.sort()  # readers of an early state may stand before the last one


def _require_private(match: Match, chain: Sequence[Cell]) -> None:
    """Refuse when something inside the chain is read outside, or stands in another graph."""
    inside = {node for cell in chain for node in cell.inner}
    states = {cell.new_h for cell in chain} | {chain[-1].new_c}
    for node in inside:
        match.require(node.graph is match.root.graph, f"{nodes.describe(node)} belongs to an outer graph")
        for output in node.outputs:
            if output in states:
                continue
            outside = output.is_graph_output() or any(user not in inside for user in output.consumers())
            match.require(not outside, f"the result of {nodes.describe(node)} is read outside the cells")
    for gate in chain[-1].gates:
        for value in (gate.x.value, gate.h.value):
            nbytes = value.const_value.nbytes if value.const_value is not None else 0
            private = all(user in inside for user in value.consumers()) and not value.is_graph_output()
            match.require(private or nbytes <= GROWTH, f"weight '{value.name}' is read elsewhere too")


def _sizes(match: Match, chain: Sequence[Cell]) -> tuple[int, object]:
    """Hidden size and batch, the same in every step."""
    hidden, features = match.shape(chain[0].new_h)[1], match.shape(chain[0].x)[1]
    batch = match.shape(chain[0].x)[0]
    for cell in chain:
        match.require(match.shape(cell.x) == (batch, features), "the inputs of the steps differ in shape")
        match.require(match.shape(cell.new_h) == (batch, hidden), "the states differ in shape")
    if not isinstance(hidden, int) or not isinstance(features, int):
        match.refuse("the size of the state or of the input is not known")
    for gate in chain[-1].gates:
        fits = _size(gate.x.rows) == features and _size(gate.h.rows) == hidden == _size(gate.x.columns)
        match.require(fits, "a weight has not the shape of a gate")
    return hidden, batch


def _size(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _weights(match: Match, cell: Cell, hidden: int) -> list[ir.Value | None]:
    """W, R and B of the operator: the gates' matrices one above the other, transposed."""
    for gate in cell.gates:
        for value in (gate.x.value, gate.h.value):
            match.array(value)  # refuses when it is too large to read
    facts = match.facts

    def stacked(blocks: Sequence[Array]) -> ir.Value:
        return match.constant(np.ascontiguousarray(np.concatenate(blocks)[np.newaxis]), ir.DataType.FLOAT)

    def signed(gate: Gate, block: Array) -> Array:
        return -block if gate.negated else block

    x_weights = stacked([signed(gate, gate.x.read(facts).T) for gate in cell.gates])
    h_weights = stacked([signed(gate, gate.h.read(facts).T) for gate in cell.gates])
    biases = [signed(gate, _bias(match, gate.offsets, hidden)) for gate in cell.gates]
    states = [_bias(match, gate.state_offsets, hidden) for gate in cell.gates]
    if not any(block.any() for block in (*biases, *states)):
        return [x_weights, h_weights, None]
    return [x_weights, h_weights, stacked([*biases, *states])]


def _bias(match: Match, offsets: Sequence[Offset], hidden: int) -> Array:
    total = np.zeros(hidden, np.float64)
    for offset in offsets:
        total = total + offset.read(match.facts, hidden)
    return total.astype(np.float32)


def _initial(match: Match, state: ir.Value | None, batch: object, hidden: int) -> ir.Value | None:
    """The state before the first step as [1, batch, hidden]; None when it is all zeros, which is the default."""
    if state is None or is_zero(match.facts, state):
        return None
    match.require(match.shape(state) == (batch, hidden), "the first state has another shape than the rest")
    return match.op("Unsqueeze", state, attributes={"axes": (0,)})


def _states(match: Match, chain: Sequence[Cell], operator: ir.Node, joined: Joined) -> list[tuple[ir.Value, ir.Value]]:
    """The states that something outside the chain reads, each with the value that takes its place."""
    inside = {node for cell in chain for node in cell.inner}
    read = [
        (place, cell.new_h)
        for place, cell in enumerate(chain)
        if cell.new_h.is_graph_output() or any(user not in inside for user in cell.new_h.consumers())
    ]
    new: list[tuple[ir.Value, ir.Value]] = []
    last = len(chain) - 1
    if [place for place, _ in read] == [last]:
        new.append((read[0][1], match.op("Squeeze", operator.outputs[1], attributes={"axes": (0,)})))
    elif read:
        whole = match.op("Squeeze", operator.outputs[0], attributes={"axes": (1,)})
        for place, state in read:
            index = match.constant(np.array(last - place if joined.reverse else place, np.int64))
            new.append((state, match.op("Gather", whole, index, attributes={"axis": 0})))
    final = chain[-1].new_c
    if final is not None and (final.is_graph_output() or any(user not in inside for user in final.consumers())):
        new.append((final, match.op("Squeeze", operator.outputs[2], attributes={"axes": (0,)})))
    return new

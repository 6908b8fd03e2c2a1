"""Constant folding by net bytes: what shrinks or keeps the file is computed now, what would grow it stays computed.

A *cone* is a set of nodes that depend on constants only; its *frontier* are the values that other nodes read. Only the
frontier is written out, and only when that costs no more bytes than the constants it makes superfluous, or fits the
budget for growth, of which what decides dims by its data takes nothing. A frontier tensor of one repeated value (a
splat) becomes a ConstantOfShape. When a frontier value is refused its node stays, and the node's own inputs become the
frontier.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.evaluate import evaluate, evaluate_together
from graphopt.model.operators.movement import permutation
from graphopt.rewrite.editor import GROWTH_BYTES, GROWTH_SHARE, Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import SPLAT_BYTES, Match, Refused, bind

RULE = "fold-constants"

ALWAYS = 64  # bytes; a scalar costs less than the node that computes it
LARGE = 1 << 16  # elements; from here on a transposed weight is computed when it is needed
LARGEST = 1 << 28  # bytes; above this a constant is not even computed
NODE = 64  # bytes; what a node with its names and its entry among the values takes in a file, at the least
HIGHEST = 16  # nodes; so far above a changed node is looked for a cone that it may join
# What decides dims by its data is written out beyond the budget: unknown dims keep all that follows from being planned.
DECIDING = frozenset({"NonZero", "Compress", "Unique"})
DECIDED = 1 << 20  # bytes of one such value
HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
# Dequantized weights are folded by nobody: four times the bytes, and the quantized kernel is lost.
NEVER = frozenset({"DequantizeLinear", "Constant"})


def fold_constants(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """constant subgraph  -->  its value, where the file does not grow; splats stay unwritten."""
    foldable = _cone(editor, worklist)
    wanted = {
        output: None
        for node in foldable
        for output in node.outputs
        if output.is_graph_output() or any(user not in foldable for user in output.consumers())
    }
    folder = _Folder(editor, foldable)
    for node in reversed(foldable):
        if editor.finished:
            return
        outputs = [output for output in node.outputs if output in wanted]
        if outputs and node.graph is not None and not folder.fold(node, outputs):
            wanted.update(dict.fromkeys(value for value in node.inputs if value is not None))


def why_not_folded(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """What keeps each node from being folded: an input that is not constant, or what its value would cost."""
    cone = _cone(editor, listed)
    folder = _Folder(editor, cone)
    editor.budget = 0  # what is left unfolded in a finished model cost more than the run had left
    origins: dict[ir.Value, ir.Value] = {}
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        if node in cone:
            found[node] = LeftAlone(folder.refusal(node), True)
        else:
            found[node] = LeftAlone(_why_not_constant(editor, node, cone, origins), False)
    return found


def _why_not_constant(
    editor: Editor, node: ir.Node, cone: Mapping[ir.Node, None], origins: dict[ir.Value, ir.Value]
) -> str:
    varying = next((v for v in node.inputs if v is not None and not _is_fixed(editor, v, cone)), None)
    if varying is not None:
        return _why_varying(editor, varying, origins)
    if node.op_type in NEVER:
        return "a Constant is folded already" if node.op_type == "Constant" else "dequantized weights are never folded"
    if node.domain not in ("", "ai.onnx.ml"):
        return f"nothing here can compute operators of the domain '{node.domain}'"
    if nodes.has_reference_attributes(node):
        return "an attribute is given by the function's caller"
    if nodes.has_subgraphs(node):
        return "it holds a graph"
    if not node.inputs:
        return "it has no inputs"
    return "it may give another result in each run"


def _is_fixed(editor: Editor, value: ir.Value, cone: Mapping[ir.Node, None]) -> bool:
    return value.producer() in cone or editor.facts.is_constant(value)


def _why_varying(editor: Editor, value: ir.Value, origins: dict[ir.Value, ir.Value]) -> str:
    """What the value comes from, seen along the first inputs that are not constant; `origins` remembers the way."""
    way, current = [], value
    while current not in origins:
        way.append(current)
        maker = current.producer()
        inputs = () if maker is None else maker.inputs
        above = next((v for v in inputs if v is not None and not editor.facts.is_constant(v)), None)
        if above is None:
            origins[current] = current
        else:
            current = above
    origin = origins[current]
    origins.update(dict.fromkeys(way, origin))
    maker = origin.producer()
    if maker is not None:
        depends = "is given by" if origin is value else "depends on"
        return f"'{value.name}' {depends} {nodes.describe(maker)}, which is not constant"
    if origin is not value:
        return f"'{value.name}' depends on '{origin.name}', an input of the graph"
    default = ", whose default a caller may override" if value.is_initializer() else ""
    return f"'{value.name}' is an input of the graph{default}"


def _cone(editor: Editor, worklist: Sequence[ir.Node]) -> dict[ir.Node, None]:
    """The nodes of the worklist that depend on constants only, with those above them, producers first.

    What stands above was refused before, and may be worth its bytes now that a node below has joined it.
    """
    cone: dict[ir.Node, None] = {}
    visited: set[ir.Node] = set()
    for start in worklist:
        pending = [(start, 0)]
        while pending:
            node, depth = pending[-1]
            above = [] if node in visited or depth == HIGHEST else _unfolded(node)
            visited.add(node)
            missing = [producer for producer in above if producer not in visited]
            if missing:
                pending.extend((producer, depth + 1) for producer in missing)
                continue
            pending.pop()
            if node not in cone and node.graph is not None and _is_foldable(editor, node, cone):
                cone[node] = None
    return cone


def _unfolded(node: ir.Node) -> list[ir.Node]:
    """The producers of the inputs; none where a graph's input is among these, since then nothing is constant."""
    if node.graph is None or node.op_type in NEVER or any(v is not None and v.is_graph_input() for v in node.inputs):
        return []
    return [producer for v in node.inputs if v is not None and (producer := v.producer()) is not None]


def _is_foldable(editor: Editor, node: ir.Node, cone: dict[ir.Node, None]) -> bool:
    if node.op_type in NEVER or node.domain not in ("", "ai.onnx.ml") or not node.inputs:
        return False
    if nodes.has_reference_attributes(node) or nodes.has_subgraphs(node):
        return False
    if not editor.facts.follows_from_inputs(node):
        return False
    return all(v is None or v.producer() in cone or editor.facts.is_constant(v) for v in node.inputs)


def _repeats(node: ir.Node, array: np.ndarray) -> bool:
    """Whether the node's own work is to repeat: a ConstantOfShape, or an Expand of more than one number."""
    if node.op_type == "Expand":
        return not constants.is_splat(array) and array.size > 0 and not bool((array == array.flat[0]).all())
    return node.op_type == "ConstantOfShape"


@dataclass(frozen=True, slots=True)
class _Turned:
    """A weight that is to be transposed."""

    shape: tuple[int, ...]
    dtype: ir.DataType
    nbytes: int
    data: Callable[[], np.ndarray]

    def constant(self, match: Match, node: ir.Node) -> ir.Value:
        """The new constant in place of the node's result."""
        return match.deferred(self.shape, self.dtype, self.data, name=_name(node.outputs[0]))


class _Folder:
    """Evaluates cones, remembering values, and spends the budget for growth."""

    def __init__(self, editor: Editor, cone: dict[ir.Node, None]) -> None:
        self.editor = editor
        self.facts = editor.facts
        self.cone = cone
        self.values: dict[ir.Value, np.ndarray | None] = {}
        self.credited: set[ir.Value] = set()
        self.passed: set[ir.Node] = set()

    def refusal(self, node: ir.Node) -> str:
        """Why the node's value is not written out."""
        try:
            self._fold(node, [output for output in node.outputs if nodes.is_used(output)])
        except Refused as refused:
            return str(refused)
        return "its value could be written out, but was not: the run was cut short, or it was taken back"

    def fold(self, node: ir.Node, outputs: Sequence[ir.Value]) -> bool:
        """Write the node's wanted outputs out; False when that is refused."""
        try:
            return self._fold(node, outputs)
        except Refused:
            return False

    def _fold(self, node: ir.Node, outputs: Sequence[ir.Value]) -> bool:
        for output in outputs:
            shape, dtype = self.facts.static_shape(output), self.facts.dtype(output)
            expands = node.op_type in ("Expand", "ConstantOfShape", "Tile", "Range")
            if shape is None or dtype is None or dtype == ir.DataType.STRING or expands:
                continue
            if np.prod(shape) * dtype.itemsize > LARGEST:
                raise Refused(f"its value is larger than {LARGEST >> 20} MB")
        turned = self._turned_weight(node)
        if turned is not None:
            return self._write(node, turned.nbytes, lambda match: [turned.constant(match, node)])
        if any(self.facts.dtype(output) in HALF for output in outputs):
            self._evaluate_together(node)
        arrays = [self.value(output) for output in outputs]
        if any(array is None for array in arrays):
            raise Refused("its value cannot be computed here")
        known = [array for array in arrays if array is not None]
        # What only repeats stays: its reader may broadcast by itself. The last pass writes the small ones out.
        if _repeats(node, known[0]) and known[0].nbytes > ALWAYS:
            raise Refused("it repeats a few numbers; written out it would only take more bytes")
        written = sum(
            0 if constants.is_splat(array) and array.nbytes > SPLAT_BYTES else array.nbytes for array in known
        )
        if any(constants.is_splat(a) and a.nbytes > LARGEST for a in known) and self.facts.opset(node) < 9:
            raise Refused("its value is one repeated number, and the opset has no ConstantOfShape")
        return self._write(
            node, written, lambda match: [self._written(match, output, output in outputs) for output in node.outputs]
        )

    def _turned_weight(self, node: ir.Node) -> _Turned | None:
        """A large Transposed weight, to be computed when it is needed: its size is known without reading it."""
        source = nodes.input_at(node, 0)
        tensor = None if source is None else self.facts.tensor(source)
        if node.op_type != "Transpose" or not nodes.is_standard(node) or tensor is None or tensor.size < LARGE:
            return None
        shape = tuple(int(size) for size in tensor.shape.numpy())
        if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth % 8:
            return None
        order = permutation(node, len(shape))
        return _Turned(
            tuple(shape[axis] for axis in order), tensor.dtype, tensor.nbytes,
            lambda: np.ascontiguousarray(tensor.numpy().transpose(order)),
        )  # fmt: skip

    def _write(self, node: ir.Node, written: int, make: Callable[[Match], Sequence[ir.Value | None]]) -> bool:
        """Put constants of `written` bytes in place of the node, if the budget allows it."""
        freed, credited, passed = self._freed(node) if written > ALWAYS else (written, set(), set())
        growth = written - freed
        if node.op_type in DECIDING and written <= DECIDED:
            growth = min(growth, 0)
        self._require_budget(growth)
        match = Match(node, bind(node), self.facts)
        freeing = f", {freed:,} bytes become superfluous" if written > ALWAYS else ""
        match.because(f"{written:,} bytes are written{freeing}")
        try:
            done = self.editor.apply(RULE, match, make(match))
        except Refused:
            self.editor.discard(match)
            raise
        if done:
            self.credited |= credited
            self.passed |= passed
            self.editor.budget -= max(growth, 0)
        return done

    def _require_budget(self, growth: int) -> None:
        if growth > self.editor.budget:
            self.editor.refuse_growth(growth)
            raise Refused(
                f"written out it would make the file {growth:,} bytes larger; all folding together may add "
                f"{GROWTH_BYTES:,} bytes and one {GROWTH_SHARE}th of the weights"
            )

    def _written(self, match: Match, output: ir.Value, wanted: bool) -> ir.Value | None:
        array = self.values.get(output) if wanted else None
        return None if array is None else match.constant(array, self._dtype(output, array), name=_name(output))

    def _dtype(self, output: ir.Value, array: np.ndarray) -> ir.DataType:
        known = self.facts.dtype(output)
        if known is not None:
            return known
        return ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)

    def value(self, value: ir.Value) -> np.ndarray | None:
        """The data of a value of the cone or of a constant; computed once, None when it cannot be."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self.values:
                pending.pop()
                continue
            producer = current.producer()
            if producer is None or producer not in self.cone or producer.op_type == "ConstantOfShape":
                array = self.facts.array(current)
                if array is not None or producer is None or producer not in self.cone:
                    self.values[current] = array
                    pending.pop()
                    continue
            missing = [v for v in producer.inputs if v is not None and v not in self.values]
            if missing:
                pending.extend(missing)
                continue
            self._evaluate(producer)
            pending.pop()
        return self.values[value]

    def _evaluate(self, node: ir.Node) -> None:
        inputs = [None if value is None else self.values[value] for value in node.inputs]
        results: Sequence[np.ndarray | None] | None = None
        if all(value is None or array is not None for value, array in zip(node.inputs, inputs, strict=True)):
            results = evaluate(node, inputs, self.facts.opset(node, node.domain))
        if results is None:
            results = [None] * len(node.outputs)
        for output, result in itertools.zip_longest(node.outputs, results):
            if output is not None:
                self.values[output] = result

    def _evaluate_together(self, node: ir.Node) -> None:
        """Compute the outputs of a half-precision node with everything of the cone below it in one run."""
        chain: dict[ir.Node, None] = {}
        known: dict[ir.Value, np.ndarray] = {}
        pending = [node]
        while pending:
            current = pending[-1]
            below = [value.producer() for value in current.inputs if value is not None]
            missing = [n for n in below if n is not None and n in self.cone and n not in chain]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            chain[current] = None
            for value in current.inputs:
                if value is not None and value.producer() not in self.cone:
                    array = self.facts.array(value)
                    if array is None or array.size > 1 << 24:
                        return
                    known[value] = array
        if len(chain) < 2 or any(current.domain for current in chain):
            return
        results = evaluate_together(list(chain), known, node.outputs[:1], self.facts.opset(node))
        if results is not None and len(node.outputs) == 1:
            self.values[node.outputs[0]] = results[0]

    def _freed(self, node: ir.Node) -> tuple[int, set[ir.Value], set[ir.Node]]:
        """The bytes of constants that only this node's cone reads, and of its nodes; and which these are.

        What an earlier fold has been credited with does not count again.
        """
        freed = 0
        credited: set[ir.Value] = set()
        passed: set[ir.Node] = set()
        pending, seen = [node], {node}
        while pending:
            current = pending.pop()
            inside = all(user in self.cone for output in current.outputs for user in output.consumers())
            if current not in self.passed and (current is node or inside):
                passed.add(current)
                freed += NODE
            for value in current.inputs:
                if value is None:
                    continue
                producer = value.producer()
                if producer in self.cone and producer is not None:
                    if producer not in seen:
                        seen.add(producer)
                        pending.append(producer)
                    continue
                tensor = self.facts.tensor(value)
                known = value in self.credited or value in credited
                if tensor is None or known or value.is_graph_input() or value.is_graph_output():
                    continue
                if all(user in self.cone for user in value.consumers()):
                    credited.add(value)
                    freed += tensor.nbytes
        return freed, credited, passed


def _name(value: ir.Value) -> str | None:
    return f"{value.name}/folded" if value.name else None

"""Gates: comparisons of floats, and signs, whose results rounding decides where their operands are as good as equal.

What a gate lets through is all or nothing, as the gradient of a Relu whose operand lies beside zero. Rounding grows
from layer to layer, and so does the width of the zone in which it decides: how far samples of the model's own rounding
move an operand tells how wide it is. A model with gates becomes two: one that gives what its gates compare, and one
that takes what they decide.

Squares of which arithmetic makes outputs are moved in the same way, by the width of what is squared: rounding three
times as large is nine times as large in them, and a gradient that is nothing but rounding gives Adam's step its sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.check.blocks import blocks_of, level, raise_to
from graphopt.check.held import Held
from graphopt.check.tolerance import SPACING
from graphopt.model.facts import Facts
from graphopt.model.nodes import remove_unused
from graphopt.model.operators.table import operator_of
from graphopt.model.rooms import let_go


def _sign(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(left - right))


KINDS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Greater": np.greater, "Less": np.less, "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal,
    "Sign": _sign,
}  # fmt: skip
SQUARE = "Square"
STEPPING = frozenset({"Ceil", "Floor", "Round", "Sign"})  # from floats to floats
# A gate's width, in what rounding moves its operands by: of normal errors one in 370 is larger than three times their
# root mean square. With ten times, changes of a step of 50 layers passed that were noticed with three.
WIDTH = 3.0
DECIDED = ":decided"  # behind the name of a gate's result: the input that takes its place


@dataclass(frozen=True, slots=True)
class Gate:
    """One node: its kind, the name of what is given in place of its result, and where its operands are among all.

    Of a square it is what is squared.
    """

    kind: str
    result: str
    left: int
    right: int | None  # None: zero


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of a model's main graph, or its squares."""

    gates: tuple[Gate, ...]
    operands: ir.Model  # a copy whose outputs are what the gates compare
    decided: ir.Model  # a copy in which inputs take the place of the gates' results

    def moved(
        self, operands: Sequence[np.ndarray], widths: Sequence[np.ndarray], direction: int, held: Held | None = None
    ) -> dict[str, object] | None:
        """What the gates decide if operands are moved by their widths: inputs of the `decided` model.

        In the `direction` 1 what lies below a kink counts as beyond it, with -1 what lies above. What is equal stays
        equal: that is meant. None where no gate decides otherwise. What is squared is moved as a whole. Each is kept in
        what is `held` before the next one is made.
        """
        held = Held() if held is None else held
        found, any_moved = dict[str, object](), False
        for gate in self.gates:
            left, zero = operands[gate.left], np.zeros((), operands[gate.left].dtype)
            if gate.kind == SQUARE:
                found[gate.result + DECIDED] = held.one((left + direction * widths[gate.left]).astype(left.dtype))
                any_moved = any_moved or bool(widths[gate.left].any())
                _let_go(left, widths[gate.left])
                continue
            right = zero if gate.right is None else operands[gate.right]
            width = widths[gate.left] + (0.0 if gate.right is None else widths[gate.right])
            with np.errstate(invalid="ignore", over="ignore"):
                apart = left.astype(np.float64) - right
                near = (np.abs(apart) <= width) & (apart * direction < 0)
            decide = KINDS[gate.kind]
            other = decide(np.asarray(direction, left.dtype), zero)
            result = decide(left, right)
            found[gate.result + DECIDED] = held.one(np.where(near, other, result).astype(result.dtype))
            any_moved = any_moved or bool(near.any())
            _let_go(left, right, widths[gate.left], *(() if gate.right is None else (widths[gate.right],)))
        return found if any_moved else None


def decides(model: ir.Model) -> bool:
    """Whether floats of the main graph become integers, truth values or steps, which rounding may decide."""
    facts = Facts(model)
    for node in model.graph:
        operator = operator_of(node)
        is_described = operator is not None and operator.storage == "dims"
        read = any(_is_moved(facts.dtype(value)) for value in node.inputs if value is not None)
        if node.op_type in STEPPING or (
            read and not is_described and not all(_is_moved(facts.dtype(value)) for value in node.outputs)
        ):
            return True
    return False


def widths_of(
    operands: Sequence[np.ndarray], samples: Iterable[Sequence[object]], held: Held | None = None
) -> list[np.ndarray]:
    """How far each operand may be off, by samples of all of them; 0 where it is no finite number.

    Widths lie in files as what is `held` does, and one operand's are worked on at a time.
    """
    held = Held() if held is None else held
    noise = [held.zeros(operand.shape) for operand in operands]
    for sample in samples:
        for one, operand, moved in zip(noise, operands, sample, strict=True):
            if isinstance(moved, np.ndarray) and moved.shape == operand.shape:
                parts = [np.atleast_1d(array) for array in (one, operand, moved)]
                for block in blocks_of(parts[0].shape):
                    raise_to(*(part[block] for part in parts))
                _let_go(one, operand, moved)
    for one, operand in zip(noise, operands, strict=True):
        level(np.atleast_1d(operand), np.atleast_1d(one), WIDTH)
        _let_go(one, operand)
    return noise


def _let_go(*arrays: np.ndarray) -> None:
    for array in arrays:
        let_go(array)


def gates_of(model: ir.Model) -> Gates | None:
    """The gates of the main graph; None where it has none.

    Relu's result is compared with zero in its gradient: its operand is what rounding moves there, for the result no
    longer tells which zeros lie beside the kink.
    """
    operands, decided = model.clone(), model.clone()
    facts = Facts(operands)
    places: dict[ir.Value, int] = {}
    gates: list[Gate] = []
    for node, other in zip(tuple(operands.graph), tuple(decided.graph), strict=True):
        compared = [value for value in node.inputs if value is not None]
        kinds = [facts.dtype(value) for value in compared]
        if node.domain or node.op_type not in KINDS or any(not _is_moved(kind) for kind in kinds):
            continue
        if node.attributes:  # how operands were broadcast before opset 7
            continue
        result = node.outputs[0]
        if not result.uses() and not result.is_graph_output():
            continue
        compared[0] = _before_relu(facts, node) or compared[0]
        left, *rest = (places.setdefault(value, len(places)) for value in compared)
        gates.append(Gate(node.op_type, result.name or "", left, rest[0] if rest else None))
        kind = ir.DataType.BOOL if node.op_type != "Sign" else kinds[0]
        assert kind is not None, "it is a float that has been looked at"
        _become_identity(other, _given(decided, result.name or "", kind))
    return _made(facts, operands, decided, places, gates)


def squares_of(model: ir.Model) -> Gates | None:
    """What is squared in the main graph, where arithmetic alone makes outputs of the square; None where nothing is.

    Other uses of it are moved along, as those of a gradient in Adam's step.
    """
    operands, decided = model.clone(), model.clone()
    facts = Facts(operands)
    places: dict[ir.Value, int] = {}
    gates: list[Gate] = []
    for node, other in zip(tuple(operands.graph), tuple(decided.graph), strict=True):
        if not _is_square(node) or not _is_moved(facts.dtype(node.outputs[0])):
            continue
        value, kind, squared = node.inputs[0], facts.dtype(node.outputs[0]), other.inputs[0]
        assert value is not None and kind is not None and squared is not None, "they were looked at"
        if value in places or value.producer() is None:
            continue
        gates.append(Gate(SQUARE, value.name or "", places.setdefault(value, len(places)), None))
        ir.convenience.replace_all_uses_with(squared, _given(decided, value.name or "", kind))
    return _made(facts, operands, decided, places, gates)


def _given(model: ir.Model, name: str, kind: ir.DataType) -> ir.Value:
    """A new input in place of the value with this name."""
    given = ir.Value(name=f"{name}{DECIDED}", type=ir.TensorType(kind))
    model.graph.inputs.append(given)
    return given


def _made(
    facts: Facts, operands: ir.Model, decided: ir.Model, places: Mapping[ir.Value, int], gates: Sequence[Gate]
) -> Gates | None:
    """The two models without what they do not need; None where there are no gates."""
    if not gates:
        return None
    operands.graph.outputs.clear()
    for number, value in enumerate(places):
        copied = ir.node("Identity", [value])
        copied.outputs[0].name = f"gate:operand{number}"
        kind = facts.dtype(value)
        assert kind is not None, "it is a float that has been looked at"
        copied.outputs[0].type, copied.outputs[0].shape = ir.TensorType(kind), _shape(facts, value)
        operands.graph.append(copied)
        operands.graph.outputs.append(copied.outputs[0])
    remove_unused(operands.graph)
    remove_unused(decided.graph)
    return Gates(tuple(gates), operands, decided)


def _shape(facts: Facts, value: ir.Value) -> ir.Shape | None:
    known = facts.shape(value)
    return None if known is None or not all(isinstance(dim, int) for dim in known) else ir.Shape(map(int, known))


def _is_moved(kind: ir.DataType | None) -> bool:
    """Whether it is a type of floats that rounding moves."""
    return kind is not None and kind.is_floating_point() and kind.numpy().name in SPACING


def has_squares(model: ir.Model) -> bool:
    """Whether arithmetic alone makes outputs of a square in the main graph."""
    return any(map(_is_square, model.graph))


def _is_square(node: ir.Node) -> bool:
    is_square = node.op_type == "Mul" and not node.domain and node.inputs[0] is node.inputs[1]
    return is_square and _makes_output(node.outputs[0])


def _makes_output(value: ir.Value) -> bool:
    """Whether an output is computed from the value element by element."""
    waiting, seen = [value], {value}
    while waiting:
        one = waiting.pop()
        if one.is_graph_output():
            return True
        for use in one.uses():
            operator = operator_of(use.node)
            if operator is not None and operator.formula is not None and not seen.issuperset(use.node.outputs):
                seen.update(use.node.outputs)
                waiting += use.node.outputs
    return False


def _become_identity(node: ir.Node, given: ir.Value) -> None:
    """Let the node give what is given, in place of its result."""
    node.op_type = "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, given)


def _before_relu(facts: Facts, gate: ir.Node) -> ir.Value | None:
    """The operand of the Relu whose result is compared with zero, is it greater; None for any other comparison."""
    maker = None if gate.inputs[0] is None else gate.inputs[0].producer()
    if gate.op_type != "Greater" or maker is None or maker.op_type != "Relu" or maker.domain:
        return None
    bound = None if gate.inputs[1] is None else facts.tensor(gate.inputs[1])
    is_zero = bound is not None and bound.numpy().size > 0 and not np.any(bound.numpy())
    return maker.inputs[0] if is_zero else None

"""Shape rules that many operators share."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims
from graphopt.model.known import Knowledge, Known

Result = tuple[Known, ...] | None  # one for each output; None: the schema's own inference is asked


def first_type(node: ir.Node, facts: Knowledge) -> ir.TypeProtocol | None:
    """The type of the first operand."""
    return None if node.inputs[0] is None else facts.known(node.inputs[0]).type


def source_shape(node: ir.Node, facts: Knowledge) -> dims.Dims | None:
    """The dims of the first operand, None where it is absent or of unknown rank."""
    return None if node.inputs[0] is None else facts.shape(node.inputs[0])


def like_first(node: ir.Node, facts: Knowledge, shape: dims.Dims | None) -> Result:
    """One result of the first operand's type."""
    return None if shape is None else (Known(first_type(node, facts), shape, None),)


def same_as_first(node: ir.Node, facts: Knowledge) -> Result:
    """One result of the first operand's type and dims."""
    if len(node.outputs) != 1 or not node.inputs:
        return None
    return like_first(node, facts, source_shape(node, facts))


def broadcast(node: ir.Node, facts: Knowledge) -> Result:
    """The operands' dims broadcast, the first one's type."""
    shape = _broadcast(node, facts)
    return None if shape is None else (Known(_present(node, facts)[0].type, shape, None),)


def compare(node: ir.Node, facts: Knowledge) -> Result:
    """The operands' dims broadcast, of type bool."""
    shape = _broadcast(node, facts)
    return None if shape is None else (Known(ir.TensorType(ir.DataType.BOOL), shape, None),)


def choose(node: ir.Node, facts: Knowledge) -> Result:
    """The operands' dims broadcast, the second one's type."""
    shape = _broadcast(node, facts)
    return None if shape is None else (Known(_present(node, facts)[1].type, shape, None),)


def slope(node: ir.Node, facts: Knowledge) -> Result:
    """The operand and its slope broadcast: by ONNX the second to the first, in ONNX Runtime also the first to it."""
    if facts.opset(node) < 7:
        return None
    return broadcast(node, facts) or like_first(node, facts, _present(node, facts)[0].shape)


def _present(node: ir.Node, facts: Knowledge) -> list[Known]:
    return [facts.known(value) for value in node.inputs if value is not None]


def _broadcast(node: ir.Node, facts: Knowledge) -> dims.Dims | None:
    """None also before opset 7, where attributes said how operands broadcast."""
    if facts.opset(node) < 7:
        return None
    return dims.broadcast(*(known.shape for known in _present(node, facts)))

"""A node of com.microsoft as the texts of its body see it, and numbers as these texts have them."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge


class Node:
    """A node for a text: its operands' names, and attributes as the text has them."""

    def __init__(self, node: ir.Node, facts: Knowledge) -> None:
        self.node = node
        self.opset = facts.opset(node)
        self.kinds = [None if one is None else facts.dtype(one) for one in node.inputs]
        kinds = [kind for kind, one in zip(self.kinds, node.inputs, strict=True) if one is not None]
        floats = [one for one in kinds if one is not None and one.is_floating_point()]
        self.kind = kinds[0] if kinds[0] is not None or not floats else floats[0]
        self.dims = [None if one is None else facts.known(one).shape for one in node.inputs]
        self.rank = [None if one is None else len(one) for one in self.dims]

    def has(self, at: int) -> bool:
        """Whether an operand is given."""
        return at < len(self.node.inputs) and self.node.inputs[at] is not None

    def number(self, name: str, otherwise: float) -> float:
        """An attribute that is a number."""
        return nodes.float_attribute(self.node, name, otherwise)

    def flag(self, name: str) -> bool:
        """An attribute that is 0 or 1."""
        return bool(nodes.int_attribute(self.node, name, 0))

    def activated(self) -> str:
        """Lines that give y, the value of x behind the node's activation."""
        kind = nodes.string_attribute(self.node, "activation", "")
        given = nodes.attribute_of(self.node, "activation_params")
        numbers = [float(one) for one in given.value] if given is not None else []
        alpha = numbers[0] if numbers else self.number("activation_alpha", 0.01)
        match kind:
            case "":
                return "y = Identity(x)"
            case "LeakyRelu":
                return f"y = LeakyRelu <alpha: float = {alpha}> (x)"
            case "HardSigmoid":
                beta = numbers[1] if len(numbers) > 1 else self.number("activation_beta", 0.5)
                return f"y = HardSigmoid <alpha: float = {alpha}, beta: float = {beta}> (x)"
            case "Clip":
                low, high = numbers
                return f"l = {scalar(low)}\n h = {scalar(high)}\n y = Clip(x, l, h)"
        return f"y = {kind}(x)"

    def kept(self, names: tuple[str, ...]) -> str:
        """Attributes that another operator takes over."""
        found = []
        for name in names:
            one = nodes.attribute_of(self.node, name)
            if one is not None:
                found.append(
                    f'{name} = "{one.value}"' if isinstance(one.value, str) else f"{name} = {listed(one.value)}"
                )
        return f"<{', '.join(found)}>" if found else ""


def scalar(value: float) -> str:
    """A float32."""
    return f"Constant <value: tensor = float {{{value}}}> ()"


def listed(value: object) -> str:
    """A number or a list of them."""
    return str(list(value)) if isinstance(value, list | tuple) else str(value)

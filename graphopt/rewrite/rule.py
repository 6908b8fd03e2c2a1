"""A rule: a pattern, what must hold, and what is put in its place.

    @rule(op("Add", op("Add", var("x"), const("a")), const("b")), level=1)
    def add_of_add(match: Match) -> Replacement:
        '''x + a + b  -->  x + (a + b)'''
        a, b = match.array("a"), match.array("b")
        match.require(a is not None and b is not None, "a constant is too large to read")
        return match.op("Add", match["x"], match.constant(a + b))

The function first states its conditions with `require` (a refusal carries the reason), then builds new nodes with
`match.op` and `match.constant`; they join the graph only when the function returns and the driver agrees, so a refusal
half way leaves nothing behind. It returns the values that replace the outputs of the pattern's last node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, content, dims
from graphopt.model.facts import Facts
from graphopt.model.known import Known
from graphopt.model.operators.parameters import Unclear, parameter
from graphopt.model.operators.table import OPERATORS
from graphopt.rewrite.pattern import Binding, Op, may_match

Replacement = ir.Value | Sequence[ir.Value | None]
AttributeValue = int | float | str | Sequence[int] | Sequence[float] | ir.TensorProtocol | ir.Attr


class Refused(Exception):
    """The pattern fits but a condition does not hold; the text says which."""


class Making:
    """The hands that make nodes and constants which are in no graph yet, read under the imports of a node that is."""

    def __init__(self, root: ir.Node, facts: Facts) -> None:
        self.root = root
        self.facts = facts
        self.new_nodes: list[ir.Node] = []
        self.new_constants: list[ir.Value] = []

    @cached_property
    def opset(self) -> int:
        """The version of ONNX's own operators where the root is."""
        return self.facts.opset(self.root)

    def require(self, condition: object, reason: str) -> None:
        """Refuse with `reason` unless the condition holds."""
        if not condition:
            raise Refused(reason)

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        outputs: int = 1,
        like: ir.Node | None = None,
        domain: str = "",
    ) -> ir.Value:
        """A new node; attributes with the value None are left out; `like` also copies a node's attributes.

        Parameters that became inputs (axes, bounds, pads ...) are given as attributes, and written where the opset has
        them.
        """
        made = self.node_of(op_type, *inputs, attributes=attributes, outputs=outputs, like=like, domain=domain)
        return made.outputs[0]

    def node_of(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        outputs: int = 1,
        like: ir.Node | None = None,
        domain: str = "",
    ) -> ir.Node:
        """As `op`, giving the node, for operators with several outputs."""
        merged: dict[str, ir.Attr] = {} if like is None else dict(like.attributes)
        trimmed = list(inputs)
        operator = OPERATORS.get((domain, op_type))
        for name, value in (attributes or {}).items():
            merged.pop(name, None)
            place = None if operator is None else operator.parameters.get(name)
            if isinstance(value, ir.Attr):
                merged[name] = value
            elif value is not None and place is not None and place.is_input(self.opset):
                trimmed += [None] * (place.position + 1 - len(trimmed))
                trimmed[place.position] = self.constant(np.array(value, np.int64).reshape(() if place.scalar else -1))
            elif value is not None:
                merged[name] = ir.convenience.convert_attribute(name, value)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        node = ir.Node(domain, op_type, trimmed, merged, num_outputs=outputs)
        self.facts.adopt(node, self.root)
        self.new_nodes.append(node)
        return node

    def constant(self, array: np.ndarray, dtype: ir.DataType | None = None, name: str | None = None) -> ir.Value:
        """A new constant. A splat of more than a few elements becomes a ConstantOfShape where the opset has it."""
        kind = dtype or ir.DataType.from_numpy(array.dtype)
        if constants.is_splat(array) and array.nbytes > SPLAT_BYTES and self.opset >= 9:
            shape = self.constant(np.array(array.shape, dtype=np.int64))
            filler = ir.Tensor(np.ascontiguousarray(array[(0,) * array.ndim]).reshape(1), dtype=kind)
            return self.op("ConstantOfShape", shape, attributes={"value": filler})
        self.require(array.nbytes <= self.facts.memory_left, "too many new weights for a model with weights on disk")
        tensor = constants.to_tensor(array, kind)
        value = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(array.shape), const_value=tensor)
        self.new_constants.append(value)
        self.facts.set_known(value, Known(ir.TensorType(kind), tuple(array.shape), content.of_array(array)))
        self.facts.set_array(value, array)
        return value

    def deferred(
        self, shape: tuple[int, ...], dtype: ir.DataType, compute: Callable[[], np.ndarray], name: str | None = None
    ) -> ir.Value:
        """A new constant whose data is computed when it is first read, and then kept."""
        size = math.prod(shape) * dtype.itemsize
        self.require(size <= self.facts.memory_left, "too many new weights for a model with weights on disk")
        tensor = ir.LazyTensor(lambda: ir.Tensor(compute(), dtype=dtype), dtype, ir.Shape(shape), cache=True)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=tensor)
        self.new_constants.append(value)
        self.facts.set_known(value, Known(ir.TensorType(dtype), shape, None))
        return value

    def ints_constant(self, *numbers: int) -> ir.Value:
        """A new int64 vector."""
        return self.constant(np.array(numbers, dtype=np.int64))


class Match(Making):
    """One place where a rule's pattern fits, and the hands to rebuild it."""

    def __init__(self, root: ir.Node, binding: Binding, facts: Facts) -> None:
        super().__init__(root, facts)
        self.binding = binding
        self.reason: str | None = None

    def __getitem__(self, name: str) -> ir.Value:
        return self.binding.values[name]

    def node(self, name: str) -> ir.Node:
        """The node that the operator pattern called `name` stands for."""
        return self.binding.nodes[name]

    @property
    def output(self) -> ir.Value:
        """The first output of the pattern's last node."""
        return self.root.outputs[0]

    # -- conditions -----------------------------------------------------------------------------------------------

    def refuse(self, reason: str) -> NoReturn:
        """Refuse."""
        raise Refused(reason)

    def because(self, reason: str) -> None:
        """What a report shall say of this one place: a number or a name that the docstring cannot know."""
        self.reason = reason

    def shape(self, value: ir.Value | str) -> dims.Dims:
        """The dims of a value (or of what a name is bound to); refuses when they are unknown."""
        target = self[value] if isinstance(value, str) else value
        shape = self.facts.shape(target)
        if shape is None:
            raise Refused(f"the shape of '{target.name}' is not known")
        return shape

    def static_shape(self, value: ir.Value | str) -> tuple[int, ...]:
        """The dims as integers; refuses when one is not known."""
        shape = dims.static(self.shape(value))
        if shape is None:
            target = self[value] if isinstance(value, str) else value
            raise Refused(f"a dimension of '{target.name}' is not known")
        return shape

    def rank(self, value: ir.Value | str) -> int:
        """The number of dims; refuses when unknown."""
        return len(self.shape(value))

    def dtype(self, value: ir.Value | str) -> ir.DataType:
        """The element type; refuses when unknown."""
        target = self[value] if isinstance(value, str) else value
        kind = self.facts.dtype(target)
        if kind is None:
            raise Refused(f"the type of '{target.name}' is not known")
        return kind

    def array(self, value: ir.Value | str) -> np.ndarray:
        """The data of a constant (read-only; may be a splat); refuses when it is not constant."""
        target = self[value] if isinstance(value, str) else value
        self.readable(target)
        array = self.facts.array(target)
        if array is None:
            raise Refused(f"'{target.name}' is not a constant")
        return array

    def readable(self, value: ir.Value) -> ir.TensorProtocol | None:
        """The tensor of a constant that may be computed with; None for a splat; refuses when it is not constant."""
        tensor = self.facts.tensor(value)
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes > READ_LIMIT:
            raise Refused(f"'{value.name}' is {tensor.nbytes / 1e6:,.0f} MB on disk, too much to compute with")
        if tensor is None and not self.facts.is_constant(value):
            raise Refused(f"'{value.name}' is not a constant")
        return tensor

    def ints(self, value: ir.Value | None, what: str) -> tuple[int, ...]:
        """The numbers of a constant integer vector; refuses, calling it `what`, when they are not known."""
        found = self.facts.ints(value)
        if found is None:
            raise Refused(f"{what} is not constant")
        return found

    def parameter(self, node: ir.Node, name: str, meaning: str = "the list of axes") -> tuple[int, ...] | None:
        """The numbers of an attribute that may have become an input, None where the node says none.

        Refuses, calling it `meaning`, where it is not constant.
        """
        try:
            return parameter(self.facts, node, name, OPERATORS[node.domain, node.op_type].parameters[name], meaning)
        except Unclear as unclear:
            raise Refused(str(unclear)) from None


# A rule computes with a weight in double precision, so that reading one takes three times its bytes. Weights of a
# model that is larger than the memory are mapped from the disk, and the largest of them stay there.
READ_LIMIT = 64 << 20  # bytes
SPLAT_BYTES = 256  # a ConstantOfShape with its shape takes about as many bytes in a file


@dataclass(frozen=True, slots=True)
class Rule:
    """A named local rewrite. `anchors` are the operator types at which it is tried ('*': every node)."""

    name: str
    pattern: Op | None
    anchors: tuple[str, ...]
    apply: Callable[[Match], Replacement]
    level: int
    doc: str
    near: frozenset[str] = frozenset()  # one of these types stands at most two operators above; none: not looked at

    def may_fit(self, node: ir.Node) -> bool:
        """A cheap look at what stands above; False where the rule would refuse for certain."""
        if self.pattern is not None:
            return may_match(self.pattern, node)
        if not self.near:
            return True
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is None:
                continue
            if producer.op_type in self.near:
                return True
            for above in producer.inputs:
                further = None if above is None else above.producer()
                if further is not None and further.op_type in self.near:
                    return True
        return False


def rule(pattern: Op, *, level: int, name: str | None = None) -> Callable[[Callable[[Match], Replacement]], Rule]:
    """Make a rule of a function; its name is the function's with dashes."""

    def make(function: Callable[[Match], Replacement]) -> Rule:
        title = name or function.__name__.strip("_").replace("_", "-")
        return Rule(title, pattern, pattern.types, function, level, (function.__doc__ or "").strip())

    return make


def any_node(*anchors: str, level: int, near: tuple[str, ...] = ()) -> Callable[[Callable[[Match], Replacement]], Rule]:
    """Make a rule that looks at single nodes of the given types (none given: every node) without a pattern.

    `near`: types of which one must be at most two operators above for the rule to fit; it saves looking closer.
    """

    def make(function: Callable[[Match], Replacement]) -> Rule:
        title = function.__name__.strip("_").replace("_", "-")
        return Rule(title, None, anchors or ("*",), function, level, (function.__doc__ or "").strip(), frozenset(near))

    return make


def bind(root: ir.Node) -> Binding:
    """The binding of a rule without a pattern: the node alone."""
    return Binding({}, {}, [root])

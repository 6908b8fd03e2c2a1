"""Operators that make tensors of dims or of nothing, draw them, or hold graphs, sequences and optionals."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import constants, content, dims, nodes
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators import arrays
from graphopt.model.operators.arrays import Arrays
from graphopt.model.operators.gradients import control
from graphopt.model.operators.record import Counting, Operator, no_flops
from graphopt.model.operators.shapes import Result, first_type, like_first
from graphopt.model.reals import Real, whole


def _filled_dims(node: ir.Node, facts: Knowledge) -> Result:
    target = None if node.inputs[0] is None else facts.content(node.inputs[0])
    attribute = node.attributes.get("value")
    dtype = ir.DataType.FLOAT if attribute is None else attribute.as_tensor().dtype
    return None if target is None else (Known(ir.TensorType(dtype), tuple(target.reshape(-1).tolist()), None),)


def _range_dims(node: ir.Node, facts: Knowledge) -> Result:
    operands = [None if value is None else facts.held(value) for value in node.inputs]
    if any(operand is None or operand.size != 1 for operand in operands):
        return None
    items = [operand.reshape(-1)[0] for operand in operands if operand is not None]
    start, limit, step = (whole(item) if isinstance(item, Real) else item for item in items)
    if start is None or limit is None or step is None:
        return None
    if all(isinstance(item, int) for item in (start, limit, step)):
        return like_first(node, facts, (len(range(start, limit, step)),)) if step else None
    if step != 1:
        return None
    length = dims.normal(sympy.sympify(limit) - sympy.sympify(start))
    return (Known(first_type(node, facts), (length,), None),) if sympy.sympify(length).is_nonnegative else None


def filler(node: ir.Node) -> np.ndarray:
    """The one element that a ConstantOfShape repeats."""
    attribute = node.attributes.get("value")
    return np.zeros((), np.float32) if attribute is None else attribute.as_tensor().numpy()


def _constant_of_shape(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (shape,) = arrays.present(*inputs)
    return constants.splat(filler(node), arrays.numbers(shape) or ())


def _shape(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = arrays.present(*inputs)
    return np.array(_part_of_dims(node, data.shape), dtype=np.int64)


def _range(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    """Of integers; ONNX Runtime takes tensors of one element for numbers, where the schema asks for scalars."""
    start, limit, step = given = arrays.present(*inputs)
    if any(array.size != 1 or array.dtype.kind not in "iu" for array in given) or not step.any():
        return None
    numbers = range(int(start.item()), int(limit.item()), int(step.item()))
    return (
        None if len(numbers) > arrays.MOST else np.arange(numbers.start, numbers.stop, numbers.step, dtype=start.dtype)
    )


def described(node: ir.Node, shape: dims.Dims) -> content.Content:
    """The numbers that Shape and Size give for an operand of these dims."""
    if node.op_type == "Shape":
        return content.of_dims(_part_of_dims(node, shape))
    result = np.empty((), dtype=object)
    result[()] = dims.product(shape)
    return result


def _part_of_dims(node: ir.Node, shape: dims.Dims) -> dims.Dims:
    """The dims from `start` to `end`, which count from the back where they are negative."""
    return shape[nodes.int_attribute(node, "start", 0) : nodes.int_attribute(node, "end", len(shape))]


def _mover(name: str) -> Operator:
    return Operator(name=name, flops=no_flops)


def _random(name: str) -> Operator:
    """An operator that draws; Bernoulli and Multinomial count one operation for each number."""
    if name.startswith("Random"):
        return Operator(name=name, flops=no_flops, purity="random")
    return Operator(name=name, purity="random")


def _iterations(node: ir.Node, facts: Knowledge) -> tuple[Counting, ...]:
    """What a Loop collects has a row for each iteration, of which there may be fewer than its operand says."""
    limit = facts.ints(nodes.input_at(node, 0))
    states = max(len(node.inputs) - 2, 0)
    axes = tuple(None if place < states else 0 for place in range(len(node.outputs)))
    return () if limit is None or len(limit) != 1 else (Counting(axes, max(limit[0], 0)),)


OPERATORS = (
    _mover("Constant"),
    Operator(name="ConstantOfShape", shape=_filled_dims, evaluate=_constant_of_shape, flops=no_flops),
    Operator(name="Shape", evaluate=_shape, flops=no_flops, storage="dims"),
    Operator(name="Size", flops=no_flops, storage="dims"),
    Operator(name="Range", shape=_range_dims, evaluate=_range, flops=no_flops),
    _mover("EyeLike"),
    *map(_random, ("Bernoulli", "Multinomial")),
    *map(_random, ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")),
    Operator(name="If", flops=no_flops, gradient=control.chosen),
    Operator(name="Scan", flops=no_flops, gradient=control.scanned),
    Operator(name="Loop", counted=_iterations, flops=no_flops, gradient=control.looped),
    *map(
        _mover,
        (
            "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
            "SequenceLength", "SplitToSequence", "Optional", "OptionalGetElement", "OptionalHasElement",
        ),
    ),
)  # fmt: skip

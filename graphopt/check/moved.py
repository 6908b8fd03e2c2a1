"""Models moved by their own rounding: weights, results of sums, and numbers that are rounded to steps.

Each is a copy of a model whose numbers are others by as little as they can be, or by as much as counts as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from graphopt.check.blocks import blocks_of
from graphopt.check.lineage import BOUNDED, ROUNDED, SIGNED, STATE_SCALES, STEPS, SUMS
from graphopt.check.tolerance import SPACING
from graphopt.model.facts import Facts
from graphopt.model.nodes import graphs_of, nodes_of

MOVED_BYTES = 64 << 20  # of weights, the small ones first
FEWEST = 8  # elements of a weight that is moved; smaller tensors are epsilons, scales and bounds
STEP = 32  # units in the last place, by which numbers that are rounded to steps are moved: as many count as equal
LEAST_SHARE = 0.25  # of these units: one more than rounding is
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
SHRINKS_SINCE = 9  # the opset with Shrink
LARGEST_SUBNORMAL = 2.0**-126 - 2.0**-149  # of float32
# What may give a subnormal number of normal ones.
SMALL = frozenset({"Exp", "Pow", "Mul", "Div", "Reciprocal", "Softmax", "Sigmoid"})
DIGITS = 1024  # weights whose elements are all multiples of 1 / DIGITS are masks, grids, filters of a fixed kind


def moved_weights(model: ir.Model) -> ir.Model | None:
    """A copy with its floating-point weights moved by one unit in the last place; None where it has none.

    Weights of subgraphs are among them, and those that stand in Constant nodes.
    """
    copy = model.clone()
    left, any_moved = MOVED_BYTES, False
    for number, (tensor, put) in enumerate(sorted(_weights(copy), key=lambda pair: pair[0].nbytes)):
        left -= tensor.nbytes
        if left < 0:
            break
        array = tensor.numpy()
        moved = moved_array(array, seed=number)
        if isinstance(moved, np.ndarray) and moved is not array and not _few_digits(array):
            put(ir.Tensor(moved, dtype=tensor.dtype, name=tensor.name))
            any_moved = True
    return copy if any_moved else None


def moved_sums(model: ir.Model) -> ir.Model | None:
    """A copy in which the results of sums are moved by a unit in the last place, also in bodies; None without any.

    What cancels, as a variance that is a mean of squares less the square of a mean, shows how much it loses. Elements
    of a row are moved apart, as those are that other lanes sum: a row of equal ones has a variance of rounding then.
    """
    generator = np.random.default_rng(20262)

    def moved(place: Place) -> list[ir.Node]:
        signs = generator.choice([-1, 1], place.along)
        return [ir.node("Mul", [place.value, place.constant(1 + place.spacing * signs)])]

    return _moved_results(model, SUMS, moved)


def moved_orders(model: ir.Model) -> ir.Model | None:
    """A copy in which sums of products are moved by a unit of what their terms are; None without any.

    Another order of the terms rounds other partial sums. Where these cancel, as in a bin of a Fourier transform in
    which a signal has nothing, the result is their rounding, of which a unit of its own says nothing.
    """
    generator = np.random.default_rng(20265)

    def moved(place: Place) -> list[ir.Node]:
        operands = [ir.node("Abs", [operand]) for operand in place.node.inputs[:2]]
        attributes = [one for one in place.node.attributes.values() if not one.is_ref()]
        terms = ir.Node("", place.node.op_type, [one.outputs[0] for one in operands], attributes)
        shares = generator.normal(size=place.along)
        unit = ir.node("Mul", [terms.outputs[0], place.constant(shares * place.spacing)])
        return [*operands, terms, unit, ir.node("Add", [place.value, unit.outputs[0]])]

    return _moved_results(model, PRODUCTS, moved)


def moved_functions(model: ir.Model) -> ir.Model | None:
    """A copy in which results of functions are moved by half a unit of one; None without any.

    Engines compute them to that: far from zero one gives a sigmoid of 1e-12 and another none at all, and a gradient
    behind it is all that there is in its row. Results from 0 to 1 go up alone, and stay in their range.
    """
    generator = np.random.default_rng(20264)

    def moved(place: Place) -> list[ir.Node]:
        shares = generator.uniform(LEAST_SHARE, 1, place.along)
        signs = generator.choice([-1, 1], place.along) if place.node.op_type in SIGNED else 1
        return [ir.node("Add", [place.value, place.constant(signs * shares * place.spacing / 2)])]

    return _moved_results(model, BOUNDED, moved)


def moved_subnormals(model: ir.Model) -> ir.Model | None:
    """A copy whose functions and products give zeros for subnormal numbers, as programs may; None without any.

    A logarithm of what is left of e^-89 is -89 or infinite.
    """
    if model.graph.opset_imports.get("", 1) < SHRINKS_SINCE:
        return None

    def moved(place: Place) -> list[ir.Node]:
        if place.kind != ir.DataType.FLOAT:
            return []
        return [ir.node("Shrink", [place.value], {"lambd": LARGEST_SUBNORMAL, "bias": 0.0})]

    return _moved_results(model, SMALL, moved)


@dataclass(frozen=True, slots=True)
class Place:
    """A result that is moved."""

    node: ir.Node
    kind: ir.DataType
    along: Sequence[int]  # its last dim, where that is known
    constant: Callable[[np.ndarray], ir.Value]

    @property
    def value(self) -> ir.Value:
        """The node's first result."""
        return self.node.outputs[0]

    @property
    def spacing(self) -> float:
        """Of its type's numbers from 1 to 2."""
        return SPACING[self.kind.numpy().name]


def _moved_results(
    model: ir.Model, operators: frozenset[str], moved: Callable[[Place], list[ir.Node]]
) -> ir.Model | None:
    """A copy in which other nodes stand behind each result of some operators that is of floats; None without any.

    The last of them gives what stands for the result. In bodies that is the same in each iteration.
    """
    copy = model.clone()
    facts, main = Facts(copy), copy.graph
    found = [node for node in nodes_of(main) if node.op_type in operators and not node.domain]
    kinds = {node: facts.dtype(node.outputs[0]) for node in found}
    count = 0
    for number, (node, kind) in enumerate(kinds.items()):
        if kind is None or kind.numpy().name not in SPACING:
            continue
        value = node.outputs[0]
        along = [dim for dim in (facts.shape(value) or ())[-1:] if isinstance(dim, int)]
        # Values of two bodies may have one name; the main graph's constants are seen in all of them.
        constant = partial(_constant, main, f"{value.name}:moved{number}", kind=kind)
        behind = moved(Place(node, kind, along, constant))
        if behind:
            _put_behind(node, behind, f"{value.name}:moved{number}")
            count += 1
    return copy if count else None


def _put_behind(node: ir.Node, moved: Sequence[ir.Node], prefix: str) -> None:
    """Put nodes behind another one: the last, which reads its first result first, takes the result's name and uses."""
    value, name, graph = node.outputs[0], node.outputs[0].name, node.graph
    assert isinstance(graph, ir.Graph), "a node that is moved is in a graph"
    graph.insert_after(node, moved)
    for number, one in enumerate(moved[:-1]):
        one.outputs[0].name = f"{prefix}:{number}"
    new = moved[-1].outputs[0]
    new.type, new.shape = value.type, value.shape
    ir.convenience.replace_all_uses_with([value], [new], replace_graph_outputs=True)
    moved[-1].replace_input_with(0, value)
    value.name, new.name = f"{name}:plain", name


def moved_steps(model: ir.Model, seed: int = 0, *, later: bool = False) -> ir.Model | None:
    """A copy in which floats that are rounded to steps, and their scales, are moved by as much as counts as equal.

    A unit in the last place moves few elements over a tie, and a program that is right moves others. Each second seed
    moves all the other way of the one before it. Numbers are moved by different shares of the width: where all go as
    far as the scale that is made of them, their quotient stays. None without any such float in the main graph.
    `later`: only those that are made of numbers which were rounded to steps before, or of functions such as a
    normalization: an input's ties may be meant, while these lie anywhere. Such is a recurrent layer's state from its
    second step on, which the scale of the matrix that it meets moves.
    """
    copy = model.clone()
    facts, generator, way = Facts(copy), np.random.default_rng([20263, seed // 2]), 1 - 2 * (seed % 2)
    count = 0
    for node, places in _stepped(copy, later=later):
        for place in places:
            value = node.inputs[place]
            kind = None if value is None else facts.dtype(value)
            if value is None or kind is None or not kind.is_floating_point() or kind.numpy().name not in SPACING:
                continue
            tensor, dims, name = facts.tensor(value), facts.shape(value), f"{node.outputs[0].name}:step{place}"
            along = dims[-1] if dims and isinstance(dims[-1], int) and tensor is None else 1
            drawn = along if tensor is None else tensor.numpy().shape
            shares = way * generator.choice([-1, 1], drawn) * generator.uniform(LEAST_SHARE, 1, drawn)
            factor = 1 + STEP * SPACING[kind.numpy().name] * shares
            if tensor is not None:
                moved = _constant(copy.graph, name, tensor.numpy() * factor, kind)
            else:
                product = ir.node("Mul", [value, _constant(copy.graph, f"{name}:factor", factor, kind)])
                copy.graph.insert_before(node, product)
                moved = product.outputs[0]
                moved.name = name
            node.replace_input_with(place, moved)
            count += 1
    return copy if count else None


def _stepped(model: ir.Model, *, later: bool) -> list[tuple[ir.Node, Sequence[int]]]:
    """The nodes of the main graph that round to steps, and their operands, all or those behind others."""
    found, behind = list[tuple[ir.Node, Sequence[int]]](), set[ir.Value]()
    for node in model.graph:
        is_behind, rounds = any(value in behind for value in node.inputs), node.op_type in STEPS
        if rounds and (is_behind or not later):
            found.append((node, range(len(node.inputs))))
        elif node.op_type in STATE_SCALES and STATE_SCALES[node.op_type] < len(node.inputs):
            found.append((node, (STATE_SCALES[node.op_type],)))
        if rounds or is_behind or node.op_type in ROUNDED:
            behind.update(node.outputs)
    return found


def _constant(graph: ir.Graph, name: str, number: float | np.ndarray, kind: ir.DataType) -> ir.Value:
    array = np.asarray(number).astype(kind.numpy())
    tensor = ir.Tensor(array, dtype=kind, name=name)
    value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(kind), shape=ir.Shape(array.shape))
    graph.register_initializer(value)
    return value


def _weights(model: ir.Model) -> Iterator[tuple[ir.TensorProtocol, Callable[[ir.TensorProtocol], None]]]:
    """Tensors that may be moved, and what puts another one in the place of each."""
    for graph in graphs_of(model):
        for value in graph.initializers.values():
            if value.const_value is not None and _is_weight(value.const_value):
                yield value.const_value, partial(setattr, value, "const_value")
        for node in graph:
            held = node.attributes.get("value") if node.op_type == "Constant" else None
            if held is not None and held.type is ir.AttributeType.TENSOR and _is_weight(held.as_tensor()):
                yield held.as_tensor(), partial(_put_constant, node)


def _put_constant(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    node.attributes["value"] = ir.AttrTensor("value", tensor)


def _is_weight(tensor: ir.TensorProtocol) -> bool:
    kind = tensor.dtype
    return tensor.size >= FEWEST and kind.is_floating_point() and kind.numpy().name in SPACING


def _few_digits(array: np.ndarray) -> bool:
    sample = array.reshape(-1)[:4096].astype(np.float64) * DIGITS
    return bool(np.all(sample == np.rint(sample)))


def moved_array(value: object, seed: int) -> object:
    """A float array with every element one unit up or down, other things as they are; zeros stay."""
    if isinstance(value, list):
        return [moved_array(item, seed) for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.name not in SPACING or value.size == 0:
        return value
    generator = np.random.default_rng([20262, seed])
    array = np.atleast_1d(value)
    result = np.empty(array.shape, array.dtype)
    for block in blocks_of(array.shape):
        signs = generator.integers(0, 2, array[block].shape, np.int8) * np.int8(2) - np.int8(1)
        result[block] = _by_a_unit(array[block], signs)
    return result.reshape(value.shape)


def _by_a_unit(array: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Floats moved up where the sign is 1 and down where it is -1; zeros, and what would be infinite, stay."""
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype.name == "bfloat16":
            return np.asarray(array * (1 + signs * SPACING["bfloat16"])).astype(array.dtype)
        bits = np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}")
        moved = (bits + np.where(bits < 0, -signs, signs)).view(array.dtype)
        return np.where((array == 0) | ~np.isfinite(moved), array, moved)

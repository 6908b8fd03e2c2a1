"""What a node costs when dims are known: floating-point operations and bytes read and written.

A multiplication with an addition counts as two operations. Elementwise operators count one operation per output
element, reductions one per input element, normalisations and softmax a handful; operators that only move data count
none. Bytes are those of all inputs and outputs, each read or written once: what a run without fusion or caches moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.facts import Facts

Shape = tuple[int, ...]

DATA_MOVEMENT = frozenset(
    {
        "Cast", "CastLike", "Concat", "ConcatFromSequence", "Constant", "ConstantOfShape", "DepthToSpace", "Dropout",
        "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop", "OneHot",
        "Optional", "OptionalGetElement", "OptionalHasElement", "Pad", "Range", "Reshape", "ReverseSequence", "Scan",
        "Scatter", "ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
        "SequenceInsert", "SequenceLength", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence",
        "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unique", "Unsqueeze", "NonZero", "Compress",
        "Where", "Upsample", "BitCast",
    }
)  # fmt: skip
# Only a description changes; a run hands the same memory on.
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size"})
# Of the data only what is selected is read, so as many bytes as are written.
SELECTIONS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
# Operations per output element of operators that spell out several; everything not listed here costs one.
PER_ELEMENT = {
    "Softmax": 5, "LogSoftmax": 5, "Hardmax": 2, "BatchNormalization": 2, "InstanceNormalization": 8,
    "LayerNormalization": 8, "GroupNormalization": 8, "RMSNormalization": 5, "LpNormalization": 4, "LRN": 5,
    "MeanVarianceNormalization": 8, "Gelu": 8, "Swish": 5, "HardSwish": 3, "Sigmoid": 4, "Mish": 6, "Resize": 7,
    "QuantizeLinear": 3, "DequantizeLinear": 2, "RotaryEmbedding": 3,
}  # fmt: skip
REDUCTIONS = frozenset(
    {
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool", "TopK",
        "GlobalLpPool", "CumSum",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and bytes of one node."""

    flops: int
    bytes: int


class Sizes:
    """Dims as numbers: each dynamic dim takes its given size, or the default, and is remembered as assumed."""

    def __init__(self, facts: Facts, given: Mapping[str, int], default: int = 1) -> None:
        self._facts = facts
        self._given = given
        self._default = default
        self._numbers: dict[dims.Dim, int] = {}
        self.assumed: dict[str, int] = {}
        self.unnamed = False  # whether a dim that only a run can tell was assumed too

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The dims as numbers, None when even the rank is unknown; () for an absent input."""
        if value is None:
            return ()
        known = self._facts.shape(value)
        return None if known is None else tuple(self._number(dim) for dim in known)

    def _number(self, dim: dims.Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._numbers:
            self._numbers[dim] = self._evaluate(dim)
        return self._numbers[dim]

    def _evaluate(self, dim: sympy.Expr) -> int:
        sizes: dict[sympy.Basic, int] = {}
        for symbol in sorted(dim.free_symbols, key=str):
            name = str(symbol)
            sizes[symbol] = self._given.get(name, self._default)
            if name.startswith("?"):
                self.unnamed = True
            else:
                self.assumed[name] = sizes[symbol]
        number = sympy.floor(dim.subs(sizes))
        return max(int(number), 0) if number.is_Integer else self._default

    def bytes(self, value: ir.Value | None) -> int | None:
        """The bytes of a tensor, None when type or dims are unknown."""
        if value is None:
            return 0
        shape, dtype = self.shape(value), self._facts.dtype(value)
        if shape is None or dtype is None:
            return None
        if dtype == ir.DataType.STRING:
            return 0
        return (prod(shape) * int(dtype.bitwidth) + 7) // 8


def cost_of(node: ir.Node, sizes: Sizes) -> Cost | None:
    """What one run of the node costs, without what its subgraphs do; None when a rank or type is not known."""
    if not nodes.is_standard(node):
        return None
    read = node.inputs[1:] if node.op_type in SELECTIONS else node.inputs
    values = [*dict.fromkeys(read), *(output for output in node.outputs if nodes.is_used(output))]
    moved = [sizes.bytes(value) for value in values]
    shapes = [sizes.shape(value) for value in node.inputs]
    results = [sizes.shape(value) for value in node.outputs]
    inputs, outputs = _known(shapes), _known(results[:1])
    if inputs is None or outputs is None:
        return None
    function = _TABLE.get(node.op_type)
    flops = _by_element(node, inputs, outputs) if function is None else function(node, inputs, outputs)
    if node.op_type in VIEWS or node.op_type == "Constant":
        return Cost(0, 0)
    if node.op_type in SELECTIONS:
        moved.append(sizes.bytes(node.outputs[0]))
    total = _sum(moved)
    return None if total is None else Cost(flops, total)


def _known(shapes: Iterable[Shape | None]) -> list[Shape] | None:
    found = []
    for shape in shapes:
        if shape is None:
            return None
        found.append(shape)
    return found


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _by_element(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    if node.op_type in DATA_MOVEMENT or node.op_type.startswith("Random") or not outputs:
        return 0
    if node.op_type in REDUCTIONS:
        return prod(inputs[0]) if inputs else 0
    return PER_ELEMENT.get(node.op_type, 1) * prod(outputs[0])


def _variadic(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Sum, Max, Min and Mean of n operands: n - 1 operations per element."""
    return max(len(inputs) - 1, 0) * prod(outputs[0])


def _matmul(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    return 2 * prod(outputs[0]) * (inputs[0][-1] if inputs[0] else 1)


def _gemm(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    inner = inputs[0][0 if nodes.int_attribute(node, "transA", 0) else 1]
    bias = prod(outputs[0]) if len(node.inputs) > 2 and node.inputs[2] is not None else 0
    return 2 * prod(outputs[0]) * inner + bias


def _conv(weight: int) -> Callable[[ir.Node, list[Shape], list[Shape]], int]:
    """Each output element takes a product with the kernel over the channels of one group."""

    def count(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
        bias_at = weight + 1 if node.op_type == "Conv" else len(inputs)
        bias = prod(outputs[0]) if bias_at < len(node.inputs) and node.inputs[bias_at] is not None else 0
        return 2 * prod(outputs[0]) * prod(inputs[weight][1:]) + bias

    return count


def _conv_transpose(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Each input element is multiplied with the kernel for each output channel of its group."""
    bias = prod(outputs[0]) if len(node.inputs) > 2 and node.inputs[2] is not None else 0
    return 2 * prod(inputs[0]) * prod(inputs[1][1:]) + bias


def _pool(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    return prod(outputs[0]) * prod(nodes.ints_attribute(node, "kernel_shape") or (1,))


def _recurrent(gates: int) -> Callable[[ir.Node, list[Shape], list[Shape]], int]:
    """Per step, batch and direction: products of input and state with `gates` matrices, and some elementwise work."""

    def count(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
        data, weights, state = inputs[0], inputs[1], inputs[2]
        directions, hidden = weights[0], state[-1]
        return data[0] * data[1] * directions * gates * hidden * (2 * data[-1] + 2 * hidden + 5)

    return count


def _einsum(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """The product of all distinct labels, twice when two operands are multiplied and summed."""
    terms = nodes.string_attribute(node, "equation", "").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        labels = [label for label in term if label != "."]
        if "..." in term:  # the dims behind the dots are those that no letter names
            before = term.index(".")
            behind = len(labels) - before
            dotted = shape[before : len(shape) - behind]
            sizes["..."] = max(sizes.get("...", 1), prod(dotted))
            shape = (*shape[:before], *shape[len(shape) - behind :])
        for label, size in zip(labels, shape, strict=False):
            sizes[label] = max(sizes.get(label, 1), size)
    return (2 if len(terms) > 1 else 1) * prod(sizes.values())


def _attention(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Q K^T and its product with V, two operations each, and the softmax between them.

    Rank 4: [batch, heads, length, size]; rank 3: [batch, length, heads * size].
    """
    query, key, value = inputs[0], inputs[1], inputs[2]
    past = inputs[4][2] if len(inputs) > 4 and len(inputs[4]) == 4 else 0
    if len(query) == 4:
        heads, width, value_width = query[1], query[3], value[3]
    else:
        heads = nodes.int_attribute(node, "q_num_heads", 1)
        shared = nodes.int_attribute(node, "kv_num_heads", heads)
        width, value_width = query[2] // max(heads, 1), value[2] // max(shared, 1)
    pairs = query[0] * heads * query[-2] * (key[-2] + past)
    return pairs * (2 * width + 2 * value_width + 5)


_TABLE: dict[str, Callable[[ir.Node, list[Shape], list[Shape]], int]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv(1),
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "DeformConv": _conv(1),
    "ConvTranspose": _conv_transpose,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "LpPool": _pool,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Einsum": _einsum,
    "Attention": _attention,
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _variadic,
}

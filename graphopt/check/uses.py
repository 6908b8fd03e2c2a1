"""The purpose of each input's values, followed through a model: indices into a table, counts, or numbers.

An id that is cast and reshaped before a Gather is still an index, and one far outside of the table refuses every run. A
count (a size, a length, a number of trips, k) must stay small. Everything else may take any value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, dims, nodes
from graphopt.model.facts import Facts

MOST_CONSTANTS = 16  # kept for one input
# Positions of operands that are indices, with the position of the table.
TABLES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "Gather": ((1, 0),), "GatherElements": ((1, 0),), "GatherND": ((1, 0),), "ScatterElements": ((1, 0),),
    "ScatterND": ((1, 0),), "Scatter": ((1, 0),), "ArrayFeatureExtractor": ((1, 0),), "TensorScatter": ((2, 0),),
    "EmbedLayerNormalization": ((0, 2), (1, 4)), "SequenceAt": ((1, 0),), "SequenceErase": ((1, 0),),
    "SequenceInsert": ((2, 0),), "GatherBlockQuantized": ((1, 0),),
    "QEmbedLayerNormalization": ((0, 2), (1, 4)),
}  # fmt: skip
# Positions of operands that are counts: sizes, lengths, ends, how often.
COUNTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Pad": (1,),
    "Slice": (2,), "Resize": (3,), "TopK": (1,), "Split": (1,), "OneHot": (1,), "Loop": (0,),
    "LSTM": (4,), "GRU": (4,), "RNN": (4,), "ReverseSequence": (1,), "NonMaxSuppression": (2,),
    "CenterCropPad": (1,), "BlackmanWindow": (0,), "HannWindow": (0,), "HammingWindow": (0,), "DFT": (1,),
    "STFT": (1, 3), "MelWeightMatrix": (0, 1, 2, 3, 4), "MaxUnpool": (2,), "Col2Im": (1, 2), "AffineGrid": (1,),
    "SplitToSequence": (1,), "Attention": (6,), "Trilu": (1,), "BitShift": (1,),
}  # fmt: skip
_WHOLE = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64})
# Positions of operands that are axes, and of those that say where something begins, and how far it steps.
AXES: Mapping[str, tuple[int, ...]] = {
    "Slice": (3,), "Unsqueeze": (1,), "Squeeze": (1,), "CumSum": (1,), "CumProd": (1,), "DFT": (2,), "Pad": (3,),
} | dict.fromkeys(
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
     "ReduceLogSumExp", "ReduceSumSquare"), (1,),
)  # fmt: skip
# Of a size, for each dim; scales of quantized numbers, which are not 0.
FACTORS: Mapping[str, tuple[int, ...]] = {
    "Resize": (1, 2), "Upsample": (1,), "Tile": (1, 2), "QuantizeLinear": (1,), "QLinearMatMul": (1, 4, 6),
    "QLinearConv": (1, 4, 6),
}  # fmt: skip
BOXES: Mapping[str, tuple[int, ...]] = {"NonMaxSuppression": (0,)}
STARTS: Mapping[str, tuple[int, ...]] = {"Slice": (1,)}
STEPS: Mapping[str, tuple[int, ...]] = {"Slice": (4,)}
# Operators behind which values are still those of the operand, or simple functions of it. None: every operand.
CARRIERS: Mapping[str, tuple[int, ...] | None] = {
    "Cast": (0,), "CastLike": (0,), "Reshape": (0,), "Squeeze": (0,), "Unsqueeze": (0,), "Flatten": (0,),
    "Identity": (0,),
    "Transpose": (0,), "Slice": (0,), "Concat": None, "Split": (0,), "Expand": (0,), "Tile": (0,), "Gather": (0,),
    "GatherND": (0,), "GatherElements": (0,), "Pad": (0,), "Add": None, "Sub": None, "Mul": None, "Div": None,
    "Mod": None, "Neg": None, "Abs": None, "Min": None, "Max": None, "Clip": (0,), "Where": (1, 2), "Floor": None,
    "Ceil": None, "Round": None, "ReduceSum": (0,), "ReduceMax": (0,), "ReduceMin": (0,), "ReduceProd": (0,),
    "CumSum": (0,), "Sum": None, "Optional": None, "OptionalGetElement": None, "SequenceConstruct": None,
}  # fmt: skip
ROOTS: Mapping[str, tuple[int, ...]] = {"Sqrt": (0,), "Log": (0,)}
SIGNED = frozenset({"Add", "Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
DICTIONARIES = frozenset({"TfIdfVectorizer", "LabelEncoder", "CategoryMapper"})  # their integers are what they look for
LABELLED = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})  # the second operand names classes
MASKED = 2  # the bound of a mask, whose running sums are positions: as many places as there are numbers at the most
LEAST_CONSTANT = 1e-3  # smaller ones are epsilons, near which values lie anyway
COMPARISONS = frozenset({"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Clip", "Min", "Max", "Mod"})
PLACED = frozenset({"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"})  # what tells which places count
LAID_OUT = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity", "Expand", "Tile", "Transpose", "Flatten"})
LONGEST = "?longest"  # the longest dim of any input: of places whose number is not known
MOST_POSITIONS = 1 << 16  # of a constant that is looked at


@dataclass(slots=True)
class Use:
    """The uses of one input; also, with no input in mind, the constants that values are compared with anywhere."""

    bound: int | None = None  # the least length of a table that it indexes; None where it indexes none of known length
    indexes: bool = False
    counts: bool = False
    factors: bool = False
    axes: bool = False
    starts: bool = False
    steps: bool = False
    boxes: bool = False
    roots: bool = False  # a root or a logarithm is taken of it, of multiples or of what is added to it
    resized: tuple[int | str, ...] | None = None  # the dims, where declared, of what is resized to these sizes
    constants: set[float] = field(default_factory=set)
    exceptions: set[int] = field(default_factory=set)  # indices that are taken for none
    lengths: set[dims.Dim] = field(default_factory=set)  # how many places there are that it is compared with

    def join(self, other: Use) -> None:
        """Add the uses of a value computed from this one."""
        self.indexes |= other.indexes
        self.counts |= other.counts
        self.factors |= other.factors
        self.axes |= other.axes
        self.starts |= other.starts
        self.steps |= other.steps
        self.boxes |= other.boxes
        self.roots |= other.roots
        self.resized = self.resized or other.resized
        if other.bound is not None:
            self.bound = other.bound if self.bound is None else min(self.bound, other.bound)
        self.exceptions |= other.exceptions
        self.lengths |= other.lengths
        self.constants |= set(sorted(other.constants)[: max(MOST_CONSTANTS - len(self.constants), 0)])


def uses_of(model: ir.Model) -> dict[str, Use]:
    """The uses of every input by name, and under the empty name the constants that any value is compared with."""
    found: dict[ir.Value, Use] = {}
    everything, positions = Use(), _Positions(model).of
    graphs = list(nodes.graphs_of(model))
    passed = _passed_on(model)
    # Backwards: a value's uses are known when those of everything computed from it are.
    ordered = [node for graph in reversed(graphs) for node in reversed(list(graph))]
    for node in ordered:
        _note(node, found, everything, positions)
    # What is handed to a body or a function has the uses that it has there; twice, for bodies that hand on in turn.
    for _ in range(2 if passed else 0):
        for before, after in passed:
            found.setdefault(before, Use()).join(found.get(after, Use()))
        for node in ordered:
            _note(node, found, everything, positions)
    uses = {value.name or "": found.get(value, Use()) for value in model.graph.inputs}
    uses[""] = everything
    return uses


def _note(
    node: ir.Node, found: dict[ir.Value, Use], everything: Use, positions: Callable[[ir.Value], dims.Dim | None]
) -> None:
    kind = node.op_type
    for position, table in TABLES.get(kind, ()):
        value = nodes.input_at(node, position)
        if value is not None:
            use = found.setdefault(value, Use())
            use.indexes = True
            length = _length(node, nodes.input_at(node, table))
            if length is not None:
                use.bound = length if use.bound is None else min(use.bound, length)
    if kind == "OneHot" and node.inputs and node.inputs[0] is not None:
        use = found.setdefault(node.inputs[0], Use())
        use.indexes = True
        use.bound = next((int(number) for number in _numbers(node) if number > 0), use.bound)
    if kind in LABELLED and len(node.inputs) > 1 and node.inputs[1] is not None:
        use = found.setdefault(node.inputs[1], Use())
        use.indexes = True
        use.bound = _length(node, node.inputs[0], 1)
        ignored = node.attributes.get("ignore_index")
        use.exceptions |= set() if ignored is None or ignored.is_ref() else {ignored.as_int()}
    everything.join(Use(constants={number for number in _attributes(node) if abs(number) > LEAST_CONSTANT}))
    sizes = nodes.input_at(node, 3) if kind == "Resize" else None
    if sizes is not None and node.inputs[0] is not None and "axes" not in node.attributes:
        found.setdefault(sizes, Use()).resized = _dims(node.inputs[0])
    roles = (
        (COUNTS, "counts"), (FACTORS, "factors"), (AXES, "axes"), (STARTS, "starts"), (STEPS, "steps"),
        (BOXES, "boxes"), (ROOTS, "roots"),
    )  # fmt: skip
    for operands, name in roles:
        for position in operands.get(kind, ()):
            value = nodes.input_at(node, position)
            if value is not None:
                setattr(found.setdefault(value, Use()), name, True)
    exponent = nodes.input_at(node, 1) if kind == "Pow" else None
    if exponent is not None and exponent.dtype in _WHOLE:  # NumPy refuses negative ones of an integer
        found.setdefault(exponent, Use()).counts = True
    if kind in COMPARISONS:
        numbers = set(_numbers(node))
        everything.join(Use(constants=numbers))
        lengths = [] if kind not in PLACED else [positions(value) for value in node.inputs[:2] if value is not None]
        for at, value in enumerate(node.inputs):
            if value is not None and value.const_value is None:
                found.setdefault(value, Use()).join(Use(constants=numbers))
                if len(lengths) == 2 and lengths[at] is None and (length := lengths[1 - at]) is not None:
                    found[value].lengths.add(length)
    carried = CARRIERS.get(kind, ())
    after = [found[output] for output in node.outputs if output in found]
    if not after:
        return
    parts = max([1, *map(int, _numbers(node))]) if kind == "Div" else 1  # samples of a frame, of which lengths are many
    for position, value in enumerate(node.inputs):
        if value is not None and (carried is None or position in carried):
            use = found.setdefault(value, Use())
            for one in after:
                summed = kind == "CumSum" and one.bound is not None
                scaled = {length * parts for length in one.lengths}
                one = replace(one, roots=one.roots and _keeps_sign(node, position), lengths=scaled)
                use.join(replace(one, bound=min(one.bound or 0, MASKED)) if summed else one)


class _Positions:
    """Values that number the places of a dim, 0, 1, 2 and so on: a length that is compared with them is one of it."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @cached_property
    def _facts(self) -> Facts:
        return Facts(self._model)

    def of(self, value: ir.Value) -> dims.Dim | None:
        """How many places a value numbers, None where it does not."""
        node = value.producer()
        while node is not None and node.op_type in LAID_OUT and node.inputs and node.inputs[0] is not None:
            value = node.inputs[0]
            node = value.producer()
        if node is not None and node.op_type == "Range":
            limit = None if (end := nodes.input_at(node, 1)) is None else self._facts.content(end)
            told = limit is not None and limit.size == 1 and "?" not in str(limit.item())
            return limit.item() if limit is not None and told else dims.symbol(LONGEST)
        tensor = constants.of_initializer(value) if node is None else constants.of_constant_node(node)
        if tensor is None or not 2 <= tensor.size <= MOST_POSITIONS or max(tensor.shape.numpy()) != tensor.size:
            return None
        return int(tensor.size) if np.array_equal(tensor.numpy().reshape(-1), np.arange(tensor.size)) else None


def _keeps_sign(node: ir.Node, position: int) -> bool:
    """Whether a positive operand makes a positive result, if what is added to it, or divides it, is positive."""
    if node.op_type == "Mul":
        others = [one for at, one in enumerate(node.inputs) if one is not None and at != position]
        return all(one.const_value is not None and bool((one.const_value.numpy() > 0).all()) for one in others)
    return node.op_type in SIGNED or (node.op_type == "Div" and position == 0)


def _length(node: ir.Node, table: ir.Value | None, axis: int = 0) -> int | None:
    """The length of the table's axis, by default that of the node, where it is declared."""
    tensor = None if table is None else table.const_value
    shape = (None if table is None else table.shape) if tensor is None else tensor.shape
    if shape is None:
        return None
    if not nodes.has_reference_attributes(node):
        axis = nodes.int_attribute(node, "axis", axis)
    if not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) and size > 0 else None


def _dims(value: ir.Value) -> tuple[int | str, ...] | None:
    """The declared dims of a value; None where one has neither a size nor a name."""
    dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]
    named = tuple(dim for dim in dims if dim is not None)
    return named if named and len(named) == len(dims) else None


def _numbers(node: ir.Node) -> Iterator[float]:
    """The single constants among a node's operands, and the numbers in its attributes."""
    for value in node.inputs:
        tensor = None
        if value is not None:
            producer = value.producer()
            tensor = constants.of_initializer(value) if producer is None else constants.of_constant_node(producer)
        if tensor is not None and tensor.size == 1 and tensor.dtype != ir.DataType.STRING:
            number = np.asarray(tensor.numpy()).reshape(-1)[0]
            if np.isfinite(float(number)):
                yield float(number)
    yield from _attributes(node)


def _attributes(node: ir.Node) -> Iterator[float]:
    """The numbers in attributes: bounds of old opsets, thresholds, slopes."""
    for attribute in node.attributes.values():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.FLOAT and np.isfinite(attribute.as_float()):
            yield attribute.as_float()
        elif node.op_type in DICTIONARIES and not attribute.is_ref() and attribute.type == ir.AttributeType.INTS:
            yield from map(float, attribute.as_ints())


def _passed_on(model: ir.Model) -> list[tuple[ir.Value, ir.Value]]:
    """Values that are the same at the border of a body or function; of each pair the one computed first comes first."""
    pairs: list[tuple[ir.Value, ir.Value]] = []
    for graph in nodes.graphs_of(model):
        for node in graph:
            function = model.functions.get(node.op_identifier())
            if function is not None:
                pairs += [(outer, inner) for outer, inner in zip(node.inputs, function.inputs, strict=False) if outer]
                pairs += zip(function.outputs, node.outputs, strict=False)
            for body in nodes.subgraphs(node):
                given_back = body.outputs[1:] if node.op_type == "Loop" else body.outputs
                pairs += zip(given_back, node.outputs, strict=False)
                if node.op_type in ("Loop", "Scan"):
                    # A Loop gives its body the trip and the condition first; a Scan what it is given, in order.
                    given = node.inputs[2:] if node.op_type == "Loop" else node.inputs
                    inside = body.inputs[2:] if node.op_type == "Loop" else body.inputs
                    pairs += [(outer, inner) for outer, inner in zip(given, inside, strict=False) if outer is not None]
    return pairs

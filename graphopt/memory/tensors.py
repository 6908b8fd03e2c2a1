"""A model as memory sees it: the tensors between its nodes with their sizes, and the nodes with their costs.

A tensor that only describes another's bytes (Reshape, Squeeze, Identity ...) is a view; elementwise results may take
their operand's place; operands of a Concat may be made inside its result where it joins whole blocks of memory, and
results of such a Split lie inside its operand. What a runtime does with these offers is its own choice: the plan says
what they save.

Inputs and weights belong to the caller. They are constants here: there from beginning to end, outside the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.gradient.step import step_of
from graphopt.lazy import Lazy
from graphopt.memory.scratch import scratch_of
from graphopt.model import constants, nodes
from graphopt.model.costs import Sizes, cost_of
from graphopt.model.facts import Facts
from graphopt.model.limits import MOST_BYTES
from graphopt.model.operators.table import operator_of
from graphopt.model.origin import Provenance, origin_of
from graphopt.model.settling import way_to_fix
from memplan.graph import Graph, Kind, Operator, Share, Value

if TYPE_CHECKING:
    from graphopt.memory import observed as runs
else:
    runs = Lazy("graphopt.memory.observed")  # with the engine, which few models need for their sizes

# What times are counted in where no machine is named: one core of a server. Only their ratios matter.
PEAK_FLOPS = 1.0e11  # per second; of what computing again costs, only the ratio to the bandwidth matters
BANDWIDTH = 2.0e10  # bytes per second

IN_BLOCKS = ("BatchNormalization", "Slice")  # besides elementwise operators and what is joined

# Results in place and slices are counted on, only results in place, or neither; or, as in a program, slices along any
# axis, which it reads and writes where they lie, and outputs are the caller's.
Sharing = bool | Literal["in place", "strided"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a report says of a value."""

    dtype: str
    shape: tuple[int, ...]
    producer: str  # the node's name and operator; empty for what is given
    users: tuple[str, ...]
    origin: Provenance  # of the node that makes it; of the first that reads it where it is given


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """A model's graph for memory plans, and what its names stand for."""

    graph: Graph
    nodes: Mapping[str, ir.Node]  # operator -> node
    tensors: Mapping[str, Tensor]
    weights_bytes: int  # those of the file and those made of them that a run reads; copies have none
    input_bytes: int
    weights: frozenset[str]  # values that are there before a run
    notes: tuple[str, ...]  # what had to be left out or assumed
    sharing: Sharing = True  # what is among the graph's shares besides views
    strides: bool = False  # whether results of other strides are views too
    whole_vectors: bool = False  # whether images take whole vectors of channels


def model_memory(
    model: ir.Model,
    *,
    peak_flops: float = PEAK_FLOPS,
    bandwidth: float | None = BANDWIDTH,
    sharing: Sharing = True,
    vector: int = 1,
    strides: bool = False,
    whole_vectors: bool = False,
) -> ModelMemory:
    """The main graph of a model whose dims are all numbers; nodes of a subgraph count as their node's workspace.

    An operator's time is the larger of flops / `peak_flops` and bytes / `bandwidth` (None: flops alone, for planners
    that count the bytes themselves). Without `sharing` only views share bytes, as in a runtime that gives every other
    result bytes of its own; "in place" leaves out operands of a Concat and results of a Split. These two are plans for
    ONNX Runtime and count the scratch of its kernels where it is large. "strided" has such operands and results on any
    axis and no bytes of outputs; images then lie in blocks of a `vector` of channels, which no part begins within.
    With `strides` what an Expand, a Slice or a Transpose gives is a view too, as in a program; with `whole_vectors` an
    image has as many bytes as its blocks of channels.
    Raises OptionError naming a dim without a number, or a tensor whose size a run alone can tell.

    What a training step carries to the next one has no bytes: the caller has memory for it, which he binds.
    """
    return _Reader(model, peak_flops, bandwidth, sharing, vector, strides, whole_vectors).read()


class _Reader:
    def __init__(
        self, model: ir.Model, peak_flops: float, bandwidth: float | None, sharing: Sharing, vector: int,
        strides: bool, whole_vectors: bool,
    ) -> None:  # fmt: skip
        self._model = model
        self._facts = Facts(model)
        self._sizes = Sizes(self._facts, {})
        self._peak_flops, self._bandwidth, self._sharing = peak_flops, bandwidth, sharing
        self._vector, self._strides, self._whole_vectors = vector, strides, whole_vectors
        self._images: set[ir.Value] = set()  # results that lie in blocks of channels
        self._notes: dict[str, None] = {}
        self._elsewhere: frozenset[ir.Value] = frozenset()  # results for which the caller has memory
        self._observed: dict[str, tuple[str, tuple[int, ...], int]] = {}

    def read(self) -> ModelMemory:
        graph = self._model.graph
        given = [*graph.inputs, *(value for value in graph.initializers.values() if value not in set(graph.inputs))]
        names = _names(graph, given)
        self._observe([value for value in names if value.const_value is None])
        values = [Value(names[value], self._bytes(value, None), "constant") for value in given]
        outputs = set(graph.outputs)
        stored = {value for value in given if value.const_value is not None}
        fixed = {value for value in stored if constants.of_initializer(value) is not None}
        step = step_of(self._model)
        carried = frozenset() if step is None else frozenset(one.output for one in step.carried)
        self._elsewhere = frozenset(value for value in outputs if value.name in carried or self._sharing == "strided")
        if carried:
            self._notes["weights and state that a step gives count as the caller's memory"] = None
        operators, by_operator = [], {}
        shares: list[Share] = []
        needed = set(outputs)  # by a run
        for node in graph:
            read = list(dict.fromkeys(v for v in (*node.inputs, *nodes.implicit_inputs(node)) if v is not None))
            made = [value for value in node.outputs if value in names]
            if self._is_constant(node, read, fixed):
                fixed.update(made)
            for value in made:
                kind: Kind = "constant" if value in fixed else "output" if value in outputs else "temporary"
                size = 0 if value in self._elsewhere else self._bytes(value, node)
                size = self._in_vectors(value, node, size) if self._whole_vectors else size
                if self._is_view(node):  # an Expand's result is its operand, read again and again
                    size = min(size, self._size(node.inputs[0]) or size)
                values.append(Value(names[value], size, kind))
            if not made or made[0] in fixed:
                continue
            needed.update(read)
            name = names_of_node(node)
            operators.append(
                Operator(
                    name,
                    tuple(names[value] for value in read if value in names),
                    tuple(names[value] for value in made),
                    self._time(node),
                    sum(self._peak_inside(inner) for inner in nodes.subgraphs(node)) + self._scratch(node),
                    self._facts.is_pure(node),
                )
            )
            by_operator[name] = node
            if self._elsewhere.isdisjoint((*read, *made)):
                shares += self._shares(node, made, names)
        stored |= fixed
        kept_weights = {_lying_as(value) for value in stored if value.producer() is None or value in needed}
        weights = sum(self._bytes(value, None) for value in kept_weights)
        inputs = sum(self._bytes(value, None) for value in graph.inputs if value.name not in graph.initializers)
        found = Graph(tuple(values), tuple(operators), tuple(shares))
        tensors = {names[value]: self._tensor(value, names) for value in names}
        kept = frozenset(names[value] for value in stored)
        notes = tuple(self._notes)
        return ModelMemory(
            found, by_operator, tensors, weights, inputs, kept, notes, self._sharing, self._strides, self._whole_vectors
        )

    def _is_constant(self, node: ir.Node, read: list[ir.Value], fixed: set[ir.Value]) -> bool:
        """Whether the node computes from weights that no caller gives: what every runtime does when it loads them."""
        if nodes.has_subgraphs(node) or not self._facts.is_pure(node):
            return False
        return all(value in fixed for value in read)

    def _tensor(self, value: ir.Value, names: Mapping[ir.Value, str]) -> Tensor:
        producer = value.producer()
        readers = [node for node, _ in value.uses() if node.graph is not None]
        users = tuple(dict.fromkeys(map(names_of_node, readers)))
        dtype = self._facts.dtype(value)
        seen = self._observed.get(value.name or "")
        return Tensor(
            seen[0] if seen is not None else "" if dtype is None else str(dtype.numpy()),
            seen[1] if seen is not None else self._sizes.shape(value) or (),
            "" if producer is None else f"{names_of_node(producer)} ({producer.op_type})",
            users,
            next((origin_of(node) for node in (producer, *readers) if node is not None), Provenance("", "")),
        )

    # -- sizes ----------------------------------------------------------------------------------------------------

    def _observe(self, values: list[ir.Value]) -> None:
        """Look at a run for the sizes that inference cannot tell."""
        for value in values:
            for dim in self._facts.shape(value) or ():
                for symbol in () if isinstance(dim, int) else sorted(dim.free_symbols, key=str):
                    if not str(symbol).startswith("?") and value.producer() is None:
                        way = way_to_fix(self._model.graph, self._facts)
                        raise OptionError(f"the size of '{value.name}' depends on the dim '{symbol}': {way}.")
        unknown = [value.name or "" for value in values if value.producer() is not None and not self._is_known(value)]
        if unknown:
            self._observed = dict(runs.observed(self._model, unknown))
            self._notes[f"the sizes of {len(unknown)} tensors were seen in a run, inference cannot tell them"] = None

    def _is_known(self, value: ir.Value) -> bool:
        if self._facts.dtype(value) == ir.DataType.STRING:
            return True
        return self._facts.dtype(value) is not None and self._facts.static_shape(value) is not None

    def _bytes(self, value: ir.Value, node: ir.Node | None) -> int:
        if value.const_value is not None:
            return _stored(value)
        seen = self._observed.get(value.name or "")
        if seen is not None:
            return seen[2]
        dtype = self._facts.dtype(value)
        if dtype is None or dtype == ir.DataType.STRING:
            self._notes[f"'{value.name}' is no tensor of numbers; it counts 0 bytes"] = None
            return 0
        number = self._sizes.bytes(value)
        if number is None or self._facts.static_shape(value) is None:
            where = f" (made by {nodes.describe(node)})" if node is not None else ""
            raise OptionError(
                f"the size of '{value.name}'{where} is known only when the model runs, and it cannot be run."
            )
        if number > MOST_BYTES:
            raise OptionError(f"'{value.name}' takes {number:,} bytes, more than any machine has; fix smaller dims.")
        return number

    def _in_vectors(self, value: ir.Value, node: ir.Node, size: int) -> int:
        """The bytes of a result with whole vectors of channels, where it is an image or computed of one by elements."""
        operator, shape = operator_of(node), self._facts.static_shape(value)
        if operator is None or shape is None or len(shape) < 3:
            return size
        alike = operator.formula is not None or operator.storage == "joined" or node.op_type in IN_BLOCKS
        if not operator.images and not (alike and not self._images.isdisjoint(node.inputs)):
            return size
        self._images.add(value)
        return size // max(shape[1], 1) * -(-shape[1] // self._vector) * self._vector

    def _scratch(self, node: ir.Node) -> int:
        return 0 if self._sharing in (True, "strided") else scratch_of(self._facts, node)

    def _time(self, node: ir.Node) -> float:
        cost = cost_of(node, self._sizes)
        if cost is None:
            return 0.0
        time = cost.flops / self._peak_flops
        if self._bandwidth is not None:
            time = max(time, cost.bytes / self._bandwidth)
        return time * 1e9

    def _peak_inside(self, graph: ir.Graph) -> int:
        """The live peak of a subgraph in its order, without its outputs' life after it."""
        own = {value for node in graph for value in node.outputs if nodes.is_used(value) or value in graph.outputs}
        last: dict[ir.Value, int] = {}
        order = list(graph)
        for step, node in enumerate(order):
            for value in (*node.inputs, *nodes.implicit_inputs(node), *node.outputs):
                if value in own:
                    last[value] = step
        last.update((value, len(order)) for value in graph.outputs if value in own)
        live = peak = 0
        for step, node in enumerate(order):
            live += sum(self._inner_bytes(value) for value in node.outputs if value in own)
            inside = sum(self._peak_inside(inner) for inner in nodes.subgraphs(node))
            peak = max(peak, live + inside)
            live -= sum(self._inner_bytes(value) for value, end in last.items() if end == step)
        return peak

    def _inner_bytes(self, value: ir.Value) -> int:
        shape, number = self._facts.shape(value), self._sizes.bytes(value)
        if number is None or any(not isinstance(dim, int) for dim in shape or ()):
            self._notes["tensors inside If, Loop and Scan whose size only a run can tell count as one element"] = None
        return number or 0

    def _size(self, value: ir.Value | None) -> int | None:
        seen = self._observed.get(value.name or "") if value is not None else None
        return seen[2] if seen is not None else self._sizes.bytes(value)

    # -- shares ---------------------------------------------------------------------------------------------------

    def _shares(self, node: ir.Node, made: list[ir.Value], names: Mapping[ir.Value, str]) -> Iterator[Share]:
        operator, size = operator_of(node), self._size
        storage = "own" if operator is None else operator.storage
        first = node.inputs[0] if node.inputs else None
        is_same = storage == "same" and first is not None and size(first) == size(made[0])
        if first is not None and (is_same or self._is_view(node)):
            yield Share(names[made[0]], names[first])
        elif not self._sharing or (self._sharing == "in place" and storage != "in place"):
            return
        elif storage == "joined":
            yield from self._parts(node, [v for v in node.inputs if v is not None], node.outputs[0], names)
        elif storage == "pieces" and first is not None:
            yield from self._parts(node, list(node.outputs), first, names)
        elif storage == "in place":
            for value in dict.fromkeys(node.inputs):
                if value is not None and size(value) == size(made[0]):
                    yield Share(names[made[0]], names[value], overwrites=True)

    def _is_view(self, node: ir.Node) -> bool:
        """Whether a program has the node's result by other strides; images lie in blocks and are copied."""
        operator = operator_of(node)
        is_moved = self._strides and operator is not None and operator.storage == "strides"
        return is_moved and not is_of_images(node)

    def _parts(
        self, node: ir.Node, parts: list[ir.Value], whole: ir.Value, names: Mapping[ir.Value, str]
    ) -> Iterator[Share]:
        """Blocks one after the other in memory: where every dim before the axis is 1.

        Parts that lie apart are counted as such blocks: how many bytes they take together is the same.
        """
        shape = self._sizes.shape(whole) or ()
        axis = nodes.int_attribute(node, "axis", 0)
        if self._sharing != "strided" and prod(shape[: axis % max(len(shape), 1)]) != 1:
            return
        in_blocks = self._sharing == "strided" and axis % max(len(shape), 1) == 1 and is_of_images(node)
        at = channels = 0
        for value in parts:
            if value in names and parts.count(value) == 1 and not (in_blocks and channels % self._vector):
                yield Share(names[value], names[whole], at)
            at += self._size(value) or 0
            channels += (self._sizes.shape(value) or (0, 0))[1] if in_blocks else 0


def is_of_images(node: ir.Node) -> bool:
    """Whether a node is one of images, as a convolution, or reads a result of one or makes an operand of one."""
    near = [node, *(value.producer() for value in node.inputs if value is not None)]
    near += [user for value in node.outputs for user, _ in value.uses()]
    records = [None if one is None else operator_of(one) for one in near]
    return any(record is not None and record.images for record in records)


def names_of_node(node: ir.Node) -> str:
    """The node's name, or one made of its operator and first output where it has none."""
    return node.name or f"{node.op_type}:{node.outputs[0].name}"


def _names(graph: ir.Graph, given: list[ir.Value]) -> dict[ir.Value, str]:
    """The values that take part, by name; a value that nobody reads takes part where nothing else of its node does."""
    found = {value: value.name or "" for value in given}
    outputs = set(graph.outputs)
    for node in graph:
        used = [value for value in node.outputs if nodes.is_used(value) or value in outputs]
        for value in used or node.outputs[:1]:
            found[value] = value.name or f"{names_of_node(node)}:{node.outputs.index(value)}"
    return found


def _lying_as(weight: ir.Value) -> ir.Value:
    """The weight whose bytes this one has: a copy, or the same in another shape, has none of its own."""
    producer = weight.producer()
    while producer is not None and (operator := operator_of(producer)) is not None and operator.storage == "same":
        first = producer.inputs[0]
        if first is None:
            break
        weight, producer = first, first.producer()
    return weight


def _stored(value: ir.Value) -> int:
    return 0 if value.const_value is None else int(value.const_value.nbytes)

"""What is known of every value: dtype, dims with symbols, constant data and symbolic integer content.

Facts are derived from the graph's inputs, its initializers and its operators alone. Declared value_info is used only
for outputs of operators that no inference knows (custom domains), since files in the wild declare wrong shapes.
Every query of a new node's output infers just that node, so a rewrite pays for what it touches.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, content, dims, nodes, purity
from graphopt.model.inference import infer_node
from graphopt.model.known import SMALL, Knowledge, Known
from graphopt.model.limits import MOST_BYTES
from graphopt.model.operators.sources import filler
from graphopt.model.tensors import tensors_of

MEMORY_BESIDE_DISK = 128 << 20  # bytes
PROMISED = "graphopt.dims"  # of an input: dims by name, in other dims, as whoever runs the model promises them


class Facts(Knowledge):
    """The knowledge about one model. Values are keys by identity; `forget` drops what a change has made stale."""

    def __init__(self, model: ir.Model) -> None:
        self.functions = model.functions
        self.ir_version = model.ir_version or 0
        self._opsets: dict[ir.Graph | ir.Function, dict[str, int]] = {}
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            self._register(graph, graph.opset_imports)
        self._adopted: dict[ir.Node, dict[str, int]] = {}
        self._main_opsets = model.graph.opset_imports
        self._known: dict[ir.Value, Known] = {}
        self._arrays: dict[ir.Value, np.ndarray | None] = {}
        self._numbers = itertools.count(1)
        self._calls = _single_calls(model)
        on_disk = any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors_of(model))
        # What rules may add to memory. A model with external data may be larger than the memory, so there it is little.
        self.memory_left = MEMORY_BESIDE_DISK if on_disk else sys.maxsize  # bytes
        constants.freeze_old_initializers(model)

    def _register(self, graph: ir.Graph, imports: dict[str, int]) -> None:
        self._opsets[graph] = imports
        for node in graph:
            for inner in nodes.subgraphs(node):
                self._register(inner, imports)

    # -- operators ------------------------------------------------------------------------------------------------

    def opset(self, node: ir.Node, domain: str = "") -> int:
        """The version of `domain` that the node's graph imports (1 where the import is missing)."""
        if node.graph is None:
            imports = self._adopted.get(node, self._main_opsets)
        else:
            imports = self._opsets.get(node.graph, self._main_opsets)
        return imports.get(domain, 1)

    def import_domain(self, graph: ir.Graph | ir.Function, domain: str) -> None:
        """Let the graph's imports name the domain, in its first version where it is new."""
        self._opsets.get(graph, self._main_opsets).setdefault(domain, 1)

    def adopt(self, node: ir.Node, like: ir.Node) -> None:
        """Tell under which imports a node is read that is in no graph yet: those of the node it will replace."""
        self._adopted[node] = (
            self._main_opsets if like.graph is None else self._opsets.get(like.graph, self._main_opsets)
        )

    def register(self, graph: ir.Graph, like: ir.Graph) -> None:
        """Tell under which imports a new subgraph is read: those of the graph it stands in."""
        self._register(graph, self._opsets.get(like, self._main_opsets))

    def is_pure(self, node: ir.Node) -> bool:
        """Whether the node may be folded, merged or moved."""
        return purity.is_pure(node, self.functions, self.opset(node))

    def follows_from_inputs(self, node: ir.Node) -> bool:
        """Whether equal inputs give equal outputs, also where the node trains, as `purity.follows_from_inputs` says."""
        return purity.follows_from_inputs(node, self.functions, self.opset(node))

    # -- values ---------------------------------------------------------------------------------------------------

    def known(self, value: ir.Value) -> Known:
        """All that is known of a value; inference runs on demand, without recursion depth limits."""
        found = self._known.get(value)
        if found is not None:
            return found
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._known:
                pending.pop()
                continue
            producer = current.producer()
            if producer is None:
                self._known[current] = self._of_source(current)
                pending.pop()
                continue
            missing = [v for v in producer.inputs if v is not None and v not in self._known]
            if missing:
                pending.extend(missing)
                continue
            self._infer(producer)
            pending.pop()
        return self._known[value]

    def _infer(self, node: ir.Node) -> None:
        results = infer_node(node, self)
        for output, result in zip(node.outputs, results, strict=True):
            self._known[output] = result

    def _of_source(self, value: ir.Value) -> Known:
        """A graph input, an initializer, or an input of a subgraph."""
        given = self._given(value)
        if given is not None:
            return self.known(given)
        tensor = constants.of_initializer(value)
        if tensor is not None:
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            held = None
            if tensor.dtype in content.INTEGER_TYPES and tensor.size <= content.MAX_ELEMENTS:
                held = content.of_array(tensor.numpy())
            return Known(ir.TensorType(tensor.dtype), shape, held)
        if value.shape is None:
            return Known(value.type, None, None)
        promised = value.meta.get(PROMISED, {})
        names = [None if isinstance(dim, int) else dim.value for dim in value.shape]
        declared = (dims.from_ir(dim, self.fresh) for dim in value.shape)
        known = (promised.get(name, dim) for name, dim in zip(names, declared, strict=True))
        return Known(value.type, tuple(known), None)

    def _given(self, value: ir.Value) -> ir.Value | None:
        """For an input of a function that is called in one place only: what that place gives."""
        place = self._calls.get(value)
        if place is None:
            return None
        call, index = place
        return call.inputs[index] if call.graph is not None else None

    def fresh(self) -> dims.Dim:
        """A dimension of which nothing is known, equal only to itself."""
        return dims.symbol(f"?{next(self._numbers)}")

    def set_known(self, value: ir.Value, known: Known) -> None:
        """State what is known of a value whose producer inference cannot read."""
        self._known[value] = known

    def set_array(self, value: ir.Value, array: np.ndarray) -> None:
        """Remember the data of a small new constant (or splat)."""
        if array.size <= SMALL or constants.is_splat(array):
            self._arrays[value] = array

    def drop(self, node: ir.Node) -> None:
        """Forget a node that was adopted and will be in no graph."""
        self._adopted.pop(node, None)
        for output in node.outputs:
            self.forget(output)

    def forget(self, value: ir.Value) -> None:
        """Drop what is known of a value whose definition changed."""
        self._known.pop(value, None)
        self._arrays.pop(value, None)

    # -- constants ------------------------------------------------------------------------------------------------

    def tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """The tensor of an initializer or Constant node, not read from disk yet; None for everything else."""
        producer = value.producer()
        if producer is None:
            given = self._given(value)
            if given is not None:
                tensor = self.tensor(given)
                # A weight is not folded inside the function: it would stay where it is given, and be stored twice.
                return tensor if tensor is not None and tensor.size <= content.MAX_ELEMENTS else None
            return constants.of_initializer(value)
        if producer.op_type == "Constant" and nodes.is_standard(producer):
            return constants.of_constant_node(producer)
        return None

    def is_constant(self, value: ir.Value) -> bool:
        """Whether `array` would give the value's data."""
        if self.tensor(value) is not None:
            return True
        producer = value.producer()
        return producer is not None and producer.op_type == "ConstantOfShape" and self.array(value) is not None

    def array(self, value: ir.Value | None) -> np.ndarray | None:
        """The value's data when it is constant; a splat for a ConstantOfShape of known shape. Never modify it."""
        if value is None:
            return None
        if value in self._arrays:
            return self._arrays[value]
        tensor = self.tensor(value)
        if tensor is not None:
            array = tensor.numpy()
            if tensor.size <= SMALL:  # larger ones would pin memory-mapped weights in memory
                self._arrays[value] = array
            return array
        splat = self._splat(value)
        self._arrays[value] = splat
        return splat

    def _splat(self, value: ir.Value) -> np.ndarray | None:
        producer = value.producer()
        if producer is None or producer.op_type != "ConstantOfShape" or not nodes.is_standard(producer):
            return None
        shape = self.static_shape(value)
        if shape is None or nodes.has_reference_attributes(producer) or math.prod(shape) > MOST_BYTES:
            return None  # nor has NumPy an array of so many elements, not even of one that repeats
        return constants.splat(filler(producer), shape)

    def scalar(self, value: ir.Value | None) -> float | int | bool | None:
        """The number a one-element constant (or any splat) holds, else None."""
        if value is None:
            return None
        tensor = self.tensor(value)
        if tensor is not None and tensor.size != 1:
            return None
        array = self.array(value)
        if array is None or array.size == 0 or not (array.size == 1 or constants.is_splat(array)):
            return None
        if array.dtype.kind in "OSU":
            return None
        item: float | int | bool = array[(0,) * array.ndim].item()
        return item


def _single_calls(model: ir.Model) -> dict[ir.Value, tuple[ir.Node, int]]:
    """The inputs of functions that are called in exactly one place, with the calling node and the position."""
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
    if model.functions:
        for graph in nodes.graphs_of(model):
            for node in graph:
                if node.op_identifier() in model.functions:
                    calls.setdefault(node.op_identifier(), []).append(node)
    return {
        value: (places[0], index)
        for identifier, places in calls.items()
        if len(places) == 1
        for index, value in enumerate(model.functions[identifier].inputs)
        if index < len(places[0].inputs)
    }

"""A model in float64: its results tell the rounding of the original, which computes in less.

Every float32, float16 and bfloat16 becomes a float64, in types, weights, constants and casts. Operators that ONNX
Runtime lacks in float64 are left to the ONNX reference evaluator, where the model is small enough for it, and stay in
float32 where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from graphopt.check.edges import cast_edges
from graphopt.check.feeds import Feed
from graphopt.check.narrowed import narrowed
from graphopt.check.runner import CannotRun, Runner, Workplace
from graphopt.check.stored import stored_short
from graphopt.check.work import NODE
from graphopt.lazy import Lazy
from graphopt.model import constants, nodes
from graphopt.model.self_contained import self_contained

if TYPE_CHECKING:
    from onnx import reference
else:  # the schemas of all operators, for what ONNX Runtime cannot run
    reference = Lazy("onnx.reference")

NARROW = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
MOST_BYTES = 256 << 20  # of weights in float64
REFERENCE_WORK = 60_000_000  # of a run in the reference evaluator: check.work, without what it counts for each node
REFERENCE_NODES = 2000
PLAUSIBLE = 0.05  # mean difference from the original, as a share of the mean magnitude
# Operands that stay float32 by the operator's definition.
ALWAYS_FLOAT: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,)}
TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})


class Double:
    """The model in float64, ready to run."""

    def __init__(self, workplace: Workplace, model: ir.Model, work: int, sound: bool = True) -> None:
        """`work` is that of a run; raises CannotRun where nothing runs the model in float64.

        A model that is not `sound` runs in a process of its own, or not at all.
        """
        wide = in_double(model)
        if wide is None:
            raise CannotRun("its types cannot be widened")
        kinds = {value.name or "": value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
        self._narrow = cast_edges(wide, {name: kind for name, kind in kinds.items() if kind is not None})
        self._reference: reference.ReferenceEvaluator | None = None
        self._workplace, self._wide = workplace, wide
        self._is_proved = False  # the reference evaluator has given what the original gives, for some feed
        self._runner: Runner | None = None  # None: the reference evaluator runs it, or nothing does
        try:
            self._runner = workplace.runner(wide, sound, alone=True)
        except CannotRun:
            if not sound:
                raise
            if not is_small(wide, work):
                self._runner = narrowed(workplace, wide)
                return
            try:
                self._reference = reference.ReferenceEvaluator(self_contained(wide).proto)
            except Exception as error:  # the reference's errors share no base class
                raise CannotRun(str(error)) from error

    def run(self, feed: Feed, like: Sequence[object]) -> list[object]:
        """The outputs, in the types of those that they are `like`; raises CannotRun."""
        wide = {name: value if name in self._narrow else _widened(value) for name, value in feed.items()}
        found = self._outputs(wide)
        del wide
        outputs: list[object] = []
        for other in like[: len(found)]:
            outputs.append(_narrowed(found.pop(0), other))
        if self._reference is not None and not self._is_proved:
            self._is_proved = all(_plausible(*pair) for pair in zip(outputs, like, strict=False))
            if not self._is_proved:
                raise CannotRun("the reference evaluator computes something else")
        return outputs

    def _outputs(self, wide: Feed) -> list[object]:
        if self._reference is not None:
            try:
                with np.errstate(all="ignore"):
                    return list(self._reference.run(None, dict(wide)))
            except Exception:  # as above; it has not all that ONNX defines
                self._reference = None
                self._runner = narrowed(self._workplace, self._wide)
        if self._runner is None:
            raise CannotRun("nothing runs it in float64")
        return list(self._runner.run(wide))


class Stored:
    """A model of any size with its short floats stored in their types between operators, in ONNX Runtime."""

    def __init__(self, workplace: Workplace, model: ir.Model) -> None:
        """Raises CannotRun where nothing is stored so."""
        stored = stored_short(model)
        if stored is None:
            raise CannotRun("it has no sequences or no short floats")
        self._runner = workplace.runner(stored, True, alone=True)

    def run(self, feed: Feed, like: Sequence[object]) -> list[object]:
        """The outputs, as many as those that they are `like`; raises CannotRun."""
        return list(self._runner.run(feed))[: len(like)]


class Definition:
    """A small model in its own types, as ONNX defines it: engines keep more than float16 between its operators."""

    def __init__(self, model: ir.Model, work: int) -> None:
        """`work` is that of a run; raises CannotRun for a model that is large."""
        if not is_small(model, work):
            raise CannotRun("it is too large for the reference evaluator")
        try:
            self._reference = reference.ReferenceEvaluator(self_contained(model).proto)
        except Exception as error:  # the reference's errors share no base class
            raise CannotRun(str(error)) from error

    def run(self, feed: Feed, like: Sequence[object]) -> list[object]:
        """The outputs, as many as those that they are `like`; raises CannotRun."""
        try:
            with np.errstate(all="ignore"):
                return list(self._reference.run(None, dict(feed)))[: len(like)]
        except Exception as error:  # as above
            raise CannotRun(str(error)) from error


def has_short_types(model: ir.Model) -> bool:
    """Whether a value is of float16 or bfloat16."""
    short = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    values = (value for graph in nodes.graphs_of(model) for node in graph for value in node.outputs)
    return any(value.dtype in short for value in (*model.graph.inputs, *values))


def is_small(model: ir.Model, work: int) -> bool:
    """Whether a run, of so much `work`, is one for the reference evaluator."""
    count = sum(len(graph) for graph in nodes.graphs_of(model))
    return work - NODE * count <= REFERENCE_WORK and count <= REFERENCE_NODES


def _widened(value: object) -> object:
    if isinstance(value, list):
        return [_widened(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype.name in ("float32", "float16", "bfloat16"):
        return value.astype(np.float64)
    return value


def _narrowed(value: object, like: object) -> object:
    if isinstance(value, np.ndarray) and isinstance(like, np.ndarray) and value.dtype == np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            return value.astype(like.dtype)
    if isinstance(value, list) and isinstance(like, list):
        return [_narrowed(one, other) for one, other in zip(value, like, strict=False)]
    return value


def _plausible(found: object, like: object) -> bool:
    """Whether a result may be that of the same computation: old operators are not those of the reference evaluator."""
    if not isinstance(found, np.ndarray) or not isinstance(like, np.ndarray) or found.dtype.kind != "f":
        return True
    if found.shape != like.shape:
        return False
    one, other = found.astype(np.float64), like.astype(np.float64)
    usable = np.isfinite(one) & np.isfinite(other)
    one, other = one[usable], other[usable]
    return one.size == 0 or float(np.mean(np.abs(one - other))) <= PLAUSIBLE * float(np.mean(np.abs(other)))


def in_double(model: ir.Model) -> ir.Model | None:
    """A copy in float64; None where it holds none of the narrow types, too many weights, or functions."""
    if model.functions:
        return None
    copy = model.clone()
    kept = _kept(copy)
    weights = [
        value for graph in nodes.graphs_of(copy) for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype in NARROW and value not in kept
    ]  # fmt: skip
    if sum(value.const_value.size * 8 for value in weights if value.const_value is not None) > MOST_BYTES:
        return None
    for value in weights:
        assert value.const_value is not None, "weights have one"
        wide = value.const_value.numpy().astype(np.float64)
        value.const_value = ir.Tensor(wide, dtype=ir.DataType.DOUBLE, name=value.name)
    for graph in nodes.graphs_of(copy):
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            _widen_type(value, kept)
        for node in graph:
            for value in node.outputs:
                _widen_type(value, kept)
            _widen_attributes(node)
    return copy


def _kept(model: ir.Model) -> set[ir.Value]:
    return {
        value
        for graph in nodes.graphs_of(model)
        for node in graph
        for position in ALWAYS_FLOAT.get(node.op_type, ())
        if (value := nodes.input_at(node, position)) is not None
    }


def _widen_type(value: ir.Value, kept: set[ir.Value]) -> None:
    if value in kept:
        return
    if isinstance(value.type, ir.TensorType) and value.type.dtype in NARROW:
        value.type = ir.TensorType(ir.DataType.DOUBLE)
    elif isinstance(value.type, ir.SequenceType) and value.type.dtype in NARROW:
        value.type = ir.SequenceType(ir.TensorType(ir.DataType.DOUBLE))


def _widen_attributes(node: ir.Node) -> None:
    if node.op_type == "Constant":
        tensor = constants.of_constant_node(node)
        if tensor is not None and tensor.dtype in NARROW:
            wide = ir.Tensor(tensor.numpy().astype(np.float64), dtype=ir.DataType.DOUBLE)
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", wide)
        return
    for name, attribute in tuple(node.attributes.items()):
        if attribute.is_ref():
            continue
        if name in TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.as_int() in NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in NARROW:
            wide = ir.Tensor(attribute.as_tensor().numpy().astype(np.float64), dtype=ir.DataType.DOUBLE)
            node.attributes[name] = ir.AttrTensor(name, wide)

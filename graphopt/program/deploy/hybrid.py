"""Models that kernels compute in part: segments with kernels as programs, the others as sessions of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from graphopt.errors import BundleError, NotLowered
from graphopt.model.nodes import describe
from graphopt.model.self_contained import self_contained
from graphopt.program.deploy.cutting import Segment, cut, is_fixed, part
from graphopt.program.deploy.runtime import Array
from graphopt.program.deploy.session import Program
from graphopt.program.listing import link
from graphopt.program.regions.lower import has_lowering, lower
from graphopt.program.regions.region import Lowered
from graphopt.program.regions.scope import Scope
from kernels.target import Target

ATTEMPTS = 64  # at finding the single node that has no kernel; after them whole segments are left to ONNX Runtime
NAMED = 12  # operators in a message
OLDEST = 13  # opset that a part is written in where ONNX Runtime lacks operators of newer ones


@dataclass(frozen=True, slots=True)
class Part:
    """One segment, ready to run."""

    run: Callable[[dict[str, Array]], Sequence[Array]]
    native: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    done_with: tuple[str, ...]  # values that nobody reads after this part
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parted:
    """A model in segments, with the regions of those that have kernels."""

    scope: Scope
    segments: tuple[Segment, ...]
    lowered: Mapping[int, Lowered]  # by the segment's number
    missing: tuple[str, ...]  # the operators that have no kernel
    reason: str | None  # why the first one has none, where that says more than that it has none

    @property
    def refusal(self) -> str:
        """The start of a message about the operators without a kernel."""
        return without_kernels(self.missing, self.reason)

    @property
    def fallback(self) -> tuple[str, ...]:
        """Types and names of the nodes that run in ONNX Runtime, in order."""
        return tuple(described(node) for one in self.segments if not one.native for node in one.nodes)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input as a call has to give it, or an output as it is given; a dim that is not known is -1."""

    name: str
    dtype: np.dtype[np.generic] | None  # None: not one of numbers; ONNX Runtime looks at it alone
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hybrid:
    """A model in parts. `missing` are the operators without a kernel, `fallback` all that ONNX Runtime runs.

    `refusal` begins a message about them.
    """

    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    parts: tuple[Part, ...]
    constants: Mapping[str, Array]  # outputs that nothing computes
    missing: tuple[str, ...]
    refusal: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(one.name for one in self.results)

    @property
    def fallback(self) -> tuple[str, ...]:
        """Types and names of the nodes that run in ONNX Runtime, in order."""
        return tuple(name for one in self.parts if not one.native for name in one.operators)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, in their order; all of them for None. Raises BundleError."""
        values = self._checked(feeds)
        for name in names or ():
            if name not in self.outputs:
                raise BundleError(f"there is no output '{name}'; the program has {_quoted(self.outputs)}.")
        for one in self.parts:
            found = one.run({name: values[name] for name in one.inputs})
            values.update(zip(one.outputs, found, strict=True))
            for name in one.done_with:
                del values[name]
        return [values[name] for name in (self.outputs if names is None else names)]

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """All outputs by name."""
        return dict(zip(self.outputs, self.run(None, feeds), strict=True))

    def _checked(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What the parts read: the caller's arrays and the constants. ONNX Runtime's own refusals have no type."""
        names = tuple(one.name for one in self.inputs)
        for name in feeds:
            if name not in names:
                raise BundleError(f"there is no input '{name}'; the program has {_quoted(names)}.")
        values: dict[str, Array] = dict(self.constants)
        for one in self.inputs:
            if one.name not in feeds:
                raise BundleError(f"input '{one.name}' is missing; the program has {_quoted(names)}.")
            array = np.asarray(feeds[one.name])
            if one.dtype is not None and array.dtype != one.dtype:
                raise BundleError(f"input '{one.name}' has elements of type {array.dtype}; expected is {one.dtype}.")
            if array.shape != one.shape:
                raise BundleError(
                    f"input '{one.name}' has the shape {list(array.shape)}; expected is {list(one.shape)}."
                )
            values[one.name] = array
        return values


def make_hybrid(model: ir.Model, target: Target, name: str, *, exact: bool = False) -> Hybrid:
    """The parts of a model of which lowering has refused a node.

    Raises NotLowered when the dims of an input are not numbers, and when nothing of the model has a kernel.
    """
    parted = parted_of(model, target, exact=exact)
    scope, segments, lowered, refusal = parted.scope, parted.segments, parted.lowered, parted.refusal
    given = [value for value in model.graph.inputs if not is_fixed(scope, value)]
    shapes = {value: scope.shape(value) for value in given}
    for value in {value for segment in segments for value in (*segment.inputs, *segment.outputs)}:
        if scope.facts.dtype(value) is ir.DataType.BFLOAT16:
            raise NotLowered(
                f"{refusal}, and '{value.name}' cannot be passed to ONNX Runtime: it is of bfloat16, which NumPy lacks."
            )
    parts = []
    for number, segment in enumerate(segments):
        later = {value for other in segments[number + 1 :] for value in other.inputs}
        done = tuple(
            _name(value) for value in dict.fromkeys((*segment.inputs, *segment.outputs))
            if value not in later and not value.is_graph_output()
        )  # fmt: skip
        inputs, outputs = tuple(map(_name, segment.inputs)), tuple(map(_name, segment.outputs))
        found = lowered.get(number)
        run = (
            _session(part(scope, model, segment), outputs, refusal) if found is None
            else _program(found, target, f"{name}_{number}")
        )  # fmt: skip
        parts.append(Part(run, segment.native, inputs, outputs, done, tuple(map(described, segment.nodes))))
    constants = {_name(value): _constant(scope, value) for value in model.graph.outputs if is_fixed(scope, value)}
    return Hybrid(
        tuple(Tensor(_name(value), _dtype(scope, value), shapes[value]) for value in given),
        tuple(Tensor(_name(value), _dtype(scope, value), _dims(scope, value)) for value in model.graph.outputs),
        tuple(parts), constants, parted.missing, refusal,
    )  # fmt: skip


def _constant(scope: Scope, value: ir.Value) -> Array:
    """An output that nothing computes; texts as ONNX Runtime gives them, which a model holds as bytes."""
    array = np.asarray(scope.constant(value))
    if scope.facts.dtype(value) is not ir.DataType.STRING:
        return array
    texts = np.array([text.decode() for text in array.ravel().tolist()], dtype=object)
    return texts.reshape(array.shape)


def parted_of(model: ir.Model, target: Target, *, exact: bool = False) -> Parted:
    """A model of which lowering has refused a node, cut; raises NotLowered as `make_hybrid`."""
    scope = Scope(model, target, exact=exact)
    for value in model.graph.inputs:
        if not is_fixed(scope, value):
            scope.shape(value)  # or a sentence that asks for its dims
    parted = _lowered(scope, model, target, exact)
    if parted.missing and not parted.lowered:
        raise NotLowered(f"{parted.refusal}, and nothing is left to be compiled.")
    return parted


def without_kernels(operators: Sequence[str], reason: str | None = None) -> str:
    """The start of a message about them, which names no more of them than a person reads; why, if that is known."""
    rest = len(operators) - NAMED
    names = ", ".join(operators[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return f"{names} {'has' if len(operators) == 1 else 'have'} no kernel yet{f' ({reason})' if reason else ''}"


def described(node: ir.Node) -> str:
    """An operator's type, with its domain where it is not ONNX's, and its name."""
    domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
    return domain + describe(node)


def _lowered(scope: Scope, model: ir.Model, target: Target, exact: bool) -> Parted:
    """The segments, the regions of those with kernels by number, and the operators that have none."""
    strange = {node: _strange(scope, node) for node in model.graph}
    outside = {node for node in model.graph if not has_lowering(node) or strange[node] is not None}
    reasons = {node: why for node, why in strange.items() if why is not None}
    known: dict[Segment, Lowered] = {}
    attempt = 0
    while True:
        attempt += 1
        segments = cut(scope, model.graph, outside)
        refused: set[ir.Node] = set()
        for segment in segments:
            if not segment.native or segment in known:
                continue
            try:
                known[segment] = lower(part(scope, model, segment), target, exact=exact)
            except NotLowered as error:
                names = {value.name for node in error.nodes for value in node.outputs if value.name}
                blamed = {node for node in segment.nodes if any(value.name in names for value in node.outputs)}
                reasons.update(dict.fromkeys(blamed, str(error).removesuffix(".")))
                refused |= blamed if blamed and attempt <= ATTEMPTS else set(segment.nodes)
        if not refused:
            break
        outside |= refused
    without = [
        node for node in model.graph
        if node in outside and any(not is_fixed(scope, value) for value in node.outputs)
    ]  # fmt: skip
    # What reads tensors of known dims is to blame, where anything is.
    missing = [
        node for node in without if all(scope.facts.static_shape(value) is not None for value in node.inputs if value)
    ] or without
    reason = next((reasons[node] for node in missing if node in reasons), "")
    said = None if not reason or reason.endswith("no kernel yet") else reason
    numbered = {number: known[segment] for number, segment in enumerate(segments) if segment.native}
    return Parted(scope, tuple(segments), numbered, tuple(map(described, missing)), said)


def _strange(scope: Scope, node: ir.Node) -> str | None:
    """What a node reads or gives beside tensors of known dims and of elements that kernels know; None: nothing."""
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if scope.facts.dtype(value) is ir.DataType.STRING:
            return f"'{value.name}' holds texts"
        kind = scope.facts.known(value).type
        if kind is not None and not isinstance(kind, ir.TensorType | ir.SparseTensorType):
            way = "; converters leave them out with zipmap=False" if node.op_type == "ZipMap" else ""
            return f"'{value.name}' is no tensor but {'maps' if node.op_type == 'ZipMap' else kind}{way}"
        try:
            scope.shape(value)
            scope.dtype(value)
        except NotLowered as error:
            return str(error).removesuffix(".")
    return None


def _program(lowered: Lowered, target: Target, name: str) -> Callable[[dict[str, Array]], Sequence[Array]]:
    linked = link(lowered, name, threads=1)
    program = Program(linked.listing, linked.weights, target, threads=1)
    return lambda values: program.run(None, values)


def _session(model: ir.Model, outputs: tuple[str, ...], refusal: str) -> Callable[[dict[str, Array]], Sequence[Array]]:
    """ONNX Runtime on one thread, as programs are.

    It has some operators (RandomNormalLike) of older opsets alone than this copy of the model was lifted to: then the
    part is of the newest one that it has, and the comparison shows whether it means the same.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session, first, newest = None, None, model.graph.opset_imports.get("", 1)
    for opset in range(newest, min(newest, OLDEST) - 1, -1):
        try:
            session = ort.InferenceSession(_at_opset(model, opset), options, providers=["CPUExecutionProvider"])
            break
        except Exception as error:  # ONNX Runtime's errors share no base class, nor do protobuf's
            first = first or error
            if "NOT_IMPLEMENTED" not in str(first):
                break
    if session is None:
        reason = (str(first).strip().splitlines() or [type(first).__name__])[0]
        raise NotLowered(f"{refusal}, and ONNX Runtime does not run it either: {reason}") from first

    def run(values: dict[str, Array]) -> Sequence[Array]:
        found: Sequence[Array] = session.run(list(outputs), values)
        return found

    return run


def _at_opset(model: ir.Model, opset: int) -> bytes:
    proto = self_contained(model).proto
    for one in proto.opset_import:
        one.version = opset if one.domain == "" else one.version
    made: bytes = proto.SerializeToString()
    return made


def _dtype(scope: Scope, value: ir.Value) -> np.dtype[np.generic] | None:
    kind = scope.facts.dtype(value)
    return None if kind is None or kind is ir.DataType.STRING else kind.numpy()


def _dims(scope: Scope, value: ir.Value) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -1 for dim in scope.facts.shape(value) or ())


def _name(value: ir.Value) -> str:
    return value.name or ""


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"

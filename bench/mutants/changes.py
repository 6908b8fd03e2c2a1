"""One change of a model: of an attribute, a dim, a constant, an operator, or the order of operands; drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from bench.mutants import operators
from bench.mutants.sources import graphs

WORDS: dict[str, tuple[str, ...]] = {
    "mode": ("constant", "reflect", "edge", "wrap", "nearest", "linear", "cubic", "DCR", "CRD", "bilinear"),
    "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"), "direction": ("forward", "reverse", "LEFT", "RIGHT"),
    "reduction": ("none", "add", "mul", "max", "min", "sum", "mean"), "approximate": ("none", "tanh"),
    "coordinate_transformation_mode": (
        "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric",
        "output_half_pixel",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "padding_mode": ("zeros", "border", "reflection"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "case_change_action": ("LOWER", "UPPER", "NONE"), "cast_mode": ("TO_FLOAT", "TO_STRING", "TO_INT64"),
}  # fmt: skip
SWAPPED = frozenset({
    "Sub", "Div", "Pow", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "MatMul", "Gemm", "Concat", "PRelu",
    "Mod", "BitShift", "MatMulInteger", "Einsum", "Where", "Split", "If", "GRU", "LSTM", "Clip", "Range", "Attention",
    "SequenceInsert", "ConcatFromSequence", "LayerNormalization", "BatchNormalization", "Slice", "Gather",
})  # fmt: skip
# Which operands a faulty rewrite would exchange, where they are not the first two.
OPERANDS: dict[str, tuple[tuple[int, int], ...]] = {
    "Where": ((1, 2),), "GRU": ((1, 2),), "LSTM": ((5, 6), (1, 2)), "Clip": ((1, 2),), "Slice": ((1, 2), (3, 4)),
    "Attention": ((0, 1), (1, 2)), "BatchNormalization": ((1, 2), (3, 4), (1, 4), (2, 3)),
    "LayerNormalization": ((1, 2),), "Range": ((0, 1), (1, 2)),
}  # fmt: skip
SMALL_TENSOR = 64  # elements; integer tensors up to here are dims, axes, bounds
INFERRED = 20_000_000  # bytes; larger models are not inferred for a change
TABLE = 64  # rows from which a row has to be asked for


@dataclass(frozen=True, slots=True)
class Change:
    """What was changed, and the numbers that inputs should know of to show it."""

    kind: str
    text: str
    hints: tuple[float, ...] = ()


def apply(model: onnx.ModelProto, kind: str, rng: random.Random) -> Change | None:
    """Change the model in place; None where it has nothing of that kind. May raise what onnx raises."""
    return KINDS[kind](model, rng)


def _nodes(model: onnx.ModelProto) -> list[tuple[onnx.GraphProto, onnx.NodeProto]]:
    return [(graph, node) for graph in graphs(model.graph) for node in graph.node]


def _opset(model: onnx.ModelProto, domain: str) -> int:
    version: int = next(entry.version for entry in model.opset_import if entry.domain == domain)
    return version


def _attribute(model: onnx.ModelProto, rng: random.Random) -> Change | None:
    choices = []
    for _, node in _nodes(model):
        if node.op_type != "Constant":
            choices += [(node, attribute) for attribute in node.attribute if attribute.type in _NEW]
            choices += [(node, attribute) for attribute in _absent(model, node)]
    if not choices:
        return None
    node, attribute = rng.choice(choices)
    if attribute in list(node.attribute) and rng.random() < 0.2:
        node.attribute.remove(attribute)
        return Change("attribute", f"{node.op_type}: {attribute.name} = {_shown(attribute)} left out")
    old, value = _shown(attribute), helper.get_attribute_value(attribute)
    new = helper.make_attribute(attribute.name, _NEW[attribute.type](value, attribute.name, rng))
    kept = [one for one in node.attribute if one.name != attribute.name]
    del node.attribute[:]
    node.attribute.extend([*kept, new])
    hints = (float(value), float(new.f)) if attribute.type == AttributeProto.FLOAT else ()
    return Change("attribute", f"{node.op_type}: {attribute.name} {old} -> {_shown(new)}", hints)


def _absent(model: onnx.ModelProto, node: onnx.NodeProto) -> Iterator[AttributeProto]:
    """Attributes that have their default because the node does not name them."""
    try:
        schema = onnx.defs.get_schema(node.op_type, _opset(model, node.domain), node.domain)
    except (onnx.defs.SchemaError, StopIteration):
        return
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        if name not in given and default.type in _NEW:
            yield default


def _shown(attribute: AttributeProto) -> str:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _new_int(value: int, name: str, rng: random.Random) -> int:
    if value in (0, 1) and rng.random() < 0.7:
        return 1 - value
    return rng.choice((value + 1, value - 1, -value or 1, 0, 2))


def _new_float(value: float, name: str, rng: random.Random) -> float:
    return rng.choice((value * 2, value / 2, value + 0.1, value * 10, value / 1000, 0.0, -value or 1.0, value * 1.05))


def _new_ints(value: list[int], name: str, rng: random.Random) -> list[int]:
    new = list(value)
    if not new:
        return [1]
    place = rng.randrange(len(new))
    if len(new) > 1 and rng.random() < 0.4:
        other = rng.randrange(len(new))
        new[place], new[other] = new[other], new[place]
    else:
        new[place] = _new_int(new[place], name, rng)
    return new


def _new_word(value: bytes, name: str, rng: random.Random) -> str:
    return rng.choice(WORDS.get(name, (value.decode(),)))


_NEW: dict[int, Callable[..., object]] = {
    AttributeProto.INT: _new_int, AttributeProto.FLOAT: _new_float, AttributeProto.INTS: _new_ints,
    AttributeProto.STRING: _new_word,
}  # fmt: skip


def _held(model: onnx.ModelProto, integers: bool) -> list[tuple[str, TensorProto]]:
    """Constant tensors by name: small integer ones, which say dims and axes, or all others."""
    found = []
    for graph in graphs(model.graph):
        tensors = [(tensor.name, tensor) for tensor in graph.initializer]
        for node in graph.node:
            if node.op_type == "Constant":
                tensors += [(node.output[0], one.t) for one in node.attribute if one.name == "value"]
        for name, tensor in tensors:
            size = int(np.prod(tensor.dims, dtype=np.int64))
            dims = tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and size <= SMALL_TENSOR
            if size and dims == integers and tensor.data_type not in (TensorProto.STRING, TensorProto.BFLOAT16):
                found.append((name, tensor))
    return found


def _dim(model: onnx.ModelProto, rng: random.Random) -> Change | None:
    tensors = _held(model, integers=True)
    if not tensors:
        return None
    name, tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    flat, old = array.reshape(-1), array.tolist()
    place = rng.randrange(flat.size)
    if flat.size > 1 and rng.random() < 0.35:
        other = rng.randrange(flat.size)
        flat[place], flat[other] = flat[other], flat[place]
    else:
        flat[place] = _new_int(int(flat[place]), "", rng)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return Change("dim", f"{_reader(model, name)}: {old} -> {array.tolist()}")


def _reader(model: onnx.ModelProto, name: str) -> str:
    return next((f"{node.op_type} of {name}" for _, node in _nodes(model) if name in node.input), name)


def _constant(model: onnx.ModelProto, rng: random.Random) -> Change | None:
    tensors = _held(model, integers=False)
    if not tensors:
        return None
    name, tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype.kind not in "fiub":
        return None
    flat = array.reshape(-1)
    place = rng.randrange(flat.size)
    old = flat[place].item()
    if array.dtype.kind == "b":
        new: float = not old
    elif array.dtype.kind in "iu":
        new = rng.choice((old + 1, old - 1, 0, old * 2, -old))
        new = min(max(new, np.iinfo(array.dtype).min), np.iinfo(array.dtype).max)
    else:
        spread = float(np.std(flat[:10000].astype(np.float64))) or 1.0
        new = rng.choice((0.0, -old, 2 * old, old + spread, old * 1.25, old * 10, old / 10, old + 0.05 * spread))
    with np.errstate(over="ignore"):
        flat[place] = new
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    hints: tuple[float, ...] = ()
    if flat.size == 1:
        hints = (float(old), float(new))
    elif array.shape[0] >= TABLE:
        hints = (float(np.unravel_index(place, array.shape)[0]),)
    return Change(
        "constant", f"{_reader(model, name)} {list(array.shape)}: element {place} {old:.6g} -> {new:.6g}", hints
    )


def _operator(model: onnx.ModelProto, rng: random.Random) -> Change | None:
    nodes = [(graph, node) for graph, node in _nodes(model) if node.output and node.input and node.domain == ""]
    way = rng.random()
    if way < 0.5:
        nodes = [(graph, node) for graph, node in nodes if node.op_type in operators.OTHERS]
    elif way < 0.8:
        nodes = [(graph, node) for graph, node in nodes if node.op_type in operators.DROPPED]
    if not nodes:
        return None
    # An operator that is rare in a model has the same chance as a frequent one.
    (wanted,) = rng.choices(sorted({node.op_type for _, node in nodes}))
    graph, node = rng.choice([(graph, node) for graph, node in nodes if node.op_type == wanted])
    if way < 0.5:
        return Change("operator", operators.replaced(graph, node, _opset(model, ""), rng))
    if way < 0.8:
        return Change("operator", operators.dropped(node))
    return Change("operator", operators.slipped_in(graph, node, rng), (6.0, 70000.0))


def _other_operand(model: onnx.ModelProto, rng: random.Random) -> Change | None:
    """An operand is read from another value of the same type and dims, computed before."""
    typed = onnx.shape_inference.infer_shapes(model).graph
    kinds = {value.name: value.type for value in (*typed.input, *typed.value_info)}
    known = [value.name for value in model.graph.input]
    choices = []
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in kinds and kinds[name].tensor_type.HasField("shape"):
                choices += [(node, place, other) for other in known if other != name and kinds[other] == kinds[name]]
        known += [name for name in node.output if name in kinds]
    if not choices:
        return None
    node, place, other = rng.choice(choices)
    text = f"{node.op_type}: operand {place} read from {other} in place of {node.input[place]}"
    node.input[place] = other
    return Change("order", text)


def _order(model: onnx.ModelProto, rng: random.Random) -> Change | None:
    if rng.random() < 0.3 and model.ByteSize() < INFERRED:
        return _other_operand(model, rng)
    nodes = [node for _, node in _nodes(model) if node.op_type in SWAPPED]
    if not nodes:
        return None
    (wanted,) = rng.choices(sorted({node.op_type for node in nodes}))
    node = rng.choice([node for node in nodes if node.op_type == wanted])
    if wanted == "If":
        one, other = (attribute.g for attribute in node.attribute)
        kept = onnx.GraphProto()
        kept.CopyFrom(one)
        one.CopyFrom(other)
        other.CopyFrom(kept)
        return Change("order", "If: branches exchanged")
    row = node.output if wanted == "Split" else node.input
    if len(row) < 2:
        return None
    pairs = OPERANDS.get(wanted) or tuple((place, place + 1) for place in range(len(row) - 1))
    first, second = rng.choice(pairs)
    if second >= len(row) or row[first] == row[second]:
        return None
    row[first], row[second] = row[second], row[first]
    what = "outputs" if wanted == "Split" else "operands"
    return Change("order", f"{wanted}: {what} {first} and {second} exchanged")


KINDS: dict[str, Callable[[onnx.ModelProto, random.Random], Change | None]] = {
    "attribute": _attribute, "dim": _dim, "constant": _constant, "operator": _operator, "order": _order,
}  # fmt: skip

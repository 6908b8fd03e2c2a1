"""The door: a ModelProto that passes here can be walked, printed, sized and saved; anything else is refused at once.

The checks are those whose failure no later stage could explain: strings that are no text, tensors whose dims and data
disagree, values defined twice, functions that call themselves, attributes of the wrong type. What only one operator
objects to is left to whoever runs the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from graphopt.errors import ModelError
from graphopt.model.limits import MOST_BYTES, MOST_DIMS, MOST_NODES
from graphopt.model.text import shown

_TEXT = FieldDescriptor.TYPE_STRING
_MESSAGE = FieldDescriptor.TYPE_MESSAGE
_DATA_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
_NEWEST = 10_000  # of any version: what is above is a damaged field
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
# How many elements of a typed field make one element of the tensor, where that is not one.
_PAIRS = frozenset({onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128})


def validate(proto: onnx.ModelProto, what: str) -> None:
    """Refuse a model that is damaged; raises ModelError naming the file (`what`), the place and the way out."""
    _check_texts(proto, what)
    _check_functions(proto, what)
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    for kind, version in (("IR", proto.ir_version), *(("opset", one) for one in opsets.values())):
        if not 1 <= version <= _NEWEST:
            raise ModelError(f"{what} claims {kind} version {version:,}, which does not exist; export the model again.")
    if not proto.graph.output:
        raise ModelError(f"{what} has no outputs, so there is nothing to compute; export the model again.")
    for value in proto.graph.input:
        if value.type.WhichOneof("value") is None:
            raise ModelError(f"{what}: input '{shown(value.name)}' has no type; export the model again.")
    _check_graph(proto.graph, opsets, what)
    for function in proto.functions:
        own = {_domain(entry.domain): entry.version for entry in function.opset_import}
        _check_nodes(function.node, [*function.input], {**opsets, **own}, what)


def _check_texts(message: object, what: str) -> None:
    """Every name and remark must be text; a name with a null character ends early in C."""
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.type == _TEXT:
            for text in value if field.is_repeated else (value,):
                if isinstance(text, bytes):
                    raise ModelError(
                        f"{what} is damaged: field '{field.full_name}' holds {text[:40]!r}, which is no UTF-8 text; "
                        "copy or export the model again."
                    )
                if "\0" in text:
                    raise ModelError(
                        f"{what}: '{shown(text)}' in field '{field.full_name}' has a null character, where a name "
                        "ends; rename it."
                    )
        elif field.type == _MESSAGE:
            for inner in value if field.is_repeated else (value,):
                if isinstance(inner, onnx.TensorProto):
                    _check_tensor(inner, what)
                else:
                    _check_texts(inner, what)


def _check_tensor(tensor: onnx.TensorProto, what: str) -> None:
    named = tensor.name and not isinstance(tensor.name, bytes)  # bytes are what protobuf could not read as text
    label = f"tensor '{shown(tensor.name)}'" if named else "a tensor"
    for text in (
        tensor.name,
        tensor.doc_string,
        *(part for one in tensor.external_data for part in (one.key, one.value)),
    ):
        if isinstance(text, bytes) or "\0" in text:
            raise ModelError(
                f"{what} is damaged: {label} holds {text[:40]!r}, which is no text; export the model again."
            )
    if tensor.data_type not in _DATA_TYPES:
        raise ModelError(f"{what}: {label} has the unknown data type {tensor.data_type}; export the model again.")
    dims = list(tensor.dims)
    elements = math.prod(dims)
    dtype = ir.DataType(tensor.data_type)
    if len(dims) > MOST_DIMS or any(dim < 0 for dim in dims) or elements * _bits(dtype) > 8 * MOST_BYTES:
        raise ModelError(f"{what}: {label} has the impossible dims {_listed(dims)}; export the model again.")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, label, what)
        return
    if dtype == ir.DataType.STRING and tensor.HasField("raw_data"):
        raise ModelError(f"{what}: {label} holds text as bytes, which ONNX does not allow; export the model again.")
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    if any(getattr(tensor, name) for name in _DATA_FIELDS if name != field):
        raise ModelError(
            f"{what}: {label} with dims {_listed(dims)} of {dtype.name.lower()} has its values in the field of another "
            "type; export the model again."
        )
    held, wanted = _held(tensor, dtype, elements, field)
    if held != wanted:
        raise ModelError(
            f"{what}: {label} with dims {_listed(dims)} of {dtype.name.lower()} needs {wanted:,} "
            f"{'bytes' if tensor.HasField('raw_data') else 'values'} and holds {held:,}; export the model again."
        )


def _held(tensor: onnx.TensorProto, dtype: ir.DataType, elements: int, field: str) -> tuple[int, int]:
    """What the tensor holds and what its dims need: bytes of raw data, or entries of the field for its type."""
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), -(-elements * _bits(dtype) // 8)
    wanted = 2 * elements if tensor.data_type in _PAIRS else elements
    if _bits(dtype) < 8:
        wanted = -(-elements * _bits(dtype) // 8)
    return len(getattr(tensor, field)), wanted


def _bits(dtype: ir.DataType) -> int:
    return 8 if dtype == ir.DataType.STRING else dtype.bitwidth


_NUMBER = re.compile(r"[0-9]{1,18}")


def _check_external(tensor: onnx.TensorProto, label: str, what: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_type == onnx.TensorProto.STRING:
        raise ModelError(f"{what}: {label} holds text, which cannot lie in a data file; export the model again.")
    if not entries.get("location"):
        raise ModelError(f"{what}: {label} lies in a data file that is not named; export the model again.")
    for key in ("offset", "length"):
        if key in entries and not _NUMBER.fullmatch(entries[key]):
            raise ModelError(
                f"{what}: the {key} of {label} in '{shown(entries['location'])}' is '{shown(entries[key])}', which is "
                "no number of bytes; export the model again."
            )


def _check_functions(proto: onnx.ModelProto, what: str) -> None:
    """No function stands twice or calls itself, not even through others."""
    functions: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    for function in proto.functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise ModelError(f"{what} has two functions '{shown(function.name)}'; export the model again.")
        functions[key] = function
    calls = {
        key: {
            called
            for node in _all_nodes(function.node)
            if (called := (_domain(node.domain), node.op_type, node.overload)) in functions
        }
        for key, function in functions.items()
    }
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        name = error.args[1][0][1]
        raise ModelError(
            f"{what}: function '{shown(name)}' calls itself, which ONNX does not allow; export the model again."
        ) from None
    nodes: dict[tuple[str, str, str], int] = {}  # with calls replaced by what they call

    def expanded(body: Iterable[onnx.NodeProto]) -> int:
        return sum(nodes.get((_domain(node.domain), node.op_type, node.overload), 1) for node in _all_nodes(body))

    for key in order:
        nodes[key] = expanded(functions[key].node)
    total = expanded(proto.graph.node)
    if total > MOST_NODES:
        raise ModelError(
            f"{what} has {total:,} nodes when its functions take the place of their calls, more than {MOST_NODES:,}; "
            "export the model in parts."
        )


def _check_graph(graph: onnx.GraphProto, opsets: dict[str, int], what: str) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_type(value.type, value.name, what)
    inputs = [value.name for value in graph.input]
    if not all((*inputs, *(value.name for value in graph.output))):
        raise ModelError(f"{what} has an input or output without a name; export the model again.")
    _check_nodes(graph.node, inputs, opsets, what, {tensor.name for tensor in graph.initializer} - set(inputs))


def _check_type(kind: onnx.TypeProto, name: str, what: str) -> None:
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type not in _DATA_TYPES:
        raise ModelError(
            f"{what}: value '{shown(name)}' has the unknown element type {kind.tensor_type.elem_type}; export the "
            "model again."
        )
    if len(kind.tensor_type.shape.dim) > MOST_DIMS:
        raise ModelError(
            f"{what}: value '{shown(name)}' has {len(kind.tensor_type.shape.dim):,} dims; export it again."
        )


def _check_nodes(
    nodes: Sequence[onnx.NodeProto],
    inputs: list[str],
    opsets: dict[str, int],
    what: str,
    held: AbstractSet[str] = frozenset(),
) -> None:
    """Each value is defined once; attributes have the types that the operator asks for."""
    defined = {name for name in held if name}
    outputs = [name for node in nodes for name in node.output]
    for name in (*inputs, *outputs):
        if name and name in defined:
            raise ModelError(f"{what}: value '{shown(name)}' is defined twice; export the model again.")
        defined.add(name)
    for node in nodes:
        _check_node(node, opsets, what)
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _check_graph(inner, opsets, what)


def _check_node(node: onnx.NodeProto, opsets: dict[str, int], what: str) -> None:
    label = f"node {shown(node.op_type)} '{shown(node.name or next(iter(node.output), ''))}'"
    names = [attribute.name for attribute in node.attribute]
    if not node.op_type:
        raise ModelError(f"{what}: {label} has no operator; export the model again.")
    if len(set(names)) < len(names) or "" in names:
        raise ModelError(f"{what}: {label} has an attribute twice, or one without a name; export the model again.")
    operator = _operator(node.op_type, _domain(node.domain), opsets.get(_domain(node.domain), 0))
    wanted = {} if operator is None else operator.attributes
    for attribute in node.attribute:
        expected = wanted.get(attribute.name)
        if attribute.ref_attr_name:
            continue
        field = _FIELDS.get(attribute.type)
        empty = field in ("t", "g", "sparse_tensor", "tp") and not _is_set(attribute, field)
        if field is None or empty or any(_is_set(attribute, other) for other in _FIELDS.values() if other != field):
            raise ModelError(
                f"{what}: attribute '{shown(attribute.name)}' of {label} does not hold the value that its type "
                "names; export the model again."
            )
        if expected is not None and expected != attribute.type:
            raise ModelError(
                f"{what}: attribute '{shown(attribute.name)}' of {label} is of type "
                f"{onnx.AttributeProto.AttributeType.Name(attribute.type)}, the operator takes "
                f"{onnx.AttributeProto.AttributeType.Name(expected)}; "
                "export the model again."
            )
        if expected == onnx.AttributeProto.STRING and node.op_type != "Constant" and not _is_text(attribute.s):
            raise ModelError(
                f"{what}: attribute '{shown(attribute.name)}' of {label} holds {attribute.s[:40]!r}, which is no text; "
                "export the model again."
            )
    if operator is None:
        return
    missing = [name for name in operator.required if name not in names]
    if missing:
        raise ModelError(f"{what}: {label} lacks the attribute '{missing[0]}'; export the model again.")
    for side, given, (least, most) in (
        ("inputs", node.input, operator.inputs),
        ("outputs", node.output, operator.outputs),
    ):
        if not least <= len(given) <= most:
            raise ModelError(
                f"{what}: {label} has {len(given)} {side}, the operator takes {least} to {most}; export the "
                "model again."
            )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_FIELDS: dict[int, str] = {
    onnx.AttributeProto.FLOAT: "f", onnx.AttributeProto.INT: "i", onnx.AttributeProto.STRING: "s",
    onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g", onnx.AttributeProto.FLOATS: "floats",
    onnx.AttributeProto.INTS: "ints", onnx.AttributeProto.STRINGS: "strings", onnx.AttributeProto.TENSORS: "tensors",
    onnx.AttributeProto.GRAPHS: "graphs", onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.SPARSE_TENSORS: "sparse_tensors", onnx.AttributeProto.TYPE_PROTO: "tp",
    onnx.AttributeProto.TYPE_PROTOS: "type_protos",
}  # fmt: skip
_TYPES: dict[onnx.defs.OpSchema.AttrType, int] = {
    getattr(onnx.defs.OpSchema.AttrType, name): number
    for name, number in onnx.AttributeProto.AttributeType.items()
    if name != "UNDEFINED"
}
_SINGLE = frozenset({"f", "i", "s", "t", "g", "sparse_tensor", "tp"})


def _is_set(attribute: onnx.AttributeProto, field: str) -> bool:
    return bool(attribute.HasField(field)) if field in _SINGLE else bool(getattr(attribute, field))


@dataclass(frozen=True, slots=True)
class _Operator:
    """What a version of an operator takes."""

    attributes: dict[str, int]  # name -> type
    required: tuple[str, ...]
    inputs: tuple[int, int]  # least and most
    outputs: tuple[int, int]


@lru_cache(maxsize=4096)
def _operator(name: str, domain: str, version: int) -> _Operator | None:
    """The operator as onnx defines it; None for one that it does not know."""
    if version <= 0 or not onnx.defs.has(name, domain):
        return None
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = schema.attributes
    return _Operator(
        {key: _TYPES[one.type] for key, one in attributes.items()},
        tuple(key for key, one in attributes.items() if one.required),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
    )


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _all_nodes(inner.node)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _listed(dims: Sequence[int]) -> str:
    return "[" + ", ".join(f"{dim:,}" for dim in dims[:8]) + (", ..." if len(dims) > 8 else "") + "]"

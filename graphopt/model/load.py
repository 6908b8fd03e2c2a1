"""Loading: a path, bytes, a ModelProto or an onnx_ir Model becomes an onnx_ir Model that is fit to be worked on.

Nothing is read that is not needed: external data stays on disk, memory-mapped when a rule asks for it. What ONNX
Runtime accepts is accepted (unsorted nodes, missing value_info); what nothing could run is refused in one sentence.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphopt.errors import ModelError, OptionError
from graphopt.model import maps, nodes
from graphopt.model.collection import paused_collection
from graphopt.model.mapped import DataFile, MappedTensor
from graphopt.model.reading import Parsed, parsed
from graphopt.model.sparse import without_sparse_tensors
from graphopt.model.tensors import replace_external
from graphopt.model.text import shown
from graphopt.model.validate import validate

NO_NAMES = ("?", "-1")  # what exporters write of a dim that they do not know
Source = str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto | ir.Model


@paused_collection()
def load(source: Source) -> ir.Model:
    """The model as an onnx_ir Model, independent of `source`.

    Raises ModelError naming the file, the fault and the way out.
    """
    if isinstance(source, ir.Model):
        return source.clone()
    if isinstance(source, onnx.ModelProto):
        return _from_proto(Parsed(source, {}), None, "the model")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_proto(_parse(BytesIO(source), "the given bytes"), None, "the model")
    if not isinstance(source, (str, os.PathLike)):
        return _from_file(source)
    path = Path(source)
    return _from_proto(_read(path), path.parent, f"'{path}'")


def _from_file(source: object) -> ir.Model:
    """The model in an open file; raises OptionError for what is none."""
    content = source.read() if hasattr(source, "read") else None
    if isinstance(content, bytes):
        return _from_proto(_parse(BytesIO(content), "the given file"), None, "the model")
    if isinstance(content, str):
        raise OptionError("the file is open as text; open it with mode 'rb'.")
    raise OptionError(
        f"a model is a path, bytes, an open file, an onnx.ModelProto or an onnx_ir.Model, not {type(source).__name__}."
    )


def _read(path: Path) -> Parsed:
    try:
        if path.is_dir():
            raise ModelError(f"'{path}' is a folder; give the .onnx file inside it.")
        with path.open("rb") as file:
            return _parse(file if file.seekable() else BytesIO(file.read()), f"'{path}'")
    except FileNotFoundError:
        raise ModelError(f"'{path}' does not exist; check the path.") from None
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror}; check the file's permissions.") from error
    except ValueError:
        raise ModelError(f"'{shown(str(path))}' is no path: it has a null character; check the path.") from None


def _parse(file: BinaryIO, what: str) -> Parsed:
    size = file.seek(0, os.SEEK_END)
    if not size:
        raise ModelError(f"{what} is empty (0 bytes); export or download the model again.")
    try:
        found = parsed(file)
    except DecodeError as error:
        raise ModelError(
            f"{what} is not an ONNX protobuf, or is cut short ({size:,} bytes read); "
            "export or download the model again."
        ) from error
    if not found.proto.HasField("graph"):
        raise ModelError(f"{what} holds no graph, so it is not an ONNX model; export or download the model again.")
    return found


def _from_proto(given: Parsed, folder: Path | None, what: str) -> ir.Model:
    proto = given.proto
    _check_opsets(proto, what)
    validate(proto, what)
    _check_names(proto, what)
    proto = without_sparse_tensors(proto)
    try:
        model = maps.from_proto(proto, what)
    except ModelError:
        raise
    except Exception as error:  # onnx_ir reports malformed models with many types
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        raise ModelError(
            f"{what} is not a valid model: {root}; check it with onnx.checker and export it again."
        ) from error
    given.give(model)
    _attach_folder(model, folder, what)
    _free_unknown_dims(model)
    _sort(model, what)
    return model


def _check_opsets(proto: onnx.ModelProto, what: str) -> None:
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{what} has IR version {proto.ir_version}, but the installed onnx {onnx.__version__} knows versions up to "
            f"{onnx.IR_VERSION}; upgrade onnx or export the model with an older exporter."
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            raise ModelError(
                f"{what} uses opset {entry.version}, but the installed onnx {onnx.__version__} knows opsets up to "
                f"{newest}; upgrade onnx or export the model with a lower opset."
            )


def _check_names(proto: onnx.ModelProto, what: str) -> None:
    """Every value that is read must be defined somewhere in scope (in any order: unsorted nodes are accepted)."""
    _check_scope(proto.graph, set(), what)
    for function in proto.functions:
        body = onnx.GraphProto(node=function.node)
        body.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
        body.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
        _check_scope(body, set(), f"{what}, function '{shown(function.name)}'")


def _check_scope(graph: onnx.GraphProto, outer: set[str], what: str) -> None:
    own = {value.name for value in graph.input}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        own.update(node.output)
    scope = outer | own
    for node in graph.node:
        for name in node.input:
            if name and name not in scope:
                label = node.name or (node.output[0] if node.output else "")
                raise ModelError(
                    f"{what}: node {shown(node.op_type)} '{shown(label)}' reads '{shown(name)}', which nothing "
                    "defines; the model was cut or edited wrongly, export it again."
                )
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _check_scope(attribute.g, scope, what)
            for inner in attribute.graphs:
                _check_scope(inner, scope, what)
    for value in graph.output:
        if value.name and value.name not in own:
            inside = f" of the graph '{shown(graph.name)}'" if outer else ""
            raise ModelError(
                f"{what}: output '{shown(value.name)}'{inside} is not computed by any node; export the model again."
            )


def _attach_folder(model: ir.Model, folder: Path | None, what: str) -> None:
    """Map external tensors from where they lie, and check now that all of their data is there."""
    files: dict[Path, DataFile] = {}

    def mapped(tensor: ir.ExternalTensor) -> MappedTensor:
        if folder is None:
            raise ModelError(
                f"{what} keeps tensor '{tensor.name}' in the file '{tensor.location}', but was not given as a path; "
                "give the path of the .onnx file instead."
            )
        path = _data_path(tensor, folder, what)
        return MappedTensor(tensor, files.setdefault(path, DataFile(path)), folder)

    replace_external(model, mapped, mapped)


def _data_path(tensor: ir.ExternalTensor, folder: Path, what: str) -> Path:
    """The file that holds a tensor; raises ModelError unless it lies in the model's folder and holds all of it."""
    location = os.fspath(tensor.location)
    target = folder / location
    try:
        inside = not os.path.isabs(location) and target.resolve().is_relative_to(folder.resolve())
        is_file = target.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long; links in a ring
        raise ModelError(
            f"{what} keeps tensor '{tensor.name}' in '{location[:200]}', which cannot be looked up: "
            f"{getattr(error, 'strerror', None) or 'its links form a ring'}; correct its location."
        ) from error
    if not inside:
        raise ModelError(
            f"{what} keeps tensor '{tensor.name}' in '{location}', which lies outside the model's folder; move the "
            "data beside the model and correct its location."
        )
    if not is_file:
        raise ModelError(
            f"{what} keeps tensor '{tensor.name}' in '{target}', which does not exist; put the data file beside "
            "the model."
        )
    needed = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    size = target.stat().st_size
    if tensor.length is not None and tensor.length < tensor.nbytes:
        raise ModelError(
            f"{what}: tensor '{tensor.name}' needs {tensor.nbytes:,} bytes but its entry names {tensor.length:,}; "
            "export the model again."
        )
    if size < needed:
        raise ModelError(
            f"'{target}' has {size:,} bytes, but tensor '{tensor.name}' needs it to have {needed:,}; the file is "
            "cut short, copy it again."
        )
    return target


def _free_unknown_dims(model: ir.Model) -> None:
    """A dim that is declared as -1 is one that nobody knows, as runtimes take it; "?" names none."""
    for graph in nodes.graphs_of(model):
        values = (*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs))
        for value in values:
            if value.shape is not None and any(map(_is_unknown, value.shape)):
                value.shape = ir.Shape([None if _is_unknown(dim) else dim for dim in value.shape])


def _is_unknown(dim: int | ir.SymbolicDim) -> bool:
    return dim < 0 if isinstance(dim, int) else dim.value in NO_NAMES


def _sort(model: ir.Model, what: str) -> None:
    """Bring the nodes into an order in which each follows what it reads."""
    try:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            if not _is_sorted(graph):
                graph.sort()
    except ValueError:
        raise ModelError(
            f"{what} is cyclic: some node depends on its own result; a graph must be acyclic, export the model again."
        ) from None


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        for value in (*node.inputs, *(nodes.implicit_inputs(node) if nodes.has_subgraphs(node) else ())):
            producer = None if value is None else value.producer()
            if producer is not None and producer not in seen and producer.graph is graph:
                return False
        for inner in nodes.subgraphs(node):
            if not _is_sorted(inner):
                return False
        seen.add(node)
    return True

"""A model as an ONNX file with custom operators, and the library that computes them: in a session, or in a folder.

<name>.onnx      a stock ONNX Runtime runs it once it has registered the library
lib<name>.so     the operators
<name>.weights   what an operator reads when a session begins; <name>_<part>.weights of a model in parts
manifest.json    the other files
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import onnx_ir as ir
import onnxruntime as ort

from graphopt.errors import BundleError, SaveError
from graphopt.files.folder import write_folder
from graphopt.program.deploy.bundle import replaced_files
from graphopt.program.deploy.custom.graph import Placed, parted_file, whole_file
from graphopt.program.deploy.custom.library import REGISTER, Operator, write_operators
from graphopt.program.deploy.hybrid import Parted
from graphopt.program.deploy.manifest import MANIFEST, OPERATORS_SCHEMA, File, file_of, written
from graphopt.program.deploy.runtime import Array
from graphopt.program.listing import Linked, link
from graphopt.version import VERSION
from kernels.emit.description import Description
from kernels.emit.program import Emitted, compiled, emit, oldest, stored_weights
from kernels.errors import KernelsError
from kernels.llvm.link import link_shared
from kernels.llvm.module import Module
from kernels.target import Target


class OperatorsManifest(msgspec.Struct, frozen=True):
    """What a folder with custom operators says of itself."""

    name: str
    programs: tuple[Description, ...]
    fallback: tuple[str, ...]  # what ONNX Runtime computes itself
    files: dict[str, File]  # all but the manifest
    producer: str
    schema: str = OPERATORS_SCHEMA


@dataclass(frozen=True, repr=False, eq=False)
class Operators:
    """The files of a model with custom operators, which run in a session of ONNX Runtime."""

    name: str
    linked: tuple[Linked, ...]  # a program for each operator
    descriptions: tuple[Description, ...]
    fallback: tuple[str, ...]  # types and names of the nodes that ONNX Runtime computes itself, in order
    files: Mapping[str, bytes | memoryview]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names (None: all, in order); raises BundleError with what ONNX Runtime says."""
        try:
            found: list[Array] = self.session.run(None if names is None else list(names), dict(feeds))
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise BundleError(_first_line(error)) from error
        return found

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """All outputs by name."""
        return dict(zip((one.name for one in self.session.get_outputs()), self.run(None, feeds), strict=True))

    @cached_property
    def session(self) -> ort.InferenceSession:
        """The files in ONNX Runtime, as a caller would load them; raises BundleError."""
        with tempfile.TemporaryDirectory() as folder:  # a session has mapped the library, and read the weights
            for name, data in self.files.items():
                (Path(folder) / name).write_bytes(data)
            try:
                return opened(folder, self.name)
            except Exception as error:  # as above
                raise BundleError(f"ONNX Runtime does not run the custom operators: {_first_line(error)}") from error

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the files, whole or not at all, in the place of an earlier bundle's; raises BundleError."""
        path = Path(folder)
        replaced = replaced_files(path)
        known = {name: file_of(content) for name, content in self.files.items()}
        manifest = OperatorsManifest(self.name, self.descriptions, self.fallback, known, f"graphopt {VERSION}")
        try:
            write_folder(path, {**self.files, MANIFEST: written(manifest)}, replaced)
        except SaveError as error:
            raise BundleError(str(error)) from error


def opened(
    folder: str | os.PathLike[str], name: str, options: ort.SessionOptions | None = None
) -> ort.InferenceSession:
    """A session of the files in a folder; raises what ONNX Runtime raises."""
    options = options or ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(Path(folder) / f"lib{name}.so"))
    return ort.InferenceSession(str(Path(folder) / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])


def operators_of_whole(model: ir.Model, linked: Linked, target: Target, threads: int) -> Operators:
    """One operator that computes a whole model; `threads` run it, 0: as many as there are cores. Raises BundleError."""
    listing = linked.listing
    told = {size.formula for one in listing.inputs for _, size in one.free}
    for dim in listing.sizes:
        if dim.name not in told:
            raise BundleError(f"no input has '{dim.name}' as a dim of its own, from which an operator would take it.")

    def file(placed: Sequence[Placed]) -> bytes:
        return whole_file(model, placed[0], listing.name, threads)

    names = [(tuple(one.name for one in listing.inputs), tuple(one.name for one in listing.outputs))]
    return _made(listing.name, [linked], names, target, (), file)


def operators_of_parts(model: ir.Model, parted: Parted, target: Target, name: str, threads: int) -> Operators:
    """An operator for each part that kernels compute whole; raises BundleError."""
    linked, nodes, names = [], [], []
    for number, lowered in parted.lowered.items():
        segment = parted.segments[number]
        linked.append(link(lowered, f"{name}_{number}", threads=threads or target.workers))
        nodes.append(segment.nodes)
        names.append(
            (tuple(value.name or "" for value in segment.inputs), tuple(value.name or "" for value in segment.outputs))
        )

    def file(placed: Sequence[Placed]) -> bytes:
        return parted_file(model, list(zip(placed, nodes, strict=True)), name, threads)

    return _made(name, linked, names, target, parted.fallback, file)


def _made(
    name: str, linked: Sequence[Linked], names: Sequence[tuple[tuple[str, ...], tuple[str, ...]]], target: Target,
    fallback: tuple[str, ...], file: Callable[[Sequence[Placed]], bytes],
) -> Operators:  # fmt: skip
    library = f"lib{name}.so"
    try:
        stored = [stored_weights(one.listing, one.weights) for one in linked]
        emitted = [emit(one.listing, target, weights) for one, weights in zip(linked, stored, strict=True)]
        operators = [
            Operator(one.listing, _digest(program), f"{one.listing.name}.weights", weights.size)
            for one, program, weights in zip(linked, emitted, stored, strict=True)
        ]
        module = Module(oldest(target))
        write_operators(module, name, operators)
        objects = compiled((*(part for program in emitted for part in program.modules), module))
        code = link_shared(objects, target, exported=(REGISTER,), name=library)
    except KernelsError as error:
        raise BundleError(str(error)) from error
    placed = [Placed(one.listing.name, one.digest, *ports) for one, ports in zip(operators, names, strict=True)]
    files: dict[str, bytes | memoryview] = {library: code, f"{name}.onnx": file(placed)}
    files |= {one.file: weights.data for one, weights in zip(operators, stored, strict=True)}
    return Operators(name, tuple(linked), tuple(one.description for one in emitted), fallback, files)


def _digest(program: Emitted) -> str:
    """What a node's program is: its tensors, sizes and weights."""
    return hashlib.sha256(msgspec.json.encode(program.description)).hexdigest()[:32]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""A model as an ONNX file with custom operators, and the library that computes them: in a session, or in a folder.

<name>.onnx      a stock ONNX Runtime runs it once it has registered the library
lib<name>.so     the operators
<name>.weights   what an operator reads when a session begins; <name>_<part>.weights of a model in parts
manifest.json    the other files
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import onnx_ir as ir
import onnxruntime as ort

from graphopt.errors import BundleError, SaveError
from graphopt.files.folder import write_folder
from graphopt.model.signature import signature_of
from graphopt.program.deploy.bundle import replaced_files
from graphopt.program.deploy.custom.graph import Placed, parted_file, whole_file
from graphopt.program.deploy.custom.library import REGISTER, Operator, write_operators
from graphopt.program.deploy.hybrid import Parted
from graphopt.program.deploy.manifest import MANIFEST, OPERATORS_SCHEMA, File, file_of, written
from graphopt.program.deploy.runtime import Array
from graphopt.program.listing import Linked, link
from graphopt.version import VERSION
from kernels.emit.description import Description
from kernels.emit.program import (
    Emitted,
    Points,
    Variant,
    compiled,
    emit,
    emit_several,
    oldest,
    stored_bytes,
    stored_weights,
)
from kernels.errors import KernelsError
from kernels.listing import Listing
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
    free = [(size.formula, place, axis) for place, one in enumerate(listing.inputs) for axis, size in one.free]
    sizes = _found([dim.name for dim in listing.sizes], free)
    with _refused():
        stored = stored_weights(listing, linked.weights)
        part = _Part(listing, emit(listing, target, stored), stored, sizes)
    return _made(listing.name, [part], [linked], target, (), _whole(model, listing, threads))


def operators_of_several(
    model: ir.Model, name: str, choices: Sequence[Variant], points: Points, linked: Sequence[Linked], threads: int
) -> Operators:
    """One operator of several programs: for levels of processors, and for listed sizes of the dims of `model`.

    `linked` are those of all programs, one of which has all weights. Raises BundleError.
    """
    first = replace(choices[0].listings[0], name=name)
    ports = [
        (str(dim), place, axis) for place, one in enumerate(signature_of(model).inputs)
        for axis, dim in enumerate(one.dims or ())
    ]  # fmt: skip
    given = {port.name: place for place, port in enumerate(signature_of(model).inputs)}
    order = {given[one.name]: place for place, one in enumerate(first.inputs)}
    free = [(dim, order[place], axis) for dim, place, axis in ports if place in order]
    with _refused():
        stored = stored_bytes(max((one.weights for one in linked), key=lambda one: one.size))
        emitted = emit_several(name, choices, points, stored)
        part = _Part(_widest(first, choices), emitted, stored, _found([dim for dim, _ in points[0]], free), lends=False)
    return _made(name, [part], linked, choices[0].target, (), _whole(model, first, threads))


def _widest(first: Listing, choices: Sequence[Variant]) -> Listing:
    """With the most that outputs whose dims a run finds take in any of the programs."""
    listings = [one for choice in choices for one in choice.listings]
    outputs = (
        max((listing.outputs[place] for listing in listings), key=lambda one: one.bytes) if one.counted else one
        for place, one in enumerate(first.outputs)
    )
    return replace(first, outputs=tuple(outputs))


def _found(names: Sequence[str], free: Sequence[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """Each free dim with the first input and axis that have it; raises BundleError."""
    known = {name: (name, place, axis) for name, place, axis in reversed(free)}
    for name in names:
        if name not in known:
            raise BundleError(f"no input has '{name}' as a dim of its own, from which an operator would take it.")
    return tuple(known[name] for name in names)


def _whole(model: ir.Model, listing: Listing, threads: int) -> Callable[[Sequence[Placed]], bytes]:
    return lambda placed: whole_file(model, placed[0], listing.name, threads)


def operators_of_parts(model: ir.Model, parted: Parted, target: Target, name: str, threads: int) -> Operators:
    """An operator for each part that kernels compute whole; raises BundleError."""
    linked, parts = [], []
    for number, lowered in parted.lowered.items():
        linked.append(link(lowered, f"{name}_{number}", threads=threads or target.workers))
        listing = linked[-1].listing
        with _refused():
            stored = stored_weights(listing, linked[-1].weights)
            parts.append(_Part(listing, emit(listing, target, stored), stored))
    nodes = [parted.segments[number].nodes for number in parted.lowered]

    def file(placed: Sequence[Placed]) -> bytes:
        return parted_file(model, list(zip(placed, nodes, strict=True)), name, threads)

    return _made(name, parts, linked, target, parted.fallback, file)


@dataclass(frozen=True, slots=True)
class _Part:
    """A program that becomes an operator; names of its tensors are those of values in the file."""

    listing: Listing
    emitted: Emitted
    weights: Array
    sizes: tuple[tuple[str, int, int], ...] = ()
    lends: bool = True  # whether a model of it lends its weights to another one


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except KernelsError as error:
        raise BundleError(str(error)) from error


def _made(
    name: str, parts: Sequence[_Part], linked: Sequence[Linked], target: Target, fallback: tuple[str, ...],
    file: Callable[[Sequence[Placed]], bytes],
) -> Operators:  # fmt: skip
    library = f"lib{name}.so"
    operators = [
        Operator(
            one.listing, _digest(one.emitted), f"{one.listing.name}.weights",
            one.weights.size if one.lends else -1, one.sizes,
        ) for one in parts
    ]  # fmt: skip
    with _refused():
        module = Module(oldest(target))
        write_operators(module, name, operators)
        objects = compiled((*(module for part in parts for module in part.emitted.modules), module))
        code = link_shared(objects, target, exported=(REGISTER,), name=library)
    placed = [
        Placed(one.listing.name, one.digest, tuple(port.name for port in one.listing.inputs),
               tuple(port.name for port in one.listing.outputs)) for one in operators
    ]  # fmt: skip
    files: dict[str, bytes | memoryview] = {library: code, f"{name}.onnx": file(placed)}
    files |= {one.file: part.weights.data for one, part in zip(operators, parts, strict=True)}
    descriptions = tuple(one for part in parts for one in part.emitted.descriptions or (part.emitted.description,))
    return Operators(name, tuple(linked), descriptions, fallback, files)


def _digest(program: Emitted) -> str:
    """What a node's program is: its tensors, sizes and weights."""
    return hashlib.sha256(msgspec.json.encode(program.description)).hexdigest()[:32]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

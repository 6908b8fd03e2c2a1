"""Writing a bundle: a folder with a program that runs without graphopt.

lib<name>.so, lib<name>.a   the machine code     <name>.weights   what it reads           manifest.json
<name>.h, <name>.pc         its C interface      <name>.py        from Python
example.c, .cc, .rs         programs that use it
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphopt.errors import BundleError, SaveError
from graphopt.files.folder import write_folder
from graphopt.files.staging import sweep
from graphopt.model.rooms import letting_go, maps_of
from graphopt.program.deploy import runtime
from graphopt.program.deploy.example import example
from graphopt.program.deploy.example_cpp import example_cpp
from graphopt.program.deploy.example_decoder import decoder_example, decodes
from graphopt.program.deploy.example_rust import example_rust
from graphopt.program.deploy.header import header
from graphopt.program.deploy.manifest import (
    MANIFEST,
    File,
    Footprint,
    Manifest,
    PlannedBuffer,
    Uses,
    claims_of,
    file_of,
    kernels_of,
    ram_of,
    read_files,
    shared_of,
    steps_of,
    written,
)
from graphopt.program.deploy.package import package
from graphopt.program.deploy.runtime import Array
from graphopt.program.ram.plan import Streamed
from graphopt.program.regions.region import Origin
from graphopt.version import VERSION
from kernels.emit import version
from kernels.emit.description import Description
from kernels.emit.making import NOTHING, Making
from kernels.emit.processor import Requirement
from kernels.emit.program import Emitted, Points, Variant, emit, emit_several, stored_bytes, stored_weights
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.llvm.archive import archive
from kernels.llvm.link import link_shared
from kernels.llvm.load import ObjectCache
from kernels.target import Target

PRODUCER = f"graphopt {VERSION}"


def write_bundle(
    folder: str | os.PathLike[str],
    listing: Listing,
    weights: bytes | Array,
    target: Target,
    *,
    buffers: Sequence[PlannedBuffer] = (),
    nodes: Sequence[Sequence[Origin]] = (),
    uses: Sequence[Uses] = (),
    needed: Sequence[Requirement] | None = None,
    digest: str = "",
    making: Making = NOTHING,
    cache: ObjectCache | None = None,
) -> Manifest:
    """Compile a listing and write it, whole or not at all, at any moment.

    An earlier bundle in `folder` is replaced, that is the files that its manifest names; others stay as they are.
    `weights` are the listing's bytes of weights; `buffers` say in the manifest what lies where in the arena, `nodes`
    what each run computes, and `uses` what the runs work on, without which nobody can certify the bundle; `needed` is
    what the processor is asked for (None: all that code for the target may use); `digest` is the SHA-256 of the model.
    With `making` the weights are those of the file. The same input gives the same bytes. Raises BundleError.
    """
    path = Path(folder)
    replaced = replaced_files(path)
    try:
        stored = stored_bytes(weights) if making.steps else stored_weights(listing, weights)
        with letting_go(maps_of([stored])):
            emitted = emit(listing, target, stored, needed, version.Origin(PRODUCER, digest), making)
            files, known = _files(emitted, target, stored, cache)
            manifest = Manifest(
                listing.name, emitted.description, steps_of(listing, nodes), tuple(buffers), known, PRODUCER,
                claims_of(listing), shared_of(listing), kernels_of(listing), tuple(uses), digest,
            )  # fmt: skip
            _write(path, files, manifest, replaced)
    except KernelsError as error:
        raise BundleError(str(error)) from error
    return manifest


def write_streamed(
    folder: str | os.PathLike[str],
    listing: Listing,
    streamed: Streamed,
    target: Target,
    *,
    buffers: Sequence[PlannedBuffer] = (),
    nodes: Sequence[Sequence[Origin]] = (),
    digest: str = "",
    cache: ObjectCache | None = None,
) -> Manifest:
    """The same for a listing within a budget of the process; the manifest's runs are those of the whole listing."""
    path = Path(folder)
    replaced = replaced_files(path)
    try:
        stored = stored_weights(streamed.listing, streamed.file)
        emitted = emit(streamed.listing, target, stored, None, version.Origin(PRODUCER, digest))
        files, known = _files(emitted, target, stored, cache)
    except KernelsError as error:
        raise BundleError(str(error)) from error
    manifest = Manifest(
        listing.name, emitted.description, steps_of(listing, nodes), tuple(buffers), known, PRODUCER,
        model=digest, ram=ram_of(streamed),
    )  # fmt: skip
    _write(path, files, manifest, replaced)
    return manifest


def write_several(
    folder: str | os.PathLike[str],
    name: str,
    choices: Sequence[Variant],
    points: Points,
    weights: Array,
    *,
    digest: str = "",
    cache: ObjectCache | None = None,
) -> Manifest:
    """The same for several programs of one model, which read the same weights: for each choice one for each point.

    The manifest describes the levels, and what their tensors are; it says nothing of runs. Raises BundleError.
    """
    path = Path(folder)
    replaced = replaced_files(path)
    try:
        stored = stored_bytes(weights)
        with letting_go(maps_of([stored])):
            emitted = emit_several(name, choices, points, stored, version.Origin(PRODUCER, digest))
            files, known = _files(emitted, choices[0].target, stored, cache)
            manifest = Manifest(
                name, emitted.description, (), (), known, PRODUCER, model=digest, levels=emitted.descriptions
            )
            _write(path, files, manifest, replaced)
    except KernelsError as error:
        raise BundleError(str(error)) from error
    return manifest


def _examples(program: Description) -> dict[str, str]:
    """Programs that use the library, by their files' names; of one with caches only what shows a decoder's steps."""
    if any(one.room for one in program.inputs):
        return {"example.c": decoder_example(program)} if decodes(program) else {}
    return {"example.c": example(program), "example.cc": example_cpp(program), "example.rs": example_rust(program)}


def _files(
    emitted: Emitted, target: Target, stored: Array, cache: ObjectCache | None
) -> tuple[dict[str, bytes | memoryview], dict[str, File]]:
    """All files but the manifest by their names, and their records; weights are hashed while LLVM runs."""
    program, cache = emitted.description, cache or ObjectCache(None)
    emitted.begin(cache)
    name, weights = program.name, file_of(stored.data)
    objects = emitted.objects(cache)
    files: dict[str, bytes | memoryview] = {
        f"lib{name}.so": link_shared(objects, target, exported=emitted.exported, name=f"lib{name}.so"),
        f"lib{name}.a": archive({f"{number}.o": code for number, code in enumerate(objects)}),
        f"{name}.weights": stored.data,
        f"{name}.h": header(program, emitted.descriptions).encode(),
        f"{name}.pc": package(program).encode(),
        f"{name}.py": Path(runtime.__file__).read_bytes(),
        **{file: content.encode() for file, content in _examples(program).items()},
    }
    known = {one: weights if one == f"{name}.weights" else file_of(content) for one, content in files.items()}
    return files, known


def _write(path: Path, files: Mapping[str, bytes | memoryview], manifest: Manifest, replaced: Sequence[str]) -> None:
    try:
        write_folder(path, {**files, MANIFEST: written(manifest)}, replaced)
    except SaveError as error:
        raise BundleError(str(error)) from error


def replaced_files(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """The files in `folder` that a new bundle takes the place of: those of the bundle that lies there; none without.

    Raises BundleError where a bundle cannot be written: for a file, for a folder that holds other files and no bundle,
    and for a bundle with files that are no longer as its manifest says, since they may be somebody's work.
    """
    path = Path(folder)
    if "\0" in os.fspath(path):
        raise BundleError(f"{os.fspath(path)!r} is no name of a folder, since it holds a NUL character.")
    if not path.absolute().parent.is_dir():
        raise BundleError(f"the folder '{path.absolute().parent}' does not exist; create it first.")
    if path.exists() and not path.is_dir():
        raise BundleError(f"'{path}' is a file; a bundle is a folder.")
    sweep(path)
    if not path.is_dir() or not any(path.iterdir()):
        return ()
    if not (path / MANIFEST).exists():
        raise BundleError(f"'{path}' holds other files and no bundle; choose an empty folder or a new one.")
    found = [MANIFEST]
    for name, known in read_files(path).items():
        if Path(name).name != name:
            raise BundleError(
                f"'{path / MANIFEST}' names '{name}', which is no file of the bundle; choose another folder."
            )
        if os.path.lexists(path / name):
            if not _is_file(path / name, known):
                raise BundleError(
                    f"'{path / name}' was changed since the bundle was written, and would be overwritten; delete it, "
                    "move it away, or choose another folder."
                )
            found.append(name)
    return tuple(found)


def _is_file(path: Path, known: File) -> bool:
    """Whether this is the file that a manifest describes, and no link to it."""
    try:
        return not path.is_symlink() and path.stat().st_size == known.bytes and file_of(path.read_bytes()) == known
    except OSError as error:
        raise BundleError(f"'{path}' cannot be read: {error.strerror}.") from error


def write_described(
    path: Path, listing: Listing, program: Description, files: Mapping[str, bytes | memoryview],
    replaced: Sequence[str],
    buffers: Sequence[PlannedBuffer], nodes: Sequence[Sequence[Origin]], uses: Sequence[Uses], digest: str,
    footprint: Footprint | None = None,
) -> Manifest:  # fmt: skip
    """Write files that are no library, and the manifest of them; raises BundleError."""
    manifest = Manifest(
        listing.name, program, steps_of(listing, nodes), tuple(buffers),
        {name: file_of(content) for name, content in files.items()}, f"graphopt {VERSION}",
        kernels=kernels_of(listing), uses=tuple(uses), model=digest, footprint=footprint,
    )  # fmt: skip
    try:
        write_folder(path, {**files, MANIFEST: written(manifest)}, replaced)
    except SaveError as error:
        raise BundleError(str(error)) from error
    return manifest

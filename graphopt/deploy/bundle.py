"""Writing a bundle: a folder with a program that runs without graphopt.

lib<name>.so     the machine code          <name>.h     its C interface       example.c   a program that uses it
<name>.weights   what it reads at start    <name>.py    from Python           manifest.json
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graphopt.deploy import runtime
from graphopt.deploy.example import example
from graphopt.deploy.header import header
from graphopt.deploy.manifest import MANIFEST, Manifest, PlannedBuffer, file_of, steps_of, written
from graphopt.deploy.runtime import Array
from graphopt.errors import BundleError
from kernels.emit.processor import Requirement
from kernels.emit.program import emit, stored_weights
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.llvm.link import link_shared
from kernels.llvm.load import ObjectCache
from kernels.target import Target


def write_bundle(
    folder: str | os.PathLike[str],
    listing: Listing,
    weights: bytes | Array,
    target: Target,
    *,
    buffers: Sequence[PlannedBuffer] = (),
    needed: Sequence[Requirement] | None = None,
    cache: ObjectCache | None = None,
) -> Manifest:
    """Compile a listing and write it, whole or not at all; an earlier bundle in `folder` is replaced.

    `weights` are the listing's bytes of weights; `buffers` say in the manifest what lies where in the arena; `needed`
    is what the processor is asked for (None: all that code for the target may use). The same input gives the same
    bytes. Raises BundleError.
    """
    path = Path(folder)
    _check_place(path)
    try:
        stored = stored_weights(listing, weights)
        emitted = emit(listing, target, stored, needed)
        library = link_shared(emitted.objects(cache), target, exported=emitted.exported, name=f"lib{listing.name}.so")
    except KernelsError as error:
        raise BundleError(str(error)) from error
    program = emitted.description
    files: dict[str, bytes | memoryview] = {
        f"lib{listing.name}.so": library,
        f"{listing.name}.weights": stored.data,
        f"{listing.name}.h": header(program).encode(),
        f"{listing.name}.py": Path(runtime.__file__).read_bytes(),
        "example.c": example(program).encode(),
    }
    known = {name: file_of(content) for name, content in files.items()}
    manifest = Manifest(listing.name, program, steps_of(listing), tuple(buffers), known)
    files[MANIFEST] = written(manifest)
    _write(path, files)
    return manifest


def _check_place(path: Path) -> None:
    """A bundle replaces a bundle, or an empty folder, and nothing else."""
    if not path.absolute().parent.is_dir():
        raise BundleError(f"the folder '{path.absolute().parent}' does not exist; create it first.")
    if path.exists() and not path.is_dir():
        raise BundleError(f"'{path}' is a file; a bundle is a folder.")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).exists():
        raise BundleError(f"'{path}' holds other files and no bundle; choose an empty folder or a new one.")


def _write(path: Path, files: dict[str, bytes | memoryview]) -> None:
    """Under a temporary name beside the folder, then by renaming; where that fails, the earlier one comes back."""
    path = path.absolute()
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        new, earlier = temporary / "new", temporary / "earlier"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        replaces = path.exists()
        if replaces:
            os.rename(path, earlier)
        try:
            os.rename(new, path)
        except OSError:
            if replaces:
                os.rename(earlier, path)
            raise
    except OSError as error:
        raise BundleError(f"'{path}' cannot be written: {error.strerror or error}; nothing was changed.") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)

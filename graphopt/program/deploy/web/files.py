"""The files of a program as WebAssembly, and the folder that has them.

<name>.wasm      the code and the memory        <name>.mjs    runs it, in a page or in node
<name>.weights   what is put into the memory    index.html    a page that runs it and shows its time
manifest.json    the other files
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from graphopt.errors import BundleError
from graphopt.program.deploy.bundle import replaced_files, write_described
from graphopt.program.deploy.header import filled
from graphopt.program.deploy.manifest import (
    Manifest,
    PlannedBuffer,
    Uses,
)
from graphopt.program.deploy.runtime import Array
from graphopt.program.regions.region import Origin
from graphopt.version import VERSION
from kernels.emit.checksum import checksum
from kernels.emit.description import Description, describe
from kernels.emit.layout import layout_of
from kernels.emit.program import stored_weights
from kernels.emit.standalone import Laid
from kernels.emit.webassembly import webassembly
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.target import Target

HERE = Path(__file__).parent


def web_files(
    listing: Listing, weights: bytes | Array, target: Target
) -> tuple[Description, dict[str, bytes | memoryview]]:
    """What a program says of itself, and its files but for the manifest; raises BundleError."""
    try:
        stored = stored_weights(listing, weights)
        made = webassembly(listing, target)
        code = made.linked()
    except KernelsError as error:
        raise BundleError(str(error)) from error
    program = describe(listing, target, layout_of(listing, target), (), checksum(stored))
    name, first = listing.name, listing.outputs[0].name if listing.outputs else ""
    known = {
        "NAME": name, "VERSION": VERSION,
        "EXAMPLE": ", ".join(json.dumps(one.name) + ": array" for one in listing.inputs), "OUTPUT": json.dumps(first),
        "DESCRIPTION": _description(program, made.laid, stored.size),
    }  # fmt: skip
    texts = {f"{name}.mjs": "program.mjs", "index.html": "index.html"}
    files: dict[str, bytes | memoryview] = {f"{name}.wasm": code, f"{name}.weights": stored.data}
    files |= {file: filled((HERE / text).read_text(), known).encode() for file, text in texts.items()}
    return program, files


def write_web(
    folder: str | os.PathLike[str],
    listing: Listing,
    weights: bytes | Array,
    target: Target,
    *,
    buffers: Sequence[PlannedBuffer] = (),
    nodes: Sequence[Sequence[Origin]] = (),
    uses: Sequence[Uses] = (),
    digest: str = "",
) -> Manifest:
    """Write the folder, as `write_bundle` writes a bundle; `digest` is the model's. Raises BundleError."""
    path = Path(folder)
    replaced = replaced_files(path)
    program, files = web_files(listing, weights, target)
    return write_described(path, listing, program, files, replaced, buffers, nodes, uses, digest)


def _description(program: Description, laid: Laid, weights: int) -> str:
    """The program in JavaScript, with where its tensors lie in the memory."""
    said = msgspec.to_builtins(program)
    said["weights_bytes"] = weights
    said["places"] = {"inputs": laid.inputs, "outputs": laid.outputs}
    return json.dumps(said, indent=2).replace("</", "<\\/")

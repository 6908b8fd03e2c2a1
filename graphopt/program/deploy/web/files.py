"""The files of a program as WebAssembly, and the folder that has them.

<name>.wasm      the code and the memory        <name>.mjs    runs it, in a page or in node
<name>.weights   what is put into the memory    index.html    a page that runs it and shows its time
manifest.json    the other files
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from graphopt.errors import BundleError
from graphopt.program.deploy.header import filled
from graphopt.program.deploy.runtime import Array
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


def _description(program: Description, laid: Laid, weights: int) -> str:
    """The program in JavaScript, with where its tensors lie in the memory."""
    said = msgspec.to_builtins(program)
    said["weights_bytes"] = weights
    said["places"] = {"inputs": laid.inputs, "outputs": laid.outputs}
    return json.dumps(said, indent=2).replace("</", "<\\/")

"""WebAssembly in node, a process for each call: for the comparison only."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from graphopt.errors import BundleError
from graphopt.program.deploy.runtime import Array, shown
from graphopt.program.deploy.web.files import web_files
from kernels.listing import Listing
from kernels.target import Target

MOST_FLOPS = 40_000_000_000  # of one run: some seconds
# Inputs one after the other on the standard input; on the output the dims of each output as int64, then its elements.
_SCRIPT = """\
import { readFileSync, writeSync } from "node:fs";
const { Program, arrayOf, description } = await import(process.argv[2]);
const program = await Program.load(), given = readFileSync(0), feeds = {};
let place = 0;
for (const one of description.inputs) {
  const kind = arrayOf(one), size = one.shape.reduce((product, dim) => product * dim, 1) * kind.BYTES_PER_ELEMENT;
  feeds[one.name] = new kind(new Uint8Array(given.subarray(place, place + size)).buffer);
  place += size;
}
const found = program.run(feeds);
for (const one of description.outputs) {
  const { data, dims } = found[one.name];
  for (const part of [BigInt64Array.from(dims, BigInt), data]) {
    const bytes = new Uint8Array(part.buffer);
    for (let sent = 0; sent < bytes.length; ) sent += writeSync(1, bytes, sent);
  }
}
"""


class InNode:
    """A listing that runs in node. Raises BundleError where there is none, and for a listing that is too much."""

    def __init__(self, listing: Listing, weights: bytes | Array, target: Target) -> None:
        path = shutil.which("node")
        if path is None:
            raise BundleError("node is not installed")
        kernels = {one.name: one for one in listing.kernels}
        flops = sum(kernels[run.kernel].flops for run in listing.runs)
        if flops > MOST_FLOPS:
            raise BundleError(f"a run takes {flops:,} operations, more than node is asked for")
        self._path, self._listing = path, listing
        _, self._files = web_files(listing, weights, target)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, or all of them."""
        listing = self._listing
        given = b"".join(np.ascontiguousarray(feeds[one.name]).tobytes() for one in listing.inputs)
        with tempfile.TemporaryDirectory() as folder:
            for name, data in self._files.items():
                (Path(folder) / name).write_bytes(data)
            script = Path(folder) / "run.mjs"
            script.write_text(_SCRIPT)
            program = (Path(folder) / f"{listing.name}.mjs").as_uri()
            done = subprocess.run([self._path, str(script), program], input=given, capture_output=True, check=False)
        if done.returncode:
            raise BundleError(f"the program failed in node: {done.stderr.decode(errors='replace').strip()}")
        found, place = {}, 0
        for one in listing.outputs:
            dims = tuple(np.frombuffer(done.stdout, np.int64, len(one.shape), place).tolist())
            place += 8 * len(dims)
            made: Array = np.frombuffer(done.stdout, one.dtype.numpy, prod(dims), place).reshape(dims)
            place += made.nbytes
            found[one.name] = shown(made.copy(), one.dtype.value)
        return [found[name] for name in (found if names is None else names)]

"""A bundle for a GPU: the files of a folder, of a program of tasks.

program.ptx     the kernels                      <name>_cuda.py   runs it, over the driver's interface
weights.bin     as kernels read them             manifest.json    the other files, kernels, buffers
program.json    its tables and arguments
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from graphopt.program.deploy.bundle import replaced_files, write_described
from graphopt.program.deploy.manifest import (
    Manifest,
    PlannedBuffer,
    Uses,
)
from graphopt.program.gpu import LinkedTasks
from graphopt.program.regions.region import Origin
from kernels.emit.checksum import checksum
from kernels.emit.description import describe
from kernels.emit.layout import layout_of
from kernels.listing import Listing
from kernels.ptx.emit import ptx
from kernels.ptx.program import program_module
from kernels.ptx.tables import TaskDescription
from kernels.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class TaskProgram:
    """A program of tasks as text and numbers: its listing, weights, and PTX."""

    linked: LinkedTasks
    target: Target
    text: str

    @classmethod
    def of(cls, linked: LinkedTasks, target: Target) -> TaskProgram:
        """Emit the PTX. Raises NotEmitted where LLVM makes none."""
        return cls(linked, target, ptx(program_module(linked.listing.kernels, target), target.cpu))

    @property
    def listing(self) -> Listing:
        """What the program does."""
        return self.linked.listing

    @property
    def description(self) -> TaskDescription:
        """What whoever runs it has to know."""
        linked = self.linked
        return TaskDescription.of(linked.listing, self.target, linked.lists, linked.bytes_of)

    def files(self) -> Mapping[str, bytes]:
        """The files of the bundle by their names."""
        runtime = resources.files("graphopt.program.deploy.cuda").joinpath("runtime.py").read_bytes()
        return {
            "program.ptx": self.text.encode(),
            "weights.bin": self.linked.weights.tobytes(),
            "program.json": self.description.written(),
            f"{self.listing.name}_cuda.py": runtime,
        }


def write_cuda(
    folder: str | os.PathLike[str], made: TaskProgram, *, buffers: Sequence[PlannedBuffer] = (),
    nodes: Sequence[Sequence[Origin]] = (), uses: Sequence[Uses] = (), digest: str = "",
) -> Manifest:  # fmt: skip
    """Write the folder, as `write_bundle` writes a bundle; `digest` is the model's. Raises BundleError."""
    path, listing = Path(folder), made.listing
    replaced = replaced_files(path)
    files = made.files()
    program = describe(listing, made.target, layout_of(listing, made.target), (), checksum(made.linked.weights))
    return write_described(path, listing, program, files, replaced, buffers, nodes, uses, digest)

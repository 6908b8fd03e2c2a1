"""A bundle for a GPU: the files of a folder, of a program of tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from graphopt.program.gpu import LinkedTasks
from graphopt.version import VERSION
from kernels.listing import Argument, Listing
from kernels.ptx.emit import ptx
from kernels.ptx.program import program_module
from kernels.ptx.tables import Tables
from kernels.ptx.tasks.threads import THREADS
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

    def files(self) -> Mapping[str, bytes]:
        """The files of the bundle by their names."""
        runtime = resources.files("graphopt.program.deploy.cuda").joinpath("runtime.py").read_bytes()
        return {
            "program.ptx": self.text.encode(),
            "weights.bin": self.linked.weights.tobytes(),
            "program.json": json.dumps(self._about()).encode(),
            f"{self.listing.name}_cuda.py": runtime,
        }

    def _about(self) -> dict[str, object]:
        listing, tables = self.listing, Tables.of(self.listing)
        assert listing.ticketed is not None, "a program of tasks is for several workers"
        lists, pinned = tables.pinned(self.linked.workers, self.linked.worker_count)
        words = {"items": tables.items, "waits": tables.waits, "runs": tables.runs, "lists": lists, "pinned": pinned}
        digits = self.target.cpu.removeprefix("sm_")
        return {
            "name": listing.name,
            "graphopt": VERSION,
            "processor": self.target.cpu,
            "capability": [int(digits[:-1]), int(digits[-1])],
            "threads": THREADS,
            "shared": max((kernel.scratch_bytes for kernel in listing.kernels), default=0),
            "arena": listing.ticketed.arena_bytes,
            "inputs": [_argument(one) for one in listing.inputs],
            "outputs": [_argument(one) for one in listing.outputs],
            "kernels": [kernel.name for kernel in listing.kernels],
            "order": [run for run, _ in listing.ticketed.waits],
            "tables": {name: rows.reshape(-1).tolist() for name, rows in words.items()},
            "places": [[place.space, place.argument, place.offset] for place in tables.places],
        }


def _argument(one: Argument) -> dict[str, object]:
    return {"name": one.name, "dtype": np.dtype(one.dtype.numpy).name, "shape": list(one.shape)}

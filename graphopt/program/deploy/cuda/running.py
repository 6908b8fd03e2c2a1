"""Programs of tasks where they can be run: on the GPU at hand, or small ones on the PTX machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from graphopt.errors import BundleError
from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.deploy.cuda.runtime import CudaError, Device, Program
from graphopt.program.deploy.runtime import Array
from graphopt.program.gpu import LinkedTasks
from kernels.errors import KernelsError
from kernels.ptx.emulated import EmulatedTasks
from kernels.ptx.machine.launching import Adversary
from kernels.ptx.tables import TaskDescription
from kernels.target import Target

MOST_FLOPS = 8_000_000  # of one run: the PTX machine does a million or two in a second
RunOn = Literal["gpu", "ptx-machine"]
BLOCKS = 6  # of a program on the PTX machine


class OnDevice:
    """A program on the first GPU. Raises CudaError where it cannot be."""

    def __init__(self, made: TaskProgram) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in made.files().items():
                (Path(folder) / name).write_bytes(content)
            self._program = Program(folder, Device())

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, or all of them."""
        return self._program.run(names, feeds)


class OnPtxMachine:
    """A program on the PTX machine; a run raises BundleError for a fault that the machine finds."""

    def __init__(self, text: str, program: TaskDescription, weights: Array, seed: int = 0) -> None:
        self._program, self._seed = program, seed
        self._tasks = EmulatedTasks(text, program, weights.view(np.uint8))

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, or all of them: of blocks that claim their items, in a drawn order."""
        arrays = [np.ascontiguousarray(feeds[one.name]) for one in self._program.inputs]
        ran = self._tasks.run(arrays, Adversary("random", self._seed), blocks=BLOCKS)
        if ran.faults:
            raise BundleError(f"the PTX machine found a fault: {ran.faults[0]}")
        found = dict(zip((one.name for one in self._program.outputs), ran.outputs, strict=True))
        return [found[name] for name in (found if names is None else names)]


class OpenedTasks:
    """A bundle for a GPU, on the first GPU or on the PTX machine. Raises BundleError where it cannot be run."""

    def __init__(self, folder: Path, where: RunOn | None = None) -> None:
        try:
            self.program = TaskDescription.read((folder / "program.json").read_bytes())
            if where == "ptx-machine":
                weights = np.fromfile(folder / "weights.bin", np.uint8)
                text = (folder / "program.ptx").read_text()
                self._runner: OnPtxMachine | Program = OnPtxMachine(text, self.program, weights)
            else:
                self._runner = Program(folder, Device())
        except CudaError as error:
            raise BundleError(f"{error} A small bundle runs with --on ptx-machine.") from error
        except (KernelsError, OSError) as error:
            raise BundleError(f"'{folder}' cannot be opened: {error}") from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        try:
            found = self._runner.run(None, feeds)
        except (CudaError, ValueError, KeyError) as error:
            raise BundleError(str(error)) from error
        return dict(zip((one.name for one in self.program.outputs), found, strict=True))


def on_gpu(linked: LinkedTasks, target: Target) -> OnDevice | OnPtxMachine:
    """The program on the GPU of this machine, or on the PTX machine where there is none and the program is small.

    Raises BundleError where neither runs it.
    """
    try:
        made = TaskProgram.of(linked, target)
    except KernelsError as error:
        raise BundleError(str(error)) from error
    try:
        return OnDevice(made)
    except CudaError as error:
        why = str(error)
    kernels = {one.name: one for one in linked.listing.kernels}
    flops = sum(kernels[run.kernel].flops for run in linked.listing.runs)
    if flops > MOST_FLOPS:
        raise BundleError(
            f"{why.rstrip('.')}, and a run takes {flops:,} operations, more than the PTX machine is asked for"
        )
    return OnPtxMachine(made.text, made.description, linked.weights)

"""Programs for ARM and RISC-V on a machine that is another, through QEMU where it is: for the comparison only."""

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
from kernels.emit.firmware import emulated, firmware
from kernels.emit.program import stored_weights
from kernels.emit.standalone import Standalone, standalone
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.llvm.elf import outside
from kernels.llvm.link import RUN_TIME, link_program, run_time
from kernels.target import Target

# The options of an emulator, by the architecture: which processor it stands in for. QEMU runs no Cortex-M beneath
# Linux; a Cortex-A7 has all of their instructions.
EMULATED: Mapping[str, tuple[str, ...]] = {
    "aarch64": (), "riscv64": ("-cpu", "rv64,v=true,vlen=128"), "thumbv7em": ("-cpu", "cortex-a7"),
}  # fmt: skip
_CALLED: Mapping[str, str] = {"thumbv7em": "arm"}  # what QEMU calls an architecture, where that is another name
MOST_FLOPS = 4_000_000_000  # of one run: an emulated core does some hundred million in a second


def emulator_of(architecture: str) -> str:
    """The name of the emulator's command."""
    return f"qemu-{_CALLED.get(architecture, architecture)}"


def _made(listing: Listing, weights: Array, target: Target) -> tuple[Standalone, Array]:
    """The program, and the weights that it reads: none where they are constants in it."""
    if target.architecture.is_bare:
        return emulated(firmware(listing, target, weights)), weights[:0]
    return standalone(listing, target), weights


def _linked(objects: list[bytes], target: Target) -> bytes:
    """The program's file; raises BundleError where it needs the C library's mathematics, and LinkError."""
    asked = outside(objects) if target.architecture.is_bare else ()
    library = [name for name in asked if not name.startswith(RUN_TIME)]
    if library:
        raise BundleError(f"the emulator is given no C library, of which it calls {', '.join(library)}")
    return link_program([*objects, run_time(target)] if asked else objects, target)


class Emulated:
    """A listing that runs in an emulator, a process for each call. Raises BundleError for one that cannot."""

    def __init__(self, listing: Listing, weights: bytes | Array, target: Target) -> None:
        name = target.architecture.name
        called = emulator_of(name)
        path = next((found for end in ("-static", "") if (found := shutil.which(f"{called}{end}"))), None)
        if path is None or name not in EMULATED:
            raise BundleError("no emulator of it is installed")
        kernels = {one.name: one for one in listing.kernels}
        flops = sum(kernels[run.kernel].flops for run in listing.runs)
        if flops > MOST_FLOPS:
            raise BundleError(f"a run takes {flops:,} operations, more than an emulator is asked for")
        try:
            stored = stored_weights(listing, weights)[: listing.weights_bytes]
            self._made, self._weights = _made(listing, stored, target)
            self._code = _linked(self._made.objects(), target)
        except KernelsError as error:
            raise BundleError(f"it cannot be emulated: {error}") from error
        self._path, self._options, self._listing = path, EMULATED[name], listing

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, or all of them."""
        parts, listing = self._made, self._listing
        given = np.zeros(parts.read_bytes, np.uint8)
        given[parts.weights : parts.weights + self._weights.size] = self._weights
        for argument, start in zip(listing.inputs, parts.inputs, strict=True):
            array = np.ascontiguousarray(feeds[argument.name]).reshape(-1).view(np.uint8)
            given[start : start + array.size] = array
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_bytes(self._code)
            program.chmod(0o700)
            words = [self._path, *self._options, str(program)]
            done = subprocess.run(words, input=given.tobytes(), capture_output=True, check=False)
        if done.returncode or len(done.stdout) != parts.written_bytes:
            raise BundleError(f"the program for another processor failed in '{self._path}': code {done.returncode}.")
        found = {}
        dims = iter(zip(listing.dims, parts.outputs[len(listing.outputs) :], strict=True))
        for argument, start in zip(listing.outputs, parts.outputs, strict=False):
            shape = argument.shape
            if argument.counted:
                _, place = next(dims)
                shape = tuple(np.frombuffer(done.stdout, np.int64, len(shape), place).tolist())
            made: Array = np.frombuffer(done.stdout, argument.dtype.numpy, prod(shape), start).reshape(shape)
            found[argument.name] = shown(made.copy(), argument.dtype.value)
        return [found[name] for name in (found if names is None else names)]

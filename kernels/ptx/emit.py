"""From IR to PTX, and from PTX to what an assembler says of it.

LLVM's backend ends the whole process at what it cannot select, so PTX is made in a process of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm

from kernels.errors import KernelsError

TRIPLE = "nvptx64-nvidia-cuda"
SECONDS = 1800  # of a compiler for a whole model, on a busy machine; more is a fault of its


class NotEmitted(KernelsError):
    """IR that LLVM makes no PTX of, or PTX that the assembler refuses; the message is theirs."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What a kernel takes, as ptxas reports it: registers per thread, static shared memory in bytes, barriers.

    `spills` are bytes of registers that a thread stores to memory for want of others, itself and what it calls.
    """

    registers: int
    shared_memory: int
    barriers: int
    spills: int = 0


def ptx(ir: str, processor: str = "sm_90") -> str:
    """PTX of a module for a processor such as sm_90; raises NotEmitted."""
    done = _done([sys.executable, "-m", "kernels.ptx.emit", processor], ir)
    if done.returncode:
        raise NotEmitted(f"LLVM makes no PTX for {processor}: {_last(done.stderr)}")
    return done.stdout


def assembler() -> str | None:
    """The path of ptxas; None where it is not installed."""
    return shutil.which("ptxas")


def assemble(text: str, processor: str = "sm_90") -> dict[str, Assembled]:
    """By kernel what ptxas reports; raises NotEmitted where it refuses or is not there."""
    program = assembler()
    if program is None:
        raise NotEmitted("ptxas is not installed; it comes with the CUDA toolkit.")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "module.ptx"
        source.write_text(text)
        done = _done([program, "-v", f"-arch={processor}", str(source), "-o", str(Path(folder) / "module.cubin")])
    if done.returncode:
        raise NotEmitted(f"ptxas refuses the PTX for {processor}: {_last(done.stderr)}")
    return _reported(done.stderr)


def _done(command: Sequence[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    """A compiler that has ended; raises NotEmitted for one that does not."""
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        raise NotEmitted(f"{Path(command[0]).name} has not ended after {SECONDS} seconds.") from late


def _reported(text: str) -> dict[str, Assembled]:
    found: dict[str, Assembled] = {}
    kernel, spills = "", 0
    for line in text.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'", line)
        if entry:
            kernel, spills = entry[1], 0
        spilled = re.search(r"(\d+) bytes spill stores", line)
        if spilled:
            spills += int(spilled[1])
        used = re.search(r"Used (\d+) registers", line)
        if used and kernel:
            barriers = re.search(r"used (\d+) barriers", line)
            shared = re.search(r"(\d+) bytes smem", line)
            found[kernel] = Assembled(
                int(used[1]), int(shared[1]) if shared else 0, int(barriers[1]) if barriers else 0, spills
            )
    return found


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "the process ended without a word"


def _emit(ir: str, processor: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    parsed = llvm.parse_assembly(ir)
    parsed.verify()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=processor, opt=3)
    parsed.triple = TRIPLE
    parsed.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    return str(machine.emit_assembly(parsed))


if __name__ == "__main__":
    sys.stdout.write(_emit(sys.stdin.read(), sys.argv[1]))

"""Running a kernel on an emulated ARM or RISC-V: a program that holds its inputs, runs all blocks, writes the outputs.

The program needs no C library: it starts at `_start` and speaks to the kernel by system calls.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from graphopt.program.deploy.emulation import EMULATED, emulator_of
from kernels.emit.standalone import EXIT, WRITE, system_call
from kernels.kernel import Kernel
from kernels.llvm import control_word
from kernels.llvm.compile import compile_object
from kernels.llvm.function import Function, Value
from kernels.llvm.link import link_program
from kernels.run import Array

_OWN = Path(__file__).parent.parent.parent / "build" / "qemu" / "usr" / "bin"


def emulator(architecture: str = "aarch64") -> str | None:
    """The emulator's path; None when it is not installed."""
    for name in (f"{emulator_of(architecture)}-static", emulator_of(architecture)):
        found = shutil.which(name) or shutil.which(name, path=str(_OWN))
        if found:
            return found
    return None


def is_missing() -> str | None:
    """What is missing to run their programs here, None when all is there. CI asks for all of it."""
    missing = [f"{emulator_of(name)} (make qemu)" for name in EMULATED if emulator(name) is None]
    if importlib.util.find_spec("ziglang") is None:
        missing.append("ziglang")
    assert not (missing and os.environ.get("GRAPHOPT_ALL_CHECKS")), f"{' and '.join(missing)} must be installed here"
    return " and ".join(missing) or None


needs_arm = pytest.mark.skipif(is_missing() is not None, reason=f"{is_missing()} is not installed")


def run_emulated(kernel: Kernel, arrays: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """The outputs by name, of a kernel that was built for one of those architectures; it is not changed."""
    module = kernel.module
    for operand in kernel.operands:
        data = b"\0" * operand.bytes if operand.role == "output" else arrays[operand.name].tobytes()
        content = "".join(f"\\{byte:02X}" for byte in data)
        module.variable(f"data.{operand.name}", f'internal global [{len(data)} x i8] c"{content}", align 64')
    table = ", ".join(f"ptr @data.{operand.name}" for operand in kernel.operands)
    module.variable("table", f"internal constant [{len(kernel.operands)} x ptr] [{table}]")
    module.variable("scratch", f"internal global [{max(kernel.scratch_bytes, 1)} x i8] zeroinitializer, align 64")
    f = Function(module, "_start", (), exported=True)
    control_word.enter(f)

    def block(number: Value, _: tuple[Value, ...]) -> None:
        f.line(f"call void @{kernel.name}(ptr @table, i64 {number.text}, ptr @scratch)")

    f.loop(0, kernel.blocks, 1, block)
    outputs = [operand for operand in kernel.operands if operand.role == "output"]
    for operand in outputs:
        system_call(f, WRITE, "i64 1", f"ptr @data.{operand.name}", f"i64 {operand.bytes}")
    system_call(f, EXIT, "i64 0", "ptr null", "i64 0")
    f.finish()
    program = folder / kernel.name
    program.write_bytes(link_program([compile_object(module.text(), module.target)], module.target))
    program.chmod(0o755)
    architecture = module.target.architecture.name
    path = emulator(architecture)
    assert path is not None, "the caller has asked"
    written = subprocess.run([path, *EMULATED[architecture], str(program)], capture_output=True, check=True).stdout
    found, at = {}, 0
    for operand in outputs:
        found[operand.name] = np.frombuffer(written[at : at + operand.bytes], operand.dtype.numpy)
        at += operand.bytes
    assert at == len(written), "the program wrote all outputs and nothing else"
    return found

"""Objects to a shared library or a program: with ziglang's lld, which knows every target, or the system's linker."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernels.errors import KernelsError
from kernels.llvm.compile import machine
from kernels.target import Target, host

STACK = 1 << 20  # bytes of a WebAssembly module's
# What JavaScript's Math has of the C library's mathematics, and % as fmod.
MATHEMATICS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "expm1", "fmod", "log", "log10",
    "log1p", "log2", "pow", "sin", "sinh", "tan", "tanh",
)  # fmt: skip

# How functions are called that every compiler for ARM brings: arithmetic that it has no instructions for, and moves.
RUN_TIME = ("__aeabi_", "memcpy", "memmove", "memset")


class LinkError(KernelsError):
    """There is no linker for the target, or it failed."""


def link_shared(
    objects: Sequence[bytes], target: Target, *, exported: Sequence[str] | None = None, name: str | None = None
) -> bytes:
    """A shared library; functions it calls from outside (libc, libm) are found when it is loaded.

    Only the functions `exported` can be seen from outside (None: all), so that two libraries in one process never take
    each other's; `name` is the file name that a program linked with it looks for. Raises LinkError when no linker is
    there or it does not accept the objects.
    """
    # Without separate code the ends of pages are not filled up: a third of a small library.
    options = ["-shared", "-Bsymbolic", "-z", "now", "-z", "noexecstack", "-z", "noseparate-code", "--hash-style=gnu",
               "--build-id=none"]  # fmt: skip
    if name is not None:
        options += ["-soname", name]
    if exported is None:
        return _link(objects, target, tuple(options))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "exported"
        script.write_text("{ global: " + "".join(f"{one}; " for one in exported) + "local: *; };\n")
        return _link(objects, target, (*options, f"--version-script={script}"))


def link_program(objects: Sequence[bytes], target: Target) -> bytes:
    """A static program that starts at `_start` and needs nothing from outside; raises LinkError."""
    return _link(objects, target, ("-static",))


def link_webassembly(objects: Sequence[bytes], target: Target, exported: Sequence[str]) -> bytes:
    """A module of WebAssembly with a memory of its own; functions of MATHEMATICS are imported. Raises LinkError."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "given"
        given.write_text("".join(f"{name}\n" for name in MATHEMATICS))
        options = ("--no-entry", "--strip-all", f"--allow-undefined-file={given}", "--stack-first", "-z",
                   f"stack-size={STACK}", *(f"--export={name}" for name in exported))  # fmt: skip
        return _link(objects, target, options)


@functools.cache
def run_time(target: Target) -> bytes:
    """The functions of RUN_TIME for a target without a system, in one object of ziglang's. Raises LinkError.

    Its mathematics is not what a C library has: it takes numbers in other registers.
    """
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise LinkError(f"no run-time library for {target.triple}: `pip install ziglang`.")
    source = Path(found.origin).parent / "lib" / "compiler_rt.zig"
    with tempfile.TemporaryDirectory() as folder:
        options = ["-target", "thumb-freestanding-eabihf", f"-mcpu={target.cpu.replace('-', '_')}", "-OReleaseSmall"]
        done = subprocess.run(
            [sys.executable, "-m", "ziglang", "build-obj", *options, "-femit-bin=result.o", str(source)],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise LinkError(f"ziglang makes no run-time library for {target.triple}: {done.stderr.strip()}")
        return (Path(folder) / "result.o").read_bytes()


def _link(objects: Sequence[bytes], target: Target, options: tuple[str, ...]) -> bytes:
    machine(target)  # the target is one that we know
    command = _linker(target)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, code in enumerate(objects):
            path = Path(folder) / f"{number}.o"
            path.write_bytes(code)
            paths.append(str(path))
        result = Path(folder) / "result"
        done = subprocess.run(
            [*command, *options, "-o", str(result), *paths], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LinkError(f"{command[0]} does not link for {target.triple}: {done.stderr.strip()}")
        return result.read_bytes()


def _linker(target: Target) -> list[str]:
    if target.architecture.name == "wasm32":
        return _webassembly_linker()
    native = target.architecture == host().architecture
    emulation = target.architecture.emulation
    system = shutil.which("ld.lld") or (shutil.which("ld") if native else None)
    if system is not None:
        return [system, "-m", emulation] if system.endswith("lld") else [system]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "ld.lld", "-m", emulation]
    raise LinkError(f"no linker for {target.triple}: install binutils, lld, or `pip install ziglang`.")


def _webassembly_linker() -> list[str]:
    system = shutil.which("wasm-ld")
    if system is not None:
        return [system]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "wasm-ld"]
    raise LinkError("no linker for WebAssembly: install lld, or `pip install ziglang`.")

"""Kernels of a processor as tasks: each thread runs blocks of the kernel for vectors of one lane.

What has no task of its own runs this way: right, and slower than a task that its threads share.
"""

from __future__ import annotations

from dataclasses import replace

from kernels.kernel import ENTRY, Kernel
from kernels.llvm.function import Function, Value
from kernels.ptx.tasks.threads import RESIDENT, THREADS, NoTask, special
from kernels.target import Target

_ROOM = 48 << 10  # of shared memory for the scratch of threads


def singly(kernel: Kernel, target: Target) -> Kernel:
    """The kernel, whose blocks are threads. Raises NoTask where one thread's scratch is more than a block may have."""
    own = -(-kernel.scratch_bytes // 64) * 64
    if own > target.l1:
        raise NoTask(f"a thread would take {own:,} bytes of shared memory; {target.cpu} gives a block {target.l1:,}.")
    threads = max(1, min(THREADS, kernel.blocks, _ROOM // own if own else THREADS))
    inner = f"{kernel.name}_of_thread"
    module = kernel.module
    module.rename(kernel.name, inner)
    f = Function(module, kernel.name, ENTRY, exported=True)
    thread = f.convert("zext", "i64", special(f, "tid.x"))
    number = f.add(f.mul(f.parameter("block"), threads), thread)
    there = f.binary(
        "and", f.compare("ult", thread, f.integer(threads)), f.compare("ult", number, f.integer(kernel.blocks))
    )

    def run() -> None:
        scratch: Value = f.at(f.parameter("scratch"), f.mul(thread, own), "i8")
        arguments = f.parameter("arguments")
        f.line(f"call void @{inner}(ptr {arguments.text}, i64 {number.text}, ptr {scratch.text})")

    f.when(there, run)
    f.finish()
    return replace(
        kernel, blocks=-(-kernel.blocks // threads), scratch_bytes=own * threads, candidate=f"{threads} single threads",
        shared=None, resident=RESIDENT,
    )  # fmt: skip

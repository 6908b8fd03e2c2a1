"""Persistent programs as code for this machine: blocks of one thread, each with a copy of the module and one memory.

What is the GPU's stands for what is here: the number of a block is a word of its copy, a barrier of one thread is
nothing, a nap lets other threads run. So the interpreters, their counters and their epochs are run as they are written;
what many threads of a block do to each other is not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from kernels.ptx.persistent import PATIENCE, THREADS, module

Words = npt.NDArray[np.int32]
Arguments = Sequence[Words | int]

HERE = """
declare i32 @sched_yield()
@block = internal global i32 0
define void @be(i32 %number) {
  store i32 %number, ptr @block
  ret void
}
define i32 @tid() {
  ret i32 0
}
define i32 @ctaid() {
  %number = load i32, ptr @block
  ret i32 %number
}
define void @barrier(i32 %which) {
  ret void
}
define void @nap(i32 %time) {
  %ignored = call i32 @sched_yield()
  ret void
}
"""
STANDS_FOR = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "tid", "llvm.nvvm.read.ptx.sreg.ctaid.x": "ctaid",
    "llvm.nvvm.barrier.cta.sync.aligned.all": "barrier", "llvm.nvvm.nanosleep": "nap",
}  # fmt: skip


class Block:
    """One block: it runs a kernel from its beginning to its end."""

    def __init__(self, number: int, patience: int) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        parsed = llvm.parse_assembly(_here(patience))
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        be: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_int32)(self._engine.get_function_address("be"))
        be(number)

    def run(self, kernel: str, arguments: Arguments) -> None:
        """With words in memory and numbers."""
        kinds = [ctypes.c_int32 if isinstance(one, int) else ctypes.c_void_p for one in arguments]
        function = ctypes.CFUNCTYPE(None, *kinds)(self._engine.get_function_address(kernel))
        function(*(one if isinstance(one, int) else one.ctypes.data for one in arguments))


def one_by_one(blocks: Sequence[Block], kernel: str, arguments: Arguments) -> None:
    """Each block runs to its end before the next one begins."""
    for block in blocks:
        block.run(kernel, arguments)


def at_once(blocks: Sequence[Block], kernel: str, arguments: Arguments) -> None:
    """A thread for each block."""
    with ThreadPoolExecutor(len(blocks)) as pool:
        for done in [pool.submit(block.run, kernel, arguments) for block in blocks]:
            done.result()


def words(values: Sequence[int]) -> Words:
    """Words in memory; one at least."""
    return np.asarray(values or [0], np.int32)


def _here(patience: int) -> str:
    """The module without what is the GPU's; a wait is given up after `patience` looks."""
    text = re.sub(r"^(target triple|declare .*llvm\.nvvm).*$", "", module(), flags=re.MULTILINE)
    text = re.sub(r" ?addrspace\([13]\)", "", text).replace("ptx_kernel ", "")
    for name, here in STANDS_FOR.items():
        text = text.replace(f"@{name}(", f"@{here}(")
    text = re.sub(r"define void @meet.*?\n}\n", "", text, flags=re.DOTALL)  # it asks how many blocks there are
    assert f", {THREADS}\n" in text and f"%more, {PATIENCE}\n" in text
    return text.replace(f", {THREADS}\n", ", 1\n").replace(f"%more, {PATIENCE}\n", f"%more, {patience}\n") + HERE

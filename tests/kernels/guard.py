"""Running a kernel between pages that may not be touched, in a process of its own.

Every array lies in memory of its own between two guard pages: once flush against the page after it, once against the
page before it. A kernel that reads or writes one byte outside an operand ends its process, and the test fails with a
sentence that says so. Blocks run in a shuffled order, as they must be independent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import signal
from collections.abc import Mapping

import numpy as np

from kernels.kernel import Kernel
from kernels.run import Array, Executable

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class OutsideAccess(AssertionError):
    """A kernel touched memory outside of its operands."""


def run_guarded(
    kernel: Kernel, arrays: Mapping[str, Array], seed: int = 0, executable: Executable | None = None
) -> dict[str, Array]:
    """The outputs by name, after two runs (flush against the page after, and before) that must agree bit by bit.

    `arrays` holds the inputs and, where the kernel leaves elements of an output as they are, the output before;
    outputs that are not given start as bytes 0x5A. `executable` holds the kernel where it is compiled. Raises
    OutsideAccess, or AssertionError when the runs differ or an input was changed.
    """
    executable = executable or Executable([kernel])
    after = _in_child(executable, kernel, arrays, seed, before=False)
    before = _in_child(executable, kernel, arrays, seed + 1, before=True)
    for name, array in after.items():
        assert array.tobytes() == before[name].tobytes(), (
            f"output '{name}' of kernel '{kernel.name}' depends on where its operands lie or on the order of blocks"
        )
    return after


def _in_child(
    executable: Executable, kernel: Kernel, arrays: Mapping[str, Array], seed: int, *, before: bool
) -> dict[str, Array]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        faulthandler.disable()  # a fault here is an answer, not a crash of the tests
        try:
            os.close(reader)
            reply = pickle.dumps(_run(executable, kernel, arrays, seed, before=before))
            with os.fdopen(writer, "wb") as file:
                file.write(reply)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        reply = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        side = "before" if before else "after"
        raise OutsideAccess(
            f"kernel '{kernel.name}' ({kernel.candidate}) ended with {number.name}: it touches memory outside of an "
            f"operand, most likely {side} it"
        )
    assert os.WEXITSTATUS(status) == 0, f"the process that ran kernel '{kernel.name}' failed: see its output above"
    outputs, changed = pickle.loads(reply)
    assert not changed, f"kernel '{kernel.name}' changed its input '{changed[0]}'"
    return outputs


def _run(
    executable: Executable, kernel: Kernel, arrays: Mapping[str, Array], seed: int, *, before: bool
) -> tuple[dict[str, Array], list[str]]:
    areas = []  # kept until the kernel has run
    addresses, views = [], {}
    for operand in kernel.operands:
        area, view = guarded(operand.bytes, before=before)
        given = arrays.get(operand.name)
        if given is None:
            assert operand.role == "output", f"no array is given for operand '{operand.name}'"
            view[:] = 0x5A
        else:
            flat = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
            assert flat.size == operand.bytes, (
                f"operand '{operand.name}' has {operand.bytes} bytes, the array {flat.size}"
            )
            view[:] = flat
        areas.append(area)
        addresses.append(view.ctypes.data if view.size else _edge(area, before=before))
        views[operand.name] = view
    scratch_area, scratch = guarded(-(-kernel.scratch_bytes // 64) * 64, before=before)
    scratch[:] = 0xA5
    table = np.array(addresses, np.uint64)
    for block in np.random.default_rng(seed).permutation(kernel.blocks):
        executable.block(kernel, table, int(block), scratch.ctypes.data if scratch.size else 0)
    outputs, changed = {}, []
    for operand in kernel.operands:
        view = views[operand.name]
        if operand.role == "output":
            outputs[operand.name] = view.copy().view(operand.dtype.numpy)
        elif view.tobytes() != np.ascontiguousarray(arrays[operand.name]).tobytes():
            changed.append(operand.name)
    del scratch_area, areas
    return outputs, changed


def guarded(size: int, *, before: bool) -> tuple[mmap.mmap, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Memory of `size` bytes that starts where a guard page ends (`before`), or ends where one starts."""
    inner = max(PAGE, -(-size // PAGE) * PAGE)
    area = mmap.mmap(-1, inner + 2 * PAGE)
    whole = np.frombuffer(area, np.uint8)
    base = whole.ctypes.data
    for page in (base, base + PAGE + inner):
        if _LIBC.mprotect(page, PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE if before else PAGE + inner - size
    return area, whole[start : start + size]


def _edge(area: mmap.mmap, *, before: bool) -> int:
    """An address that may not be read: the operand has no elements."""
    return int(np.frombuffer(area, np.uint8).ctypes.data) + (0 if before else len(area) - PAGE)

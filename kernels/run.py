"""Running one kernel in this process on NumPy arrays: for tests, measurements and tuning.

Every way leads through one driver, which sets the control word that programs run under (kernels/llvm/control_word.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kernels.cores import Core
from kernels.emit.layout import HUGE_PAGE
from kernels.errors import KernelsError
from kernels.kernel import Kernel
from kernels.llvm import control_word
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.load import Loaded, ObjectCache
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.units.state import configure, permitted, release

ALIGNMENT = 64  # bytes
Array = npt.NDArray[np.generic]
Driver = Callable[[int, int], None]


class WrongArgument(KernelsError):
    """An array that does not fit an operand."""


def aligned(elements: int, dtype: npt.DTypeLike = np.float32, *, offset: int = 0) -> Array:
    """A zeroed one-dimensional array that starts `offset` bytes after a multiple of 64 bytes."""
    size = elements * np.dtype(dtype).itemsize
    storage = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -storage.ctypes.data % ALIGNMENT + offset
    return storage[start : start + size].view(dtype)


def area(size: int) -> npt.NDArray[np.uint8]:
    """Zeros that start where a huge page may start, as a bundle's weights do; memory is taken when it is written."""
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + size]


def placed(weights: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy in such an area."""
    copy = area(weights.size)
    copy[:] = weights
    return copy


class NoPermission(KernelsError):
    """The system denies the process its matrix units."""


class Executable:
    """Kernels compiled together and loaded; `driver` calls run several of them from one table without Python."""

    def __init__(self, kernels: Sequence[Kernel], cache: ObjectCache | None = None) -> None:
        target = kernels[0].module.target
        module = Module(target)
        for kernel in kernels:
            module.include(kernel.module)
        code = (cache or ObjectCache(None)).get(module.text(), target)
        self.kernels = tuple(kernels)
        self._loaded = Loaded(code, target)
        self.driver = driver(target, units=module.uses_units)
        self._scratch = aligned(max(kernel.scratch_bytes for kernel in kernels), np.uint8)

    def address(self, name: str) -> int:
        """Where an exported function starts."""
        return self._loaded.address(name)

    def calls(self, runs: Sequence[tuple[Kernel, Mapping[str, Array]]]) -> Calls:
        """A prepared sequence of runs, each of all blocks of a kernel, by operand name."""
        tables, rows = [], []
        for kernel, arrays in runs:
            pointers = []
            for operand in kernel.operands:
                array = arrays[operand.name]
                if array.nbytes < operand.bytes or not array.flags.c_contiguous:
                    raise WrongArgument(
                        f"operand '{operand.name}' of kernel '{kernel.name}' needs {operand.bytes:,} contiguous bytes; "
                        f"the array has {array.nbytes:,}"
                    )
                pointers.append(array.ctypes.data)
            table = np.array(pointers, np.uint64)
            tables.append(table)
            rows.append(self.row(kernel, table))
        return Calls(self.driver, np.array(rows, np.uint64), (tables, [arrays for _, arrays in runs], self))

    def row(self, kernel: Kernel, table: Array) -> npt.NDArray[np.uint64]:
        """What the driver reads to run all blocks of a kernel with a table of addresses; both must be kept."""
        scratch = self._scratch.ctypes.data if kernel.scratch_bytes else 0
        return np.array([self.address(kernel.name), table.ctypes.data, 0, kernel.blocks, scratch], np.uint64)

    def block(self, kernel: Kernel, table: Array, number: int, scratch: int) -> None:
        """Run one block with a table of addresses and the address of scratch (0: none)."""
        row = np.array([self.address(kernel.name), table.ctypes.data, number, number + 1, scratch], np.uint64)
        self.driver(row.ctypes.data, 1)

    def __call__(self, arrays: Mapping[str, Array]) -> None:
        """Run all blocks of the first kernel."""
        self.calls([(self.kernels[0], arrays)])()


def driver(target: Target, *, units: bool = False) -> Driver:
    """What runs kernels by the address of a table and its rows: (entry, arguments, first block, last + 1, scratch).

    `units`: whether a kernel runs on matrix units; raises NoPermission where the system denies them.
    """
    denied = permitted() if units else None
    if denied is not None:
        raise NoPermission(f"the system does not let this process use the matrix units: {denied}.")
    return _driver(replace(target, core=Core(1, 1, 1), constants=None), units)  # of which it makes no use


@functools.cache
def _driver(target: Target, units: bool) -> Driver:
    module = Module(target)
    _write_driver(module, units)
    loaded = Loaded(ObjectCache(None).get(module.text(), target), target)
    found = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address("run_all"))

    def run(rows: int, count: int, keep: Loaded = loaded) -> None:
        found(rows, count)

    return run


class Calls:
    """A sequence of runs whose addresses are all fixed: calling it costs one call into machine code."""

    def __init__(self, driver: Driver, rows: npt.NDArray[np.uint64], keep: object) -> None:
        self._driver = driver
        self._rows = rows
        self._keep = keep
        self._address = rows.ctypes.data
        self._count = len(rows)

    def __call__(self) -> None:
        """Run them all, one after the other."""
        self._driver(self._address, self._count)


def _write_driver(module: Module, units: bool) -> None:
    """run_all(rows, count), as `driver` says."""
    function = Function(module, "run_all", (Parameter("rows"), Parameter("count", "i64")), exported=True)
    rows = function.parameter("rows")
    word = control_word.enter(function)
    if units:
        configure(function)

    def one(row: Value, _: tuple[Value, ...]) -> None:
        index = function.mul(row, 5)

        def cell(kind: str, place: int) -> Value:
            return function.load(kind, function.at(rows, function.add(index, place), "ptr"))

        entry, table, scratch = (cell("ptr", place) for place in (0, 1, 4))
        start, end = (cell("i64", place) for place in (2, 3))

        def block(number: Value, _: tuple[Value, ...]) -> None:
            function.line(f"call void {entry.text}(ptr {table.text}, i64 {number.text}, ptr {scratch.text})")

        function.loop(start, end, 1, block)

    function.loop(0, function.parameter("count"), 1, one)
    if units:
        release(function)
    control_word.leave(function, word)
    function.finish()

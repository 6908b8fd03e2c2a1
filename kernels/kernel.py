"""What a template delivers: a kernel, its operands, its blocks, and what it needs.

Every kernel has one form of entry, so that a scheduler, a worker pool and a bundle can run any of them alike:

    void entry(ptr arguments, i64 block, ptr scratch)

`arguments` is a table of pointers, one per operand in order; an operand starts at a multiple of its element's size.
`block` selects one of `blocks` independent pieces, which may run in any order and on any worker. `scratch` is memory of
`scratch_bytes` that belongs to the worker (64-byte aligned, contents undefined), or null when that is zero.

A kernel whose dims only the run knows reads them from its last operand, "sizes": an int64 for each free dim of the
program. Its other operands, its blocks and its scratch are those of the greatest sizes; blocks that a run does not
have do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.size import Size, as_size, bound
from kernels.tensor.expression import Buffer
from kernels.tensor.storage import extent

ENTRY = (
    Parameter("arguments", "ptr", "noalias nocapture readonly"),
    Parameter("block", "i64"),
    Parameter("scratch", "ptr", "noalias nocapture"),
)

SIZES: Literal["sizes"] = "sizes"  # the operand with the sizes of a run
EntryBody = Callable[[Function, dict[str, Value], Value, Value], None]  # function, pointers by operand, block, scratch


class Packing(Protocol):
    """How a constant is laid out for a kernel: applied once, when the program is compiled."""

    @property
    def elements(self) -> int:
        """How many elements the packed form has."""
        ...

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed form, one-dimensional."""
        ...


@runtime_checkable
class Filling(Packing, Protocol):
    """A packing that writes where the packed form shall lie, so that there is no copy of a large constant."""

    def fill(self, array: npt.NDArray[np.generic], packed: npt.NDArray[np.generic]) -> None:
        """Write the packed form over zeros of the array's type."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Sums:
    """How points are made of taps: points[p][q][i] = sum of down[p][s] * across[q][t] * taps[s][t][i].

    Sums over s come first. Along one direction, `across` is the one number 1.
    """

    down: tuple[tuple[float, ...], ...]  # a row for each point of a direction, a column for each tap
    across: tuple[tuple[float, ...], ...] = ((1.0,),)

    @property
    def points(self) -> int:
        """How many there are."""
        return len(self.down) * len(self.across)

    @property
    def taps(self) -> int:
        """Of how many they are made."""
        return len(self.down[0]) * len(self.across[0])


@runtime_checkable
class Transforming(Packing, Protocol):
    """A packing whose form is groups of points, each made of as many groups of taps.

    The taps take fewer bytes; a program may have them stored, and the packed form made of them when it is created.
    """

    @property
    def is_stored_as_taps(self) -> bool:
        """Whether elements are such that the sums can be made of them as they lie."""
        ...

    @property
    def sums(self) -> Sums:
        """How the points of a group are made of its taps."""
        ...

    @property
    def point_elements(self) -> int:
        """Elements of a point, and of a tap, of one group."""
        ...

    def taps(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """All taps, one-dimensional, of the array's type."""
        ...


@dataclass(frozen=True, slots=True)
class Operand:
    """One entry of the table of arguments: a contiguous piece of memory, described by how it is stored."""

    name: str
    role: Literal["input", "constant", "output", "sizes"]
    dtype: DType
    elements: int  # of the storage: strides, halo and padding included
    packing: Packing | None = None  # of a constant: None when it is used as it is
    parts: tuple[tuple[int, int], ...] | None = None  # of a constant: the bytes that each block reads; None: all
    rows: int = 0  # of what is gathered: bytes of a row, where the operand "indices" names those that are read
    run_elements: Size | None = None  # those that a run has, where its sizes decide; None: all

    @property
    def bytes(self) -> int:
        """The size of the storage."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled implementation in waiting: the module's text, and all that a planner needs to know."""

    name: str  # of the exported entry
    module: Module
    operands: tuple[Operand, ...]
    blocks: int
    scratch_bytes: int = 0  # per worker
    flops: int = 0  # additions and multiplications of all blocks
    traffic: int = 0  # bytes that all blocks together must read and write at least once
    candidate: str = ""  # which tile sizes, for people
    choice: str = ""  # the candidate that its template chose, whose blocks may have been larger
    shared: Kernel | None = None  # the same with blocks for several workers; None: those of this one serve
    run_blocks: Size | None = None  # the blocks that a run has, where its sizes decide; None: all of them
    resident: int = 0  # of a GPU's task: blocks that a multiprocessor holds at once, by the registers of their threads
    prelude: str = ""  # of a GPU's task: the function of the module that a block runs before it waits for its inputs

    def operand(self, name: str) -> Operand:
        """An operand by its name."""
        return next(one for one in self.operands if one.name == name)


def operands_of(inputs: Iterable[Buffer], outputs: Iterable[Buffer] = ()) -> tuple[Operand, ...]:
    """Operands for whole buffers, inputs first."""
    return (
        *(Operand(buffer.name, "input", buffer.dtype, extent(buffer)) for buffer in inputs),
        *(Operand(buffer.name, "output", buffer.dtype, extent(buffer)) for buffer in outputs),
    )


def pointers_of(f: Function, operands: Sequence[Operand]) -> dict[str, Value]:
    """The addresses of operands by name, read from the parameter `arguments`."""
    table = f.parameter("arguments")
    if f.module.target.is_gpu:
        return _global_pointers(f, table, operands)
    return {operand.name: f.load("ptr", f.at(table, position, "ptr")) for position, operand in enumerate(operands)}


def _global_pointers(f: Function, table: Value, operands: Sequence[Operand]) -> dict[str, Value]:
    """The same on a GPU: LLVM is told that all operands lie in global memory; the table lies there or in shared."""
    found, kind = {}, "ptr addrspace(1)"
    for number, operand in enumerate(operands):
        place = f.value("ptr", f"getelementptr inbounds ptr, ptr {table.text}, i64 {number}")
        address = f.value(kind, f"load {kind}, ptr {place.text}, align 8")
        found[operand.name] = f.value("ptr", f"addrspacecast {kind} {address.text} to ptr")
    return found


def write_kernel(
    module: Module,
    name: str,
    operands: Sequence[Operand],
    blocks: Size | int,
    body: EntryBody,
    *,
    scratch_bytes: Size | int = 0,
    flops: Size | int = 0,
    traffic: Size | int | None = None,
    candidate: str = "",
) -> Kernel:
    """Write the exported entry into a module, and describe the kernel; `traffic`: None: each operand passes once.

    For a target whose kernels are outlined the entry does nothing.
    """
    function = Function(module, name, ENTRY, exported=True)
    table, block = function.parameter("arguments"), function.parameter("block")
    pointers = pointers_of(function, operands)
    if isinstance(blocks, Size):
        there = function.compare("slt", block, function.integer(blocks))
        function.line(f"br i1 {there.text}, label %there, label %none")
        function.label("none")
        function.line("ret void")
        function.label("there")
    if not module.target.outlined:
        body(function, pointers, block, function.parameter("scratch"))
    operands = [
        replace(operand, elements=bound(operand.elements), run_elements=as_size(operand.elements))
        for operand in operands
    ]
    if function.sizes is not None:
        function.read_sizes(table, len(operands))
        operands.append(Operand(SIZES, "sizes", DType.I64, function.dims_read))
    function.finish()
    if traffic is None:
        traffic = sum(operand.bytes for operand in operands)
    return Kernel(
        name, module, tuple(operands), bound(blocks), bound(scratch_bytes), bound(flops), bound(traffic), candidate,
        run_blocks=as_size(blocks),
    )  # fmt: skip


def renamed(kernel: Kernel, name: str) -> Kernel:
    """The kernel with another name for its entry; what the entry calls keeps its names."""
    module = Module(kernel.module.target)
    module.include(kernel.module)
    module.rename(kernel.name, name)
    return replace(kernel, name=name, module=module)


def symbol(listing: str, name: str) -> str:
    """What a function of a program is called in its objects, where it is none of the interface's.

    No other program has it, nor has the C library, so that several can be linked into one.
    """
    return f"{listing}.{name}"

"""Running single tasks on the PTX machine: what their tests share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.ptx.emit import ptx
from kernels.ptx.machine.launching import ORDERS, Adversary, Launch, Machine
from kernels.ptx.machine.reports import Outcome
from kernels.ptx.program import program_module
from kernels.ptx.tasks.table import TASKS
from kernels.ptx.tasks.threads import THREADS
from kernels.run import Executable
from kernels.target import Target, cuda, host
from kernels.templates.template import Template
from kernels.tensor import scalars

Array = npt.NDArray[Any]
SM_80, SM_90 = cuda("sm_80"), cuda("sm_90")
MOST = 1 << 24  # instructions of warps
ALL = tuple(Adversary(order, 3) for order in ORDERS)


@dataclass(frozen=True)
class Case:
    """A task with what its operands hold: arrays as they are given, before any packing, and what it should write."""

    kernel: Kernel
    given: Mapping[str, Array]
    expected: Mapping[str, Array]  # as the storage of outputs; NaN where nothing is written
    tolerance: float = 0.0

    def stored(self, operand: Operand) -> Array:
        """What an operand that is read holds, packed where it is packed."""
        array = np.ascontiguousarray(self.given[operand.name])
        if operand.packing is not None:
            array = np.ascontiguousarray(operand.packing.pack(array))
        assert array.nbytes == operand.bytes, f"{operand.name} has {array.nbytes} bytes, not {operand.bytes}"
        return array


def beside(
    template: Template[Any, Any], problem: Hashable, name: str, seed: int, tolerance: float, target: Target = SM_90,
    **given: Array,
) -> Case:  # fmt: skip
    """The task of a problem with what the processor's kernel makes of drawn operands, but for those that are given."""
    kernel = TASKS[type(problem)](problem, target, name)
    known = template.kernel(problem, host(), name)
    draw = np.random.default_rng(seed)
    arrays = dict(given)
    for operand in kernel.operands:
        if operand.role != "output" and operand.name not in arrays:
            arrays[operand.name] = drawn(draw, operand)
    ours = {one.name: one for one in kernel.operands}
    stored, outputs = dict[str, Array](), dict[str, Array]()
    for operand in known.operands:
        assert (operand.role, operand.dtype) == (ours[operand.name].role, ours[operand.name].dtype), operand.name
        if operand.role == "output":
            outputs[operand.name] = np.zeros(operand.elements, operand.dtype.numpy)
        else:
            array = np.ascontiguousarray(arrays[operand.name])
            stored[operand.name] = array.reshape(-1) if operand.packing is None else operand.packing.pack(array)
    if known.blocks:
        Executable([known])({**stored, **outputs})
    return Case(kernel, arrays, outputs, tolerance)


def drawn(draw: np.random.Generator, operand: Operand) -> Array:
    """Numbers for the whole storage of an operand."""
    if operand.packing is not None:
        raise AssertionError(f"{operand.name} is packed: its dims are not known here")
    dtype = operand.dtype
    if dtype.is_float:
        wide = draw.standard_normal(operand.elements).astype(scalars.compute_type(dtype))
        return scalars.narrow(wide, dtype)
    found: Array = draw.integers(0, 2 if dtype is DType.BOOL else 100, operand.elements).astype(dtype.numpy)
    return found


def check(cases: Sequence[Case], target: Target = SM_90, adversaries: Sequence[Adversary] = ALL) -> None:
    """Each case alone under each adversary: no fault, and what is expected. All share one module."""
    text = ptx(program_module([case.kernel for case in cases], target), target.cpu)
    for case in cases:
        placed = Task(text, case)
        for adversary in adversaries:
            said = f"{case.kernel.name} ({case.kernel.candidate}), {adversary}"
            outcome, found = placed.run(adversary)
            assert outcome is None or not outcome.faults, f"{said}: {[str(one) for one in outcome.faults[:3]]}"
            assert not differing(found, case), f"{said}: {differing(found, case)}"


def differing(found: Mapping[str, Array], case: Case) -> str:
    """The first output that is not as expected; none: ""."""
    for name, want in case.expected.items():
        some = found[name][: want.size].reshape(want.shape)
        error = case.tolerance * scale(want)
        mine, theirs = numbers(some), numbers(want)
        if not np.allclose(mine, theirs, rtol=0, atol=error, equal_nan=True):
            with np.errstate(invalid="ignore"):
                return f"{name} differs by {np.nanmax(np.abs(mine - theirs))}, more than {error}"
    return ""


def numbers(array: Array) -> Array:
    """Elements as float64; bfloat16 lies in words of 16 bits."""
    if array.dtype == DType.BF16.numpy:
        array = scalars.widen(array, DType.BF16)
    with np.errstate(invalid="ignore"):  # a NaN that signals becomes a quiet one
        return array.astype(np.float64)


def scale(want: Array) -> float:
    """The largest finite element, and at least 1."""
    values = np.abs(numbers(want))
    values = values[np.isfinite(values)]
    return max(1.0, float(values.max(initial=1.0)))


class Task:
    """A task in the memory of a machine of its own."""

    def __init__(self, text: str, case: Case) -> None:
        self.machine, self.kernel = Machine(text), case.kernel
        memory = self.machine.memory
        self.placed = []
        for operand in self.kernel.operands:
            if operand.role == "output":
                self.placed.append(memory.reserve(operand.name, max(operand.bytes, 4)))
                continue
            array = case.stored(operand)
            content = array if array.nbytes else np.zeros(4, np.uint8)
            self.placed.append(memory.place(operand.name, content, constant=True))
        table = np.array([one.address for one in self.placed], np.uint64)
        self.table = memory.place("pointers", table, constant=True)

    def run(self, adversary: Adversary, resident: int = 4) -> tuple[Outcome | None, dict[str, Array]]:
        """What one launch gives, and the outputs, flat; no launch where there are no blocks."""
        memory, kernel, outcome = self.machine.memory, self.kernel, None
        for operand, one in zip(kernel.operands, self.placed, strict=True):
            if operand.role == "output":
                memory.clear(one)
        if kernel.blocks:
            launch = Launch(
                f"launch_{kernel.name}", (kernel.blocks, 1, 1), (THREADS, 1, 1), (self.table,), resident,
                kernel.scratch_bytes, 1 << 22, MOST,
            )  # fmt: skip
            outcome = self.machine.run(launch, adversary)
        return outcome, {
            operand.name: memory.read(one, operand.dtype.numpy)[: operand.elements]
            for operand, one in zip(kernel.operands, self.placed, strict=True)
            if operand.role == "output"
        }

"""Running single tasks on the PTX machine: what their tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.kernel import Kernel
from kernels.ptx.emit import ptx
from kernels.ptx.machine.launching import ORDERS, Adversary, Launch, Machine
from kernels.ptx.machine.reports import Outcome
from kernels.ptx.program import program_module
from kernels.ptx.tasks.threads import THREADS
from kernels.target import Target, cuda

Array = npt.NDArray[Any]
SM_80, SM_90 = cuda("sm_80"), cuda("sm_90")
ALL = tuple(Adversary(order, 3) for order in ORDERS)


@dataclass(frozen=True)
class Case:
    """A task with what its operands hold: arrays as they are given, before any packing, and what it should write."""

    kernel: Kernel
    given: Mapping[str, Array]
    expected: Mapping[str, Array]  # as the storage of outputs; NaN where nothing is written
    tolerance: float = 0.0


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
        if not np.allclose(some, want, rtol=0, atol=error, equal_nan=True):
            with np.errstate(invalid="ignore"):
                apart = np.abs(some.astype(np.float64) - want.astype(np.float64))
            return f"{name} differs by {np.nanmax(apart)}, more than {error}"
    return ""


def scale(want: Array) -> float:
    """The largest finite element, and at least 1."""
    values = np.abs(want.astype(np.float64))
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
            array = np.ascontiguousarray(case.given[operand.name])
            if operand.packing is not None:
                array = np.ascontiguousarray(operand.packing.pack(array))
            assert array.nbytes == operand.bytes, f"{operand.name} has {array.nbytes} bytes, not {operand.bytes}"
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
                kernel.scratch_bytes, 1 << 22,
            )  # fmt: skip
            outcome = self.machine.run(launch, adversary)
        return outcome, {
            operand.name: memory.read(one, operand.dtype.numpy)[: operand.elements]
            for operand, one in zip(kernel.operands, self.placed, strict=True)
            if operand.role == "output"
        }

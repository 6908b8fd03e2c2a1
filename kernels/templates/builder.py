"""What the builders of all templates share: the problem, the candidate, the module, and the kernel at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

import msgspec

from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.size import Size
from kernels.target import Target
from kernels.templates.template import Candidate, Problem


class Builder(ABC, Generic[Problem, Candidate]):
    """Writes one kernel: `kernel` says what it is, `entry` what a block does."""

    def __init__(self, problem: Problem, candidate: Candidate, target: Target, name: str) -> None:
        self.problem, self.candidate, self.target, self.name = problem, candidate, target, name
        self.module, self.lanes = Module(target), target.lanes()

    @abstractmethod
    def kernel(self) -> Kernel:
        """The kernel, written."""

    @abstractmethod
    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """Write the work of one block, given the operands' addresses."""

    def written(
        self,
        operands: Sequence[Operand],
        blocks: Size | int,
        *,
        scratch_bytes: Size | int = 0,
        flops: Size | int = 0,
        traffic: Size | int | None = None,
    ) -> Kernel:
        """The kernel of these operands and blocks; `traffic`: None: each operand passes once."""
        return write_kernel(
            self.module, self.name, operands, blocks, self.entry,
            scratch_bytes=scratch_bytes, flops=flops, traffic=traffic, candidate=str(self.candidate),
        )  # fmt: skip


def apart(f: Function, name: str, given: Sequence[Amount], write: Callable[..., None]) -> None:
    """Call `write(function, *given)` as a function of its own, written once: values are its parameters, numbers stay.

    A part of a kernel that is one can be the same in others, and in the form of the kernel that several workers share.
    """
    values = [(f"p{place}", one) for place, one in enumerate(given) if isinstance(one, Value)]
    if not f.module.has(name):
        inner = Function(f.module, name, [Parameter(parameter, value.type) for parameter, value in values])
        own = iter([msgspec.structs.replace(v, parts=(f"%{p}",), is_constant=False) for p, v in values])
        write(inner, *(next(own) if isinstance(one, Value) else one for one in given))
        inner.finish()
    f.call(name, *(value for _, value in values))

"""What the builders of all templates share: the problem, the candidate, the module, and the kernel at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm.function import Function, Value
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

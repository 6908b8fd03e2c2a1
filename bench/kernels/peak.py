"""The machine's peak of fused multiply-adds, measured by a loop that does nothing else."""

from __future__ import annotations

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.module import Module
from kernels.run import Calls, Executable, aligned
from kernels.target import Target

TURNS = 2000
STEPS = 8
SUMS = 12  # independent sums: more than latency times width of any core we know needs, and they fit 16 registers


def peak_call(target: Target) -> tuple[Calls, int]:
    """A prepared run and the floating-point operations it does."""
    module, lanes = Module(target), target.lanes()
    kind = types.vector("float", lanes)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        x = f.load(kind, pointers["x"])
        y = f.load(kind, f.at(pointers["x"], lanes))

        def turn(_: Value, sums: tuple[Value, ...]) -> list[Value]:
            (total,) = sums
            for _ in range(STEPS):
                total = f.fma(total, y, x)
            return [total]

        (total,) = f.loop(0, TURNS, 1, turn, [joined([x] * SUMS)])
        f.store(f.reduce("fadd", total), f.at(pointers["x"], 2 * lanes))

    kernel = write_kernel(module, "peak", (Operand("x", "output", DType.F32, 2 * lanes + 1),), 1, body)
    x = aligned(2 * lanes + 1)
    x[:] = 0.5
    return Executable([kernel]).calls([(kernel, {"x": x})]), TURNS * STEPS * SUMS * lanes * 2

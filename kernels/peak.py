"""The machine's peak of fused multiply-adds, measured by a loop that does nothing else."""

from __future__ import annotations

import threading
import time

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.module import Module
from kernels.run import Calls, Executable, aligned
from kernels.target import Target

TURNS = 8000
STEPS = 8
SUMS = 12  # independent sums: more than latency times width of any core we know needs, and they fit 16 registers
READINGS = 100  # of each worker; one takes about 0.1 to 0.25 milliseconds


def peak_call(target: Target) -> tuple[Calls, int]:
    """A prepared run and the floating-point operations it does."""
    calls, flops = peak_calls(target, 1)
    return calls[0], flops


def peak_flops(target: Target, workers: int = 1) -> float:
    """Float32 operations a second of one worker, where so many work at once: the mean of each one's fastest reading."""
    calls, flops = peak_calls(target, workers)
    fastest = [float("inf")] * workers
    together = threading.Barrier(workers)

    def work(number: int) -> None:
        together.wait()
        for _ in range(READINGS):
            started = time.perf_counter()
            calls[number]()
            fastest[number] = min(fastest[number], time.perf_counter() - started)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(flops / seconds for seconds in fastest) / workers


def peak_calls(target: Target, workers: int) -> tuple[list[Calls], int]:
    """A run for each worker, with data of its own, and the operations of one."""
    module, lanes = Module(target), target.lanes()
    kind = types.vector("float", lanes)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        x = f.load(kind, pointers["x"])
        y = f.load(kind, f.at(pointers["x"], lanes))

        def turn(place: Value, sums: tuple[Value, ...]) -> list[Value]:
            (total,) = sums
            for _ in range(STEPS):
                total = f.fma(total, y, x)
            return [total]

        (total,) = f.loop(0, TURNS, 1, turn, [joined([x] * SUMS)])
        f.store(f.reduce("fadd", total), f.at(pointers["x"], 2 * lanes))

    kernel = write_kernel(module, "peak", (Operand("x", "output", DType.F32, 2 * lanes + 1),), 1, body)
    executable, calls = Executable([kernel]), []
    for _ in range(workers):
        x = aligned(2 * lanes + 1)
        x[:] = 0.5
        calls.append(executable.calls([(kernel, {"x": x})]))
    return calls, TURNS * STEPS * SUMS * lanes * 2

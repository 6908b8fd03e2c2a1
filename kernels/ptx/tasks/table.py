"""Which task computes a problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from kernels.kernel import Kernel
from kernels.ptx.tasks.attention import attention
from kernels.ptx.tasks.convolution import convolution
from kernels.ptx.tasks.convolution import tiled as tiled_convolution
from kernels.ptx.tasks.elementwise import elementwise
from kernels.ptx.tasks.indexed import indexed
from kernels.ptx.tasks.pooling import pooling
from kernels.ptx.tasks.product import product
from kernels.ptx.tasks.product import tiled as tiled_product
from kernels.ptx.tasks.recurrent import recurrent_step
from kernels.ptx.tasks.resize import resize
from kernels.ptx.tasks.rows import normalization, reduction, softmax
from kernels.ptx.tasks.singly import singly
from kernels.ptx.tasks.threads import THREADS, NoTask
from kernels.ptx.tasks.tile import TILES, block_cycles
from kernels.target import Target
from kernels.templates.attention.problem import Attention
from kernels.templates.convolution.problem import Convolution
from kernels.templates.elementwise import Elementwise
from kernels.templates.gemm_problem import Gemm
from kernels.templates.indexed import Indexed
from kernels.templates.normalization import Normalization
from kernels.templates.pooling_problem import Pooling
from kernels.templates.recurrent.step import RecurrentStep
from kernels.templates.reduction import Reduction
from kernels.templates.resize import Resize
from kernels.templates.softmax import Softmax
from kernels.templates.template import Template

TASKS: dict[type, Callable[[Any, Target, str], Kernel]] = {
    Attention: attention, Convolution: convolution, Elementwise: elementwise, Gemm: product, Indexed: indexed,
    Normalization: normalization, Pooling: pooling, Reduction: reduction, Resize: resize, Softmax: softmax,
    RecurrentStep: recurrent_step,
}  # fmt: skip


# Of a usual kernel on the whole GPU in a nanosecond; nanoseconds of a block besides its share of these, and of one
# whose threads work by themselves; of each tap of a window that a thread reads by itself. The last two are what the
# blocks of two networks took on an H200.
_FLOPS, _BYTES, _FIXED, _APART, _TAP = 20e3, 1500.0, 600.0, 250.0, 60.0
_CLOCK = 1.7  # cycles of a nanosecond


@dataclass(frozen=True, slots=True)
class BlockTime:
    """Nanoseconds for which a block of a task keeps a multiprocessor busy, and for which it waits besides."""

    busy: float
    waiting: float


def block_time(problem: Hashable, kernel: Kernel, target: Target) -> BlockTime:
    """About what a block of a task takes."""
    tile = next((one for one in TILES if str(one) == kernel.candidate), None)
    if tile is not None and isinstance(problem, (Convolution, Gemm)):
        tiled = tiled_convolution(problem) if isinstance(problem, Convolution) else tiled_product(problem)
        busy, waiting = block_cycles(tile, tiled)
        return BlockTime(busy / _CLOCK, waiting / _CLOCK)
    multiprocessors = max(1, target.workers)
    whole = max(kernel.flops / _FLOPS, kernel.traffic / _BYTES)
    waiting = _FIXED
    if isinstance(problem, (Convolution, Pooling, Elementwise)):
        waiting = _APART + _TAP * _taps_of_thread(problem, kernel)
    return BlockTime(whole * multiprocessors / max(kernel.blocks, multiprocessors), waiting)


def _taps_of_thread(problem: Convolution | Pooling | Elementwise, kernel: Kernel) -> float:
    """Taps of windows that a thread reads one after the other."""
    if isinstance(problem, Elementwise):
        return 0.0
    windows = problem if isinstance(problem, Convolution) else problem.windows
    elements = windows.output.batch * windows.output.channels * prod(windows.output.size)
    return prod(windows.kernel) * elements / max(1, kernel.blocks * THREADS)


def nanoseconds(problem: Hashable, kernel: Kernel, target: Target) -> float:
    """About what all blocks of a task take on the whole GPU."""
    block, each = block_time(problem, kernel, target), -(-kernel.blocks // max(1, target.workers))
    return each * block.busy + -(-each // max(1, kernel.resident)) * block.waiting


def task(template: Template[Any, Any], problem: Hashable, target: Target, name: str) -> Kernel:
    """The task of a problem, or its template's kernel thread by thread. Raises NoTask where there is neither."""
    made = TASKS.get(type(problem))
    if made is not None:
        try:
            return made(problem, target, name)
        except NoTask:
            pass
    kernel = template.kernel(problem, replace(target, workers=0), name)
    return singly(replace(kernel, shared=None), target)

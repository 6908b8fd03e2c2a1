"""Which bytes of its operands a task reads and writes, by its problem alone: the plan's figure of what a run moves.

Each byte counts once, however many blocks or threads read it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
import numpy.typing as npt

from kernels.kernel import Kernel
from kernels.templates.convolution.problem import INPUT, OUTPUT, Convolution
from kernels.templates.elementwise import Elementwise, Output
from kernels.templates.gemm_problem import Gemm
from kernels.templates.matrix import Matrix
from kernels.templates.normalization import Normalization
from kernels.templates.pooling_problem import Pooling
from kernels.templates.recurrent.step import RecurrentStep
from kernels.templates.reduction import Reduction
from kernels.templates.softmax import Softmax
from kernels.tensor.expression import Buffer, Expression, Load, index
from kernels.tensor.ranges import lies_inside
from kernels.tensor.traverse import loads

Positions = npt.NDArray[np.int64]
_MOST = 1 << 22  # positions that are listed one by one; where there are more, the whole storage counts


@dataclass(frozen=True, slots=True)
class TouchedBytes:
    """Bytes of each operand that a run reads or writes; `exact`: just these, or else at most these."""

    operands: tuple[int, ...]
    exact: bool


def touched(problem: Hashable | None, kernel: Kernel) -> TouchedBytes:
    """What a task's run touches. What indices decide, and problems that are not known here, is said at most."""
    counts = _elements(problem)
    exact = counts is not None and all(map(lies_inside, _loads(_values(problem))))
    found = []
    for one in kernel.operands:
        elements = (counts or {}).get(one.name)
        packed = one.packing is not None  # all of it is read
        found.append(one.bytes if elements is None or packed else elements * one.dtype.bytes)
    return TouchedBytes(tuple(found), exact)


def _elements(problem: Hashable | None) -> dict[str, int] | None:
    """Elements by the name of the operand, where these are not all of its storage; None where that is not known."""
    match problem:
        case Elementwise() | Reduction() | Softmax() | Normalization():
            return _of_loads((*_loads(_values(problem)), *_stores(problem.outputs)))
        case Gemm():
            sizes = dict(enumerate(problem.batch))
            place = problem.place_a
            return _of_loads(_loads(_values(problem))) | {
                "a": _of_matrix(place, problem.rows, problem.depth, sizes),
                "b": _of_matrix(problem.place_b, problem.depth, problem.columns, sizes),
                "c": prod((*problem.batch, problem.rows, problem.columns)),
            }
        case Convolution():
            return _of_windows(problem) | _of_loads(_loads(_values(problem)))
        case Pooling():
            return _of_windows(problem.windows) | _of_loads(_loads(_values(problem)))
        case RecurrentStep():
            return {"gates": problem.layer.batch * len(problem.gates) * problem.layer.hidden}
    return None


def _of_windows(problem: Convolution) -> dict[str, int]:
    axes = []
    for axis in range(3):
        outputs, taps = np.arange(problem.output.size[axis]), np.arange(problem.kernel[axis])
        places = np.add.outer(outputs * problem.strides[axis] - problem.pads[axis], taps * problem.dilations[axis])
        wide, low, high = problem.input_dilations[axis], 0, problem.spread[axis]
        if problem.has_halo:
            low, high = low - problem.input.before[axis], high + problem.input.after[axis]
        axes.append(np.unique(places[(places >= low) & (places < high) & (places % wide == 0)]).size)
    channels, output = problem.input.channels, problem.output
    pixels = output.batch * output.channels * prod(output.size)
    return {INPUT: problem.input.batch * channels * prod(axes), OUTPUT: pixels}


def _values(problem: Hashable | None) -> list[Expression]:
    """What a problem computes of its elements, where these are expressions."""
    match problem:
        case Elementwise():
            return [one.value for one in problem.outputs]
        case Reduction() | Softmax() | Normalization():
            return [*(one.value for one in problem.outputs), problem.x]
        case Gemm() | Convolution():
            return [problem.epilogue.value]
        case Pooling():
            return [problem.windows.epilogue.value]
    return []


def _of_matrix(place: Matrix, rows: int, columns: int, batch: Mapping[int, int]) -> int:
    return _distinct([(place.row, rows), (place.column, columns), *zip(place.batch, batch.values(), strict=True)])


def _loads(values: Iterable[Expression]) -> Iterator[Load]:
    for value in values:
        yield from loads(value)


def _stores(outputs: Iterable[Output]) -> Iterator[Load]:
    return (Load(one.buffer, tuple(index(place) for place in one.indices)) for one in outputs)


def _of_loads(loads: Iterable[Load]) -> dict[str, int]:
    """By buffer the elements that some loads name together."""
    by_buffer: dict[Buffer, list[Load]] = {}
    for one in dict.fromkeys(loads):
        by_buffer.setdefault(one.buffer, []).append(one)
    found: dict[str, int] = {}
    for buffer, some in by_buffer.items():
        axes = [
            [(factor, variable.extent) for variable, factor in one.buffer.position(one.indices).terms] for one in some
        ]
        if len(some) == 1:
            found[buffer.name] = _distinct(axes[0])
        elif sum(prod(size for _, size in one) for one in axes) <= _MOST:
            offsets = [one.buffer.position(one.indices).offset for one in some]
            listed = [_listed(one) + offset for one, offset in zip(axes, offsets, strict=True)]
            found[buffer.name] = np.unique(np.concatenate(listed)).size
    return found


def _distinct(axes: Iterable[tuple[int, int]]) -> int:
    """Different sums of a factor of each axis with a number below its size."""
    given = list(axes)
    if not all(size for _, size in given):
        return 0
    some = sorted((abs(factor), size) for factor, size in given if factor and size > 1)
    span = 0
    for factor, size in some:
        if factor <= span:
            return int(np.unique(_listed(some)).size)
        span += factor * (size - 1)
    return prod(size for _, size in some)


def _listed(axes: Iterable[tuple[int, int]]) -> Positions:
    def more(held: Positions, axis: tuple[int, int]) -> Positions:
        return np.unique(np.add.outer(held, np.arange(axis[1], dtype=np.int64) * axis[0]))

    return reduce(more, axes, np.zeros(1, np.int64))

"""Constants that the size cuts: the first rows and columns of what the greatest sizes have, or the last ones.

bias[:, :s, :s]          -->  the whole bias, read with its strides
slopes[:, 64 - s :]      -->  the whole slopes, read from an offset that follows from the size
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.program.polynomials import Differs, record_like
from kernels.routine.grammar import Area
from kernels.templates.attention.problem import Attention
from kernels.templates.gemm_problem import Gemm
from kernels.templates.indexed import Indexed
from kernels.tensor import expression


class OtherConstant(Differs):
    """A constant that sizes do not cut."""


Array = npt.NDArray[np.generic]
Part = tuple[tuple[int, ...], tuple[int, ...]]  # the dims of the whole constant, and where in it the part begins


@dataclass(frozen=True, slots=True)
class Cut:
    """A constant that the size cuts: its dims at the greatest sizes, and where in it that of each sample begins."""

    shape: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]


def cut_of(arrays: Sequence[Array], whole: Array, name: str) -> Cut:
    """How the constants of all samples lie in that of the greatest sizes; raises Differs where they do not."""
    if all(array.dtype == whole.dtype and array.ndim == whole.ndim for array in arrays):
        axes = [axis for axis in range(whole.ndim) if any(one.shape[axis] != whole.shape[axis] for one in arrays)]
        for count in range(len(axes) + 1):
            for ends in itertools.combinations(axes, count):
                starts = [_starts(one, whole, ends) for one in arrays]
                if all(_lies_at(one, whole, start) for one, start in zip(arrays, starts, strict=True)):
                    return Cut(whole.shape, tuple(starts))
    raise OtherConstant(f"the constant '{name}'")


def parts_of(cuts: Mapping[str, Cut], sample: int) -> dict[str, Part]:
    """The constants as one sample has them."""
    return {name: (cut.shape, cut.starts[sample]) for name, cut in cuts.items()}


def is_first_part(array: Array, whole: Array) -> bool:
    """Whether one constant is the first elements of another."""
    if array is whole or (array.ctypes.data == whole.ctypes.data and array.shape == whole.shape):
        return True
    both = min(array.size, whole.size)
    mine, other = (one.reshape(-1)[:both].tobytes() for one in (array, whole))
    return array.dtype == whole.dtype and mine == other


def _starts(array: Array, whole: Array, ends: Collection[int]) -> tuple[int, ...]:
    """Where a constant of one size begins in that of the greatest sizes, which is cut in front along some axes."""
    sizes = zip(array.shape, whole.shape, strict=True)
    return tuple(other - size if axis in ends else 0 for axis, (size, other) in enumerate(sizes))


def _lies_at(array: Array, whole: Array, starts: Sequence[int]) -> bool:
    """Whether two constants are equal where one lies in the other, of which a sample beyond the range has more."""
    mine = tuple(slice(max(0, -start), other - start) for start, other in zip(starts, whole.shape, strict=True))
    its = tuple(slice(max(0, start), start + size) for start, size in zip(starts, array.shape, strict=True))
    return array[mine].tobytes() == whole[its].tobytes()


def within(value: Any, whole: Any, corners: Mapping[str, Part]) -> Any:
    """A problem, or a part of one, that reads the constants in `corners` with the strides of the whole constant.

    `corners`: the dims of the whole constant, and where in it this one begins. Raises Differs where axes of such a
    constant run as one, and where loops or products count its elements.
    """
    if not corners or type(value) is not type(whole):
        return value
    if isinstance(value, Attention) and "mask" in corners and value.mask is not None:
        _require_first("mask", corners)
        return replace(value, mask=whole.mask)
    counted = value.name if isinstance(value, Area) else {Gemm: "b", Indexed: "data"}.get(type(value))
    if counted in corners:
        raise OtherConstant(f"the constant '{counted}'")
    if isinstance(value, Indexed) and "indices" in corners:
        _require_first("indices", corners)
        _require_apart(corners["indices"][0], whole.dims, whole.index_strides, "indices")
        return replace(value, index_strides=whole.index_strides, index_elements=whole.index_elements)
    if isinstance(value, expression.Buffer) and value.name in corners:
        shape, starts = corners[value.name]
        _require_apart(shape, whole.shape, whole.strides, value.name)
        if len(value.shape) != len(whole.shape):
            raise OtherConstant(f"the constant '{value.name}'")
        before = sum(map(mul, starts, expression.dense_strides(shape)))
        return replace(value, strides=whole.strides, offset=whole.offset + before)
    if isinstance(value, tuple) and len(value) == len(whole):
        return tuple(within(one, other, corners) for one, other in zip(value, whole, strict=True))
    if is_dataclass(value):
        names = [one.name for one in fields(value)]
        parts = {name: within(getattr(value, name), getattr(whole, name), corners) for name in names}
        return record_like(value, parts)
    return value


def _require_first(name: str, corners: Mapping[str, Part]) -> None:
    """Raise Differs unless the part of a constant begins where the constant does."""
    if any(corners[name][1]):
        raise OtherConstant(f"the constant '{name}'")


def _require_apart(constant: tuple[int, ...], dims: tuple[int, ...], strides: tuple[int, ...], name: str) -> None:
    """Raise Differs unless the axes that are read are those of the constant: two that run as one have no corner."""
    running = [dim for dim, stride in zip(dims, strides, strict=True) if stride and dim != 1]
    if running != [dim for dim in constant if dim != 1]:
        raise OtherConstant(f"the constant '{name}'")

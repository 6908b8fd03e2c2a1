"""Ranges of sizes that a caller asks for: dims={"sequence": (1, 512)}, or --dim sequence=1..512."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.flows.source import resize
from graphopt.model.dimensions import DimValue, symbols_of
from graphopt.model.text import nearest, shown
from kernels.size import Dim

COMPARED_AT = (1, 7, 16, 33, 128)  # besides the least and the greatest size
DRAWN = 2  # sizes more, drawn from the whole range
Ranges = Mapping[str, tuple[int, int]]


def split_ranges(
    dims: Mapping[str, DimValue | tuple[int, int]],
) -> tuple[dict[str, tuple[int, int]], dict[str, DimValue]]:
    """The ranges, and what else is said of dims. Raises OptionError for a range without sizes."""
    ranges: dict[str, tuple[int, int]] = {}
    fixed: dict[str, DimValue] = {}
    for name, value in dims.items():
        if isinstance(value, str) and ".." in value:
            least, _, most = value.partition("..")
            if not (least.isdigit() and most.isdigit()):
                raise OptionError(f"'{shown(name)}={shown(value)}' is no range of sizes, such as 1..512.")
            value = int(least), int(most)
        if isinstance(value, tuple):
            if len(value) != 2 or not 1 <= value[0] <= value[1]:
                raise OptionError(
                    f"the range of '{shown(name)}' is a least size and a greatest one, such as (1, 512), not {value}."
                )
            if value[0] == value[1]:
                fixed[name] = value[0]
            else:
                ranges[name] = value
        else:
            fixed[name] = value
    return ranges, fixed


def free_batch(model: ir.Model, ranges: Ranges) -> None:
    """A range for "batch" frees the first dims of inputs where the model has them as numbers."""
    if "batch" in ranges and "batch" not in symbols_of(model):
        resize(model, {}, {"batch": "batch"})


def dims_of_ranges(model: ir.Model, ranges: Ranges) -> tuple[Dim, ...]:
    """The free dims in the order of the ranges. Raises OptionError where those of the model are others."""
    known = symbols_of(model)
    for name in ranges:
        if name not in known:
            raise OptionError(f"there is no free dim '{shown(name)}'; {nearest(name, known)}.")
    for name in known:
        if name not in ranges:
            raise OptionError(
                f"'{name}' has neither a size nor a range; give it one, dims={{'{name}': (1, 64)}} for example."
            )
    for value in model.graph.inputs:
        if value.shape is None or any(isinstance(dim, ir.SymbolicDim) and dim.value is None for dim in value.shape):
            raise OptionError(
                f"input '{value.name}' has a dim without a name, which cannot have a range; give its shape."
            )
    return tuple(Dim(name, least, most, number) for number, (name, (least, most)) in enumerate(ranges.items()))


def point_of(model: ir.Model, dims: Sequence[Dim], feed: Mapping[str, object]) -> tuple[int, ...]:
    """The sizes that a feed has. Raises OptionError for one outside of the ranges."""
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        for dim, size in zip(value.shape or (), np.asarray(feed.get(value.name or "")).shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found.setdefault(dim.value, size)
    for one in dims:
        if not one.least <= found.get(one.name, one.least) <= one.most:
            raise OptionError(f"a feed has {found[one.name]} for '{one.name}'; its range is {one.least} to {one.most}.")
    return tuple(found.get(one.name, one.least) for one in dims)


def compared_points(dims: Sequence[Dim]) -> list[tuple[int, ...]]:
    """The sizes that a program is compared at: the usual ones of every dim, its ends, and some that are drawn."""
    ladders = [
        list(dict.fromkeys((dim.least, *(one for one in COMPARED_AT if dim.least <= one <= dim.most), dim.most)))
        for dim in dims
    ]
    longest = max(map(len, ladders))
    found = [tuple(ladder[min(step, len(ladder) - 1)] for ladder in ladders) for step in range(longest)]
    found += [tuple(ladder[-1 - min(step, len(ladder) - 1)] for ladder in ladders) for step in range(longest)][1::2]
    if len(dims) > 1:
        found += [tuple(d.most if d is dim else d.least for d in dims) for dim in dims]
    drawn = random.Random(0)
    found += [tuple(drawn.randint(dim.least, dim.most) for dim in dims) for _ in range(DRAWN)]
    return list(dict.fromkeys(found))

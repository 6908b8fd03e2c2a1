"""Ranges of sizes that a caller asks for: dims={"past": (0, 511), "all": "past + 1"}, or --dim past=0..511."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.flows.source import resize
from graphopt.model.dimensions import DimValue, name_dim, name_dims, symbols_of
from graphopt.model.facts import PROMISED, Facts
from graphopt.model.formulas import dim_at, expression_of, formula_at, with_numbers
from graphopt.model.text import nearest, shown
from graphopt.model.tied import Ties
from kernels.errors import Undecided
from kernels.size import Dim, Size, at, free, range_of
from kernels.substitution import in_dims

COMPARED_AT = (1, 7, 16, 33, 128)  # besides the least and the greatest size
DRAWN = 2  # sizes more, drawn from the whole range
Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class FreeDims:
    """Dims whose sizes a run sets, and those of the model that follow from them."""

    dims: tuple[Dim, ...]
    tied: Mapping[str, Size | int]
    outside: frozenset[str] = frozenset()  # dims that only formulas have: blocks, where length=16*blocks

    def at(self, point: Sequence[int]) -> dict[str, DimValue]:
        """The size of every free dim of the model where those that a run sets have these."""
        sizes = self.sizes_at(point)
        named = {name: size for name, size in sizes.items() if name not in self.outside}
        return {**named, **{name: at(size, sizes) for name, size in self.tied.items()}}

    def apart(self) -> FreeDims:
        """The same with a greatest size of its own for each dim that a run sets; itself where formulas forbid that."""
        dims, taken = [], set[int]()
        for dim in self.dims:
            most = next(size for size in itertools.count(dim.most) if size not in taken)
            taken.add(most)
            dims.append(replace(dim, most=most))
        known = {dim.name: free(dim) for dim in dims}
        try:
            tied = {name: in_dims(size, known) for name, size in self.tied.items()}
        except Undecided:  # a formula has no size beyond the range
            return self
        return replace(self, dims=tuple(dims), tied=tied)

    def sizes_at(self, point: Sequence[int]) -> dict[str, int]:
        """The sizes that a run sets, by name."""
        return {dim.name: size for dim, size in zip(self.dims, point, strict=True)}

    def promise(self, model: ir.Model) -> None:
        """Let the model know what follows: sides of 32*blocks are whole after five halvings, and equal once doubled."""
        promised = {name: expression_of(size) for name, size in self.tied.items()}
        for value in model.graph.inputs:
            value.meta[PROMISED] = promised

    def formula(self, dim: object) -> Size | int | None:
        """A dim of the model in those that a run sets; None for what is no formula of them."""
        return dim_at(dim, {**{one.name: free(one) for one in self.dims}, **self.tied})


def split_ranges(
    dims: Mapping[str, DimValue | tuple[int, int]],
) -> tuple[dict[str, tuple[int, int]], dict[str, str], dict[str, DimValue]]:
    """The ranges, formulas of dims with ranges ("past + 1"), and what else is said of dims: numbers, and new names.

    Formulas of numbers alone are numbers. Raises OptionError for a range without sizes.
    """
    ranges: dict[str, tuple[int, int]] = {}
    fixed: dict[str, DimValue] = {}
    for name, value in dims.items():
        if isinstance(value, str) and ".." in value:
            least, _, most = value.partition("..")
            if not (least.isdigit() and most.isdigit()):
                raise OptionError(f"'{shown(name)}={shown(value)}' is no range of sizes, such as 1..512.")
            value = int(least), int(most)
        if isinstance(value, tuple):
            if len(value) != 2 or not 0 <= value[0] <= value[1] >= 1:
                raise OptionError(
                    f"the range of '{shown(name)}' is a least size and a greatest one, such as (1, 512), not {value}."
                )
            if value[0] == value[1]:
                fixed[name] = value[0]
            else:
                ranges[name] = value
        else:
            fixed[name] = value
    numbers = {name: int(size) for name, size in fixed.items() if str(size).isdigit()}
    known = {name: free(Dim(name, *sizes, 0)) for name, sizes in ranges.items()}
    tied: dict[str, str] = {}
    for name, value in list(fixed.items()):
        found = formula_at(value, {**numbers, **known}) if isinstance(value, str) else None
        if found is None or value in numbers or str(value).isdigit():  # the name of another dim is a new one for this
            continue
        del fixed[name]
        if isinstance(found, int):
            fixed[name] = found
        else:
            tied[name] = with_numbers(str(value), numbers)
    return ranges, tied, fixed


def free_named(model: ir.Model, ranges: Ranges) -> None:
    """Ranges name dims without a name; one for "batch" frees the first dims of inputs where these are numbers."""
    for name in ranges:
        if name not in symbols_of(model) and not name_dim(model, name) and name == "batch":
            resize(model, {}, {"batch": "batch"})


def dims_of_ranges(model: ir.Model, ranges: Ranges, formulas: Mapping[str, str]) -> FreeDims:
    """The free dims in the order of the ranges, and what follows from them.

    Besides formulas of the caller: dims of the model whose names are formulas, and dims that have to be equal for the
    model to run at all. Raises OptionError where other dims are free, or a formula gives no sizes.
    """
    name_dims(model)
    known = symbols_of(model)
    used = {node.id for text in formulas.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    outside = frozenset(name for name in ranges if name in used and name not in known)
    for name in (*ranges, *formulas):
        if name not in known and name not in outside:
            raise OptionError(f"there is no free dim '{shown(name)}'; {nearest(name, known)}.")
    for value in model.graph.inputs:
        if value.shape is None:
            raise OptionError(f"input '{value.name}' does not tell how many dims it has; give its shape.")
    dims = tuple(Dim(name, least, most, number) for number, (name, (least, most)) in enumerate(ranges.items()))
    sizes: dict[str, Size | int] = {dim.name: free(dim) for dim in dims}
    tied: dict[str, Size | int] = {}
    for name in known:
        found = None if name in ranges else formula_at(formulas.get(name, name), sizes)
        if found is not None:
            tied[name] = found
    sizes |= tied
    for name, dim in Ties(model.graph, Facts(model)).following(sizes).items():
        found = dim_at(dim, sizes)
        if found is not None:
            sizes[name] = found
            if name in known:
                tied[name] = found
    for name in known:
        if name not in ranges and name not in tied:
            raise OptionError(
                f"'{name}' has neither a size nor a range; give it one, dims={{'{name}': (1, 64)}} for example, or a "
                f"formula of those that have one, dims={{'{name}': '{dims[0].name} + 1'}} for example."
            )
    for name, size in tied.items():
        if range_of(size)[0] < 0:
            raise OptionError(f"'{name}' would be {range_of(size)[0]} at the least sizes.")
    return FreeDims(dims, tied, outside)


def point_of(model: ir.Model, free_dims: FreeDims, feed: Mapping[str, object]) -> tuple[int, ...]:
    """The sizes that a feed has. Raises OptionError for one outside of the ranges."""
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        for dim, size in zip(value.shape or (), np.asarray(feed.get(value.name or "")).shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found.setdefault(dim.value, size)
    for name, number in free_dims.tied.items():
        factors = [(product, factor) for product, factor in number.terms if product] if isinstance(number, Size) else []
        if name in found and len(factors) == 1 and len(factors[0][0]) == 1 and isinstance(factors[0][0][0], Dim):
            (product, factor), behind = factors[0], at(number, dict.fromkeys([dim.name for dim in free_dims.dims], 0))
            found.setdefault(product[0].text, (found[name] - behind) // factor)
    dims = free_dims.dims
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

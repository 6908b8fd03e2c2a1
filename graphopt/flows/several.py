"""Programs of one model for listed sizes of its dims and for several levels of processors, with shared constants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from graphopt.errors import NotLowered, OptionError
from graphopt.flows.source import resize
from graphopt.model.dimensions import DimValue
from graphopt.program.deploy.compiled import Compiled, Several, Whole
from graphopt.program.make import Family
from kernels.emit.program import Points
from kernels.target import Target, TargetName

ROUNDED = 8  # times the constants of a level that rounds them: what they may take on another one, transformed
MOST_POINTS = 64  # of listed sizes, all combinations together
Listed = Mapping[str, Sequence[int]]
MakeOne = Callable[[ir.Model, TargetName, Family], Compiled]


def split_listed(
    dims: Mapping[str, DimValue | tuple[int, int] | list[int]],
) -> tuple[dict[str, DimValue | tuple[int, int]], dict[str, list[int]]]:
    """The dims with one size or a range, and those with a list of sizes; raises OptionError for a list that is none."""
    listed = {name: value for name, value in dims.items() if isinstance(value, list)}
    for name, sizes in listed.items():
        if not sizes or len(set(sizes)) != len(sizes) or min(sizes) < 0:
            raise OptionError(f"the sizes of '{name}' are not negative and each is given once, unlike {sizes}.")
    return {name: value for name, value in dims.items() if not isinstance(value, list)}, listed


def points_of(listed: Listed) -> Points:
    """All combinations of listed sizes; one empty point where there are none. Raises OptionError for too many."""
    points = tuple(tuple(zip(listed, sizes, strict=True)) for sizes in itertools.product(*listed.values()))
    if len(points) > MOST_POINTS:
        raise OptionError(f"{len(points)} combinations of sizes are asked for; at most {MOST_POINTS} are compiled.")
    return points


def made_several(original: ir.Model, targets: Sequence[TargetName], points: Points, make_one: MakeOne) -> Several:
    """A program for each target and point; the targets are of one architecture, and tried at creation in their order.

    Raises NotLowered for a point that has no program of its own.
    """
    growth = 2 * len(targets) * len(points) + 2 + ROUNDED * (len(targets) - 1)
    family = Family(growth=growth, keep=len(targets) > 1)
    levels = []
    for target in targets:
        row = []
        for point in points:
            model = original.clone()
            if point:
                resize(model, {}, dict(point))
            made = make_one(model, target, family)
            if not isinstance(made.made, Whole):
                where = ", ".join(f"{name}={size}" for name, size in point) or target
                raise NotLowered(f"for {where} the program is not whole: {', '.join(made.fallback)} have no kernel.")
            row.append(made)
        levels.append(tuple(row))
    return Several(tuple(levels), points)


def ordered(targets: Sequence[TargetName], known: Callable[[TargetName], Target]) -> tuple[TargetName, ...]:
    """Targets with the one that asks for the most first; raises OptionError for several architectures, or one twice."""
    if len(set(targets)) != len(targets):
        raise OptionError(f"a target is given twice: {', '.join(targets)}.")
    found = {one: known(one) for one in targets}
    if len({one.architecture.name for one in found.values()}) > 1:
        raise OptionError(f"{', '.join(targets)} are of several architectures; a library has code for one.")
    needs = {one: sum(name.startswith("+") for name in target.features) for one, target in found.items()}
    return tuple(sorted(targets, key=lambda one: -needs[one]))

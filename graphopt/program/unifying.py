"""One program for a range of sizes: the regions of a model at several sizes, as one list whose numbers follow the size.

    at 3 x 7:   rows=21,  strides (5376, 768)          rows=batch*sequence, strides (768*sequence, 768)
    at 2 x 16:  rows=32,  strides (12288, 768)   -->

The model is lowered at a few sizes. Region by region the problems have to be of one kind and shape; each number in
them that differs becomes the one polynomial of the dims that gives all of them (Lagrange's interpolation, in exact
fractions), and has to give the numbers at sizes that were held out. Kernels are then built of the problems with
polynomials in them (kernels/size.py), for the candidate that loses least at any size. Buffers, order, weights and
memory are those of the greatest size, which no other size exceeds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphopt.errors import NotLowered
from graphopt.program.choosing import Chooser
from graphopt.program.cuts import Cut, cut_of, is_first_part, parts_of, within
from graphopt.program.kinks import Kink, said_of, samples_below
from graphopt.program.polynomials import Differs, Fit, NoPolynomial, Point
from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.region import Constant, Controlled, Lowered, Problems, Region
from graphopt.program.residues import PRIMES, System, residues
from graphopt.program.unifying_control import MEMORY, in_one_order, unified_control
from kernels.control import written
from kernels.errors import KernelsError, OfOneSize
from kernels.kernel import SIZES, Kernel, Operand
from kernels.listing import Argument
from kernels.size import Dim, Operation, Size, at, bound, dims_of
from kernels.templates.either import original
from kernels.templates.template import Template

HALVED = 32  # of what most networks of images want multiples: they halve sides five times
FEW_REMAINDERS = 4  # of one quotient, that samples have all
MOST_TRIED = 1 << 10  # sizes among which samples with other remainders are looked for
DEGREE = 2  # of a dim in a number, as of sequence in the elements of all scores
NONE: Mapping[Dim, Collection[int]] = {}
Lower = Callable[[Point], Lowered]


def unified(
    dims: Sequence[Dim],
    lower: Lower,
    held: Sequence[Sequence[Size | int]] = (),
    kinks: Sequence[Kink] = (),
    steps: Sequence[Operation] = (),
) -> Lowered:
    """The regions for all sizes of the dims; `lower` gives those of one size.

    `held` says what the last inputs hold, which no caller gives: numbers that follow from the sizes. `kinks` are the
    sizes at which numbers turn, `steps` quotients that numbers grow with. Raises NotLowered that names a region.
    """
    known: dict[Point, Lowered] = {}
    try:
        return _unified(dims, _samples(dims, lower, kinks, steps, known), held, kinks, steps)
    except NotLowered as error:
        if len(dims) < 2 or not isinstance(error.__cause__, NoPolynomial):
            raise
    return _unified(dims, _samples(dims, lower, kinks, steps, known, squared=2), held, kinks, steps)


def _unified(
    dims: Sequence[Dim], samples: dict[Point, Lowered], held: Sequence[Sequence[Size | int]], kinks: Sequence[Kink],
    steps: Sequence[Operation],
) -> Lowered:  # fmt: skip
    """The regions for all sizes, of those at some sizes."""
    whole = samples[greatest := tuple(dim.most for dim in dims)]
    turning = said_of(kinks)
    for point, sample in samples.items():
        if len(sample.regions) != len(whole.regions):
            raise NotLowered(
                f"the program has {len(sample.regions)} steps for {_said(dims, point)} and {len(whole.regions)} for "
                f"{_said(dims, greatest)}{turning}: {_way_out(dims)}."
            )
    fit = Fit(tuple(dims), tuple(samples), tuple(kinks), tuple(steps))
    derived = tuple(number for numbers in held for number in numbers)
    count, last = len(dims) + len(derived), max((one.id for one in whole.buffers), default=0)
    sizes = Buffer(1 + last, "sizes", 8 * count, SIZES, "")
    given = len(whole.inputs) - len(held)
    starts = itertools.accumulate(map(len, held), initial=len(dims))
    unifier = _Unifier(fit, tuple(samples.values()), sizes, {given + at: 8 * one for at, one in enumerate(starts)})
    regions = []
    for number, region in enumerate(whole.regions):
        try:
            regions.append(unifier.region([sample.regions[number] for sample in samples.values()]))
        except (Differs, KernelsError) as error:
            what = ", ".join(map(str, region.nodes)) or "a copy"
            why = "its kernel is made for one size" if isinstance(error, OfOneSize) else error
            raise NotLowered(f"{what} cannot be of any size ({why}){turning}: {_way_out(dims)}.") from error
    return replace(
        whole,
        inputs=_arguments(fit, [one.inputs[:given] for one in samples.values()]),
        outputs=_arguments(fit, [one.outputs for one in samples.values()]),
        regions=tuple(regions),
        constants=unifier.constants,
        problems=unifier.problems,
        dims=tuple(dims),
        derived=derived,
    )


def _arguments(fit: Fit, rows: Sequence[tuple[Argument, ...]]) -> tuple[Argument, ...]:
    """Inputs or outputs with the dims that a size decides."""
    found = []
    for given in zip(*rows, strict=True):
        shape = [
            fit.number(sizes, f"a dim of '{given[0].name}'")
            for sizes in zip(*(one.shape for one in given), strict=True)
        ]
        free = tuple((axis, size) for axis, size in enumerate(shape) if isinstance(size, Size))
        found.append(replace(given[0], free=free))
    return tuple(found)


def _samples(
    dims: Sequence[Dim], lower: Lower, kinks: Sequence[Kink], steps: Sequence[Operation],
    known: dict[Point, Lowered], squared: int = 1,
) -> dict[Point, Lowered]:  # fmt: skip
    """The regions at the points that numbers are found at, the greatest first; `known` ones are not lowered again.

    Sizes at which the program has other steps are left out while there are more: masks of two windows, for example,
    are one where neither reaches the size. What is right for the other sizes is right there too, with a step more.
    """
    without: dict[Dim, set[int]] = {dim: set() for dim in dims}
    while True:
        points = sample_points(dims, kinks, steps, without, squared)
        for point in points:
            if point not in known:
                known[point] = _sample(dims, point, lower)
        count = len(known[points[0]].regions)
        alike = [point for point in points if len(known[point].regions) == count]
        odd = [
            (dim, {point[number] for point in points} - {point[number] for point in alike})
            for number, dim in enumerate(dims)
        ]
        if not any(sizes - without[dim] for dim, sizes in odd):
            return {point: known[point] for point in points}
        for dim, sizes in odd:
            without[dim] |= sizes


def sample_points(
    dims: Sequence[Dim], kinks: Sequence[Kink] = (), steps: Sequence[Operation] = (),
    without: Mapping[Dim, Collection[int]] = NONE, squared: int = 1,
) -> list[Point]:  # fmt: skip
    """The sizes that polynomials are found at, and further ones that hold them to it; the greatest come first.

    They lie in the upper part of each range, where passes and templates choose as they do for the greatest sizes, and
    beyond it where the range has too few sizes of two and more; those of one dim are others than those of the dims
    before, as far as there are some. Of a dim with kinks there are some on every side, and of one with steps some more,
    with other remainders. Sizes that a dim is to be `without` are no points. Of so many dims at once there may be
    squares: of one, or of two where pixels of an image are compared with each other.
    """
    ladders: list[list[int]] = []
    for dim in dims:
        usual = [dim.most, dim.most * 3 // 4 | 1, dim.most // 2 | 1, dim.most - 1, dim.most - 2, dim.most // 4]
        if any(dims_of(step.left) == {dim} for step in steps):  # near ones may have equal quotients
            usual[4:4] = [dim.most * 11 // 16 | 1, dim.most * 7 // 16 | 1]
        inside = [one for one in usual if max(2, dim.least) <= one <= dim.most]
        beyond = [dim.most + step for step in (1, 2, 3)]
        sizes = list(dict.fromkeys((*inside, *beyond)))
        # Where two dims have one size, passes see tensors that are equal by chance.
        taken = {size for ladder in ladders for size in ladder}
        left = [size for size in sizes if size == dim.most or size not in without.get(dim, ())]
        sizes = left if len(left) >= DEGREE + 2 else sizes
        apart = (dim.most, *(size for size in sizes if size not in taken), *sizes)
        ladders.append(list(dict.fromkeys(apart))[: DEGREE + 2])
    found = [
        tuple(ladder[one] for ladder, one in zip(ladders, numbers, strict=True))
        for numbers in itertools.product(range(DEGREE + 1), repeat=len(dims))
        if sum(one == DEGREE for one in numbers) <= squared
    ]
    found.append(tuple(ladder[-1] for ladder in ladders))
    for number, dim in enumerate(dims):
        below = samples_below(kinks, dim, DEGREE + 2)
        if any(dims_of(step.left) == {dim} for step in steps):
            more = (dim.most - 5, dim.most * 7 // 8, dim.most * 5 // 8 | 1)
            below += [size for size in more if size >= max(2, dim.least)]
            below += _of_other_remainders(dim, steps, {*ladders[number], *below})
            below += _telling_apart(dim, steps, [*ladders[number], *below])
        below = [size for size in below if size not in without.get(dim, ())]
        found += itertools.product(*(below if at == number else ladder[:2] for at, ladder in enumerate(ladders)))
    return list(dict.fromkeys(found))


def _upper(dim: Dim) -> range:
    """Sizes in the upper part of a dim's range, the greatest that are looked at first."""
    return range(dim.most - 1, max(2, dim.least, dim.most // 2, dim.most - MOST_TRIED) - 1, -1)


def _of_other_remainders(dim: Dim, steps: Sequence[Operation], known: Collection[int]) -> list[int]:
    """Sizes of a dim with which its quotients leave every remainder that they can, beside those of known sizes.

    Where each halving of a side finds an even number, half of it and the half less one are alike. Quotients with many
    remainders are left to the usual sizes.
    """
    own = [step for step in steps if dims_of(step.left) == {dim}]

    def left_by(size: int) -> set[tuple[int, int]]:
        there = {dim.name: size}
        return {(number, at(one.left, there) % at(one.right, there)) for number, one in enumerate(own)}

    tried = {size: left_by(size) for size in _upper(dim)}
    wanted = set().union(*tried.values()) - set().union(*map(left_by, known))
    counts = Counter(number for number, _ in set().union(*tried.values()))
    wanted = {(number, rest) for number, rest in wanted if counts[number] <= FEW_REMAINDERS}
    found: list[int] = []
    while wanted:
        found.append(max(tried, key=lambda size: (len(tried[size] & wanted), size)))
        wanted -= tried[found[-1]]
    return found


def _telling_apart(dim: Dim, steps: Sequence[Operation], known: Sequence[int]) -> list[int]:
    """Sizes of a dim, beside known ones, at which no sum of it and its quotients is zero that is not zero at all sizes.

    n // 6 + 1 and (n + 5) // 6 differ only where 6 divides n, and a size may leave any other remainder by 3 and by 2.
    """
    own = [step for step in steps if dims_of(step.left) == {dim}]
    tried = [*known, *(size for size in _upper(dim) if size not in known)]
    rows = [[1, size, *(one.at({dim.name: size}) for one in own)] for size in tried]
    found = System.of([residues(row, PRIMES[0]) for row in rows], PRIMES[0]).pivots
    return [tried[one] for one in found if one >= len(known)]


class _Unifier:
    """Regions of all samples, one after the other."""

    def __init__(self, fit: Fit, samples: Sequence[Lowered], sizes: Buffer, held: Mapping[int, int]) -> None:
        """`held`: where among the sizes lies what an input holds that no caller gives, in bytes."""
        self._fit, self._samples, self._whole, self._sizes, self._held = fit, samples, samples[0], sizes, held
        self._kernels: dict[tuple[str, Any], Kernel] = {}
        self._names: set[str] = set()
        self._same: dict[tuple[Buffer, ...], Buffer] = {}
        self._corners: dict[Buffer, Cut] = {}
        self._moved: dict[tuple[Buffer, object], Buffer] = {}
        self.constants: dict[Buffer, Constant] = {}
        self.problems: Problems = {}  # with sizes, by the names of kernels

    def region(self, row: Sequence[Region]) -> Region:
        """One region of every sample as one; raises Differs."""
        first = row[0]
        known, runs_others = {}, first.kernel.name in self._whole.controls
        for number, operand in enumerate(first.kernel.operands):
            if any(len(one.kernel.operands) != len(first.kernel.operands) for one in row):
                raise Differs("the operands")
            if runs_others and number == MEMORY:
                known[operand.name] = first.places[number]
            else:
                known[operand.name] = self._place([one.places[number] for one in row], operand.name)
        corners = {name: self._corners[place.buffer] for name, place in known.items() if place.buffer in self._corners}
        kernel = self._kernel(row, corners)
        places = []
        for operand in kernel.operands:
            place = Place(self._sizes) if operand.role == SIZES else known[original(operand.name)]
            if place.buffer.role == "constant":
                place = replace(place, buffer=self._constant(place.buffer, operand))
            places.append(place)
        return Region(first.nodes, kernel, tuple(places))

    def _kernel(self, row: Sequence[Region], corners: Mapping[str, Cut]) -> Kernel:
        """The kernel of a region; operands in `corners` are parts of constants, cut by the size."""
        kernels = [one.kernel for one in row]
        found = [one.controls.get(kernel.name) for one, kernel in zip(self._samples, kernels, strict=True)]
        if any(one is None for one in found):
            tables = [sample.problems for sample in self._samples]
            return self._of_problems(kernels, tables, corners, self._kernels, self.problems)
        if corners:
            raise Differs("a constant")
        known: dict[tuple[str, Any], Kernel] = {}  # its own: a control holds the code of what it runs
        return self._of_controls(kernels, [one for one in found if one is not None], known)

    def _of_controls(
        self, kernels: Sequence[Kernel], found: Sequence[Controlled], known: dict[tuple[str, Any], Kernel]
    ) -> Kernel:
        """The kernel of one control at all samples, with those of its bodies' runs, controls among them."""

        def join(inner: Sequence[Kernel]) -> Kernel:
            nested = [one.controls.get(kernel.name) for one, kernel in zip(found, inner, strict=True)]
            if all(one is None for one in nested):
                return self._of_problems(inner, [one.problems for one in found], {}, known, {})
            if any(one is None for one in nested):
                raise Differs("a loop or a condition")
            return self._of_controls(inner, [one for one in nested if one is not None], known)

        controls = in_one_order([one.control for one in found], [one.orders for one in found])
        control = unified_control(self._fit, controls, join)
        return written(control, kernels[0].name, self._whole.target)

    def _of_problems(
        self,
        kernels: Sequence[Kernel],
        tables: Sequence[Problems],
        corners: Mapping[str, Cut],
        known: dict[tuple[str, Any], Kernel],
        problems: Problems,
    ) -> Kernel:
        """One kernel of those of all samples, whose problems are in tables; it joins those known and their problems."""
        found = [table.get(kernel.name) for table, kernel in zip(tables, kernels, strict=True)]
        if any(one is None for one in found):
            if all(kernel == kernels[0] for kernel in kernels):
                return kernels[0]
            raise Differs("a loop or a condition")
        pairs = [one for one in found if one is not None]
        template = pairs[0][0]
        if len({one.name for one, _ in pairs}) > 1:
            raise Differs("the kind of kernel")
        whole = [within(one, pairs[0][1], parts_of(corners, number)) for number, (_, one) in enumerate(pairs)]
        problem = self._fit.unify(whole, template.name)
        key = template.name, problem
        if key not in known:
            kernel = self._built(template, problem, pairs[0][1], kernels[0])
            known[key], problems[kernel.name] = kernel, (template, problem)
        return known[key]

    def _built(self, template: Template[Any, Any], problem: Any, greatest: Any, kernel: Kernel) -> Kernel:
        if problem == greatest:
            self._names.add(kernel.name)
            return kernel
        name = kernel.name
        while name in self._names:
            name += "_other"
        self._names.add(name)
        return Chooser(template, problem, greatest, self._fit.dims, self._whole.target).kernel(name)

    def _place(self, places: Sequence[Place], name: str) -> Place:
        first = places[0]
        if any(one.offset != first.offset for one in places):
            raise Differs(f"where operand '{name}' starts")
        key = tuple(one.buffer for one in places)
        if key not in self._same:
            if any(one.role != first.buffer.role or one.argument != first.buffer.argument for one in key):
                raise Differs(f"where operand '{name}' lies")
            if first.buffer.role == "constant":
                self._check_constants(key, name)
            elif bound(self._fit.number([one.size for one in key], f"the size of '{name}'")) > first.buffer.size:
                raise Differs(f"operand '{name}' is not largest at the greatest sizes")
            self._same[key] = first.buffer
        held = self._held.get(first.buffer.argument or 0) if first.buffer.role == "input" else None
        return first if held is None else Place(self._sizes, held + first.offset)

    def _check_constants(self, buffers: Sequence[Buffer], name: str) -> None:
        """Each is that of the greatest sizes, the first part of it, or cut by the size: its first or last rows."""
        whole = self._whole.constants[buffers[0]].array
        arrays = [sample.constants[one].array for sample, one in zip(self._samples, buffers, strict=True)]
        if not all(is_first_part(array, whole) for array in arrays):
            self._corners[buffers[0]] = cut_of(arrays, whole, name)

    def _constant(self, buffer: Buffer, operand: Operand) -> Buffer:
        """The buffer of a constant as an operand wants it."""
        known = self._whole.constants[buffer]
        if operand.packing is None:
            self.constants[buffer] = known
            return buffer
        key = buffer, operand.packing
        if key not in self._moved:
            self._moved[key] = replace(buffer, id=self._sizes.id + 1 + len(self._moved), size=operand.bytes)
            self.constants[self._moved[key]] = Constant(known.array, operand.packing)
        return self._moved[key]


def _sample(dims: Sequence[Dim], point: Point, lower: Lower) -> Lowered:
    """The regions of one size of the range; raises NotLowered naming it: a size alone may decide more dims."""
    try:
        return lower(point)
    except NotLowered as error:
        reason, size = str(error).rstrip("."), _said(dims, point)
        raise NotLowered(f"{reason} for {size} as one of many: {_way_out(dims)}.") from error


def _said(dims: Sequence[Dim], point: Point) -> str:
    return ", ".join(f"{dim.name}={size}" for dim, size in zip(dims, point, strict=True))


def _way_out(dims: Sequence[Dim]) -> str:
    """What to give instead of ranges: sizes alone, or other ranges."""
    names = ", ".join(f"{dim.name}={dim.most}" for dim in dims)
    alone = f"it cannot be made for a range; give the sizes that you need one by one, {names} for example"
    return ", or ".join((alone, *other_ranges(dims)))


def other_ranges(dims: Sequence[Dim]) -> list[str]:
    """Ranges that models take more often: dims that are equal, as those of a mask and its tokens, and multiples."""
    ways = []
    pairs = itertools.combinations(dims, 2)
    alike = next(((a, b) for a, b in pairs if (a.least, a.most) == (b.least, b.most)), None)
    if alike is not None:
        ways.append(f"say which are always equal, {alike[1].name}={alike[0].name} for example")
    large = next((dim for dim in dims if dim.most >= 2 * HALVED), None)
    if large is not None:
        least, most = max(1, -(-large.least // HALVED)), large.most // HALVED
        example = f"{large.name}={HALVED}*n with n={least}..{most}"
        ways.append(f"multiples, if the model joins what it has halved, {example} for example")
    return ways

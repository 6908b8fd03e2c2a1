"""Sizes for the dynamic dims of a model's inputs: first ones that it accepts, then ones that tell dims apart.

Names are not always honest: past lengths that must agree have different names, a mask is one longer than the past. So
the first search tries each dim with a size of its own, then all lengths alike, then single dims moved by one; a dim
whose name is a formula of others ("past+sequence") first follows from them. Once a
model accepts some sizes, others are made from them: all dims apart, all moved alike, ones, primes above 16 and 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from graphopt.check.inputs import Input
from graphopt.model.formulas import formula_at

Assignment = dict[str, int]
Kind = Literal["batch", "length", "image"]

# Sizes by kind of dim and round. Image sides survive the strides of a backbone, and height is never width.
BATCH = (2, 3)
LENGTH = (3, 5)
IMAGE = ((64, 96), (96, 64))
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
MIDDLE = (17, 19, 23, 29, 31, 37, 41, 43, 47, 53)  # above 16
LARGE = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73)  # above 32
UNIFORM = (1, 2, 4, 7, 8, 10, 16, 32, 50, 128, 224, 256, 320, 512, 640, 1024, 4096, 16384, 65536)
MOVED = 12  # dims that are moved one by one


def kinds_of(inputs: tuple[Input, ...]) -> dict[str, tuple[Kind, int]]:
    """Every dynamic dim: what it seems to be, and the axis at which it was seen first."""
    kinds: dict[str, tuple[Kind, int]] = {}
    for item in inputs:
        rank = len(item.dims or ())
        for axis, dim in enumerate(item.dims or ()):
            if isinstance(dim, str):
                image = axis >= 2 and rank >= 4 and item.is_float
                kinds.setdefault(dim, ("image" if image else "batch" if axis == 0 and rank > 1 else "length", axis))
    return kinds


def first_sizes(inputs: tuple[Input, ...]) -> Iterator[Assignment]:
    """Sizes to begin with, the likeliest first, without repetition; the caller keeps those that the model accepts."""
    return _distinct(one for plan in _first(kinds_of(inputs)) for one in (_followed(plan), plan))


def _first(kinds: Mapping[str, tuple[Kind, int]]) -> Iterator[Assignment]:
    if not kinds:
        yield {}
        return
    leading = {name for name, (_, axis) in kinds.items() if axis == 0}
    yield _apart(kinds, BATCH[0], PRIMES, IMAGE[0])
    guesses = [{name: _alike(kind, axis, pick) for name, (kind, axis) in kinds.items()} for pick in (0, 1)]
    uniform = [dict.fromkeys(kinds, size) for size in LENGTH]
    yield from guesses
    yield from uniform
    singles = [{name: 1 if name in leading else size for name, size in plan.items()} for plan in (*guesses, *uniform)]
    yield from singles
    for pair in ((singles[2], singles[3]), (uniform[0], uniform[1])):
        for name in list(kinds)[:MOVED]:
            for base in pair:
                yield {**base, name: base[name] + 1}
    for size in UNIFORM:
        yield dict.fromkeys(kinds, size)
        yield {name: 1 if name in leading and len(kinds) > 1 else size for name in kinds}


def more_sizes(inputs: tuple[Input, ...], accepted: Assignment) -> dict[str, list[Assignment]]:
    """By purpose, sizes to try beside the `accepted` ones; of each list the first that the model accepts counts."""
    kinds = kinds_of(inputs)
    if not kinds:
        return {}
    lengths = [name for name, (kind, _) in kinds.items() if kind == "length"]

    def moved(by: int, batch: int) -> Assignment:
        """All lengths longer by the same, so that what must agree still does."""
        return {
            name: batch if kind == "batch" else size + by if kind == "length" else size
            for name, size in accepted.items() for kind, _ in (kinds[name],)
        }  # fmt: skip

    turned = dict(accepted)
    sides = [name for name, (kind, _) in kinds.items() if kind == "image"]
    if len(sides) == 2:
        turned |= {sides[0]: accepted[sides[1]], sides[1]: accepted[sides[0]]}
    else:
        turned |= {name: size + 32 for name, size in accepted.items() if name in sides}
    ones = {name: accepted[name] if kinds[name][0] == "image" else 1 for name in kinds}
    other = {**moved(2, 3), **{name: turned[name] for name in sides}}
    plans = {
        "middle": [
            {**_apart(kinds, 5, MIDDLE, IMAGE[1]), **{name: turned[name] for name in sides}},
            {**moved(16, 5), **{name: turned[name] for name in sides}},
            other, moved(16, accepted_batch(kinds, accepted)),
        ],
        "ones": [ones, {**accepted, **{name: 1 for name, (kind, _) in kinds.items() if kind == "batch"}},
                 {**accepted, **dict.fromkeys(lengths, 1)}],
        "large": [
            {**_apart(kinds, 17, LARGE, IMAGE[0]), **{name: accepted[name] for name in sides}}, moved(34, 17),
            moved(34, accepted_batch(kinds, accepted)),
        ],
        "odd": [{**accepted, **{name: accepted[name] + step for name, step in zip(sides, (3, 6), strict=False)}},
                {**accepted, **{name: accepted[name] + 32 for name in sides}}] if sides else [],
    }  # fmt: skip
    if _followed(accepted) != accepted:  # names that are not honest
        return plans
    return {purpose: [_followed(plan) for plan in several] for purpose, several in plans.items()}


def _followed(plan: Assignment) -> Assignment:
    """The sizes where dims whose names are formulas of others follow from them."""
    found = {name: formula_at(name, plan) for name in plan}
    return {name: one if isinstance(one := found[name], int) and one > 0 else size for name, size in plan.items()}


def accepted_batch(kinds: Mapping[str, tuple[Kind, int]], accepted: Assignment) -> int:
    """The size of the first batch-like dim, 1 where there is none."""
    return next((accepted[name] for name, (kind, _) in kinds.items() if kind == "batch"), 1)


def _apart(
    kinds: Mapping[str, tuple[Kind, int]], batch: int, primes: tuple[int, ...], sides: tuple[int, int]
) -> Assignment:
    """Every dim with a size of its own: batches that differ by one, primes, sides that differ."""
    counts = {"batch": 0, "length": 0, "image": 0}
    found: Assignment = {}
    for name, (kind, _) in kinds.items():
        number = counts[kind]
        counts[kind] += 1
        if kind == "batch":
            found[name] = batch + number
        elif kind == "length":
            found[name] = primes[number % len(primes)] + 60 * (number // len(primes))
        else:
            found[name] = sides[number % 2]
    return found


def _alike(kind: Kind, axis: int, pick: int) -> int:
    if kind == "image":
        return IMAGE[pick][axis % 2]
    return BATCH[pick] if kind == "batch" else LENGTH[pick]


def _distinct(plans: Iterable[Assignment]) -> Iterator[Assignment]:
    seen: list[Assignment] = []
    for plan in plans:
        if plan not in seen:
            seen.append(plan)
            yield plan

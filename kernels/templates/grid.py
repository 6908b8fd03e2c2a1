"""Cutting a range into pieces of two sizes at most, and loops over any stretch of those pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from kernels.llvm.function import Amount, Function, Value
from kernels.size import bound, greatest, is_free


@dataclass(frozen=True, slots=True)
class Group:
    """`count` pieces of `size` that follow one another; the first is piece `first` and starts at `start`."""

    size: int
    count: int
    first: int
    start: int


class Following(Value, frozen=True):
    """The piece after another one, where the two are the ends of a stretch: it has one piece."""


@dataclass(frozen=True, slots=True)
class FreeGroups:
    """What `balanced` makes of a total that only the run knows: pieces of any size up to `most`, code for each.

    `shortest`: no piece is shorter.
    """

    total: int  # a Size, as are the numbers that follow from it
    most: int
    shortest: int = 1

    @property
    def pieces(self) -> int:
        """How many there are."""
        return -(-self.total // self.most)

    @property
    def size(self) -> int:
        """Elements of a piece; the first `larger` ones have one more."""
        return self.total // greatest(1, self.pieces)  # a run may have none

    @property
    def larger(self) -> int:
        """How many pieces are larger by one."""
        return self.total - self.size * self.pieces


Groups = Sequence[Group] | FreeGroups


def tallest(groups: Groups) -> int:
    """No piece is larger."""
    return groups.most if isinstance(groups, FreeGroups) else max((group.size for group in groups), default=0)


def cut(total: int, most: int) -> Groups:
    """`balanced`, of a total that may be known only by the run."""
    return FreeGroups(total, min(most, bound(total))) if is_free(total) else balanced(total, most)


@cache
def balanced(total: int, most: int) -> tuple[Group, ...]:
    """As few pieces of at most `most` as possible, sizes differing by one at most: 128 by 14 is 8 x 13 + 2 x 12."""
    if total <= 0:
        return ()
    pieces = -(-total // most)
    size, larger = divmod(total, pieces)
    groups = []
    if larger:
        groups.append(Group(size + 1, larger, 0, 0))
    if pieces > larger:
        groups.append(Group(size, pieces - larger, larger, larger * (size + 1)))
    return tuple(groups)


def pieces(groups: Groups) -> int:
    """How many pieces there are, a `Size` of free groups."""
    if isinstance(groups, FreeGroups):
        return groups.pieces
    return sum(group.count for group in groups)


def split_last(groups: tuple[Group, ...], rest: int) -> tuple[Group, ...]:
    """The last piece as a group of its own when its last vector has but `rest` lanes."""
    if not rest or not groups or groups[-1].count == 1:
        return groups
    last = groups[-1]
    count = last.count - 1
    alone = Group(last.size, 1, last.first + count, last.start + count * last.size)
    return (*groups[:-1], replace(last, count=count), alone)


def even(total: int, most: int) -> int:
    """A stretch of at most `most` pieces that cuts all pieces into stretches of nearly one size."""
    return -(-total // greatest(1, -(-total // most)))


def stretch_of(f: Function, block: Value, stretch: int, total: int) -> tuple[Amount, Amount]:
    """The first of the pieces of a block, and the one after its last; numbers where one block has all.

    A block has at most `stretch` pieces, and as many as any other one, or one fewer.
    """
    if not is_free(total) and total <= stretch:
        return 0, total
    blocks = greatest(1, -(-total // stretch))
    first, last = _share(f, block, blocks, total), _share(f, f.add(block, 1), blocks, total)
    return first, Following(last.parts, last.type) if blocks == total else last


def _share(f: Function, number: Value, count: int, total: int) -> Value:
    """Where share `number` of `count` begins; any run of shares has its part of the total, to a piece."""
    if total % count == 0:
        return f.mul(number, total // count)
    return f.binary("udiv", f.mul(number, total), f.integer(count))


def start_of(f: Function, groups: Groups, piece: Amount) -> Value:
    """Where a piece starts; for one after the last piece, the end."""
    if isinstance(groups, FreeGroups):
        first = f.integer(piece)
        return f.add(f.mul(first, groups.size), f.minimum(first, f.integer(groups.larger)))
    if isinstance(piece, int):
        assert piece == 0, "a lone block begins with the first piece"
        return f.integer(0)
    start = f.integer(0)
    for number, group in enumerate(groups):
        here = f.add(f.mul(piece, group.size), group.start - group.first * group.size)
        start = here if number == 0 else f.select(f.compare("sge", piece, f.integer(group.first)), here, start)
    return start


def each_piece(f: Function, groups: Groups, first: Amount, last: Amount, body: Callable[[Group, Value], None]) -> None:
    """body(group, start) for the pieces from `first` to before `last`, in order."""
    if isinstance(groups, FreeGroups):
        f.loop(first, last, 1, lambda piece, _: _of_any_size(f, groups, piece, body))
        return

    def one(piece: Value, group: Group) -> None:
        body(group, f.add(f.mul(piece, group.size), group.start - group.first * group.size))

    if isinstance(last, Following):
        _in_group(f, groups, f.integer(first), one)
        return
    for group in groups:
        begin, end = group.first, group.first + group.count
        low = max(first, begin) if isinstance(first, int) else _at_least(f, first, begin)
        high = min(last, end) if isinstance(last, int) else last
        if isinstance(high, Value) and group is not groups[-1]:
            high = f.minimum(high, f.integer(end))

        def each(piece: Value, _: tuple[Value, ...], group: Group = group) -> None:
            one(piece, group)

        f.loop(low, high, 1, each)


def _of_any_size(f: Function, groups: FreeGroups, piece: Value, body: Callable[[Group, Value], None]) -> None:
    """body(group, start) for one piece, whose size is found when it is its turn."""
    start = start_of(f, groups, piece)
    size = f.sub(start_of(f, groups, f.add(piece, 1)), start)
    f.switch(size, range(groups.shortest, groups.most + 1), lambda one: body(Group(one, 1, 0, 0), start))


def _in_group(f: Function, groups: Sequence[Group], piece: Value, body: Callable[[Value, Group], None]) -> None:
    """body(piece, group) for the group that has a piece."""
    if len(groups) == 1:
        body(piece, groups[0])
        return
    is_here = f.compare("slt", piece, f.integer(groups[1].first))
    f.when(is_here, lambda: body(piece, groups[0]), lambda: _in_group(f, groups[1:], piece, body))


def _at_least(f: Function, value: Value, low: int) -> Value:
    return f.maximum(value, f.integer(low)) if low else value


def one_of(f: Function, groups: Groups, number: Value, body: Callable[[Group, Value], None]) -> None:
    """body(group, start) for one piece, where sizes take turns: pieces that follow one another are as large as others.

    Pieces of two sizes lie as `balanced` cuts them, but in the order in which runs of them are even; free ones lie as
    they are.
    """
    if isinstance(groups, FreeGroups):
        _of_any_size(f, groups, number, body)
        return
    count, total = pieces(groups), sum(group.size * group.count for group in groups)
    start = _share(f, number, count, total)
    if len(groups) == 1:
        body(groups[0], start)
        return
    size = f.sub(_share(f, f.add(number, 1), count, total), start)
    large, small = groups
    is_large = f.compare("eq", size, f.integer(large.size))
    f.when(is_large, lambda: body(large, start), lambda: body(small, start))


def unravel(f: Function, number: Value, dims: Sequence[int]) -> tuple[Value, ...]:
    """The indices of a number in row-major order; one for each dim."""
    found: list[Value] = []
    for size in reversed(dims[1:]):
        if size == 1:
            found.append(f.integer(0))
            continue
        quotient = f.binary("udiv", number, f.integer(size))
        found.append(f.sub(number, f.mul(quotient, size)))
        number = quotient
    if dims:
        found.append(f.integer(0) if dims[0] == 1 else number)
    return tuple(reversed(found))

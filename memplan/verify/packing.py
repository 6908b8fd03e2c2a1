"""Whether offsets keep their promises: every pair of buffers that is near in memory is looked at by itself."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.errors import MemplanError
from memplan.plan import Packing
from memplan.problem import Buffer, MemoryProblem

STRETCH = 64  # steps


class WrongPlan(MemplanError):
    """A plan that breaks a promise; the message names the buffers that clash, or the wrong number."""


@dataclass(frozen=True, slots=True)
class _Placed:
    buffer: Buffer
    offset: int
    end: int  # first byte behind it
    root: str  # the buffer that takes the bytes
    root_offset: int | None  # where that one starts


def verify(problem: MemoryProblem, packing: Packing) -> None:
    """Raises WrongPlan naming the buffers that clash, the one that is not placed well, or the wrong number."""
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    placed = [_checked(problem, packing, buffer, by_name) for buffer in problem.buffers]
    if problem.capacity is not None and packing.arena_size > problem.capacity:
        raise WrongPlan(f"the arena of {packing.arena_size} bytes is larger than the capacity of {problem.capacity}.")
    placed.sort(key=lambda one: (one.offset, one.buffer.name))
    _compare_all([one for one in placed if one.buffer.size], by_name)
    needed = _needed(problem)
    if not needed <= packing.lower_bound <= packing.arena_size:
        raise WrongPlan(
            f"the bound {packing.lower_bound} lies not between the {needed} bytes live at once and the arena of "
            f"{packing.arena_size}."
        )


def _checked(problem: MemoryProblem, packing: Packing, buffer: Buffer, by_name: dict[str, Buffer]) -> _Placed:
    offset = packing.offsets.get(buffer.name)
    if offset is None:
        raise WrongPlan(f"buffer '{buffer.name}' has no offset.")
    alignment = problem.alignment_of(buffer)
    if offset < 0 or offset % alignment:
        raise WrongPlan(f"buffer '{buffer.name}' starts at {offset}, which is no multiple of {alignment}.")
    if buffer.offset is not None and offset != buffer.offset:
        raise WrongPlan(f"buffer '{buffer.name}' is pinned to {buffer.offset} and starts at {offset}.")
    if offset + buffer.size > packing.arena_size:
        raise WrongPlan(f"buffer '{buffer.name}' ends at {offset + buffer.size}, behind the arena's end.")
    root = buffer
    while root.alias is not None:
        base = by_name[root.alias.of]
        if root is buffer and offset != packing.offsets.get(base.name, -1) + root.alias.at:
            raise WrongPlan(
                f"buffer '{buffer.name}' lies in '{base.name}' at {root.alias.at}, but starts at {offset} while that "
                f"starts at {packing.offsets.get(base.name)}."
            )
        root = base
    return _Placed(buffer, offset, offset + buffer.size, root.name, packing.offsets.get(root.name))


def _compare_all(placed: list[_Placed], by_name: dict[str, Buffer]) -> None:
    """Every pair that shares bytes, from low offsets to high ones, and stretch of steps by stretch.

    Pairs that no stretch has both of never meet in time; only layouts are compared all the same.
    """
    timeless = any(buffer.layout is not None for buffer in by_name.values())
    stretch = max((buffer.end for buffer in by_name.values()), default=1) if timeless else STRETCH
    active: dict[int, list[_Placed]] = {}
    for one in placed:
        for number in range(one.buffer.begin // stretch, (one.buffer.end - 1) // stretch + 1):
            # Those that end at or before this offset cannot overlap it nor anything after it.
            active[number] = [other for other in active.get(number, ()) if other.end > one.offset]
            for other in active[number]:
                if max(one.buffer.begin, other.buffer.begin) // stretch == number:  # else in an earlier stretch
                    _compare(other, one, by_name)
            active[number].append(one)


def _compare(one: _Placed, other: _Placed, by_name: dict[str, Buffer]) -> None:
    """Two buffers that share bytes: in time apart, or of one family and of the same contents."""
    first, second = by_name[one.root], by_name[other.root]
    if first.layout is not None or second.layout is not None:
        alike = first.layout == second.layout and first.size == second.size
        if first is not second and not (alike and one.root_offset == other.root_offset):
            raise WrongPlan(
                f"buffers '{one.buffer.name}' (layout {first.layout!r}) and '{other.buffer.name}' (layout "
                f"{second.layout!r}) share bytes, which only one place of one layout may."
            )
    clash = _clash(one.buffer, other.buffer)
    if clash is None or (one.root == other.root and _may_share(one.buffer, other.buffer, by_name)):
        return
    raise WrongPlan(f"buffers '{one.buffer.name}' and '{other.buffer.name}' share bytes at step {clash}.")


def _clash(one: Buffer, other: Buffer) -> int | None:
    for begin, end in one.ranges():
        for other_begin, other_end in other.ranges():
            if begin < other_end and other_begin < end:
                return max(begin, other_begin)
    return None


def _may_share(one: Buffer, other: Buffer, by_name: dict[str, Buffer]) -> bool:
    """Whether what is written later leaves the other what it needs. Both are of one family and needed at one step.

    A view writes nothing. A result in place destroys what stood there: right where that ends with the step. Anything
    else writes all its bytes, except where what was made before lies in it as a slice.
    """
    pairs = [(one, other)] if one.begin < other.begin else [(other, one)]
    if one.begin == other.begin:
        pairs.append((one, other))
    return any(_leaves(early, late, by_name) for early, late in pairs)


def _leaves(early: Buffer, late: Buffer, by_name: dict[str, Buffer]) -> bool:
    if late.alias is not None:
        if late.alias.overwrites:
            return early.end <= late.begin + 1
        if by_name[late.alias.of].begin <= late.begin:
            return True
    walked = early
    while walked.alias is not None:
        walked = by_name[walked.alias.of]
        if walked is late:
            return True
    return False


def _needed(problem: MemoryProblem) -> int:
    """The most bytes that are needed at any one step, sizes as they are; those that lie in others count nothing."""
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        if buffer.alias is None:
            for begin, end in buffer.ranges():
                changes[begin] = changes.get(begin, 0) + buffer.size
                changes[end] = changes.get(end, 0) - buffer.size
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most

"""Small packing problems as hypothesis draws them, and the least arena of one by trying everything."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from hypothesis import strategies as st

from memplan.bounds import alias_classes
from memplan.problem import Alias, Buffer, MemoryProblem

Ranges = tuple[tuple[int, int], ...]


@st.composite
def problems(draw: st.DrawFn, *, most: int = 6, free_pins: bool = False) -> MemoryProblem:
    """Up to `most` buffers with alignments, pins, gaps, layouts and aliases mixed.

    Pins lie apart, so that they never clash, unless `free_pins`; buffers of one layout want the problem's alignment,
    unless `free_pins`.
    """
    alignment = draw(st.sampled_from([1, 4, 16]))
    buffers: list[Buffer] = []
    for index in range(draw(st.integers(0, most))):
        begin = draw(st.integers(0, 8))
        end = begin + draw(st.integers(1, 6))
        kind = draw(st.sampled_from(["plain", "plain", "plain", "aligned", "pinned", "gap", "layout", "alias"]))
        buffer = Buffer(f"b{index}", draw(st.integers(0, 40)), begin, end)
        if kind == "aligned":
            buffer = Buffer(f"b{index}", buffer.size, begin, end, alignment=draw(st.sampled_from([2, 8, 32])))
        elif kind == "pinned":
            at = 64 * (draw(st.integers(0, 2)) if free_pins else index)
            buffer = Buffer(f"b{index}", buffer.size, begin, end, offset=at)
        elif kind == "gap" and end - begin > 2:
            buffer = Buffer(f"b{index}", buffer.size, begin, end, gaps=((begin + 1, end - 1),))
        elif kind == "layout":
            step = draw(st.sampled_from([None, 8])) if free_pins else None
            layout, size = draw(st.sampled_from(["A", "B"])), draw(st.sampled_from([8, 20]))
            buffer = Buffer(f"b{index}", size, begin, end, alignment=step, layout=layout)
        elif kind == "alias" and buffers:
            base = draw(st.sampled_from(buffers))
            at = draw(st.integers(0, base.size))
            view = Alias(base.name, at)
            buffer = Buffer(
                f"b{index}", draw(st.integers(0, base.size - at)), base.begin + 1, base.begin + 1 + end, alias=view
            )
        buffers.append(buffer)
    return MemoryProblem(tuple(buffers), alignment)


@dataclass(frozen=True)
class _Piece:
    buffer: Buffer
    ranges: Ranges
    offset: int
    top: int


def least_arena(problem: MemoryProblem) -> int:
    """The least arena: every order, each buffer at its lowest place or at one of its layout that has become free.

    Sorted by offset, the buffers of a best packing can be pushed down one after the other: so one of the orders is it.
    """
    unit = problem.granularity
    ranges = alias_classes(problem)
    roots = [buffer for buffer in problem.buffers if buffer.name in ranges and buffer.size > 0]
    height = max((buffer.offset or 0 for buffer in problem.buffers), default=0)

    def piece(buffer: Buffer, offset: int) -> _Piece:
        return _Piece(buffer, ranges[buffer.name], offset, offset + -(-buffer.size // unit) * unit)

    def legal(one: _Piece, placed: list[_Piece]) -> bool:
        for other in placed:
            apart = one.top <= other.offset or other.top <= one.offset
            layouts = {one.buffer.layout, other.buffer.layout}
            if not apart and layouts != {None}:
                apart = len(layouts) == 1 and one.buffer.size == other.buffer.size and one.offset == other.offset
                apart = apart and not _meet(one.ranges, other.ranges)
            if not apart and (layouts != {None} or _meet(one.ranges, other.ranges)):
                return False
        return True

    best = [1 << 60]

    def go_on(waiting: tuple[Buffer, ...], placed: list[_Piece], top: int) -> None:
        if top >= best[0]:
            return
        if not waiting:
            best[0] = top
            return
        buffer, step = waiting[0], problem.alignment_of(waiting[0])
        low = sorted({-(-one // step) * step for one in [0, *(other.top for other in placed)]})
        lowest = next(one for one in low if legal(piece(buffer, one), placed))
        alike = {other.offset for other in placed if buffer.layout is not None and other.buffer.layout == buffer.layout}
        for offset in sorted({lowest, *alike}):
            one = piece(buffer, offset)
            if legal(one, placed):
                go_on(waiting[1:], [*placed, one], max(top, one.top))

    pinned = [piece(buffer, buffer.offset) for buffer in roots if buffer.offset is not None]
    height = max([height, *(one.top for one in pinned)])
    for order in permutations([buffer for buffer in roots if buffer.offset is None]):
        go_on(order, pinned, height)
    return best[0]


def _meet(one: Ranges, other: Ranges) -> bool:
    return any(begin < other_end and other_begin < end for begin, end in one for other_begin, other_end in other)

"""Graphs for hypothesis: a few tasks, each waiting for some of those before it."""

from __future__ import annotations

from hypothesis import strategies as st

Graph = tuple[list[int], list[list[int]]]


@st.composite
def small_graphs(draw: st.DrawFn, most: int = 6, least_time: int = 0) -> Graph:
    count = draw(st.integers(1, most))
    times = draw(st.lists(st.integers(least_time, 9), min_size=count, max_size=count))
    before = [sorted(draw(st.sets(st.integers(0, one - 1), max_size=3))) if one else [] for one in range(count)]
    return times, before

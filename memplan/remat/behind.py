"""Operators that change what others read, as a weight that is updated in place: they run behind all runs of those."""

from __future__ import annotations

import numpy as np

from memplan.graph import Graph
from memplan.ordering.arrays import Arrays, Ints

NONE = np.empty(0, np.int64)


class Changes:
    """The operators of a graph that change what others read."""

    def __init__(self, graph: Graph, arrays: Arrays) -> None:
        number = {name: position for position, name in enumerate(arrays.names)}
        self._arrays = arrays
        self._after = {
            number[one.name]: np.array([number[name] for name in one.after], np.int64)
            for one in graph.operators if one.changes and one.after
        }  # fmt: skip
        counts = [len(some) for some in self._after.values()]
        self._changing = np.repeat(np.array(list(self._after), np.int64), counts)
        self._reading = np.concatenate([*self._after.values()]) if self._after else NONE

    def behind(self, runs: Ints) -> Ints:
        """The runs, each change as late as the last run of who reads before it asks for; none where that cannot be.

        What reads of a change, or comes after it, is as late. An operator of several runs is not moved.
        """
        count, places = self._arrays.count, np.arange(len(runs))
        first, last = np.full(count, -1), np.full(count, -1)
        last[runs] = places
        first[runs[::-1]] = places[::-1]
        if not (last[self._reading] > first[self._changing]).any():
            return runs
        target: dict[int, int] = {}
        moved: dict[int, list[int]] = {}
        for one in runs[np.sort(first[first >= 0])].tolist():
            ends = [target[before] for before in self._arrays.before[one].tolist() if before in target]
            if one in self._after:
                ends.append(int(last[self._after[one]].max()))
            if not ends or max(ends) <= first[one]:
                continue
            if first[one] != last[one]:
                return NONE
            target[one] = last[one] = max(ends)
            moved.setdefault(max(ends), []).append(one)
        found: list[int] = []
        for place, one in enumerate(runs.tolist()):
            if one not in target:
                found.append(one)
            found += moved.get(place, ())
        return np.array(found, np.int64)

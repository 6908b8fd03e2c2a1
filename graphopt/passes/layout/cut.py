"""A minimum cut by shortest augmenting paths (Dinic 1970), on networks whose paths are short."""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """Vertices 0 (source) and 1 (sink) and those that are added; edges with integer capacities."""

    def __init__(self) -> None:
        self._heads: list[int] = []  # the edges 2k and 2k + 1 are each other's reverse
        self._room: list[int] = []
        self._edges: list[list[int]] = [[], []]

    def vertex(self) -> int:
        """A new vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """An edge that costs `capacity` when its tail is on the source's side and its head on the sink's."""
        if tail == head or capacity <= 0:
            return
        for one, other, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[one].append(len(self._heads))
            self._heads.append(other)
            self._room.append(room)

    def sink_side(self, known: int) -> list[bool] | None:
        """For each vertex whether a cheapest cut puts it on the sink's side; the source's side is the smallest.

        None when no cut is cheaper than the one of cost `known`: the flow ends when it reaches that, which spares the
        work on regions without gain, and those are most.
        """
        level = self._levels()
        while level[SINK] >= 0:
            known -= self._block(level, known)
            if known <= 0:
                return None
            level = self._levels()
        return [depth < 0 for depth in level]

    def _levels(self) -> list[int]:
        """The distance of each vertex from the source along edges with room; -1 where there is no way."""
        level = [-1] * len(self._edges)
        level[SOURCE] = 0
        pending = deque([SOURCE])
        while pending:
            tail = pending.popleft()
            for edge in self._edges[tail]:
                head = self._heads[edge]
                if self._room[edge] and level[head] < 0:
                    level[head] = level[tail] + 1
                    pending.append(head)
        return level

    def _block(self, level: list[int], enough: int) -> int:
        """Send flow along shortest paths until none is left, or `enough` is sent; gives what was sent."""
        sent = 0
        following = [0] * len(self._edges)  # the edge of each vertex to try next
        path: list[int] = []
        at = SOURCE
        while True:
            if at == SINK:
                amount = min(self._room[edge] for edge in path)
                sent += amount
                if sent >= enough:
                    return sent
                first = 0
                for place, edge in reversed(list(enumerate(path))):
                    self._room[edge] -= amount
                    self._room[edge ^ 1] += amount
                    if not self._room[edge]:
                        first = place
                at = self._heads[path[first] ^ 1]
                del path[first:]
                continue
            edges = self._edges[at]
            while following[at] < len(edges):
                edge = edges[following[at]]
                if self._room[edge] and level[self._heads[edge]] == level[at] + 1:
                    break
                following[at] += 1
            if following[at] < len(edges):
                path.append(edges[following[at]])
                at = self._heads[path[-1]]
            elif path:
                at = self._heads[path.pop() ^ 1]
                following[at] += 1
            else:
                return sent

"""Where the lanes of a warp that part at a branch meet again: its immediate post-dominator."""

from __future__ import annotations

from collections.abc import Sequence


def meeting(successors: Sequence[Sequence[int]]) -> list[int]:
    """For each node of a flow graph the nearest other one that every way from it to an end passes; -1 where none is.

    Nodes without successors are ends. Cooper, Harvey and Kennedy, A simple, fast dominance algorithm, on the reverse
    graph, to which one exit behind all ends is added.
    """
    count = len(successors)
    ends = count  # the exit that is added
    after: list[list[int]] = [list(one) or [ends] for one in successors] + [[]]
    before: list[list[int]] = [[] for _ in range(count + 1)]
    for node, following in enumerate(after):
        for other in following:
            before[other].append(node)
    order = _postorder(before, ends)
    rank = {node: place for place, node in enumerate(order)}
    nearest: dict[int, int] = {ends: ends}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [other for other in after[node] if other in nearest]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    while rank[best] < rank[other]:
                        best = nearest[best]
                    while rank[other] < rank[best]:
                        other = nearest[other]
            if nearest.get(node) != best:
                nearest[node] = best
                changed = True
    return [nearest[node] if nearest.get(node, ends) != ends else -1 for node in range(count)]


def _postorder(successors: Sequence[Sequence[int]], root: int) -> list[int]:
    """Nodes that are reached from the root, each behind those that it leads to; the root is the last."""
    found: list[int] = []
    seen = {root}
    stack = [(root, iter(successors[root]))]
    while stack:
        node, rest = stack[-1]
        following = next((one for one in rest if one not in seen), None)
        if following is None:
            found.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    return found

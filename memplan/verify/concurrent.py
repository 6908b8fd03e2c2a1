"""Whether buffers may share bytes in a program whose operators run beside each other.

Two buffers may share bytes only if every access of one happens before every write of the other, in the order that the
program itself enforces; that one stands before the other in some list is not enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx

from memplan.accesses import Accesses
from memplan.plan import Packing
from memplan.problem import InvalidProblem
from memplan.verify.packing import WrongPlan


def verify_concurrent(sizes: Mapping[str, int], packing: Packing, accesses: Accesses) -> None:
    """Raises WrongPlan naming two buffers that share bytes and the two accesses that may meet.

    `sizes`: bytes of each buffer. Raises InvalidProblem where what happens before what goes in a circle.
    """
    order: networkx.DiGraph = networkx.DiGraph(accesses.before)
    order.add_nodes_from(accesses.items)
    if not networkx.is_directed_acyclic_graph(order):
        circle = " -> ".join(str(edge[0]) for edge in networkx.find_cycle(order))
        raise InvalidProblem(f"what happens before what goes in a circle: {circle}.")
    later = {item: networkx.descendants(order, item) for item in accesses.items}
    writers: dict[str, list[str]] = {name: [] for name in sizes}
    users: dict[str, list[str]] = {name: [] for name in sizes}
    for item in accesses.items:
        for name in accesses.writes.get(item, ()):
            writers[name].append(item)
            users[name].append(item)
        for name in accesses.reads.get(item, ()):
            users[name].append(item)
    names = sorted((name for name in sizes if sizes[name]), key=lambda name: packing.offsets[name])
    for position, one in enumerate(names):
        for other in names[position + 1 :]:
            if packing.offsets[other] >= packing.offsets[one] + sizes[one]:
                break
            forwards = _meeting(users[one], writers[other], later)
            backwards = _meeting(users[other], writers[one], later)
            if forwards is not None and backwards is not None:
                early, late = forwards
                raise WrongPlan(
                    f"buffers '{one}' and '{other}' share bytes, and nothing makes '{early}' (which uses '{one}') "
                    f"happen before '{late}' (which writes '{other}')."
                )


def _meeting(users: Sequence[str], writers: Sequence[str], later: Mapping[str, set[str]]) -> tuple[str, str] | None:
    """A use that is not known to happen before a write."""
    for use in users:
        for write in writers:
            if write not in later[use]:
                return use, write
    return None

"""Whether buffers may lie where they do: those that share bytes are never in use at the same time, on any run.

Of two buffers with a byte in common, every access of one has to happen before every write of the other. Which is the
earlier one is looked up in one simulated run: if the program orders them at all, then as in every run. That it does
order them is decided by the verifier, for whose needs they are taken. It knows nothing of how bytes were given out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import networkx
import numpy as np

from scheduler.buffers import Buffer, Buffers
from scheduler.device import Device
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.program import Program
from scheduler.simulate import simulate
from scheduler.tasks import Need, TaskGraph
from scheduler.verify.program import verify


def verify_reuse(graph: TaskGraph, program: Program, buffers: Buffers, device: Device) -> int:
    """The number of pairs of buffers that share bytes, all of which the program keeps apart.

    Raises UnsafeProgram naming two buffers that may be in use at once, or a region that reads what nothing makes it
    wait for; InvalidProgram for buffers of another graph; and what `verify` raises.
    """
    buffers.check()
    known = {region.name for region in graph.regions}
    for buffer in buffers.buffers:
        for region in (*buffer.readers, *buffer.writers):
            if region not in known:
                raise InvalidProgram(f"buffer '{buffer.name}' is used by the region '{region}', which is not there.")
    verify(graph, program, device)
    _check_readers(graph, buffers.buffers)
    begins, ends = _lives(graph, program, buffers.buffers, device)
    pairs = list(_sharing(buffers.buffers))
    ordered = [(one, other) if ends[one] <= begins[other] else (other, one) for one, other in pairs]
    wanted = [_needs(buffers.buffers[one], buffers.buffers[other]) for one, other in ordered]
    every = tuple(dict.fromkeys(need for needs in wanted for need in needs))
    if _holds(graph, program, every, device):
        return len(pairs)
    for (one, other), needs in zip(pairs, wanted, strict=True):
        if not _holds(graph, program, needs, device):
            raise UnsafeProgram(
                f"buffers '{buffers.buffers[one].name}' and '{buffers.buffers[other].name}' share bytes, and nothing "
                "makes all uses of one come before the other is written."
            )
    raise AssertionError("what all needs together break, one of them breaks")


def _check_readers(graph: TaskGraph, buffers: Sequence[Buffer]) -> None:
    """Raises UnsafeProgram for a region that reads a buffer without a need, direct or not, for any of its writers."""
    order: networkx.DiGraph = networkx.DiGraph((need.source, need.target) for need in graph.needs)
    order.add_nodes_from(region.name for region in graph.regions)
    after = {name: networkx.descendants(order, name) for one in buffers for name in one.writers}
    for one in buffers:
        for reader in one.readers:
            if reader not in one.writers and not any(reader in after[writer] for writer in one.writers):
                raise UnsafeProgram(f"region '{reader}' reads buffer '{one.name}', and needs none that writes it.")


def _lives(
    graph: TaskGraph, program: Program, buffers: Sequence[Buffer], device: Device
) -> tuple[list[float], list[float]]:
    """When each buffer is first written, and when its last use ends, in one simulated run."""
    ran = simulate(graph, program, device)
    first, last = np.full(len(ran.regions), np.inf), np.full(len(ran.regions), -np.inf)
    np.minimum.at(first, ran.region, ran.start)
    np.maximum.at(last, ran.region, ran.end)
    number = {name: at for at, name in enumerate(ran.regions)}
    begins = [min((float(first[number[name]]) for name in one.writers), default=-np.inf) for one in buffers]
    ends = [
        max((float(last[number[name]]) for name in (*one.readers, *one.writers)), default=-np.inf) for one in buffers
    ]
    return begins, ends


def _sharing(buffers: Sequence[Buffer]) -> Iterator[tuple[int, int]]:
    """Pairs with a byte in common, by number."""
    placed = sorted((one.offset, one.offset + one.size, at) for at, one in enumerate(buffers) if one.size)
    for position, (_, end, at) in enumerate(placed):
        for begin, _, other in placed[position + 1 :]:
            if begin >= end:
                break
            yield min(at, other), max(at, other)


def _needs(early: Buffer, late: Buffer) -> tuple[Need, ...]:
    uses = dict.fromkeys((*early.readers, *early.writers))
    return tuple(Need(use, writer, reuse=True) for use in uses for writer in dict.fromkeys(late.writers))


def _holds(graph: TaskGraph, program: Program, needs: Sequence[Need], device: Device) -> bool:
    """Whether the program keeps these needs too; a region cannot come before itself."""
    together = msgspec.structs.replace(graph, needs=(*graph.needs, *needs))
    order: networkx.DiGraph = networkx.DiGraph((need.source, need.target) for need in together.needs)
    if not networkx.is_directed_acyclic_graph(order):
        return False
    try:
        verify(together, program, device)
    except UnsafeProgram:
        return False
    return True

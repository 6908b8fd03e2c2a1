"""Whether buffers may lie where they do: those that share bytes are never in use at the same time, on any run.

Of two buffers with a byte in common, every access of one has to happen before every write of the other. Which is the
earlier one is looked up in one run, block by block: if the program orders them at all, then as in every run. That it
does order them is decided by the verifier, for whose needs they are taken. It knows nothing of how bytes were given
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import msgspec
import networkx

from scheduler.buffers import Buffer, Buffers
from scheduler.device import Device
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.program import Pinned, Plain, Program, Run, Ticketed
from scheduler.tasks import Need, TaskGraph, chosen
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
    begins, ends = _lives(graph, program, buffers.buffers)
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


def _lives(graph: TaskGraph, program: Program, buffers: Sequence[Buffer]) -> tuple[list[float], list[float]]:
    """When each buffer is first written, and when its last use has ended, counted in blocks of one run."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, region in enumerate(_one_run(graph, program)):
        first.setdefault(region, number)
        last[region] = number + 1
    begins = [min((float(first[name]) for name in one.writers), default=-inf) for one in buffers]
    ends = [max((float(last[name]) for name in (*one.readers, *one.writers)), default=-inf) for one in buffers]
    return begins, ends


def _one_run(graph: TaskGraph, program: Program) -> Iterator[str]:
    """The regions of the blocks in an order that the program allows; it is free of deadlock."""
    kernels = chosen(graph, program.choice)
    for launch in program.launches:
        if isinstance(launch, Plain):
            yield from [launch.region] * kernels[launch.region].blocks
        elif isinstance(launch, Ticketed):
            yield from (item.run.region for item in launch.items)
        else:
            yield from _in_turn(launch)


def _in_turn(launch: Pinned) -> Iterator[str]:
    """Each worker goes as far as it can, until all have ended."""
    counts = [0] * len(launch.counters)
    at = [0] * len(launch.workers)
    counted: dict[tuple[str, int], list[int]] = {}
    for number, counter in enumerate(launch.counters):
        for block in range(counter.begin, counter.end):
            counted.setdefault((counter.region, block), []).append(number)
    while any(place < len(work) for place, work in zip(at, launch.workers, strict=True)):
        for worker, work in enumerate(launch.workers):
            while at[worker] < len(work):
                step = work[at[worker]]
                if isinstance(step, Run):
                    for number in counted.get((step.region, step.block), ()):
                        counts[number] += 1
                    yield step.region
                elif counts[step.counter] < step.value:
                    break
                at[worker] += 1


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

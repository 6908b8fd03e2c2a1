"""One worker's program: lifetimes of temporaries, their offsets, the weights as one block of bytes, and the listing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.program.regions.region import Lowered
from kernels.listing import ALIGNMENT, Listing, Place, Run
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.problem import Buffer, MemoryProblem
from memplan.verify.packing import verify

PACK_WORK = 5_000_000_000  # steps of a search where greedy packing leaves holes


@dataclass(frozen=True, slots=True)
class Linked:
    """A program that can be emitted: its listing, its weights, and where its temporaries live."""

    listing: Listing
    weights: npt.NDArray[np.uint8]
    problem: MemoryProblem
    plan: Packing


def link(lowered: Lowered, name: str) -> Linked:
    """The listing of regions in their order. The memory plan is checked by memplan's own verifier."""
    problem = memory_problem(lowered)
    plan = solve(problem, work=PACK_WORK)
    verify(problem, plan)
    weights, offsets = _weights(lowered)
    inputs = {f"input:{one.name}": number for number, one in enumerate(lowered.inputs)}
    outputs = {f"output:{one.name}": number for number, one in enumerate(lowered.outputs)}

    def place(buffer: str) -> Place:
        if buffer in inputs:
            return Place("input", 0, inputs[buffer])
        if buffer in outputs:
            return Place("output", 0, outputs[buffer])
        if buffer in offsets:
            return Place("weights", offsets[buffer])
        return Place("arena", plan.offsets[buffer])

    kernels = {region.kernel.name: region.kernel for region in lowered.regions}
    runs = tuple(
        Run(region.kernel.name, tuple(place(buffer) for buffer in region.buffers)) for region in lowered.regions
    )
    listing = Listing(
        name, lowered.inputs, lowered.outputs, tuple(kernels.values()), runs, plan.arena_size, len(weights)
    )
    return Linked(listing, weights, problem, plan)


def memory_problem(lowered: Lowered) -> MemoryProblem:
    """A temporary lives from the region that first touches it to after the one that touches it last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, region in enumerate(lowered.regions):
        for buffer in region.buffers:
            if buffer in lowered.temporaries:
                first.setdefault(buffer, step)
                last[buffer] = step
    buffers = tuple(Buffer(one, lowered.temporaries[one], first[one], last[one] + 1) for one in first)
    return MemoryProblem(buffers, ALIGNMENT)


def _weights(lowered: Lowered) -> tuple[npt.NDArray[np.uint8], dict[str, int]]:
    """The constants that are read, one after the other; equal ones once."""
    read = dict.fromkeys(buffer for region in lowered.regions for buffer in region.buffers)
    offsets: dict[str, int] = {}
    held: dict[tuple[int, bytes], int] = {}
    parts: list[npt.NDArray[np.uint8]] = []
    top = 0
    for name in read:
        array = lowered.constants.get(name)
        if array is None:
            continue
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = (raw.size, _digest(raw))
        if key in held:
            offsets[name] = held[key]
            continue
        offsets[name] = held[key] = top
        filled = -(-raw.size // ALIGNMENT) * ALIGNMENT
        parts += [raw, np.zeros(filled - raw.size, np.uint8)]
        top += filled
    return (np.concatenate(parts) if parts else np.zeros(0, np.uint8)), offsets


def _digest(raw: npt.NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(raw.data).digest()

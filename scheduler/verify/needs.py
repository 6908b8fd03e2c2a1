"""The needs between blocks, as ranges: which blocks of the source each block of a target has to come after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.tasks import TaskGraph, needed_blocks
from scheduler.verify.form import Blocks, Ints


@dataclass(frozen=True, slots=True)
class Needs:
    """Of each region the needs that it is the target of; blocks are numbered through all regions."""

    of: Ints  # of each region its first need, and the end
    source: Ints  # by need, the region
    bounds: Ints  # by need: where in `low` and `high` the first block of its target is
    low: Ints
    high: Ints  # not needed any more


def flat_needs(graph: TaskGraph, blocks: Blocks) -> Needs:
    """All needs, reuse included."""
    number = {name: at for at, name in enumerate(blocks.regions)}
    needs = sorted(graph.needs, key=lambda need: number[need.target])
    low: list[Ints] = []
    high: list[Ints] = []
    for need in needs:
        sources, targets = (blocks.kernels[number[name]].blocks for name in (need.source, need.target))
        first = int(blocks.first[number[need.source]])
        if need.pattern == "all":
            low.append(np.full(targets, first))
            high.append(np.full(targets, first + sources))
        else:
            ranges = [needed_blocks(need, sources, targets, block) for block in range(targets)]
            low.append(first + np.asarray([one.start for one in ranges], np.int64))
            high.append(first + np.asarray([one.stop for one in ranges], np.int64))
    nothing = np.zeros(0, np.int64)
    targets_of = np.asarray([number[need.target] for need in needs], np.int64)
    return Needs(
        np.searchsorted(targets_of, np.arange(len(blocks.regions) + 1)),
        np.asarray([number[need.source] for need in needs], np.int64),
        np.concatenate((np.zeros(1, np.int64), np.cumsum([len(one) for one in low], dtype=np.int64))),
        np.concatenate((nothing, *low)), np.concatenate((nothing, *high)),
    )  # fmt: skip

"""Copies between layouts: runs of channels that lie evenly on both sides, a loop nest for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from graphopt.program.regions.images.image import Image
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.target import Target
from kernels.templates.convolution.layout import Layout
from kernels.templates.cost import nanoseconds
from kernels.tensor.expression import Number

TURNED = 1.25  # cycles for an element whose neighbours go elsewhere, on top of reading and writing


class _Run(NamedTuple):
    first: int  # channel, counted from the first one that is copied
    blocks: int
    lanes: int  # channels of each block


def copies(source: Image, aim: Image, first: int = 0) -> list[tuple[View | Number, View]]:
    """What is copied where, so that all channels come to those from `first` on; the lanes beyond the last get zeros."""
    count = source.layout.channels
    blocks = [image.layout.block if image.channel_stride is None else 0 for image in (source, aim)]
    padded = aim.layout.blocks * aim.layout.block - aim.layout.channels if first + count == aim.layout.channels else 0
    if padded and blocks[1] and blocks[0] == blocks[1] and first % blocks[1] == 0:
        count, padded = source.layout.blocks * source.layout.block, 0  # both sides have the same zeros
    found: list[tuple[View | Number, View]] = [
        (source.channels(*run), aim.channels(first + run.first, run.blocks, run.lanes))
        for run in _runs(count, (blocks[0], 0), (blocks[1], first))
    ]
    if padded:
        found.append((Number(0, aim.dtype), aim.channels(first + count, 1, padded)))
    return found


def turning(layout: Layout, target: Target) -> float:
    """Nanoseconds to copy images between channels that lie apart and channels side by side, by estimate."""
    size = 2 * DType.F32.bytes * layout.passing
    return nanoseconds(TURNED * layout.passing + size / target.rate(size), target)


def _runs(count: int, *sides: tuple[int, int]) -> Iterator[_Run]:
    """Runs of channels; a side is its channels per block (0: evenly spread) and the first channel there."""
    sizes = {block for block, _ in sides if block}
    done = 0
    while done < count:
        places = [((first + done) % block, block) for block, first in sides if block]
        lanes = min([block - lane for lane, block in places], default=count)
        lanes = min(lanes, count - done)
        # Blocks of one size that begin alike follow one another on both sides.
        aligned = len(sizes) == 1 and all(lane == 0 for lane, _ in places)
        run = _Run(done, (count - done) // lanes if aligned else 1, lanes)
        yield run
        done += run.blocks * run.lanes

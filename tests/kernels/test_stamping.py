"""Stamps of blocks: every block once, on one worker at a time, and never before what it waits for has ended."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kernels.emit.stamping import STAMP
from kernels.run import aligned
from tests.kernels.interface import Library, call
from tests.kernels.test_sharing import Drawn, chain_and_sides

IDLE = 300  # turns of each block
SENTINEL = -7


def stamped(drawn: Drawn, library: Library, model: ctypes.c_void_p, room: int) -> np.ndarray:
    """The stamps of one call, which also gives the right answer; rows are row, worker, block, begin, end."""
    stamps = np.full((room + 2, STAMP // 8), SENTINEL, np.int64)
    stamps[0] = 0
    seed, idle, out = aligned(1, np.int64), aligned(drawn.total, np.int64), aligned(drawn.total, np.int64)
    seed[0], idle[:] = 5, IDLE
    library.profile(model, stamps.ctypes.data, room)
    call(library, model, {"seed": seed, "idle": idle}, out=out)
    library.profile(model, None, 0)
    assert (out == drawn.answer(5)).all()
    assert (stamps[-1] == SENTINEL).all(), "nothing is written beyond the room"
    call(library, model, {"seed": seed, "idle": idle}, out=out)
    assert stamps[0, 0] == drawn.total, "a call after the last one is not noted"
    return stamps[1:-1]


def runs_of(drawn: Drawn, threads: int) -> list[int]:
    """The run of each row."""
    ticketed = drawn.listing.ticketed
    assert ticketed is not None
    return [run for run, _ in ticketed.waits] if threads > 1 else list(range(len(drawn.blocks)))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("order", [None, [1, 0, 2, 3, 5, 4, 6]])
@pytest.mark.parametrize("chained", [False, True])
def test_every_block_is_noted_once_and_in_time(threads: int, order: list[int] | None, chained: bool) -> None:
    drawn = chain_and_sides()
    whole, following = ({0, 2, 3}, {2, 3}) if chained and order else ({1, 2, 3}, {2, 3}) if chained else ((), ())
    drawn = Drawn(drawn.blocks, drawn.needs, order, whole, following)
    library = Library(drawn.listing)
    model = library.made(threads=threads)
    stamps = stamped(drawn, library, model, drawn.total)
    runs = runs_of(drawn, threads)
    assert sorted((runs[row], block) for row, _, block, _, _ in stamps) == [
        (run, block) for run, blocks in enumerate(drawn.blocks) for block in range(blocks)
    ]
    assert set(stamps[:, 1]) <= set(range(threads))
    for worker in range(threads):
        own = sorted((begin, end) for _, other, _, begin, end in stamps.tolist() if other == worker)
        assert all(begin <= end for begin, end in own)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own)), "a worker runs one block at a time"
    for row, run in enumerate(runs):
        begin = stamps[stamps[:, 0] == row, 3].min()
        for needed in drawn.needs[run]:
            assert stamps[stamps[:, 0] == runs.index(needed), 4].max() <= begin, "it waits for what it needs"
    library.destroy(model)


def test_a_program_of_one_worker_is_noted_too() -> None:
    drawn = Drawn([2, 3], [[], [0]])
    library = Library(replace(drawn.listing, ticketed=None))
    model = library.made()
    stamps = stamped(drawn, library, model, drawn.total)
    assert stamps[:, :3].tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1], [1, 0, 2]]
    assert (np.diff(stamps[:, 3:].reshape(-1)) >= 0).all(), "one block after the other"
    library.destroy(model)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_without_room_are_counted_and_left_out(threads: int) -> None:
    drawn = chain_and_sides()
    library = Library(drawn.listing)
    model = library.made(threads=threads)
    stamps = stamped(drawn, library, model, 4)
    assert len(stamps) == 4
    assert (stamps[:, 4] >= stamps[:, 3]).all()
    library.destroy(model)

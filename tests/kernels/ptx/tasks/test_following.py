"""Tasks that follow one another in persistent blocks: shared memory goes from each to each without a race."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kernels.ptx.machine.launching import ORDERS, Adversary
from kernels.ptx.program import program_module
from kernels.ptx.tasks.table import TASKS
from tests.kernels.ptx.tasks.programs import Following, pairs
from tests.kernels.ptx.tasks.running import SM_90
from tests.kernels.ptx.tasks.samples import samples


@pytest.fixture(scope="module")
def following() -> Following:
    cases = list(samples().values())
    return Following(cases, pairs(len(cases)))


def test_a_way_on_which_each_follows_each() -> None:
    way = pairs(5)
    assert {(a, b) for a in range(5) for b in range(5)} == set(pairwise(way)) and len(way) <= 28


@pytest.mark.parametrize(("blocks", "order"), [*((1, one) for one in ORDERS), (3, "random"), (3, "reversed")])
def test_each_task_follows_each_in_one_block_and_in_some(following: Following, blocks: int, order: Any) -> None:
    ran = following.emulated().run([], Adversary(order, 2), blocks=blocks)
    assert not ran.faults, ran.faults[:3]
    assert not following.wrong(ran.outputs)


def test_pinned_blocks_too(following: Following) -> None:
    program = following.emulated()
    for order in ("in order", "random"):
        ran = program.run([], Adversary(order, 2), blocks=2, way="pinned")
        assert not ran.faults, ran.faults[:3]
        assert not following.wrong(ran.outputs)


def test_copies_take_no_more_passes_behind_the_words_of_a_persistent_block(following: Following) -> None:
    """Its ticket and addresses lie before the shared memory of tasks, which begins at a whole line all the same."""

    def passes(way: Any) -> int:
        ran = following.emulated().run([], Adversary("in order", 0), blocks=1, way=way)
        return sum(one.tally.traffic["shared copy"].transactions for one in ran.outcomes if one.tally.copied)

    assert passes("pinned") == passes("launches") > 1000


def test_a_module_holds_all_tasks() -> None:
    """Names of functions and tables of different tasks do not meet."""
    kernels = [case.kernel for case in samples().values()]
    text = program_module(kernels, SM_90)
    assert all(f"@launch_{one.name}(" in text for one in kernels)
    assert len(TASKS) >= 10


@pytest.mark.parametrize("way", ["ticketed", "pinned"])
def test_blocks_leave_stamps_where_they_are_asked(following: Following, way: Any) -> None:
    """Of each item: waiting begins, work begins, work has ended."""
    ran = following.emulated().run([], Adversary("random", 3), blocks=3, way=way, stamped=True)
    assert not ran.faults, ran.faults[:3]
    assert ran.stamps is not None and len(ran.stamps) > 10
    waiting, begun, ended, multiprocessor = ran.stamps.T
    assert (waiting <= begun).all() and (begun < ended).all() and (multiprocessor >= 0).all()
    assert following.emulated().run([], Adversary("random", 3), blocks=3, way=way).stamps is None

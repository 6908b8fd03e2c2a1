"""The interpreters of persistent programs on the PTX machine: counters, epochs, tickets, in any order of blocks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kernels.ptx.emit import ptx
from kernels.ptx.machine.launching import ORDERS, Adversary
from kernels.ptx.persistent import module
from tests.kernels.ptx.programs import EPOCHS, RUN, WAIT, Tables, drawn, tasks, waits

# Regions of tasks: the first has tasks 0 and 1, the second 2 to 4; each task of the second needs both of the first.
REGIONS = (2, 3)
BEFORE = {1: (0,)}
FIRST = [(RUN, 0, 0), (RUN, 1, 0)]
SECOND = [(WAIT, 0, 2), (RUN, 2, 0), (RUN, 3, 0), (RUN, 4, 0)]
IN_ORDER = Adversary()


@pytest.fixture(scope="module")
def text() -> str:
    return ptx(module())


def test_a_wait_is_for_as_many_blocks_in_every_epoch(text: str) -> None:
    ran = Tables(text, REGIONS, BEFORE).pinned([FIRST, SECOND], IN_ORDER)
    assert not ran.outcome.faults and (ran.early, ran.hung) == (0, 0)
    assert ran.counters == [2 * EPOCHS, 3 * EPOCHS]


def test_a_wait_for_what_comes_later_in_the_same_list_never_ends(text: str) -> None:
    ran = Tables(text, REGIONS, BEFORE).pinned([[*SECOND, *FIRST]], IN_ORDER)
    assert "endless wait" in ran.outcome.kinds
    assert "waits for counters+0, which nobody can change any more" in str(ran.outcome.faults[0])


def test_a_wait_for_one_more_is_never_fulfilled(text: str) -> None:
    ran = Tables(text, REGIONS, BEFORE).pinned([FIRST, [(WAIT, 0, 3), *SECOND[1:]]], IN_ORDER)
    assert "endless wait" in ran.outcome.kinds


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_wait_is_a_race_or_an_early_read(text: str, order: Any) -> None:
    ran = Tables(text, REGIONS, BEFORE).pinned([FIRST, SECOND[1:]], Adversary(order))
    assert ran.outcome.kinds and ran.outcome.kinds <= {"race", "unwritten"}


def test_a_wait_for_a_part_lets_go_early(text: str) -> None:
    """Only where the other block is late: it is, in order, and where it is the one that starves."""
    lists = [[FIRST[0], (WAIT, 0, 1), *SECOND[1:]], [FIRST[1]]]
    found = {order: set() for order in ORDERS}
    for order in ORDERS:
        for seed in range(4):
            found[order] |= Tables(text, REGIONS, BEFORE).pinned(lists, Adversary(order, seed)).outcome.kinds
    assert found["in order"] and found["starved"] and not found["reversed"]
    assert set().union(*found.values()) <= {"race", "unwritten"}


def test_tickets_run_with_one_worker_in_their_order(text: str) -> None:
    items = [(0, []), (1, []), *((task, [(0, 2)]) for task in (2, 3, 4))]
    ran = Tables(text, REGIONS, BEFORE).ticketed(items, 1, IN_ORDER)
    assert not ran.outcome.faults and ran.counters == [2 * EPOCHS, 3 * EPOCHS]
    ran = Tables(text, REGIONS, BEFORE).ticketed(items[2:] + items[:2], 1, IN_ORDER)
    assert "endless wait" in ran.outcome.kinds


@pytest.mark.parametrize("kind", ["pinned", "ticketed"])
@pytest.mark.parametrize("order", ORDERS)
def test_drawn_programs_have_no_fault_in_any_order(text: str, kind: str, order: Any) -> None:
    draw = random.Random(f"{kind} {order}")
    for seed in range(4):
        regions, before = drawn(draw)
        tables = Tables(text, regions, before)
        if kind == "pinned":
            lists: list[list[tuple[int, int, int]]] = [[] for _ in range(3)]
            for task, one in tasks(regions):
                draw.choice(lists).extend([*((WAIT, *wait) for wait in waits(regions, before, one)), (RUN, task, 0)])
            ran = tables.pinned(lists, Adversary(order, seed))
        else:
            items = [(task, waits(regions, before, one)) for task, one in tasks(regions)]
            ran = tables.ticketed(items, 3, Adversary(order, seed), resident=draw.randint(1, 3))
        assert not ran.outcome.faults, [str(one) for one in ran.outcome.faults]
        assert (ran.early, ran.hung) == (0, 0)
        assert ran.counters == [EPOCHS * many for many in regions]

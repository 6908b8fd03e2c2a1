"""The interpreters of persistent programs, run on this machine: counters, epochs, tickets, and what errors count."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tests.kernels.ptx.host import Block, Words, at_once, one_by_one, words

EPOCHS = 3
FOR_EVER = 1 << 26  # looks, and between two of them other threads run
RUN, WAIT = 0, 1
# Regions of tasks: the first has tasks 0 and 1, the second 2 to 4; each task of the second needs both of the first.
REGIONS = (2, 3)


def tables(regions: tuple[int, ...], before: Mapping[int, tuple[int, ...]]) -> dict[str, Words]:
    """What tasks need and raise; region r has a counter, and needs those in `before[r]`."""
    first = [sum(regions[:one]) for one in range(len(regions) + 1)]
    starts, needs, rows, raised = [0], [], [0], []
    for region, many in enumerate(regions):
        for _ in range(many):
            for source in before.get(region, ()):
                needs += range(first[source], first[source + 1])
            starts.append(len(needs))
            raised.append(region)
            rows.append(len(raised))
    return {
        "marks": words([0] * first[-1]), "starts": words(starts), "needs": words(needs), "errors": words([0, 0]),
        "counters": words([0] * len(regions)), "totals": words(regions), "rows": words(rows), "raised": words(raised),
    }  # fmt: skip


def pinned(
    blocks: list[Block], lists: list[list[tuple[int, int, int]]], table: dict[str, Words], together: bool = False
) -> tuple[int, int]:
    """Early reads and waits given up, in all epochs."""
    code = words([word for one in lists for instruction in one for word in instruction])
    ends = words([sum(map(len, lists[:one])) for one in range(len(lists) + 1)])
    names = ("counters", "totals", "rows", "raised", "marks", "starts", "needs", "errors")
    for epoch in range(1, EPOCHS + 1):
        run = at_once if together else one_by_one
        run(blocks, "pinned", [code, ends, *(table[name] for name in names), epoch])
    return int(table["errors"][0]), int(table["errors"][1])


def ticketed(
    blocks: list[Block], items: list[tuple[int, list[tuple[int, int]]]], table: dict[str, Words], together: bool = False
) -> tuple[int, int]:
    """The same of tickets: tasks with their waits."""
    flat, waits = [], []
    for task, mine in items:
        flat += [task, len(waits) // 2, len(waits) // 2 + len(mine)]
        waits += [word for wait in mine for word in wait]
    claimed = words([0])
    for epoch in range(1, EPOCHS + 1):
        base = (epoch - 1) * (len(items) + len(blocks))
        names = ("counters", "totals", "rows", "raised")
        arguments = [words(flat), len(items), words(waits), *(table[name] for name in names), claimed, base]
        run = at_once if together else one_by_one
        run(blocks, "ticketed", [*arguments, *(table[name] for name in ("marks", "starts", "needs", "errors")), epoch])
    return int(table["errors"][0]), int(table["errors"][1])


@pytest.fixture(scope="module")
def impatient() -> list[Block]:
    """Blocks that give a wait up at once: one runs after the other, so nothing else would come."""
    return [Block(number, patience=2) for number in range(2)]


@pytest.fixture(scope="module")
def patient() -> list[Block]:
    return [Block(number, patience=FOR_EVER) for number in range(3)]


FIRST = [(RUN, 0, 0), (RUN, 1, 0)]
SECOND = [(WAIT, 0, 2), (RUN, 2, 0), (RUN, 3, 0), (RUN, 4, 0)]


def test_a_wait_is_for_as_many_blocks_in_every_epoch(impatient: list[Block]) -> None:
    table = tables(REGIONS, {1: (0,)})
    assert pinned(impatient, [FIRST, SECOND], table) == (0, 0)
    assert table["counters"].tolist() == [2 * EPOCHS, 3 * EPOCHS]


def test_a_wait_for_what_comes_later_is_given_up(impatient: list[Block]) -> None:
    early, hung = pinned(impatient, [SECOND, FIRST], tables(REGIONS, {1: (0,)}))
    assert (early, hung) == (6 * EPOCHS, EPOCHS), "each of three tasks reads two marks that are not there"


def test_a_wait_for_one_more_is_never_fulfilled(impatient: list[Block]) -> None:
    more = [(WAIT, 0, 3), *SECOND[1:]]
    assert pinned(impatient, [FIRST, more], tables(REGIONS, {1: (0,)})) == (0, EPOCHS)


def test_a_missing_wait_is_an_early_read(impatient: list[Block]) -> None:
    assert pinned(impatient, [SECOND[1:], FIRST], tables(REGIONS, {1: (0,)})) == (6 * EPOCHS, 0)


def test_a_wait_for_a_part_lets_go_early(impatient: list[Block]) -> None:
    lists = [[FIRST[0], (WAIT, 0, 1), *SECOND[1:]], [FIRST[1]]]
    assert pinned(impatient, lists, tables(REGIONS, {1: (0,)})) == (3 * EPOCHS, 0)


def test_tickets_run_with_one_worker_in_their_order(impatient: list[Block]) -> None:
    items = [(0, []), (1, []), *((task, [(0, 2)]) for task in (2, 3, 4))]
    table = tables(REGIONS, {1: (0,)})
    assert ticketed(impatient, items, table) == (0, 0)
    assert table["counters"].tolist() == [2 * EPOCHS, 3 * EPOCHS]
    assert ticketed(impatient, items[2:] + items[:2], tables(REGIONS, {1: (0,)})) == (6 * EPOCHS, 3 * EPOCHS)


@pytest.mark.parametrize("kind", ["pinned", "ticketed"])
def test_blocks_at_once_read_nothing_early(patient: list[Block], kind: str) -> None:
    draw = random.Random(18)
    for _ in range(30):
        regions = tuple(draw.randint(1, 4) for _ in range(draw.randint(2, 8)))
        before = {
            one: tuple(sorted(draw.sample(range(one), min(one, draw.randint(0, 2))))) for one in range(len(regions))
        }
        table = tables(regions, before)
        waits = {one: [(source, regions[source]) for source in before[one]] for one in before}
        tasks = [(sum(regions[:one]) + block, one) for one, many in enumerate(regions) for block in range(many)]
        if kind == "pinned":
            lists: list[list[tuple[int, int, int]]] = [[] for _ in patient]
            for task, one in tasks:
                draw.choice(lists).extend([*((WAIT, *wait) for wait in waits[one]), (RUN, task, 0)])
            found = pinned(patient, lists, table, together=True)
        else:
            found = ticketed(patient, [(task, waits[one]) for task, one in tasks], table, together=True)
        assert found == (0, 0)
        assert table["counters"].tolist() == [EPOCHS * many for many in regions]

"""Litmus tests: the machine against the axioms of the PTX memory model.

Each test is run in many orders. What the machine reports as a race is what the axioms call one, in some consistent
execution; where there is none, what its reads see is an outcome that the axioms allow. The machine has one memory and
runs each thread in its order: an outcome that needs a later read to overtake an earlier write is never shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from kernels.ptx.machine.launching import ORDERS, Adversary
from tests.kernels.ptx.machine.kernels import entry, run
from tests.kernels.ptx.machine.model import Event, Litmus, Strength, as_ptx, executions

Shape = Callable[[Strength, Strength, str, bool], list[list[Event]]]


def observed(litmus: Litmus, seeds: int = 3) -> tuple[set[tuple[int, ...]], bool]:
    """What reads saw in any order, and whether a race was reported in one."""
    reads = sum(event.kind == "R" for some in litmus.threads for event in some)
    text = entry(as_ptx(litmus), 2)
    seen: set[tuple[int, ...]] = set()
    races = False
    for order, seed in itertools.product(ORDERS, range(seeds)):
        zeros = np.zeros(256, np.uint32), np.zeros(max(reads, 1), np.uint32)
        blocks = max(litmus.blocks) + 1
        outcome, found = run(text, zeros, blocks, 32 * len(litmus.threads), adversary=Adversary(order, seed))
        assert outcome.kinds <= {"race"}
        races |= bool(outcome.kinds)
        seen.add(tuple(found[1][:reads].tolist()))
    return seen, races


def write(place: str, value: int, strength: Strength, scope: str) -> Event:
    return Event("W", place, value, strength, scope)  # type: ignore[arg-type]


def read(place: str, strength: Strength, scope: str) -> Event:
    return Event("R", place, 0, strength, scope)  # type: ignore[arg-type]


def fences(on: bool, strength: Strength, scope: str) -> list[Event]:
    return [Event("F", strength=strength, scope=scope)] if on else []  # type: ignore[arg-type]


def relaxed(strength: Strength, allowed: Strength) -> Strength:
    """The strength of an access that can be no more than relaxed or `allowed`."""
    return strength if strength in ("weak", "relaxed", allowed) else "relaxed"


def message_passing(data: Strength, flag: Strength, scope: str, fenced: bool) -> list[list[Event]]:
    more = fences(fenced, "acq_rel", scope)
    return [
        [write("x", 1, data, scope), *more, write("y", 1, relaxed(flag, "release"), scope)],
        [read("y", "acquire" if flag == "release" else flag, scope), *more, read("x", data, scope)],
    ]


def store_buffering(data: Strength, flag: Strength, scope: str, fenced: bool) -> list[list[Event]]:
    more = fences(fenced, "sc", scope)
    return [
        [write("x", 1, data, scope), *more, read("y", flag if flag != "release" else "acquire", scope)],
        [write("y", 1, flag, scope), *more, read("x", data, scope)],
    ]


def load_buffering(data: Strength, flag: Strength, scope: str, fenced: bool) -> list[list[Event]]:
    more = fences(fenced, "acq_rel", scope)
    return [
        [read("x", data, scope), *more, write("y", 1, flag, scope)],
        [read("y", flag if flag != "release" else "acquire", scope), *more, write("x", 1, data, scope)],
    ]


def coherence(data: Strength, flag: Strength, scope: str, fenced: bool) -> list[list[Event]]:
    return [
        [write("x", 1, data, scope), write("x", 2, data, scope)],
        [read("x", data, scope), *fences(fenced, "acq_rel", scope), read("x", data, scope)],
    ]


def independent_reads(data: Strength, flag: Strength, scope: str, fenced: bool) -> list[list[Event]]:
    more = fences(fenced, "sc", scope)
    look: Strength = "acquire" if flag == "release" else flag
    return [
        [write("x", 1, flag, scope)],
        [write("y", 1, flag, scope)],
        [read("x", look, scope), *more, read("y", look, scope)],
        [read("y", look, scope), *more, read("x", look, scope)],
    ]  # fmt: skip


SHAPES: dict[str, Shape] = {
    "message passing": message_passing, "store buffering": store_buffering, "load buffering": load_buffering,
    "coherence": coherence, "independent reads": independent_reads,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("apart", [True, False], ids=["blocks", "one block"])
def test_the_machine_agrees_with_the_axioms(name: str, apart: bool) -> None:
    cases = 0
    for data, flag, scope, fenced in itertools.product(
        ("weak", "relaxed"), ("weak", "relaxed", "release"), ("cta", "gpu"), (False, True)
    ):
        threads = SHAPES[name](data, flag, scope, fenced)  # type: ignore[arg-type]
        blocks = tuple(range(len(threads))) if apart else (0,) * len(threads)
        litmus = Litmus(tuple(map(tuple, threads)), blocks)
        known = set(executions(litmus))
        allowed, racy = {seen for seen, _ in known}, any(race for _, race in known)
        seen, races = observed(litmus)
        assert races == racy, (data, flag, scope, fenced, sorted(known))
        assert racy or seen <= allowed, (data, flag, scope, fenced)
        cases += 1
    assert cases == 24


def test_what_the_axioms_forbid_and_allow() -> None:
    """The model itself: outcomes from the paper's figures."""
    pairs = (0, 1)

    def outcomes(threads: list[list[Event]], blocks: tuple[int, ...] = pairs) -> set[tuple[int, ...]]:
        return {seen for seen, _ in executions(Litmus(tuple(map(tuple, threads)), blocks))}

    assert (1, 0) in outcomes(message_passing("relaxed", "relaxed", "gpu", False))
    assert (1, 0) not in outcomes(message_passing("weak", "release", "gpu", False))
    assert (1, 0) not in outcomes(message_passing("weak", "relaxed", "gpu", True))
    assert (1, 0) in outcomes(message_passing("weak", "release", "cta", False)), "the scope is too narrow"
    assert (1, 0) not in outcomes(message_passing("weak", "release", "cta", False), (0, 0))
    assert (0, 0) in outcomes(store_buffering("relaxed", "release", "gpu", False)), (
        "release and acquire do not forbid it"
    )
    assert (0, 0) not in outcomes(store_buffering("relaxed", "relaxed", "gpu", True))
    assert (1, 1) in outcomes(load_buffering("relaxed", "relaxed", "gpu", False))
    assert (1, 1) not in outcomes(load_buffering("relaxed", "relaxed", "gpu", True))
    assert (2, 1) not in outcomes(coherence("relaxed", "relaxed", "gpu", False))
    four = (0, 1, 2, 3)
    assert (1, 0, 1, 0) in outcomes(independent_reads("relaxed", "release", "gpu", False), four)
    assert (1, 0, 1, 0) not in outcomes(independent_reads("relaxed", "relaxed", "gpu", True), four)

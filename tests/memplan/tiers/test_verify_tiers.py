"""The verifier of tiers says no: to every mutation of plans that are right, and in words that name what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from memplan.graph import Graph, Operator, Share, Value
from memplan.plan import MemoryPlan, Move, Packing, Stay
from memplan.problem import Alias
from memplan.tiers.machine import machine
from memplan.tiers.placement import placement
from memplan.tiers.plan import Mode, TierPlan, plan_tiers
from memplan.tiers.simulate import ImpossiblePlan, simulate
from memplan.verify.packing import WrongPlan
from memplan.verify.tiers import verify_tiers
from tests.memplan.tiers.networks import training
from tests.memplan.tiers.oracle import small_machine

GRAPH = training(10)
MODES: tuple[Mode, ...] = ("static", "sync", "async")


@cache
def planned(mode: Mode) -> TierPlan:
    target = machine("dram+pmem")
    target = target.with_capacity("dram", int(max(placement(GRAPH, target).live()) * 0.3))
    return plan_tiers(GRAPH, target, mode=mode, method="heuristic")


def without(items: tuple[object, ...], number: int) -> tuple[object, ...]:
    return items[:number] + items[number + 1 :]


def mutations(plan: MemoryPlan) -> Iterator[tuple[str, MemoryPlan]]:
    other = {"dram": "pmem", "pmem": "dram"}
    for number, stay in enumerate(plan.stays):

        def put(changed: Stay, number: int = number) -> MemoryPlan:
            return replace(plan, stays=(*plan.stays[:number], changed, *plan.stays[number + 1 :]))

        yield f"drop {stay}", replace(plan, stays=without(plan.stays, number))
        yield f"later {stay}", put(replace(stay, begin=stay.begin + 1, end=stay.end + 1))
        yield f"earlier {stay}", put(replace(stay, begin=stay.begin - 1, end=stay.end - 1))
        yield f"elsewhere {stay}", put(replace(stay, tier=other[stay.tier]))
        yield f"twice {stay}", replace(plan, stays=(*plan.stays, stay))
    for number, move in enumerate(plan.moves):

        def turn(changed: Move, number: int = number) -> MemoryPlan:
            return replace(plan, moves=(*plan.moves[:number], changed, *plan.moves[number + 1 :]))

        yield f"drop {move}", replace(plan, moves=without(plan.moves, number))
        yield f"later {move}", turn(replace(move, step=move.step + 1))
        yield f"earlier {move}", turn(replace(move, step=move.step - 1))
        yield f"back {move}", turn(replace(move, source=move.target, target=move.source))
    for step in range(len(plan.order) - 1):
        order = list(plan.order)
        order[step], order[step + 1] = order[step + 1], order[step]
        yield f"swap steps {step}", replace(plan, order=tuple(order))
    for tier, packing in plan.arenas.items():
        for name in packing.offsets:
            yield f"lose {name}", replace(plan, arenas={**plan.arenas, tier: _moved(packing, name, None)})
            for clash in _beside(plan, tier, name):
                changed = _moved(packing, name, packing.offsets[clash])
                yield f"{name} onto {clash}", replace(plan, arenas={**plan.arenas, tier: changed})


def _moved(packing: Packing, name: str, offset: int | None) -> Packing:
    offsets = {one: at for one, at in packing.offsets.items() if one != name}
    return replace(packing, offsets=offsets if offset is None else {**offsets, name: offset})


def _beside(plan: MemoryPlan, tier: str, name: str) -> list[str]:
    """Values that stay in the tier, for the first time, at the same time as the first stay of this one."""
    first: dict[str, Stay] = {}
    for stay in plan.stays:
        if stay.tier == tier:
            first.setdefault(stay.value, stay)
    if name not in first:
        return []
    mine = first[name]
    return [o for o, stay in first.items() if o != name and stay.begin < mine.end and mine.begin < stay.end]


@pytest.mark.parametrize("mode", MODES)
def test_every_mutation_is_caught(mode: Mode) -> None:
    right = planned(mode)
    verify_tiers(GRAPH, right.memory, right.capacities, right.aliases)
    assert bool(right.memory.moves) == (mode != "static")
    tried = 0
    for what, plan in mutations(right.memory):
        tried += 1
        with pytest.raises(WrongPlan):
            verify_tiers(GRAPH, plan, right.capacities, right.aliases)
            pytest.fail(f"not caught: {what}")
    assert tried > 200


@pytest.mark.parametrize("mode", MODES)
def test_what_the_simulator_cannot_execute_is_wrong_too(mode: Mode) -> None:
    """Without a stay or a move, the simulator stops; it looks at bytes, not at arenas and orders."""
    right = planned(mode)
    target = right.machine
    for number in range(len(right.memory.moves)):
        with pytest.raises(ImpossiblePlan):
            simulate(
                placement(GRAPH, target),
                right.memory.stays,
                right.memory.moves[:number] + right.memory.moves[number + 1 :],
            )
    for number in range(len(right.memory.stays)):
        with pytest.raises(ImpossiblePlan):
            simulate(
                placement(GRAPH, target),
                right.memory.stays[:number] + right.memory.stays[number + 1 :],
                right.memory.moves,
            )


VALUES = (Value("x", 8, "input"), Value("y", 8), Value("z", 8, "output"))
SMALL = Graph(VALUES, (Operator("a", ("x",), ("y",)), Operator("b", ("y",), ("z",)), Operator("c", ("y", "x"), ())))
ROOM = {"fast": 16, "slow": 100}


def plan_of(stays: tuple[Stay, ...], moves: tuple[Move, ...] = (), room: int = 100) -> MemoryPlan:
    """Every stay has bytes of its own in a wide arena."""
    arenas = {}
    for tier in ROOM:
        counts: dict[str, int] = {}
        offsets = {}
        for stay in sorted((s for s in stays if s.tier == tier), key=lambda s: (s.begin, s.value)):
            counts[stay.value] = counts.get(stay.value, 0) + 1
            name = stay.value if counts[stay.value] == 1 else f"{stay.value}#{counts[stay.value]}"
            offsets[name] = 8 * len(offsets)
        arenas[tier] = Packing(offsets, 8 * len(offsets), 8 * len(offsets), "by hand")
    return MemoryPlan(("a", "b", "c"), arenas, 0.0, stays, moves)


X, Y, Z = Stay("x", "fast", 0, 3), Stay("y", "slow", 0, 3), Stay("z", "slow", 1, 3)


@pytest.mark.parametrize(
    ("stays", "moves", "message"),
    [
        ((X, Y), (), "step 1: 'z' is read or written and is in no tier."),
        ((X, Y, Stay("z", "slow", 1, 2)), (), "step 2: 'z' is kept and is in no tier."),
        ((X, Y, Stay("z", "slow", 0, 3)), (), "'z' stays in 'slow' outside of its life [1, 3)."),
        (
            (X, Y, Z, Stay("y", "fast", 1, 3)),
            (),
            "step 1: 'y' begins to stay in 'fast' and nothing brings it there.",
        ),
        (
            (X, Y, Z),
            (Move("y", "slow", "fast", 1),),
            "step 1: 'y' is copied to 'fast', where no stay begins.",
        ),
        (
            (Stay("x", "slow", 0, 1), Stay("x", "fast", 1, 3), Y, Z),
            (Move("x", "slow", "fast", 1),),
            "step 1: 'x' is copied from 'slow', where it is not, or not for long enough.",
        ),
        (
            (Stay("x", "slow", 0, 3), Stay("x", "fast", 2, 3), Y, Z, Stay("y", "fast", 1, 3), Stay("z", "fast", 2, 3)),
            (Move("x", "slow", "fast", 2), Move("y", "slow", "fast", 1), Move("z", "slow", "fast", 2)),
            "step 2: 'fast' holds 24 bytes, 8 above its capacity.",
        ),
        ((X, Y, Z, Stay("x", "hbm", 0, 3)), (), "'x' stays in 'hbm', but there is no such value or tier."),
        ((X, Stay("x", "slow", 0, 3), Y, Z), (), "'x' begins in fast and slow at once."),
    ],
)
def test_messages_name_value_step_and_tier(stays: tuple[Stay, ...], moves: tuple[Move, ...], message: str) -> None:
    with pytest.raises(WrongPlan) as raised:
        verify_tiers(SMALL, plan_of(stays, moves), ROOM, {}, alignment=1)
    assert str(raised.value) == message


def test_an_overlapped_copy_is_read_only_from_the_next_step_on() -> None:
    ends = Stay("x", "slow", 0, 2)
    late = Move("x", "slow", "fast", 2, overlapped=True)
    soon = Move("x", "slow", "fast", 1, overlapped=True)
    right = (ends, Stay("x", "fast", 1, 3), Y, Z)
    verify_tiers(SMALL, plan_of(right, (soon,)), ROOM, {}, alignment=1)
    with pytest.raises(WrongPlan, match="step 2: 'x' is copied from 'slow', where it is not, or not for long"):
        verify_tiers(SMALL, plan_of((Stay("x", "slow", 0, 2), Stay("x", "fast", 2, 3), Y, Z), (late,)), ROOM, {}, 1)


def test_a_copy_that_is_written_elsewhere_is_stale() -> None:
    """y overwrites x in the fast tier; the copy of x in the slow one may not stay for later."""
    graph = Graph(
        (Value("x", 8, "input"), Value("t", 0), Value("y", 8, "output")),
        (Operator("a", ("x",), ("t",)), Operator("b", ("x",), ("y",)), Operator("c", ("y",), ())),
        (Share("y", "x", overwrites=True),),
    )
    inside = {"y": Alias("x", 0, overwrites=True)}
    stays = (Stay("x", "slow", 0, 2), Stay("x", "fast", 1, 3), Stay("t", "fast", 0, 1))
    moves = (Move("x", "slow", "fast", 1),)
    verify_tiers(graph, plan_of(stays, moves), ROOM, inside, 1)
    with pytest.raises(WrongPlan) as raised:
        verify_tiers(graph, plan_of((Stay("x", "slow", 0, 3), *stays[1:]), moves), ROOM, inside, 1)
    assert str(raised.value) == "step 1 writes 'x' in 'fast'; the copy in 'slow' is stale and stays."
    with pytest.raises(WrongPlan, match="'y' lies in 't', which the graph does not offer"):
        verify_tiers(graph, plan_of(stays, moves), ROOM, {"y": Alias("t")}, 1)


def test_a_constant_is_where_the_next_run_looks_for_it() -> None:
    graph = Graph(
        (Value("w", 8, "constant"),), (Operator("a", ("w",), ()), Operator("b", ("w",), ()), Operator("c", (), ()))
    )
    stays = (Stay("w", "fast", 0, 1), Stay("w", "slow", 1, 3))
    with pytest.raises(WrongPlan) as raised:
        verify_tiers(graph, plan_of(stays, (Move("w", "fast", "slow", 1),)), ROOM, {}, 1)
    assert str(raised.value) == "the constant 'w' begins in 'fast' and is not there at the end."


def test_a_view_of_what_is_joined_takes_its_operand_along() -> None:
    """v3 is a view of v2 and the first part of v4: then v2 itself is made there."""
    values = (Value("x", 4, "input"), Value("v2", 8), Value("v3", 8), Value("w2", 4), Value("v4", 12, "output"))
    operators = (
        Operator("a", ("x",), ("v2",)), Operator("b", ("v2",), ("v3",)), Operator("c", ("x",), ("w2",)),
        Operator("d", ("v3", "w2"), ("v4",)),
    )  # fmt: skip
    graph = Graph(values, operators, (Share("v3", "v2"), Share("v3", "v4"), Share("w2", "v4", 8)))
    plan = plan_tiers(graph, small_machine(60, 2000), method="heuristic", alignment=1)
    assert plan.aliases["v2"] == Alias("v4")
    verify_tiers(graph, plan.memory, plan.capacities, plan.aliases, 1)
    with pytest.raises(WrongPlan, match="'v2' lies in 'v4', which the graph does not offer"):
        verify_tiers(graph, plan.memory, plan.capacities, {**plan.aliases, "v2": Alias("v4", 4)}, 1)

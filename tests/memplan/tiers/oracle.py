"""The least time of small problems by looking at everything, from the rules of the simulator alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from memplan.graph import Graph, Value
from memplan.tiers.machine import Link, Machine, Tier

NS = 1e9


def small_machine(fast: int, slow: int = 1000, third: int | None = None) -> Machine:
    """1 and 0.1 bytes per nanosecond, copies in between; every size below is a handful of bytes."""
    tiers = [Tier("fast", fast, 1e9, 1e9), Tier("slow", slow, 2e8, 1e8)]
    links = [Link("slow", "fast", 5e8, 1e8), Link("fast", "slow", 3e8, 1e8)]
    if third is not None:
        tiers.append(Tier("third", third, 5e7, 4e7))
        links += [Link("third", "slow", 1e8, 5e7), Link("third", "fast", 1e8, 5e7), Link("slow", "third", 1e8)]
    return Machine("small", tuple(tiers), tuple(links))


def least_static_time(graph: Graph, machine: Machine) -> float:
    """Every placement is tried. The graph has no shares and no workspaces; sizes count as they are."""
    lives = _lives(graph)
    best = float("inf")
    for chosen in product(range(len(machine.tiers)), repeat=len(graph.values)):
        where = {value.name: tier for value, tier in zip(graph.values, chosen, strict=True)}
        if all(_fits(graph, machine, lives, step, {v: {t} for v, t in where.items()}) for step in _steps(graph)):
            best = min(best, sum(_step_time(graph, machine, step, where) for step in _steps(graph)))
    return best


def least_sync_time(graph: Graph, machine: Machine) -> float:
    """Dynamic programming over all ways in which values can lie in tiers at each step, moved at every boundary."""
    lives = _lives(graph)
    constants = [value.name for value in graph.values if value.kind == "constant"]
    best = float("inf")
    tiers = range(len(machine.tiers))
    for homes in product(tiers, repeat=len(constants)):
        home = dict(zip(constants, homes, strict=True))
        states: dict[tuple[tuple[str, frozenset[int]], ...], float] = {}
        for step in _steps(graph):
            alive = [value for value in graph.values if lives[value.name][0] <= step < lives[value.name][1]]
            following: dict[tuple[tuple[str, frozenset[int]], ...], float] = {}
            for state, time in states.items() if step else [((), 0.0)]:
                there = dict(state)
                options = [list(_options(machine, value, there, home, tiers)) for value in alive]
                for choice in product(*options):
                    held = {value.name: set(places) for value, (places, _) in zip(alive, choice, strict=True)}
                    last = step == len(graph.operators) - 1
                    if last and any(tier not in held[name] for name, tier in home.items()):
                        continue  # the next run looks for a constant where this one did
                    if not _fits(graph, machine, lives, step, held):
                        continue
                    waited = sum(cost for _, cost in choice)
                    where = {name: min(places) for name, places in held.items()}
                    now = time + waited + _step_time(graph, machine, step, where)
                    written = graph.operators[step].outputs
                    after = tuple(
                        (name, frozenset(places)) for name, places in held.items() if lives[name][1] > step + 1
                    )
                    assert all(len(held[name]) == 1 for name in written)
                    if now < following.get(after, float("inf")):
                        following[after] = now
            states = following
        best = min([best, *states.values()])
    return best


def _options(
    machine: Machine, value: Value, there: dict[str, frozenset[int]], home: dict[str, int], tiers: range
) -> Iterator[tuple[frozenset[int], float]]:
    """The tiers that may hold a value at a step, and what the copies take."""
    if value.name not in there:
        for tier in tiers:
            if home.get(value.name, tier) == tier:
                yield frozenset({tier}), 0.0
        return
    before = there[value.name]
    for size in range(1, 2 ** len(tiers)):
        after = frozenset(tier for tier in tiers if size >> tier & 1)
        added = after - before
        if not added:
            yield after, 0.0
        elif len(added) == 1:
            target = min(added)
            for source in before:
                link = machine.link(machine.tiers[source].name, machine.tiers[target].name)
                # Upwards, the source counts until the copy has been made.
                if link is not None and (source < target or source in after):
                    yield after, value.size * NS / link.sync_bandwidth


def _steps(graph: Graph) -> range:
    return range(len(graph.operators))


def _lives(graph: Graph) -> dict[str, tuple[int, int]]:
    lives = {}
    for value in graph.values:
        made = [step for step, one in enumerate(graph.operators) if value.name in one.outputs]
        uses = [step for step, one in enumerate(graph.operators) if value.name in (*one.inputs, *one.outputs)]
        end = len(graph.operators) if value.kind in ("output", "constant") else max(uses, default=0) + 1
        lives[value.name] = (made[0] if made else 0, end)
    return lives


def _fits(
    graph: Graph, machine: Machine, lives: dict[str, tuple[int, int]], step: int, held: dict[str, set[int]]
) -> bool:
    taken = [0] * len(machine.tiers)
    for value in graph.values:
        if lives[value.name][0] <= step < lives[value.name][1]:
            for tier in held[value.name]:
                taken[tier] += value.size
    return all(used <= tier.capacity for used, tier in zip(taken, machine.tiers, strict=True))


def _step_time(graph: Graph, machine: Machine, step: int, where: dict[str, int]) -> float:
    size = {value.name: value.size for value in graph.values}
    operator = graph.operators[step]
    reads = sum(size[name] * NS / machine.tiers[where[name]].read_bandwidth for name in dict.fromkeys(operator.inputs))
    writes = sum(size[name] * NS / machine.tiers[where[name]].write_bandwidth for name in operator.outputs)
    return max(operator.time, reads + writes)

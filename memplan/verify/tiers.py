"""Whether a plan of tiers holds: values are where they are read, moves copy what is there, capacities are kept.

Looks at the plan value by value, from intervals alone; nothing here executes it, knows times, or how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memplan.graph import Graph
from memplan.plan import MemoryPlan, Move, Packing, Stay
from memplan.problem import Alias, Buffer, MemoryProblem
from memplan.verify.packing import WrongPlan, verify


def verify_tiers(
    graph: Graph, plan: MemoryPlan, capacities: Mapping[str, int], aliases: Mapping[str, Alias], alignment: int = 64
) -> None:
    """Raises WrongPlan naming the value, the step and the tier where a promise is broken.

    `capacities`: bytes by tier, fastest first. `aliases`: values that lie in others; a stay or a move of a value is one
    of everything in it. Arenas hold one buffer for each stay: the value's name for its first in that tier, `name#2` for
    its second. The workspace of an operator is called `operator@step`. A name that a value has already gets primes.

    The rules: from its making (or the start) to its last use (outputs: to the end; constants: always) a value is in
    some tier, reads and writes happen in the fastest that has it, and after a write copies elsewhere are stale: they
    end. A stay that does not begin with its value begins with a move to it. A copy counts in its target from the move's
    step on. Its source counts at that step too, unless the copy is waited for and goes to a slower tier: such copies
    are made first.
    """
    if plan.order != tuple(operator.name for operator in graph.operators):
        raise WrongPlan("the plan runs operators in another order than the graph's.")
    steps = max(len(plan.order), 1)
    _check_aliases(graph, aliases, alignment)
    needs = _needs(graph, aliases)
    rank = {tier: position for position, tier in enumerate(capacities)}
    stays: dict[str, list[Stay]] = {name: [] for name in needs}
    for stay in plan.stays:
        if stay.value not in needs or stay.tier not in rank:
            raise WrongPlan(f"'{stay.value}' stays in '{stay.tier}', but there is no such value or tier.")
        if not 0 <= stay.begin < stay.end <= steps:
            raise WrongPlan(
                f"'{stay.value}' stays in '{stay.tier}' from step {stay.begin} to before {stay.end}: never."
            )
        stays[stay.value].append(stay)
    moves: dict[str, list[Move]] = {name: [] for name in needs}
    for move in plan.moves:
        if move.value not in needs or move.source not in rank or move.target not in rank or move.source == move.target:
            raise WrongPlan(f"'{move.value}' moves from '{move.source}' to '{move.target}', which is no such move.")
        moves[move.value].append(move)
    for name, need in needs.items():
        _check_value(name, need, stays[name], moves[name], rank)
    _check_room(needs, plan.stays, capacities, steps, alignment)
    for tier, capacity in capacities.items():
        _check_arena(tier, capacity, plan, needs, alignment)


class _Need:
    """When a value (with all that lies in it) is needed, read and written."""

    def __init__(self, size: int, begin: int, made: bool) -> None:
        self.size = size
        self.begin = begin
        self.end = begin + 1
        self.made = made
        self.touched: set[int] = set()
        self.written: set[int] = set()
        self.constant = False


def _free(name: str, taken: Mapping[str, object]) -> str:
    while name in taken:
        name += "'"
    return name


def _root(name: str, aliases: Mapping[str, Alias]) -> str:
    while name in aliases:
        name = aliases[name].of
    return name


def _needs(graph: Graph, aliases: Mapping[str, Alias]) -> dict[str, _Need]:
    size = {value.name: value.size for value in graph.values}
    kind = {value.name: value.kind for value in graph.values}
    needs: dict[str, _Need] = {}
    for value in graph.values:
        if value.kind in ("input", "constant"):
            needs[value.name] = _Need(value.size, 0, made=False)
    for step, operator in enumerate(graph.operators):
        for name in (*operator.inputs, *operator.outputs):
            root = _root(name, aliases)
            need = needs.setdefault(root, _Need(size[root], step, made=True))
            need.touched.add(step)
            need.end = max(need.end, step + 1)
        for name in operator.outputs:
            alias = aliases.get(name)
            if alias is None or alias.overwrites or alias.of not in operator.inputs:
                needs[_root(name, aliases)].written.add(step)
        if operator.workspace:
            need = needs[_free(f"{operator.name}@{step}", size)] = _Need(operator.workspace, step, made=True)
            need.touched.add(step)
            need.written.add(step)
    for name, what in kind.items():
        if what in ("output", "constant"):
            needs[_root(name, aliases)].end = max(len(graph.operators), 1)
        if what == "constant":
            needs[_root(name, aliases)].constant = True
    return needs


def _check_aliases(graph: Graph, aliases: Mapping[str, Alias], alignment: int) -> None:
    """Places in other values are such as the graph offers, and nobody's bytes are overwritten while they are needed.

    Every value that lies in no other is given bytes of its own, so that only aliases can clash.
    """
    offered = {(share.value, share.of, share.at, share.overwrites) for share in graph.shares}
    for share in graph.shares:  # what is a slice of a result takes what it lies in with it
        name, at = share.value, share.at
        while not share.overwrites and name in aliases and aliases[name].of != share.of:
            name, at = aliases[name].of, at - aliases[name].at
            offered.add((name, share.of, at, False))
    for name, alias in aliases.items():
        if (name, alias.of, alias.at, alias.overwrites) not in offered:
            raise WrongPlan(f"'{name}' lies in '{alias.of}', which the graph does not offer.")
    plain = _needs(graph, {})
    buffers = tuple(
        Buffer(value.name, value.size, plain[value.name].begin, plain[value.name].end, alias=aliases.get(value.name))
        for value in graph.values
    )
    offsets: dict[str, int] = {}
    end = 0
    for value in graph.values:
        if value.name not in aliases:
            offsets[value.name] = end
            end += -(-value.size // alignment) * alignment
    for value in graph.values:
        name, at = value.name, 0
        while name in aliases:
            name, at = aliases[name].of, at + aliases[name].at
        offsets[value.name] = offsets[name] + at
    verify(MemoryProblem(buffers, alignment), Packing(offsets, end, end, "one beside the other"))


def _check_value(name: str, need: _Need, stays: Sequence[Stay], moves: Sequence[Move], rank: Mapping[str, int]) -> None:
    by_tier: dict[str, list[Stay]] = {tier: [] for tier in rank}
    for stay in sorted(stays, key=lambda stay: stay.begin):
        if stay.begin < need.begin or stay.end > need.end:
            raise WrongPlan(f"'{name}' stays in '{stay.tier}' outside of its life [{need.begin}, {need.end}).")
        if by_tier[stay.tier] and by_tier[stay.tier][-1].end > stay.begin:
            raise WrongPlan(f"'{name}' stays in '{stay.tier}' twice at step {stay.begin}.")
        by_tier[stay.tier].append(stay)
    readable = [_readable(name, need, stay, moves) for stay in stays]
    for move in moves:
        _check_move(name, need, move, stays, readable, rank)
    tiers_at_first = {
        stay.tier for stay in stays if stay.begin == need.begin and readable[stays.index(stay)] == need.begin
    }
    if len(tiers_at_first) > 1:
        raise WrongPlan(f"'{name}' begins in {' and '.join(sorted(tiers_at_first))} at once.")
    covered = need.begin
    for since, stay in sorted(zip(readable, stays, strict=True), key=lambda pair: pair[0]):
        if since > covered:
            break
        covered = max(covered, stay.end)
    if covered < need.end:
        what = "read or written" if covered in need.touched else "kept"
        raise WrongPlan(f"step {covered}: '{name}' is {what} and is in no tier.")
    for step in sorted(need.written):
        have = [stay for stay, since in zip(stays, readable, strict=True) if since <= step < stay.end]
        written = min(have, key=lambda stay: rank[stay.tier])
        for stay in stays:
            if stay is not written and stay.begin <= step and stay.end > step + 1:
                raise WrongPlan(
                    f"step {step} writes '{name}' in '{written.tier}'; the copy in '{stay.tier}' is stale and stays."
                )
        for move in moves:
            if move.overlapped and move.step == step:
                raise WrongPlan(f"step {step} writes '{name}' while it is copied to '{move.target}'.")
    if need.constant:
        for tier in tiers_at_first:
            if not any(stay.tier == tier and stay.end == need.end for stay in stays):
                raise WrongPlan(f"the constant '{name}' begins in '{tier}' and is not there at the end.")


def _readable(name: str, need: _Need, stay: Stay, moves: Sequence[Move]) -> int:
    """The step from which a stay can be read."""
    brought = [move for move in moves if move.target == stay.tier and move.step == stay.begin]
    if brought:
        return stay.begin + 1 if brought[0].overlapped else stay.begin
    if stay.begin != need.begin:
        raise WrongPlan(f"step {stay.begin}: '{name}' begins to stay in '{stay.tier}' and nothing brings it there.")
    return stay.begin


def _check_move(
    name: str, need: _Need, move: Move, stays: Sequence[Stay], readable: Sequence[int], rank: Mapping[str, int]
) -> None:
    """The source has it for as long as the copy takes, and the target's stay begins with the copy."""
    if not any(stay.tier == move.target and stay.begin == move.step for stay in stays):
        raise WrongPlan(f"step {move.step}: '{name}' is copied to '{move.target}', where no stay begins.")
    first = move.step == need.begin
    falls = rank[move.target] > rank[move.source] and not move.overlapped
    last = move.step if falls else move.step + 1  # the source stays at least until before this step
    there = any(
        stay.tier == move.source and since <= move.step - (not move.overlapped) and stay.end >= last
        for stay, since in zip(stays, readable, strict=True)
    )
    if first or not there:
        raise WrongPlan(
            f"step {move.step}: '{name}' is copied from '{move.source}', where it is not, or not for long enough."
        )


def _check_room(
    needs: Mapping[str, _Need], stays: Sequence[Stay], capacities: Mapping[str, int], steps: int, alignment: int
) -> None:
    for tier, capacity in capacities.items():
        changes = [0] * (steps + 1)
        for stay in stays:
            if stay.tier == tier:
                held = -(-needs[stay.value].size // alignment) * alignment
                changes[stay.begin] += held
                changes[stay.end] -= held
        held = 0
        for step, change in enumerate(changes):
            held += change
            if held > capacity:
                raise WrongPlan(f"step {step}: '{tier}' holds {held} bytes, {held - capacity} above its capacity.")


def _check_arena(tier: str, capacity: int, plan: MemoryPlan, needs: Mapping[str, _Need], alignment: int) -> None:
    counts: dict[str, int] = {}
    buffers = []
    for stay in sorted((one for one in plan.stays if one.tier == tier), key=lambda one: (one.begin, one.value)):
        counts[stay.value] = counts.get(stay.value, 0) + 1
        name = stay.value if counts[stay.value] == 1 else _free(f"{stay.value}#{counts[stay.value]}", needs)
        buffers.append(Buffer(name, needs[stay.value].size, stay.begin, stay.end))
    packing = plan.arenas.get(tier)
    if packing is None:
        raise WrongPlan(f"tier '{tier}' has no arena.")
    try:
        verify(MemoryProblem(tuple(buffers), alignment, capacity), packing)
    except WrongPlan as error:
        raise WrongPlan(f"tier '{tier}': {error}") from None

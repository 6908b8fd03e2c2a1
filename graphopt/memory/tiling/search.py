"""Which part of a model to tile, so that its live peak comes under a budget with little extra time.

Greedy: while some step needs more than the budget, stretches of the order around the worst step are tried, from where
little lives to where little lives, along every axis, in more and more tiles. Estimates choose; the model that is
written decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import onnx_ir as ir

from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import ModelMemory, Sharing, model_memory
from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.estimate import Estimate, Stretch
from graphopt.memory.tiling.region import Join, Region, Run, Step, members_of, region_of, steps_of
from graphopt.memory.tiling.write import split_around, write_tiles
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import Range
from graphopt.model.operators.table import formula_of
from graphopt.model.text import Progress, silent
from memplan.bounds import live_bytes
from memplan.work import Work

COUNTS = (2, 3, 4, 6, 8, 12, 16)
PROGRAM_COUNTS = (2, 3, 4, 5, 6, 8, 12, 16)  # where tiles may have any size
REACH = 40  # operators before and behind the worst step
SEEDS = 6  # operators from the worst step on, whose results are tiled
ENDS = 7  # of a stretch, to each side
LARGEST_TILED = 1_000  # nodes of a model in which tiles are looked for although another way has kept the budget
TILE_WORK = 60_000_000_000  # steps, about as many nanoseconds
STEPS_PER_NODE, STEPS_PER_RUN = 250_000, 40_000  # of a model that is written and read; of one that is estimated
STEPS_PER_LOWERED = 750_000  # of a model that is lowered too
AIMS = (1.0, 0.85, 0.7)  # what to keep around each step, of the budget: cheap choices may leave no way on
EXACT = 3  # candidates that are written to see what they really take
LEAST_OPSET = 10  # Slice with ends as operands
# Results of a product below which libraries sum in another order, so that bits differ. MLAS sums in other blocks where
# a thread has at most 64 columns, but sums of 128 products or fewer always in one; 192 columns are more for each of two
# threads, 1,024 for each of six. It also has kernels of its own for single rows.
LEAST_COLUMNS, MANY_COLUMNS = 192, 1024
FEW_COLUMNS = 65  # for one thread; its kernels for blocks of channels sum alike for any number of columns
ONE_BLOCK = 128
LEAST_ROWS = 16
PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Attention")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model takes when it is run in the order of its nodes."""

    live: Sequence[int]  # bytes at each operator of its graph
    steps: Sequence[int]  # and at each step of the run
    time: float  # nanoseconds by estimate

    def rank(self, budget: int) -> tuple[int, int, float]:
        """The peak and at how many steps it is above the budget; what keeps it, by time."""
        return max(budget, *self.steps, 0), sum(one > budget for one in self.steps), self.time


Judge = Callable[[ir.Model, ModelMemory], Seen]


def by_nodes(_: ir.Model, memory: ModelMemory) -> Seen:
    """Where every node is a step, and its results are as large as the model says."""
    changes = dict(live_bytes(problem_of(memory.graph)))
    found, now = [], 0
    for step in range(len(memory.graph.operators)):
        now = changes.get(step, now)
        found.append(now)
    return Seen(found, found, sum(one.time for one in memory.graph.operators))


@dataclass(frozen=True, slots=True)
class _Goal:
    """Bytes to keep around a step, the fewest columns of a convolution's tile, and how tiles lie."""

    budget: int
    columns: int
    views: bool = False
    vector: int = 1  # channels or columns that kernels compute at once, which tiles do not cut


@dataclass(frozen=True, slots=True)
class _Candidate:
    region: Region
    count: int
    keep: bool  # what two tiles need, instead of computing it twice
    vector: int
    estimate: Estimate
    added: float  # nanoseconds

    def name(self) -> tuple[tuple[str, ...], int, int, bool]:
        """What tells it from others of the same model."""
        members = tuple(nodes.used_outputs(node)[0].name or "" for node in self.region.members)
        axis = self.region.axes[nodes.used_outputs(self.region.members[0])[0]]
        return members, axis, self.count, self.keep


def tile_within(
    model: ir.Model,
    budget: int,
    *,
    sharing: Sharing = True,
    columns: int = LEAST_COLUMNS,
    vector: int = 1,
    work: Work | int = TILE_WORK,
    judge: Judge = by_nodes,
    dear: float = inf,
    progress: Progress = silent,
) -> tuple[ir.Model, int]:
    """A copy of `model` in which regions are tiled until its live peak in file order is at most `budget` bytes.

    Where that is not reached with so much work, in steps, the copy with the least peak that was found. Also tells how
    many regions were tiled. `sharing` as in `model_memory`; a tile of a convolution has at least so many `columns`, and
    one of a product enough rows, or with 0 any size that there is. No tile cuts a `vector` of channels or columns.
    `judge` says what a tiled model takes; one that takes `dear` times as long as before is not taken before other aims
    have been tried.
    """
    left = Work(work) if isinstance(work, int) else work
    copy = model.clone()
    memory = model_memory(copy, sharing=sharing)
    best = _Tiled(copy, memory, 0, judge(copy, memory))
    if copy.graph.opset_imports.get("", 1) < LEAST_OPSET:
        return copy, 0
    start = best
    trials: dict[_Trial, _Tiled] = {}  # what other aims have tried need not be written and judged again
    for aim in AIMS:
        goal = _Goal(int(aim * budget), columns, judge is not by_nodes, vector)
        found = _greedy(start, budget, goal, left, judge, progress, trials)
        best = min(best, found, key=lambda one: one.seen.rank(budget))
        if max(best.seen.steps, default=0) <= budget and best.seen.time <= dear * start.seen.time:
            break
    return best.model, best.regions


@dataclass(frozen=True, slots=True)
class _Tiled:
    model: ir.Model
    memory: ModelMemory
    regions: int
    seen: Seen


# By region: its nodes, their axis, how many tiles, and whether they keep what others need.
_Trial = tuple[tuple[tuple[str, ...], int, int, bool], ...]


def _greedy(
    now: _Tiled, budget: int, goal: _Goal, work: Work, judge: Judge, progress: Progress, trials: dict[_Trial, _Tiled]
) -> _Tiled:
    """Tile around the worst step while that helps, each time as cheaply as the goal is kept there."""
    done: _Trial = ()
    while now.seen.steps and max(now.seen.steps) > budget and not work.over():
        better: list[_Trial] = []
        for found in _candidates(now, goal, work):
            trial = (*done, found.name())
            if trial not in trials:
                work.spend((STEPS_PER_NODE if judge is by_nodes else STEPS_PER_LOWERED) * len(now.model.graph))
                model = _applied(now.model, found)
                memory = model_memory(model, sharing=now.memory.sharing)
                trials[trial] = _Tiled(model, memory, now.regions + 1, judge(model, memory))
            if _worse(trials[trial].seen.steps) < _worse(now.seen.steps):
                better.append(trial)
                if judge is by_nodes:  # whose times are those by which candidates are sorted
                    break
        if not better:
            break
        done = min(better, key=lambda one: trials[one].seen.rank(budget))
        now = trials[done]
        progress(f"{now.regions} regions in tiles")
    return now


def _worse(live: Sequence[int]) -> tuple[int, int]:
    """The peak, and at how many steps it stands: equal layers reach it one after the other."""
    peak = max(live)
    return peak, sum(one == peak for one in live)


def _candidates(now: _Tiled, goal: _Goal, work: Work) -> list[_Candidate]:
    """The most promising ways to tile around the worst step."""
    live = now.seen.live
    worst = max(range(len(live)), key=live.__getitem__)
    facts, memory = Facts(now.model), now.memory
    found: list[_Candidate] = []
    for axes in _axes(facts, memory, worst):
        for first, last in _stretches(memory, axes, worst):
            found += _tilings(facts, memory, live, axes, (first, last), goal, work)
        if any(one.estimate.peak <= goal.budget for one in found):
            break
    found.sort(key=lambda one: (max(one.estimate.peak, goal.budget), one.added))
    # The best of each region with either model first: where an estimate is wrong, it is of all numbers of tiles.
    best = {(one.region.members, one.keep): one for one in reversed(found)}
    others = [one for one in found if best[one.region.members, one.keep] is not one]
    return [*(one for one in found if best[one.region.members, one.keep] is one), *others][:EXACT]


def _axes(facts: Facts, memory: ModelMemory, worst: int) -> Iterator[Mapping[ir.Value, int]]:
    """For each axis of the worst step's result, the axes of values around it; then of the results that follow."""
    operators = memory.graph.operators
    near = [memory.nodes[one.name] for one in operators[max(0, worst - REACH) : worst + REACH + 1]]
    known: list[Mapping[ir.Value, int]] = []
    for one in operators[worst : worst + SEEDS]:
        seed = nodes.used_outputs(memory.nodes[one.name])
        for axis in range(facts.rank(seed[0]) or 0) if seed else ():
            if any(axes.get(seed[0]) == axis for axes in known):
                continue
            found = axes_from(facts, seed[0], axis, near)
            if len(found) > 1:
                known.append(found)
                yield found


def _stretches(memory: ModelMemory, axes: Mapping[ir.Value, int], worst: int) -> list[tuple[int, int]]:
    """First and last operator: where least lives before, and behind."""
    operators = memory.graph.operators
    sizes = {value.name: value.size for value in memory.graph.values if value.kind == "temporary"}
    last_use = {name: step for step, one in enumerate(operators) for name in one.inputs}
    across = [0] * (len(operators) + 1)  # bytes between a step and the one before
    for step, one in enumerate(operators):
        for name in one.outputs:
            for after in range(step + 1, last_use.get(name, step) + 1):
                across[after] += sizes.get(name, 0)

    tiled = [_tiled_result(memory.nodes[one.name], axes) for one in operators]

    def begins_alone(step: int) -> bool:
        node = memory.nodes[operators[step].name]
        made = [value for value in node.inputs if value is not None and value.producer() is not None]
        return not any(value in axes and _joins(value) is node for value in made)

    def ends_alone(step: int) -> bool:
        value = tiled[step]
        user = None if value is None else _joins(value)
        return user is None or user.outputs[0] not in axes

    begins = [step for step in range(worst, max(-1, worst - REACH - 1), -1) if tiled[step] and begins_alone(step)]
    ends = [step for step in range(worst, min(len(operators), worst + REACH + 1)) if tiled[step] and ends_alone(step)]
    firsts = _front(begins, [across[step] for step in begins])
    lasts = _front(ends, [across[step + 1] for step in ends])
    return [(first, last) for first in firsts for last in lasts]


def _tiled_result(node: ir.Node, axes: Mapping[ir.Value, int]) -> ir.Value | None:
    used = nodes.used_outputs(node)
    return used[0] if used and used[0] in axes else None


def _joins(value: ir.Value) -> ir.Node | None:
    """The elementwise node that alone reads a value: kernels compute both together, so tiles keep them together."""
    users = {use.node for use in value.uses()}
    if len(users) != 1 or value.is_graph_output():
        return None
    (user,) = users
    return None if formula_of(user) is None else user


def _front(steps: Sequence[int], costs: Sequence[int]) -> list[int]:
    """Of steps from near to far, those that cost less than all nearer ones: the nearest and the cheapest among them."""
    found: list[tuple[int, int]] = []
    for step, cost in zip(steps, costs, strict=True):
        if not found or cost < found[-1][1]:
            found.append((step, cost))
    if len(found) > ENDS:
        stride = (len(found) - 1) / (ENDS - 1)
        found = [found[round(number * stride)] for number in range(ENDS)]
    return [step for step, _ in found]


def _tilings(
    facts: Facts,
    memory: ModelMemory,
    live: Sequence[int],
    axes: Mapping[ir.Value, int],
    ends: tuple[int, int],
    goal: _Goal,
    work: Work,
) -> Iterator[_Candidate]:
    first, last = ends
    operators = memory.graph.operators[first : last + 1]
    order = [memory.nodes[one.name] for one in operators]
    by_node = dict(zip(order, operators, strict=True))
    members = members_of(facts, order, axes)
    region = region_of(facts, members, axes) if members else None
    if region is None:
        return
    head, behind, tail = split_around(order, set(members))
    stretch = Stretch(memory, facts, first, last, views=goal.views)
    before = [by_node[node] for node in head]
    after = [by_node[node] for node in (*behind, *tail)]
    untiled = sum(one.time for one in operators)
    counts = PROGRAM_COUNTS if goal.views else COUNTS
    for keep in (False, True) if goal.views else (False,):
        least = max(live[first : last + 1])
        for count in counts:
            steps = steps_of(facts, region, count, keep=keep, vector=goal.vector)
            if steps is None or not all(_keeps_bits(facts, step, goal.columns) for step in steps):
                break
            if keep and not any(isinstance(step, Join) and step.whole.axis is not None for step in steps):
                return  # tiles have nothing in common
            work.spend(STEPS_PER_RUN * (len(before) + len(steps) + len(after)))
            estimate = stretch.tiled(before, steps, after)
            if estimate.peak >= least:
                continue
            least = estimate.peak
            yield _Candidate(region, count, keep, goal.vector, estimate, estimate.time - untiled)
            if least <= goal.budget:
                break


def _keeps_bits(facts: Facts, step: Step, columns: int) -> bool:
    """Whether libraries compute the tile as they compute the whole, as far as its size tells."""
    if not columns or not isinstance(step, Run) or step.node.op_type not in PRODUCTS:
        return True
    piece, operand = step.outputs[0], step.node.inputs[0]
    assert piece.axis is not None and operand is not None, "products have an operand, a run makes pieces"
    if step.node.op_type == "ConvTranspose":  # a product of the weights and the operand, whose windows are added up
        shape = _shape(facts, operand, step.how.inputs[0])
    else:
        shape = _shape(facts, piece.value, Range(piece.axis, piece.low, piece.high))
    if step.node.op_type == "Conv" and piece.axis == 1:
        return nodes.int_attribute(step.node, "group", 1) > 1 or shape[1] >= LEAST_ROWS
    if step.node.op_type in ("Conv", "ConvTranspose"):
        weights = _shape(facts, step.node.inputs[1], None)
        depth = weights[0] if step.node.op_type == "ConvTranspose" else prod(weights[1:])
        return piece.axis == 0 or depth <= ONE_BLOCK or prod(shape[2:]) >= columns
    if piece.axis == len(shape) - 1:
        return False  # fewer columns may be another kernel
    return piece.axis < len(shape) - 2 or shape[-2] >= LEAST_ROWS


def _shape(facts: Facts, value: ir.Value | None, of: Range | None) -> list[int]:
    shape = [] if value is None else list(facts.static_shape(value) or ())
    if of is not None:
        shape[of.axis] = of.high - of.low
    return shape


def _applied(model: ir.Model, candidate: _Candidate) -> ir.Model:
    """A copy of the model with the candidate written into it."""
    copy = model.clone()
    there = dict(zip(model.graph, copy.graph, strict=True))
    axes = {
        mine: axis
        for value, axis in candidate.region.axes.items()
        for mine in _outputs_like(value, there)
    }  # fmt: skip
    facts = Facts(copy)
    region = region_of(facts, [there[node] for node in candidate.region.members], axes)
    assert region is not None, "the copy is the same model"
    steps = steps_of(facts, region, candidate.count, keep=candidate.keep, vector=candidate.vector)
    assert steps is not None, "the copy is the same model"
    write_tiles(copy, region, steps)
    return copy


def _outputs_like(value: ir.Value, there: Mapping[ir.Node, ir.Node]) -> list[ir.Value]:
    producer = value.producer()
    index = value.index()
    assert producer is not None and index is not None, "a region's values are made by its nodes"
    return [there[producer].outputs[index]]

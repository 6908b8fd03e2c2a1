"""Which part of a model to tile, so that its live peak comes under a budget with little extra time.

Greedy: while some step needs more than the budget, the ways to tile around the worst one are tried. Estimates choose
which are written; the model that is written decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import onnx_ir as ir

from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import ModelMemory, Sharing, model_memory
from graphopt.memory.tiling.alike import regions_alike
from graphopt.memory.tiling.candidates import LEAST_COLUMNS, Around, Candidate, Kind
from graphopt.memory.tiling.region import Region, Step, region_of, steps_of
from graphopt.memory.tiling.write import write_tiles
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.text import Progress, silent
from memplan.bounds import live_bytes
from memplan.work import Work

LARGEST_TILED = 1_000  # nodes of a model in which tiles are looked for although another way has kept the budget
TILE_WORK = 60_000_000_000  # steps, about as many nanoseconds
STEPS_PER_NODE = 250_000  # of a model that is written and read
STEPS_PER_LOWERED = 1_000_000  # of a model that is lowered too
AIMS = (1.0, 0.85, 0.7)  # what to keep around each step, of the budget: cheap choices may leave no way on
EXACT = 3  # candidates that are written to see what they really take
MOST_EXACT = 12  # where none of the first ones takes less: estimates do not know how kernels lay images out
LITTLE = 32  # part of what is above the budget: tiles that still need all but that are no step towards it
LEAST_OPSET = 10  # Slice with ends as operands


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
    further: bool = False,
    again: bool = False,
    progress: Progress = silent,
) -> tuple[ir.Model, int]:
    """A copy of `model` in which regions are tiled until its live peak in file order is at most `budget` bytes.

    Where that is not reached with so much work, in steps, the copy with the least peak that was found. Also tells how
    many regions were tiled. `sharing` as in `model_memory`; a tile of a convolution has at least so many `columns`, and
    one of a product enough rows, or with 0 any size that there is. No tile cuts a `vector` of channels or columns.
    `judge` says what a tiled model takes; one that takes `dear` times as long as before is not taken before other aims
    have been tried. With `further`, more is tried where a step resists: axes behind those along which estimates keep
    the budget, with estimates that know views by other strides. With `again`, images are estimated by whole vectors of
    channels, and where a step resists after all, the search begins anew around that step instead of the worst one.
    """
    left = Work(work) if isinstance(work, int) else work
    copy = model.clone()
    memory = model_memory(copy, sharing=sharing, vector=vector, strides=further, whole_vectors=again)
    origins = {name: name for name in memory.nodes}
    best = _Tiled(copy, memory, 0, judge(copy, memory), origins)
    if copy.graph.opset_imports.get("", 1) < LEAST_OPSET:
        return copy, 0
    start = best
    search = _Search(budget, Kind(columns, judge is not by_nodes, vector, further), left, judge, progress)
    for aim in AIMS:
        found = search.greedy(start, int(aim * budget))
        peaks = max(found.seen.steps, default=0), max(best.seen.steps, default=0)
        best = min(best, found, key=lambda one: one.seen.rank(budget))
        if min(peaks) > budget and peaks[0] >= peaks[1]:
            break  # the step that resists does so whatever was chosen before it
        if min(peaks) <= budget and best.seen.time <= dear * start.seen.time:
            break
    if again and (first := best.resisting()) is not None and max(best.seen.steps, default=0) > budget:
        for aim in AIMS:
            found = search.greedy(start, int(aim * budget), first)
            best = min(best, found, key=lambda one: one.seen.rank(budget))
            if max(best.seen.steps, default=0) <= budget:
                break
    return best.model, best.regions


@dataclass(frozen=True, slots=True)
class _Tiled:
    model: ir.Model
    memory: ModelMemory
    regions: int
    seen: Seen
    origins: Mapping[str, str]  # by the name of an operator that of the first model's of which it is a tile, or itself

    def resisting(self) -> str | None:
        """The operator of the first model around which most is needed; None where it is none of its operators."""
        worst = max(range(len(self.seen.live)), key=self.seen.live.__getitem__, default=None)
        return None if worst is None else self.origins.get(self.memory.graph.operators[worst].name)


# By region: its nodes, their axis, how many tiles, and whether they keep what others need.
_Trial = tuple[tuple[tuple[str, ...], int, int, bool], ...]


class _Search:
    """Searches with several aims: what one has estimated, written and judged, the others need not."""

    def __init__(self, budget: int, kind: Kind, work: Work, judge: Judge, progress: Progress) -> None:
        self._budget, self._kind, self._work, self._judge, self._progress = budget, kind, work, judge, progress
        self._ways: dict[tuple[_Trial, str | None], Around] = {}
        self._trials: dict[_Trial, _Tiled] = {}

    def greedy(self, now: _Tiled, aim: int, first: str | None = None) -> _Tiled:
        """Tile around the worst step while that helps, each time as cheaply as `aim` bytes are kept there.

        `first` is the operator to begin around instead.
        """
        done: _Trial = ()
        while now.seen.steps and max(now.seen.steps) > self._budget and not self._work.over():
            way = done, first if not done else None
            if way not in self._ways:
                self._ways[way] = Around(now.model, now.memory, now.seen.live, self._kind, self._work, way[1])
            better: list[_Trial] = []
            for candidates in self._ways[way].candidates(aim):
                better = self._better(now, done, candidates)
                if better or self._work.over():
                    break
            if not better:
                break
            done = min(better, key=lambda one: self._trials[one].seen.rank(self._budget))
            now = self._trials[done]
            self._progress(f"{now.regions} regions in tiles")
        return now

    def _better(self, now: _Tiled, done: _Trial, candidates: Sequence[Candidate]) -> list[_Trial]:
        """Of the first candidates those that help, written and judged."""
        better: list[_Trial] = []
        for number, found in enumerate(candidates):
            if number == MOST_EXACT or (better and not number % EXACT):
                break
            trial = (*done, found.name())
            if trial not in self._trials:
                self._trials[trial] = self._tiled(now, found)
            if self._helps(now, self._trials[trial]):
                better.append(trial)
                if self._judge is by_nodes:  # whose times are those by which candidates are sorted
                    break
        return better

    def _helps(self, now: _Tiled, then: _Tiled) -> bool:
        """Whether less is needed, and not as good as the same within the tiles that were made for it."""
        before, after = _worse(now.seen.steps), _worse(then.seen.steps)
        worst = max(range(len(then.seen.live)), key=then.seen.live.__getitem__)
        is_new = then.memory.graph.operators[worst].name not in now.memory.nodes
        return after < before and not (is_new and (before[0] - after[0]) * LITTLE < before[0] - self._budget)

    def _tiled(self, now: _Tiled, found: Candidate) -> _Tiled:
        """With the region in tiles, and with it those alike that need more than the budget too."""
        order = [now.memory.nodes[one.name] for one in now.memory.graph.operators]
        live = dict(zip(order, now.seen.live, strict=True))
        regions = [found.region]
        for one in regions_alike(Facts(now.model), order, found.region, kin=self._kind.further):
            if max(live[node] for node in one.members) > self._budget:
                regions.append(one)
        model = _applied(now.model, regions, found)
        self._work.spend((STEPS_PER_NODE if self._judge is by_nodes else STEPS_PER_LOWERED) * len(model.graph))
        memory = model_memory(
            model, sharing=now.memory.sharing, vector=self._kind.vector, strides=now.memory.strides,
            whole_vectors=now.memory.whole_vectors,
        )  # fmt: skip
        origins = {
            name: now.origins[source] for name, node in memory.nodes.items()
            if (source := name if name in now.origins else node.metadata_props.get(nodes.TILED, "")) in now.origins
        }  # fmt: skip
        return _Tiled(model, memory, now.regions + len(regions), self._judge(model, memory), origins)


def _worse(live: Sequence[int]) -> tuple[int, int]:
    """The peak, and at how many steps it stands: equal layers reach it one after the other."""
    peak = max(live)
    return peak, sum(one == peak for one in live)


def _applied(model: ir.Model, regions: Sequence[Region], how: Candidate) -> ir.Model:
    """A copy of the model in which the regions are in tiles as the candidate is."""
    copy = model.clone()
    there = dict(zip(model.graph, copy.graph, strict=True))
    facts = Facts(copy)
    tilings: list[tuple[Region, tuple[Step, ...]]] = []
    for one in regions:
        axes = {mine: axis for value, axis in one.axes.items() for mine in _outputs_like(value, there)}
        region = region_of(facts, [there[node] for node in one.members], axes)
        assert region is not None, "the copy is the same model"
        steps = steps_of(facts, region, how.count, keep=how.keep, vector=how.vector)
        if steps is not None:  # one that is alike but for its pads may have none
            tilings.append((region, steps))
    write_tiles(copy, tilings)
    return copy


def _outputs_like(value: ir.Value, there: Mapping[ir.Node, ir.Node]) -> list[ir.Value]:
    producer = value.producer()
    index = value.index()
    assert producer is not None and index is not None, "a region's values are made by its nodes"
    return [there[producer].outputs[index]]

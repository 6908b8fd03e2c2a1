"""`memory`: the plan that is asked for, what each lever would save, other dims, tiers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir
from msgspec import structs

from graphopt.errors import BudgetNotKept, OptionError
from graphopt.files.single import write_file
from graphopt.flows.memory_record import extra_percent, memory_record, plan_line
from graphopt.flows.records.encode import read_memory
from graphopt.flows.records.memory import CurvePoint, LeverLine, MemoryRecord, PlanLine, WhatIfLine
from graphopt.flows.shown import DRAWN, Shown, is_page
from graphopt.flows.source import name_of, read, resize
from graphopt.lazy import Lazy
from graphopt.memory import plan as planning
from graphopt.memory.fit import LEVERS, alone, counts, fit, used
from graphopt.memory.formula import peak_formula
from graphopt.memory.levers.lever import Fitted, Lever
from graphopt.memory.levers.order import ORDER_WORK, best_order
from graphopt.memory.levers.recompute import RECOMPUTATION
from graphopt.memory.levers.tile import TILES
from graphopt.memory.plan import Planned
from graphopt.memory.sequence import write_order
from graphopt.memory.share import in_bytes, read_budget
from graphopt.memory.tensors import ModelMemory, model_memory
from graphopt.model.dimensions import change_dims, name_dims
from graphopt.model.functions import inline
from graphopt.model.load import Source
from graphopt.model.save import save
from graphopt.model.settling import settle
from graphopt.model.text import Progress, binary_size, nearest, several, silent, steps
from memplan.bounds import live_peak
from memplan.compiling import telling
from memplan.tiers.machine import machine as find_machine

if TYPE_CHECKING:
    from graphopt.flows import tier_record
    from graphopt.memory.levers import tier as tiering
    from memplan.tiers.plan import Mode
else:
    tiering, tier_record = Lazy("graphopt.memory.levers.tier"), Lazy("graphopt.flows.tier_record")  # with their solvers

Order = Literal["given", "best"]
# Steps of searching, about as many nanoseconds.
LEVER_WORK = 1_500_000_000  # for what is not asked for, only told
CURVE_WORK = 8_000_000_000  # for each budget of the curve, with recomputation and with tiles
LEVER_SHARES = (0.9, 0.75, 0.5)  # of the best arena: budgets that are tried, until one cannot be kept
MOST_WHAT_IFS = 64
LEVER_NAMES = tuple(lever.name for lever in LEVERS)  # those that cost time to try


@dataclass(frozen=True, slots=True, repr=False)
class MemoryReport(Shown):
    """The record, and what else a caller may do with the plan."""

    record: MemoryRecord
    model: ir.Model  # with the dims that the plan is for, functions inlined
    memory: ModelMemory
    planned: Planned
    _fitted: Fitted
    _given: Planned
    _best: Planned | None  # the best order, where one was looked for
    _others: _Others

    def __repr__(self) -> str:
        kept = self.record
        return (
            f"<MemoryReport {kept.model}: arena {binary_size(kept.arena)}, peak at {kept.peak_operator or 'no step'}>"
        )

    def html(self, beside: Sequence[MemoryReport | str | os.PathLike[str]] = ()) -> str:
        """The page; it stands alone, and compares with reports or JSON files `beside`. Raises MissingExtra."""
        runs = [run.record if isinstance(run, MemoryReport) else read_memory(Path(run)) for run in beside]
        return DRAWN[type(self).__name__](self, *runs).decode()

    def write(self, path: str | os.PathLike[str], beside: Sequence[MemoryReport | str | os.PathLike[str]] = ()) -> None:
        """Write the page (.html) or the record (.json). Raises OptionError for another ending, and SaveError."""
        write_file(path, (self.html(beside) if is_page(path) else self.json()).encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """The same as `write`."""
        self.write(path)

    def _record(self) -> MemoryRecord:
        return self.record

    def _figures(self) -> list[tuple[str, ...]]:
        kept = self.record
        return [
            ("peak", binary_size(kept.peak), kept.peak_operator),
            ("arena", binary_size(kept.arena), "the least there is" if kept.proved_optimal else ""),
            ("weights", binary_size(kept.weights), ""),
            ("inputs", binary_size(kept.inputs), ""),
            *((f"with {line.name}", binary_size(line.arena), line.note) for line in kept.levers),
        ]

    def each_lever(self, names: Sequence[str] = LEVER_NAMES, progress: Progress | None = None) -> Iterator[LeverLine]:
        """What each way of saving would give, one after another as they are found.

        Order and results in place are always told; `names` are of LEVER_NAMES. Raises OptionError for another.
        """
        for name in names:
            if name not in LEVER_NAMES:
                raise OptionError(f"there is no lever '{name}'; {nearest(name, LEVER_NAMES)}.")
        best, progress = self._best, progress or silent
        with telling(progress):
            if best is None:
                progress("ordering")
                best = best_order(self.memory, work=LEVER_WORK)
            yield from _levers(self._fitted, self._given, best, names, self._others, progress)

    def with_levers(self, names: Sequence[str] = LEVER_NAMES, progress: Progress | None = None) -> MemoryReport:
        """The same report with a line for each lever in its record."""
        return self.with_lines(tuple(self.each_lever(names, progress)))

    def with_lines(self, lines: Sequence[LeverLine]) -> MemoryReport:
        """The same report with lines of `each_lever` in its record."""
        plans = tuple(self._others.lines)
        return replace(self, record=structs.replace(self.record, levers=tuple(lines), plans=plans))

    def annotate(self, path: str | os.PathLike[str]) -> None:
        """Write the model in the plan's order, each node saying where its results lie, for viewers such as Netron.

        Metadata of a node: `memory.RESULT` = "offset 802816, 401408 bytes, steps 3 to 7, tier dram".
        """
        model = self.model.clone()
        memory = model_memory(model)
        write_order(model, self.planned.order, memory.nodes)
        lines = {line.name: line for line in self.record.buffers}
        for node in model.graph:
            for output in node.outputs:
                line = lines.get(output.name or "")
                if line is not None:
                    tier = "" if line.tier is None else f", tier {line.tier}"
                    inside = "" if line.inside is None else f", in {line.inside}"
                    node.metadata_props[f"memory.{output.name}"] = (
                        f"offset {line.offset}, {line.bytes} bytes, steps {steps(line.begin, line.end)}{inside}{tier}"
                    )
        save(model, path)


def memory(
    source: Source,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    order: Order = "given",
    budget: int | str | None = None,
    tiers: str | os.PathLike[str] | None = None,
    tier_mode: Mode = "sync",
    what_if: Mapping[str, Sequence[int]] | None = None,
    points: int = 0,
    levers: Sequence[str] | None = LEVER_NAMES,
    progress: Progress | None = None,
) -> MemoryReport:
    """How much memory a model's tensors need, where they live in one arena, and what would save some.

    `values` fixes inputs at constants (`{"sr": 16000}`), `fix_defaults` those that have defaults. `order`: "given" as
    in the file, or "best". `budget` in bytes ("40MiB"), or a share of the best order's arena
    ("50%"): by order, and recomputing or tiles where that is not enough. `levers`
    names what is tried besides, to tell what it would save ("recomputation", "tiles"); None: not even order and results
    in place are told, and `each_lever` of the result tells them later. `tiers`: a machine file or the name of a preset.
    `what_if`: values of dims to plan besides. With `points` the record has so many plans of memory against time, and
    the buffers of all plans that were looked at. Sizes count temporaries and outputs, not weights and inputs.

    Raises ModelError for a model that cannot be worked on, OptionError for dims without a value, a budget that no plan
    keeps (saying the least that was found), and tiers that cannot hold the model.
    """
    progress, dims, wanted = progress or silent, dims or {}, read_budget(budget)
    name, machine = name_of(source), None if tiers is None else find_machine(os.fspath(tiers))
    first = {changed: sizes[0] for changed, sizes in (what_if or {}).items() if changed not in dims}
    symbolic = _prepared(read(source, values, fix_defaults=fix_defaults)[0], shapes or {}, {**first, **dims})
    work = _with_dims(symbolic, {**first, **dims})
    progress("reading sizes")
    memory = model_memory(work)
    with telling(progress):
        asked, given = memory, planning.given(memory)
        best = None
        if order == "best" or wanted is not None or points:
            progress("ordering")
            best = best_order(memory, work=ORDER_WORK)
        fitted, said, most = Fitted(work, memory, given, {}), "given", None
        if wanted is not None:
            assert best is not None, "looked for above"
            most = in_bytes(wanted, best.packing.arena_size)
            fitted = fit(work, memory, most, start=best, progress=progress)
            work, memory = fitted.model, fitted.memory
            said = " and ".join(lever.doing for lever in used(fitted)) or "best"
        elif order == "best":
            assert best is not None, "looked for above"
            fitted, said = replace(fitted, planned=best), "best"
        planned, changed_graph = fitted.planned, TILES.name in fitted.uses
        tier_lines, tier_by_value = None, {}
        if machine is not None:
            progress(f"placing on {machine.name}")
            graph, placed = tiering.place(work, planned.order, machine, tier_mode)
            tier_lines = tier_record.tier_report(graph, placed, machine, tier_mode)
            tier_by_value = tiering.tiers_of(placed)
        others = _Others(planned, given.time, kept=points > 0)
        others.add(asked, given, "the file's order")
        if best is not None:
            others.add(asked, best, "the best order")
        curve = () if best is None or changed_graph else _curve(work, best, given, points, others, progress)
        what_ifs = _what_if(symbolic, dims, what_if or {}, order, progress)
    record = memory_record(
        memory,
        planned,
        model=name,
        dims={**first, **dims},
        order=said,
        given_time=given.time,
        order_bound=0 if best is None else best.lower_bound,
        curve=curve,
        tiers=tier_lines,
        places=tier_by_value,
        what_if=what_ifs,
        formula=None if changed_graph else _formula(symbolic, planned, memory, {**first, **dims}),
        budget=most,
    )
    report = MemoryReport(record, work, memory, planned, fitted, given, best, others).with_lines(())
    return report.with_levers(levers, progress) if levers is not None else report


def _prepared(model: ir.Model, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> ir.Model:
    """The loaded model, functions inlined, with these shapes, and names for the dims that are to have sizes."""
    name_dims(model, sizes)
    if model.functions:
        inline(model)
    if shapes:
        change_dims(model, shapes, {})
    settle(model)
    return model


def _with_dims(model: ir.Model, sizes: Mapping[str, int]) -> ir.Model:
    """A copy with these dims fixed; `batch` of a model whose first dims are fixed is set anew."""
    work = model.clone()
    if sizes:
        resize(work, {}, dict(sizes), verify=False)
    return work


class _Others:
    """Plans that were looked at and not taken, each once."""

    def __init__(self, taken: Planned, given_time: float, *, kept: bool) -> None:
        self.lines: list[PlanLine] = []
        self._given_time, self._kept = given_time, kept
        self._names: dict[tuple[tuple[str, ...], int], str | None] = {(taken.order, taken.packing.arena_size): None}

    def add(self, memory: ModelMemory, planned: Planned, name: str) -> str | None:
        """Its name among the lines: that of the same plan where it is there, None for the plan that was taken."""
        if not self._kept:
            return None
        plan = planned.order, planned.packing.arena_size
        if plan not in self._names:
            taken = sum(line.name.startswith(name) for line in self.lines)
            self._names[plan] = f"{name} ({taken + 1})" if taken else name
            self.lines.append(plan_line(memory, planned, self._names[plan] or name, self._given_time))
        return self._names[plan]

    def fitted(self, fitted: Fitted) -> str | None:
        """Likewise, named by what was done."""
        size = binary_size(fitted.planned.packing.arena_size)
        return self.add(fitted.memory, fitted.planned, f"{size}: {counts(fitted) or 'the best order'}")


def _levers(
    fitted: Fitted, given: Planned, best: Planned, names: Sequence[str], others: _Others, progress: Progress
) -> Iterator[LeverLine]:
    """What each way of saving gives, beside the plan that is shown."""
    planned, memory = fitted.planned, fitted.memory
    arena, ordered = planned.packing.arena_size, best.packing.arena_size
    saved = given.packing.arena_size - ordered
    order_note = "order='best'"
    if planned.order != given.order:
        order_note = f"taken: {binary_size(given.packing.arena_size)} in the file's order"
    elif ordered >= arena:
        bound = best.lower_bound
        could = max(arena - bound, 0)
        order_note = f"another order could save at most {binary_size(could)}" if could else "no order needs less"
    others_name = others.add(fitted.memory, best, "the best order")
    yield LeverLine("order", ordered, saved, 0.0, order_note, others_name)
    apart = live_peak(planning.problem_of(memory.graph, planned.order, sharing=False))
    yield LeverLine(
        "results in place, slices", arena, apart - arena, 0.0, f"already used; {binary_size(apart)} without"
    )  # fmt: skip
    if used(fitted):
        name = " and ".join(lever.name for lever in used(fitted))
        extra = extra_percent(planned.time, given.time)
        yield LeverLine(name, arena, ordered - arena, extra, f"taken: {counts(fitted)}")
        return
    for lever in LEVERS if ordered else ():  # nothing can be saved of nothing
        if lever.name in names:
            yield from _untaken(lever, fitted, given, best, others, progress)


def _untaken(
    lever: Lever, shown: Fitted, given: Planned, best: Planned, others: _Others, progress: Progress
) -> Iterator[LeverLine]:
    """What a lever that was not taken would give, at budgets below the best order."""
    arena = shown.planned.packing.arena_size
    saved = False
    for share in LEVER_SHARES:
        progress(f"{lever.name} at {share:.0%}")
        try:
            less = fit(
                shown.model, shown.memory, int(best.packing.arena_size * share), start=best,
                work=alone(lever, LEVER_WORK),
            )  # fmt: skip
        except BudgetNotKept:
            break
        size = less.planned.packing.arena_size
        note = f"budget={-(-size // 1024)} * 1024: {several(less.uses[lever.name], lever.unit)} {lever.done}"
        saved = True
        extra = extra_percent(less.planned.time, given.time)
        yield LeverLine(lever.name, size, arena - size, extra, note, others.fitted(less))
    if not saved:
        yield LeverLine(lever.name, arena, 0, 0.0, f"nothing found that needs {1 - LEVER_SHARES[0]:.0%} less")


def _curve(
    model: ir.Model, best: Planned, given: Planned, points: int, others: _Others, progress: Progress
) -> tuple[CurvePoint, ...]:
    """Plans for budgets below that of the best order, from the loosest, until none is found."""
    memory = model_memory(model)
    found = [Fitted(model, memory, best, {})]
    for step in range(1, points if best.packing.arena_size else 1):
        progress(f"budget {step} of {points - 1}")
        budget = int(best.packing.arena_size * (1 - step / (points + 1)))
        try:
            found.append(fit(model, memory, budget, start=best, work={lever.name: CURVE_WORK for lever in LEVERS}))
        except BudgetNotKept:
            break
    return tuple(
        CurvePoint(
            one.planned.packing.arena_size,
            extra_percent(one.planned.time, given.time),
            one.uses.get(RECOMPUTATION.name, 0),
            one.uses.get(TILES.name, 0),
            others.fitted(one),
        )
        for one in found
    )


def _formula(symbolic: ir.Model, planned: Planned, memory: ModelMemory, sizes: Mapping[str, int]) -> str | None:
    if not sizes or memory.notes:  # what a run has shown for one size says nothing of others
        return None

    def sizes_at(others: Mapping[str, int]) -> dict[str, int] | None:
        try:
            found = model_memory(_with_dims(symbolic, others))
        except OptionError:
            return None
        return {value.name: value.size for value in found.graph.values if value.kind != "constant"}

    return peak_formula(planned, sizes, sizes_at)


def _what_if(
    symbolic: ir.Model,
    dims: Mapping[str, int],
    changed: Mapping[str, Sequence[int]],
    order: Order,
    progress: Progress,
) -> tuple[WhatIfLine, ...]:
    combinations = list(itertools.product(*changed.values())) if changed else []
    if len(combinations) > MOST_WHAT_IFS:
        raise OptionError(
            f"{len(combinations)} combinations of dims are too many; at most {MOST_WHAT_IFS} are planned."
        )
    found = []
    for sizes in combinations:
        chosen = dict(zip(changed, sizes, strict=True))
        progress(", ".join(f"{name}={size}" for name, size in chosen.items()))
        memory = model_memory(_with_dims(symbolic, {**dims, **chosen}))
        plan = planning.given(memory) if order == "given" else best_order(memory, work=LEVER_WORK)
        found.append(WhatIfLine(chosen, plan.peak, plan.packing.arena_size))
    return tuple(found)

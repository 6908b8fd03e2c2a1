"""Plans of models: given, best, within a budget; budgets in ONNX files and in programs; formulas of the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from typing import NoReturn

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
import models
from graphopt.errors import BudgetNotKept, OptionError
from graphopt.flows.optimize import DEFAULT_VERIFY_SECONDS
from graphopt.memory import budget as budgets
from graphopt.memory import plan as planning
from graphopt.memory.budget import keep_budget
from graphopt.memory.budgeted import Budgeted, BudgetRecord
from graphopt.memory.levers import order as order_lever
from graphopt.memory.levers import recompute as recompute_lever
from graphopt.memory.levers.order import best_order
from graphopt.memory.levers.recompute import within
from graphopt.memory.measured import Use
from graphopt.memory.plan import Planned, problem_of
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load
from graphopt.model.save import to_proto
from graphopt.program.lifetimes import memory_problem as link_problem
from graphopt.program.order import in_best_order, region_graph, run_in_order, within_budget
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import host
from memplan.bounds import live_peak
from memplan.condense import condense
from memplan.graph import Graph
from memplan.ordering.solve import Ordered
from memplan.ordering.solve import order as least_order
from memplan.problem import InvalidProblem
from memplan.remat import Recomputed
from memplan.remat.errors import BudgetTooSmall
from memplan.verify.sequence import verify_sequence
from tests import support

# Two long branches from x: the file runs them by turns, so that two large values wait; one after the other is better.
BRANCHES = """g (float[1,64] x) => (float[1,1] y) {
    a = MatMul(x, w) b = MatMul(x, w)
    c = ReduceSum<keepdims = 1>(a, axis) d = ReduceSum<keepdims = 1>(b, axis)
    y = Add(c, d)
}"""
WIDE = np.ones((64, 256), np.float32)
AXIS = np.array([1])


def branches() -> ir.Model:
    return load(support.model(BRANCHES, w=WIDE, axis=AXIS))


def test_the_best_order_is_found_and_never_worse() -> None:
    memory = model_memory(branches())
    assert planning.given(memory).peak == 2 * 1024 + 64
    best = best_order(memory)
    assert best.peak == 1024 + 64 + 64 and best.packing.arena_size == best.peak
    assert best.recomputations == 0 and sorted(best.order) == sorted(planning.given(memory).order)


# e = f(x) is small to compute and large to keep: it is read first and last.
SKIP = """g (float[1,16] x) => (float[1,512] y) {
    e = MatMul(x, w) s = MatMul(e, v) t = Softmax(s) u = MatMul(t, w2) r = Softmax(u) y = Mul(r, e)
}"""


def skip() -> ir.Model:
    draw = np.random.default_rng(0)
    weights = {
        name: draw.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (16, 512)), ("v", (512, 1024)), ("w2", (1024, 512)))
    }
    return load(support.model(SKIP, **weights))


@pytest.mark.parametrize("make", [branches, skip])
def test_no_order_at_all_needs_less_than_the_bound(make: Callable[[], ir.Model]) -> None:
    """Every order of a few nodes is tried; the best one found is the best there is."""
    memory = model_memory(make())
    peaks = []
    for order in permutations(operator.name for operator in memory.graph.operators):
        with suppress(InvalidProblem):
            peaks.append(live_peak(problem_of(memory.graph.in_order(order))))
    best = best_order(memory)
    assert best.peak == min(peaks) and 0.8 * best.peak < best.lower_bound <= min(peaks)


def test_both_graphs_that_are_searched_get_half_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def searching(graph: Graph, *, work: int) -> Ordered:
        seen.append(work)
        return least_order(graph, work=work)

    monkeypatch.setattr(order_lever, "least_order", searching)
    best = best_order(model_memory(branches()), work=1_000_001)
    assert seen == [500_000, 500_000] and best.lower_bound <= best.peak


def test_a_budget_is_kept_by_computing_again_what_is_cheap() -> None:
    memory = model_memory(skip())
    best = best_order(memory)
    budget = best.packing.arena_size - 1
    planned = within(memory, budget)
    assert planned.packing.arena_size <= budget < best.packing.arena_size and planned.recomputations >= 1
    assert planned.time > best.time
    assert within(memory, best.packing.arena_size) == best, "which the best order keeps"


def test_planners_are_asked_for_the_budget_and_then_for_what_they_may_overcount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has an equal share of the work; where none finds anything, the least arena is that of the best order."""
    asked: list[tuple[float, int]] = []

    def searching(graph: Graph, budget: int, *, work: int) -> NoReturn:
        asked.append((budget, work))
        raise BudgetTooSmall(budget, budget + 1, proved=False)

    monkeypatch.setattr(recompute_lever, "recompute", searching)
    memory = model_memory(skip())
    best = best_order(memory)
    budget = best.packing.arena_size - 1
    with pytest.raises(BudgetNotKept) as refused:
        within(memory, budget, start=best, work=2_000_000_000)
    assert refused.value.least == budget + 1
    given = tuple(operator.name for operator in memory.graph.operators)
    bases = [memory.graph, *([memory.graph.in_order(best.order)] if best.order != given else [])]
    ways = [(sums, rooms) for sums in (True, False) for rooms in (False, True)]
    small = [[condense(base, sums=sums, rooms=rooms) for sums, rooms in ways] for base in bases]
    different = [one for ones in small for at, one in enumerate(ones) if one not in ones[:at]]
    work = 2_000_000_000 // (5 * len(different))
    assert asked == [(int(budget * aim), work) for _ in different for aim in (1.0, 1.15)]
    asked.clear()
    with pytest.raises(BudgetNotKept):
        within(memory, budget, start=best, work=2_000)
    assert asked == [(int(budget * aim), 2_000 // 5) for aim in (1.0, 1.15)], "little work is not shared among graphs"


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_little_work_finds_what_a_training_step_may_compute_again(share: float) -> None:
    """Its activations are the peak: much less is possible for a little more time, and `graphopt memory` says so."""
    step = graphopt.train_step(models.load("squeezenet1_1"), loss="cross-entropy")
    memory = model_memory(step.model)
    start = best_order(memory, work=300_000_000)
    planned = within(memory, int(start.packing.arena_size * share), start=start, work=300_000_000)
    assert planned.packing.arena_size <= share * start.packing.arena_size and planned.time < 1.2 * start.time


def test_aims_follow_what_plans_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that takes a quarter more than planners know is followed by one for as much less, and then by a looser."""
    aims: list[float] = []

    def searching(graph: Graph, budget: int, *, work: int) -> Recomputed:
        aims.append(budget / 10_000)
        order = tuple(operator.name for operator in graph.operators)
        return Recomputed(order, budget, 1.0, 0.0, 0, "given")

    def packed(graph: Graph, order: Sequence[str], budget: int) -> Planned:
        return replace(best, packing=replace(best.packing, arena_size=int(12_500 * aims[-1])))

    memory = model_memory(skip())
    best = best_order(memory)
    monkeypatch.setattr(recompute_lever, "recompute", searching)
    monkeypatch.setattr(recompute_lever, "_packed", packed)
    monkeypatch.setattr(recompute_lever, "VARIANTS", ((True, False),))
    over = replace(best, order=tuple(operator.name for operator in memory.graph.operators))
    within(memory, 10_000, start=replace(over, packing=replace(best.packing, arena_size=20_000)))
    assert aims[:2] == pytest.approx([1.0, 0.796], abs=1e-3), "what was missing, and a little more"
    assert len(aims) == 2, "what is left buys no time"


def test_a_budget_that_nothing_keeps_is_refused_with_what_is_missing() -> None:
    with pytest.raises(
        OptionError, match=r"a memory budget of 100 B cannot be kept: the least arena .* more; 8KiB would be kept\."
    ):
        within(model_memory(skip()), 100)


def test_a_model_in_its_budget_gives_the_same_bits() -> None:
    model = skip()
    budget = best_order(model_memory(model)).packing.arena_size - 1
    done = keep_budget(model, budget, verify_seconds=DEFAULT_VERIFY_SECONDS, measure=False)
    assert done.record.arena <= budget and done.record.added_nodes >= 1 and done.record.bit_equal
    support.assert_equal(to_proto(model), to_proto(done.model))
    assert planning.given(model_memory(done.model)).packing.arena_size <= budget, "the file's own order keeps it"


def test_functions_are_inlined_first() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[4] x) => (float[4] y) { y = own.f(x) }
        <domain: "own", opset_import: ["" : 17]>
        f (x) => (y) { y = Exp(x) }"""
    with pytest.raises(OptionError, match="pass inline=True with it"):
        keep_budget(load(onnx.parser.parse_model(text)), 1 << 20, verify_seconds=None)


class Takes:
    """Stands for ONNX Runtime: what the model takes beyond its plan, attempt by attempt, and `elsewhere` in others."""

    def __init__(self, *more: int, elsewhere: int = 0) -> None:
        self.more, self.elsewhere = list(more), elsewhere

    def __call__(self, given: Sequence[ir.Model], *, contract: bool, **again: int) -> tuple[Use, ...]:
        assert contract
        if again:
            return (self.last,)
        plan = planning.given(model_memory(given[1], sharing=False)).packing.arena_size
        taken = plan + self.more.pop(0)
        self.last = Use(taken + self.elsewhere, taken, ())
        return Use(taken, taken, (2.0, 2.0)), Use(taken, taken, (3.0, 3.0))


def test_a_plan_that_takes_more_where_it_runs_is_made_again_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(models.load("squeezenet1_1"))
    budget = 4 << 20
    takes = Takes(1 << 20, 1 << 20, 0)
    monkeypatch.setattr(budgets, "use_in_onnxruntime", takes)
    found = keep_budget(model, budget, verify_seconds=None).record
    assert found.aim < found.budget == budget and found.arena <= found.aim
    assert found.heap is not None and found.heap <= budget and found.slowdown_percent == pytest.approx(50)
    assert not takes.more


def test_a_plan_that_takes_more_where_it_runs_has_every_node_tied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(models.load("squeezenet1_1"))
    budget = 4 << 20
    monkeypatch.setattr(budgets, "use_in_onnxruntime", Takes(0))
    before = keep_budget(model, budget, verify_seconds=None)
    monkeypatch.setattr(budgets, "use_in_onnxruntime", Takes(1 << 20, 0))
    found = keep_budget(model, budget, verify_seconds=DEFAULT_VERIFY_SECONDS)
    assert found.record.aim == budget and found.record.heap == found.record.arena <= budget
    assert found.record.bit_equal and found.record.added_nodes > before.record.added_nodes
    kinds = [[node.op_type for node in one.graph if "waits" not in (node.name or "")]
             for one in (before.model, found.model)]  # fmt: skip
    assert kinds[0] == kinds[1]


def test_a_budget_that_does_not_hold_where_it_runs_is_refused_with_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(models.load("squeezenet1_1"))
    monkeypatch.setattr(budgets, "use_in_onnxruntime", Takes(*[4 << 20] * 9))
    with pytest.raises(BudgetNotKept, match=r"in ONNX Runtime the least that was measured is 7\.\d+ MiB"):
        keep_budget(model, 4 << 20, verify_seconds=None)


def test_a_budget_that_another_process_does_not_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "use_in_onnxruntime", Takes(*[0] * 9, elsewhere=4 << 20))
    with pytest.raises(BudgetNotKept, match="in ONNX Runtime the least that was measured is"):
        keep_budget(load(models.load("squeezenet1_1")), 4 << 20, verify_seconds=None)


def test_the_least_arena_is_tried_where_less_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan takes too much, nothing keeps the next aim, and the refusal says what can be kept."""
    aims: list[int] = []

    def planned(model: ir.Model, budget: int, aim: int, *_: object) -> Budgeted:
        aims.append(aim)
        if aim < 900_000:
            raise BudgetNotKept(aim, 900_000)
        record = BudgetRecord(
            budget=budget, sharing=False, arena_given=2_000_000, arena_best=2_000_000, arena=aim, added_nodes=0,
            tiled_regions=0, extra_time_percent=0, bit_equal=True,
        )  # fmt: skip
        return Budgeted(model, record, None)

    def takes(given: Sequence[ir.Model], *, contract: bool, **more: int) -> tuple[Use, ...]:
        taken = 1_200_000 if aims[-1] == 1_000_000 else 800_000
        return (Use(taken, taken, ()),) * len(given) if more else (Use(taken, taken, (1.0,)),) * len(given)

    monkeypatch.setattr(budgets, "_planned", planned)
    monkeypatch.setattr(budgets, "use_in_onnxruntime", takes)
    model = load(models.load("mlp_tiny"))
    assert keep_budget(model, 1_000_000, verify_seconds=None).record.heap == 800_000
    assert aims == [1_000_000, 800_000, 900_000 + budgets.TIES]


def test_what_cannot_be_measured_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "use_in_onnxruntime", lambda models, contract: None)
    found = keep_budget(load(models.load("squeezenet1_1")), 4 << 20, verify_seconds=None).record
    assert found.heap is None and found.slowdown_percent is None and found.aim == found.budget


def regions_of(model: ir.Model) -> Lowered:
    return lower(model, host())


def test_regions_run_in_the_order_of_the_least_arena() -> None:
    lowered = regions_of(branches())
    ordered = in_best_order(lowered)
    assert Counter(region.nodes for region in ordered.regions) == Counter(region.nodes for region in lowered.regions)
    graph = region_graph(lowered)
    verify_sequence(graph, [operator.name for operator in graph.operators])


def test_a_region_that_runs_again_writes_a_temporary_of_its_own() -> None:
    lowered = regions_of(skip())
    again = run_in_order(lowered, [*map(str, range(len(lowered.regions) - 1)), "0", str(len(lowered.regions) - 1)])
    assert len(again.regions) == len(lowered.regions) + 1
    (written,) = again.regions[-2].writes
    assert written.run == 2 and written in again.temporaries and written in again.regions[-1].reads


def test_a_program_keeps_its_budget_and_says_so_when_it_cannot() -> None:
    proto = to_proto(skip())
    whole = graphopt.compile(proto)
    least = whole.linked.plan.arena_size
    with pytest.raises(OptionError, match="cannot be kept: the least arena that was found takes"):
        graphopt.compile(proto, memory_budget=64)
    lowered = regions_of(skip())
    small = within_budget(lowered, least)
    assert small == in_best_order(lowered)
    feed = {"x": np.ones((1, 16), np.float32)}
    kept = graphopt.compile(proto, memory_budget=least)
    assert np.array_equal(kept.run(None, feed)[0], whole.run(None, feed)[0])


def test_a_program_runs_in_tiles_where_nothing_else_keeps_the_budget() -> None:
    proto = models.load("squeezenet1_1")
    lowered = lower(load(proto), host())
    budget = int(graphopt.compile(proto).linked.plan.arena_size * 0.6)
    with pytest.raises(BudgetNotKept):
        within_budget(lowered, budget)
    kept = graphopt.compile(proto, memory_budget=budget)
    assert kept.linked.plan.arena_size <= budget
    assert kept.max_rel < 1e-3, "it was compared with ONNX Runtime"


def test_the_peak_as_a_formula_of_batch_and_length() -> None:
    text = "g (float[batch,seq,8] x) => (float[batch,seq,8] y) { a = Softmax(x) b = MatMul(a, w) y = Softmax(b) }"
    model = support.model(text, w=np.ones((8, 8), np.float32))
    record = graphopt.memory(model, dims={"batch": 2, "seq": 16}).record
    assert record.formula == "64*batch*seq" and record.peak == 64 * 2 * 16
    assert (
        graphopt.memory(support.model(text.replace("batch,seq", "2,16"), w=np.ones((8, 8), np.float32))).record.formula
        is None
    )


def test_what_if_plans_other_dims_beside_the_one_that_is_shown() -> None:
    model = support.model("g (float[batch,8] x) => (float[batch,8] y) { a = Softmax(x) y = Softmax(a) }")
    record = graphopt.memory(model, what_if={"batch": (1, 4)}).record
    assert [(line.dims, line.peak) for line in record.what_if] == [({"batch": 1}, 64), ({"batch": 4}, 128)]
    beside = graphopt.memory(model, dims={"batch": 8}, what_if={"batch": (1, 4)}).record
    assert beside.peak == 256 and beside.what_if == record.what_if


def test_a_fixed_batch_may_be_another_one() -> None:
    model = support.model("g (float[1,64] x) => (float[1,64] y) { a = Softmax(x) y = Softmax(a) }")
    assert graphopt.memory(model, dims={"batch": 4}).record.peak == 4 * graphopt.memory(model).record.peak


def test_regions_are_ordered_and_run_again_whatever_temporaries_are_called() -> None:
    """A second write is called `name@1`, a second run's buffer `name#2`: temporaries may be called so already."""
    plain = regions_of(skip())
    first = plain.temporaries[0]
    spellings = [first.value, *(f"{first.value}{end}" for end in ("#2", "@1", "#2'", "@1'", ""))]
    names = dict(zip(plain.temporaries, spellings, strict=False))
    odd = replace(
        plain,
        regions=tuple(
            replace(region, places=tuple(
                replace(one, buffer=replace(one.buffer, value=names.get(one.buffer, one.buffer.value)))
                for one in region.places
            ))
            for region in plain.regions
        ),
    )  # fmt: skip
    order = [*map(str, range(len(plain.regions) - 1)), "0", str(len(plain.regions) - 1)]
    sizes = [
        ([one.size for one in again.temporaries], live_peak(link_problem(again)))
        for again in (run_in_order(one, order) for one in (plain, odd))
    ]
    assert sizes[0] == sizes[1]
    shapes = [[(len(one.inputs), len(one.outputs)) for one in region_graph(each).operators] for each in (plain, odd)]
    assert shapes[0] == shapes[1]

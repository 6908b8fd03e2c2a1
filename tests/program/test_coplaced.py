"""What compile writes for several workers as the scheduler's program: the same steps, proved, simulated, measured."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import graphopt
from graphopt.errors import BudgetNotKept, OptionError
from graphopt.flows.asked import optimized
from graphopt.flows.schedule import ScheduleReport
from graphopt.model.load import load
from graphopt.program import coplaced, sharing
from graphopt.program.costs import ESTIMATED
from graphopt.program.handing import handed
from graphopt.program.listing import Linked
from graphopt.program.make import make_listing
from graphopt.program.regions.region import Lowered
from graphopt.program.sharing import kernels_of
from kernels.listing import Claim, Follow, ListStep, Ticketed, Wait
from kernels.target import host
from memplan.verify.packing import WrongPlan
from scheduler.device import cpu
from scheduler.errors import UnsafeProgram
from scheduler.program import Ticketed as Tickets
from scheduler.verify.reuse import verify_reuse
from tests import support
from tests.machine.records import record

WORKERS = 3


def branches(width: int = 512, length: int = 3, count: int = 3) -> bytes:
    """Chains of products side by side, whose ends are joined."""
    draw = np.random.default_rng(0)
    weights = {f"w{at}": draw.standard_normal((width, width)).astype(np.float32) for at in range(count)}
    lines, ends = [], []
    for branch in range(count):
        lines.append(f"s{branch} = Softmax<axis = {branch % 2}>(x)")
        value = f"s{branch}"
        for number in range(length):
            lines.append(f"v{branch}_{number} = MatMul({value}, w{branch})")
            value = f"v{branch}_{number}"
        ends.append(value)
    lines.append(f"y = Concat<axis = 1>({', '.join(ends)})")
    text = f"g (float[4,{width}] x) => (float[4,{count * width}] y) {{ {' '.join(lines)} }}"
    return support.model(text, 18, **weights).SerializeToString()


@pytest.fixture(scope="module")
def made() -> tuple[Lowered, Linked]:
    lowered, linked = make_listing(optimized(load(branches())), host(), "branches", False, None, WORKERS)
    assert linked.listing.ticketed is not None, "it is worth two workers"
    return lowered, linked


@pytest.fixture(scope="module")
def report() -> ScheduleReport:
    return graphopt.schedule(branches(), device=f"cpu:{WORKERS}", measure=False)


def test_it_is_the_program_that_compile_writes(report: ScheduleReport, made: tuple[Lowered, Linked]) -> None:
    lowered, linked = made
    steps = linked.listing.ticketed
    assert steps is not None
    (launch,) = report.together.scheduled.program.launches
    assert isinstance(launch, Tickets) and launch.workers == WORKERS
    names = [region.name for region in report.together.scheduled.graph.regions]
    claimed = [(names.index(item.run.region), item.run.block) for item in launch.items]
    kernels = kernels_of(lowered, steps.runs)
    assert claimed == [(run, block) for run, _ in steps.waits for block in range(kernels[run].blocks)]
    waited = {
        names.index(item.run.region): {names.index(launch.counters[one.counter].region) for one in item.waits}
        for item in launch.items
    }
    expected = {run: set(before) for run, before in steps.waits}
    for before, run in itertools.pairwise(run for run, _ in steps.waits):
        expected[run] |= {before} if run in steps.following else set()
    assert waited == expected
    follows = {names.index(item.run.region) for item in launch.items if item.follows and not item.run.block}
    assert follows == steps.following
    assert report.together.packing.arena_size == steps.arena_bytes
    assert report.record.policy == coplaced.TAKEN


def test_its_buffers_are_kept_apart_by_what_it_waits_for(report: ScheduleReport) -> None:
    scheduled = report.together.scheduled
    assert verify_reuse(scheduled.graph, scheduled.program, report.buffers(), cpu(WORKERS)) > 0


def test_the_ways_go_from_the_memory_of_one_worker_to_no_reuse(report: ScheduleReport) -> None:
    ways = report.record.ways
    assert [way.taken for way in ways] == [True] + [False] * (len(ways) - 1)
    by_arena = sorted(ways, key=lambda way: way.arena)
    assert by_arena[0].way == "order and memory of one worker" and by_arena[-1].way == "no reuse of bytes"
    assert by_arena[-1].added_waits == 0 < by_arena[0].added_waits
    assert by_arena[-1].makespan <= by_arena[0].makespan


@pytest.mark.parametrize("policy", [one for one in coplaced.POLICIES if one != "best"])
def test_each_policy_keeps_every_need_and_never_runs_ahead(made: tuple[Lowered, Linked], policy: str) -> None:
    lowered, linked = made
    steps = coplaced.programs_of(lowered, linked)[policy]
    kernels = kernels_of(lowered, steps.runs)
    base = coplaced.tasks_of_program(lowered, linked, kernels, [100.0] * len(kernels))
    one = coplaced.scheduled(base, steps, policy, cpu(WORKERS))
    assert one.makespan >= max(one.bounds["critical path"], one.bounds["work"]) - 1e-6
    coplaced.packing_of(lowered, kernels, base, steps, one.graph)
    assert one.simulation.workers == WORKERS


def test_a_program_without_one_of_its_waits_is_refused(made: tuple[Lowered, Linked]) -> None:
    lowered, linked = made
    steps = linked.listing.ticketed
    assert steps is not None
    kernels = kernels_of(lowered, steps.runs)
    base = coplaced.tasks_of_program(lowered, linked, kernels, [100.0] * len(kernels))
    needs = {run: before for run, before in steps.waits if before}
    assert needs
    for run in needs:
        mutant = Ticketed(_without(steps, run), steps.runs, steps.arena_bytes)
        with pytest.raises((UnsafeProgram, WrongPlan)):  # a lost need, or bytes that nobody waits for
            one = coplaced.scheduled(base, mutant, coplaced.TAKEN, cpu(WORKERS))
            coplaced.packing_of(lowered, kernels, base, mutant, one.graph)


def _without(steps: Ticketed, run: int) -> tuple[ListStep, ...]:
    """The steps without what is waited for just before a run."""
    found: list[ListStep] = []
    for step in steps.steps:
        if not isinstance(step, Wait) and step.run == run:
            while found and isinstance(found[-1], Wait):
                found.pop()
        found.append(step)
    return tuple(found)


def test_a_piece_at_a_wrong_place_is_refused(made: tuple[Lowered, Linked]) -> None:
    lowered, linked = made
    steps = linked.listing.ticketed
    assert steps is not None
    kernels = kernels_of(lowered, steps.runs)
    base = coplaced.tasks_of_program(lowered, linked, kernels, [100.0] * len(kernels))
    one = coplaced.scheduled(base, steps, coplaced.TAKEN, cpu(WORKERS))
    runs = tuple(
        replace(run, operands=tuple(replace(at, offset=0) if at.space == "arena" else at for at in run.operands))
        for run in steps.runs
    )
    with pytest.raises(WrongPlan, match="share bytes"):
        coplaced.packing_of(lowered, kernels, base, replace(steps, runs=runs), one.graph)


def test_a_budget_takes_a_plan_within_it(report: ScheduleReport) -> None:
    arenas = sorted(way.arena for way in report.record.ways)
    held = graphopt.schedule(branches(), device=f"cpu:{WORKERS}", measure=False, memory_budget=arenas[0])
    assert held.together.packing.arena_size == arenas[0]
    assert held.record.makespan >= report.record.makespan
    with pytest.raises(BudgetNotKept):
        graphopt.schedule(branches(), device=f"cpu:{WORKERS}", measure=False, memory_budget=64)


def test_kernels_and_programs_are_measured_where_there_are_cores() -> None:
    record = graphopt.schedule(branches(), device="cpu:1").record
    assert record.is_measured and all(line.measured for line in record.policies)
    more = graphopt.schedule(branches(), device="cpu:200").record
    assert not more.is_measured and any("fewer than 200 cores" in note for note in more.notes)


def test_what_other_workers_wrote_takes_longer_to_read(made: tuple[Lowered, Linked]) -> None:
    """Results of regions, each once; not the model's input and weights, and nothing on one worker."""
    lowered, linked = made
    steps = coplaced.programs_of(lowered, linked)[coplaced.APART]
    kernels = kernels_of(lowered, steps.runs)
    costs = replace(ESTIMATED, bandwidth=1e30, cache=1 << 20, crossing_ns=2.0)
    added = [round(one, 6) for one in coplaced.crossings(lowered, kernels, steps, costs, 2)]
    for region, kernel, nanoseconds in zip(lowered.regions, kernels, added, strict=True):
        read = {one for one in region.reads if one.role == "temporary"}
        assert nanoseconds == sum(one.size for one in read), kernel.name
    assert 0.0 in added and any(added)
    assert not any(coplaced.crossings(lowered, kernels, steps, costs, 1))
    assert max(coplaced.crossings(lowered, kernels, steps, replace(costs, cache=64), 2)) < 1e-6


def test_what_a_chain_hands_on_stays_with_its_worker(made: tuple[Lowered, Linked]) -> None:
    lowered, linked = made
    apart = coplaced.programs_of(lowered, linked)[coplaced.APART]
    kernels = kernels_of(lowered, apart.runs)
    costs = replace(ESTIMATED, bandwidth=1e30, cache=1 << 20, crossing_ns=2.0)
    one, other = next(
        (maker, run) for run, read in enumerate(handed(lowered, kernels)) for maker, _ in read if maker is not None
    )
    rest = [run for run in range(len(kernels)) if run not in (one, other)]
    chained = replace(apart, steps=(Claim(one, whole=True), Follow(other), *map(Claim, rest)))
    before, after = (coplaced.crossings(lowered, kernels, steps, costs, 2) for steps in (apart, chained))
    assert [run for run in range(len(kernels)) if after[run] < 0.5 * before[run]] == [other]


def test_a_record_is_told_of_in_a_note() -> None:
    alone, with_record = (graphopt.schedule(branches(), device="cpu:2", machine=one) for one in (None, record()))
    said = "results of other workers are read at the rate that the machine's record tells"
    assert said in " ".join(with_record.record.notes) and said not in " ".join(alone.record.notes)


def test_policies_of_devices_without_our_kernels_are_refused() -> None:
    with pytest.raises(OptionError, match="the policy 'wavefront' is for devices without kernels of ours"):
        graphopt.schedule(branches(), device="cpu:2", policy="wavefront")


def test_what_two_workers_gain_nothing_by_is_not_coplaced() -> None:
    small = support.model("g (float[4] x) => (float[4] y) { y = Relu(x) }", 18).SerializeToString()
    report = graphopt.schedule(small, device="cpu:2", measure=False)
    assert report.record.policy == coplaced.ALONE
    with pytest.raises(OptionError, match="two workers gain nothing by this program"):
        graphopt.schedule(small, device="cpu:2", policy="co-placed", measure=False)
    waves = graphopt.schedule(small, device="cpu:2", policy="waves", measure=False)
    assert waves.record.policy == "waves"


def test_chains_are_not_searched_for_where_they_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    weights = {f"w{at}": draw.standard_normal((512, 512)).astype(np.float32) for at in range(2)}
    text = "g (float[4096,512] x) => (float[4096,512] y) { a = MatMul(x, w0) y = MatMul(a, w1) }"
    monkeypatch.setattr(sharing, "chained", lambda *_: pytest.fail("searched"))
    model = load(support.model(text, 18, **weights).SerializeToString())
    _, linked = make_listing(optimized(model), host(), "chain", False, None, 2)
    assert linked.listing.ticketed is not None, "its two runs are shared all the same"

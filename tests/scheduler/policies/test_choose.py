"""Every policy gives a program that the verifier accepts; the best of all is never slower than a baseline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import cpu
from scheduler.errors import InvalidProgram, InvalidTaskGraph
from scheduler.policies.batching import batched
from scheduler.policies.choose import BASELINES, POLICIES, schedule
from scheduler.policies.problem import problem_of
from scheduler.program import Pinned, Plain, Ticketed
from scheduler.simulate import simulate
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.program import verify
from tests.scheduler.policies.graphs import small_gpu, task_graphs

CHAIN = TaskGraph(
    "chain", (Region("a", (Kernel("k", 4, (1000.0,)),)), Region("b", (Kernel("k", 4, (1000.0,)),))), (Need("a", "b"),)
)


@settings(max_examples=40, deadline=None)
@given(task_graphs(), st.sampled_from(POLICIES), st.sampled_from(["pinned", "ticketed"]), st.booleans())
def test_every_policy_gives_a_safe_program(graph: TaskGraph, policy: str, form: str, gpu: bool) -> None:
    device = small_gpu() if gpu else cpu(2)
    made = schedule(graph, device, policy=policy, work=15_000, form=form)  # type: ignore[arg-type]
    verify(made.graph, made.program, device)
    assert made.makespan == simulate(made.graph, made.program, device).makespan
    bounds = [made.bounds[name] for name in ("critical path", "work", "Fernandez-Bussell", "any kernels")]
    assert max(bounds) <= made.makespan * (1 + 1e-9)
    assert set(made.merged) == {region.name for region in graph.regions}


@settings(max_examples=30, deadline=None)
@given(task_graphs())
def test_the_best_is_never_slower_than_a_baseline(graph: TaskGraph) -> None:
    device = small_gpu()
    made = schedule(graph, device, work=15_000)
    for name in BASELINES:
        assert made.makespan <= schedule(graph, device, policy=name).makespan


@settings(max_examples=40, deadline=None)
@given(task_graphs(), st.sampled_from(["wavefront", "blocks", "cutting"]))
def test_a_pinned_plan_takes_what_the_simulator_says(graph: TaskGraph, policy: str) -> None:
    # Where signals take nothing no worker can begin sooner than planned, so that both agree to the nanosecond.
    device = small_gpu(signal_ns=0.0)
    made = schedule(graph, device, policy=policy, work=15_000)
    if made.policy == policy:
        assert made.figures[policy] == made.simulation.makespan


def test_the_same_input_gives_the_same_program() -> None:
    one, other = (schedule(CHAIN, small_gpu(), work=150_000) for _ in range(2))
    assert one.program == other.program


def test_a_chain_needs_one_launch_only() -> None:
    device = small_gpu(4, launch_ns=2000.0, signal_ns=1000.0, block_fixed_ns=0.0)
    made = schedule(CHAIN, device, work=150_000)
    # A launch, four blocks side by side, a signal, a wait, four blocks: 0.9 us less than with a second launch.
    assert made.makespan == 5100.0
    assert made.figures["launches"] == made.figures["waves"] == 6000.0
    assert [type(launch) for launch in made.program.launches] == [Pinned]
    assert made.bounds["critical path"] == 5100.0


def test_a_gpu_is_pinned_and_a_cpu_ticketed() -> None:
    assert isinstance(schedule(CHAIN, small_gpu(), policy="blocks").program.launches[0], Pinned)
    assert isinstance(schedule(CHAIN, cpu(2), policy="blocks").program.launches[0], Ticketed)
    assert isinstance(schedule(CHAIN, cpu(2), policy="launches").program.launches[0], Plain)


def test_kernels_without_common_room_are_cut_apart() -> None:
    # Threads of one and registers of the other are too much for any worker that runs both.
    wide, deep = Kernel("wide", 2, (1000.0,), 1024, 32), Kernel("deep", 2, (1000.0,), 64, 255)
    graph = TaskGraph("cut", (Region("wide", (wide,)), Region("deep", (deep,))), (Need("wide", "deep"),))
    made = schedule(graph, small_gpu(), work=150_000)
    assert "blocks" not in made.figures
    assert len(made.program.launches) == 2


def test_regions_of_one_kind_become_one() -> None:
    kernel = Kernel("k", 2, (500.0,))
    regions = (*(Region(name, (kernel,), "gate") for name in "abc"), Region("d", (kernel,)))
    graph = TaskGraph("gates", regions, (Need("a", "d"), Need("b", "d", "near"), Need("c", "d")))
    found = batched(problem_of(graph, small_gpu()))
    assert found is not None
    joined, merged = found
    assert [region.name for region in joined.regions] == ["a and 2 more", "d"]
    assert joined.regions[0].kernels[0].blocks == 6
    assert joined.needs == (Need("a and 2 more", "d"),)
    assert merged == {"a": "a and 2 more", "b": "a and 2 more", "c": "a and 2 more", "d": "d"}


def test_a_region_that_fits_nowhere_is_refused() -> None:
    graph = TaskGraph("big", (Region("big", (Kernel("k", 1, (1.0,), 2048),)),))
    with pytest.raises(InvalidTaskGraph, match=r"no kernel of region 'big' fits device 'v100': .* 2048 threads"):
        schedule(graph, small_gpu())


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="there is no policy 'magic'; there are best, launches, waves"):
        schedule(CHAIN, small_gpu(), policy="magic")


def test_negative_work_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="-1 blocks of work are none: give 0 or more"):
        schedule(CHAIN, small_gpu(), work=-1)


def test_the_bound_counts_a_signal_from_all_but_one_of_two_blocks() -> None:
    # Both blocks of a end at once; b runs where one of them ran, or elsewhere, and waits for the signal of the other.
    halves, one = (Kernel("k", 2, (5000.0,)),), (Kernel("k", 1, (4000.0,)),)
    graph = TaskGraph("two", (Region("a", halves), Region("b", one)), (Need("a", "b"),))
    device = small_gpu(4, launch_ns=2000.0, signal_ns=1000.0, block_fixed_ns=0.0)
    made = schedule(graph, device, policy="blocks", work=0)
    assert made.bounds["critical path"] == made.makespan == 2000 + 5000 + 1000 + 100 + 4000


def test_the_bound_counts_no_signal_where_one_worker_may_do_both() -> None:
    # 600 ns after one another on one worker is sooner than a signal of 1000 ns.
    halves, one = (Kernel("k", 2, (600.0,)),), (Kernel("k", 1, (4000.0,)),)
    graph = TaskGraph("short", (Region("a", halves), Region("b", one)), (Need("a", "b"),))
    device = small_gpu(4, launch_ns=2000.0, signal_ns=1000.0, block_fixed_ns=0.0)
    made = schedule(graph, device, policy="blocks", work=0)
    assert made.bounds["critical path"] == 2000 + 600 + 600 + 4000


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_region_the_program_is_empty(policy: str) -> None:
    for on in (small_gpu(), cpu(2)):
        made = schedule(TaskGraph("nothing", ()), on, policy=policy, work=1_000)
        assert (
            made.program.launches == () and made.makespan == 0.0 and made.policy in ("launches", "waves", "wavefront")
        )

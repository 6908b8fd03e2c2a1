"""What several workers wait for, and which plan they get: beside brute force over bytes, and on small graphs."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from graphopt.errors import OptionError
from graphopt.program.arena import packed
from graphopt.program.listing import link
from graphopt.program.order import in_best_order
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.sharing import plan_shared
from graphopt.program.ticketed import needs_of, ticketed
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.listing import Claim, Follow, Place, Run, Ticketed, Wait
from kernels.llvm.module import Module
from kernels.target import host
from scheduler.chains import Chain
from tests import support

Access = tuple[bool, int, int]  # written, first byte, bytes

accesses = st.tuples(st.booleans(), st.integers(0, 24), st.integers(0, 9))
programs = st.lists(st.lists(accesses, max_size=4), min_size=1, max_size=14)


def made(drawn: list[list[Access]]) -> tuple[list[Run], dict[str, Kernel]]:
    runs, kernels = [], {}
    for number, touched in enumerate(drawn):
        operands = tuple(
            Operand(f"o{place}", "output" if written else "input", DType.U8, size)
            for place, (written, _, size) in enumerate(touched)
        )
        kernels[f"k{number}"] = Kernel(f"k{number}", Module(host()), operands, 1)
        runs.append(Run(f"k{number}", tuple(Place("arena", start) for _, start, _ in touched)))
    return runs, kernels


def closure(needs: dict[int, list[int]], order: list[int]) -> set[tuple[int, int]]:
    """All pairs of which the first is known to have ended before the second begins."""
    before: dict[int, set[int]] = {}
    for run in order:
        before[run] = set(needs[run]).union(*(before[one] for one in needs[run]))
    return {(one, run) for run in order for one in before[run]}


def conflicts(drawn: list[list[Access]], order: list[int]) -> set[tuple[int, int]]:
    """All pairs, in their order, that touch a byte of which one is written."""
    found = set()
    for one, other in itertools.combinations(order, 2):
        for (first, a, m), (second, b, n) in itertools.product(drawn[one], drawn[other]):
            if (first or second) and m and n and a < b + n and b < a + m:
                found.add((one, other))
    return found


@settings(max_examples=300, deadline=None)
@given(programs, st.randoms(use_true_random=False), st.sets(st.integers(1, 13)))
def test_what_touches_the_same_bytes_keeps_its_order_and_nothing_else_does(
    drawn: list[list[Access]], chooser: object, places: set[int]
) -> None:
    order = list(range(len(drawn)))
    chooser.shuffle(order)  # type: ignore[attr-defined]
    runs, kernels = made(drawn)
    following = {order[place] for place in places if place < len(order)}
    needs = needs_of(runs, kernels, order, following)
    chained = {run: [before] for before, run in itertools.pairwise(order) if run in following}

    def known(needs: dict[int, list[int]]) -> set[tuple[int, int]]:
        return closure({run: [*needs[run], *chained.get(run, [])] for run in order}, order)

    wanted = conflicts(drawn, order)
    assert wanted <= known(needs), "nobody begins too early"
    assert {(one, run) for run in order for one in needs[run]} <= wanted, "and waits only for whom it meets"
    for run in order:
        for one in needs[run]:
            rest = {**needs, run: [other for other in needs[run] if other != one]}
            assert (one, run) not in known(rest), "no wait follows from the others"


def test_steps_wait_before_they_claim_and_at_the_end_for_the_rest() -> None:
    runs, kernels = made([[(True, 0, 8)], [(True, 8, 8)], [(False, 0, 16), (True, 16, 8)], [(True, 8, 4)]])
    program = ticketed(runs, kernels, [Chain((run,)) for run in (1, 0, 2, 3)], 24)
    assert program.steps == (
        Claim(1), Claim(0), Wait(1), Wait(0), Claim(2), Wait(2), Claim(3), Wait(3),
    )  # fmt: skip
    assert program.waits == ((1, ()), (0, ()), (2, (1, 0)), (3, (2,)))
    chained = ticketed(runs, kernels, [Chain((1,)), Chain((0, 2, 3), whole=True)], 24)
    assert chained.steps == (Claim(1), Claim(0, whole=True), Wait(1), Follow(2), Follow(3), Wait(3))
    assert chained.following == {2, 3} and chained.whole == {0, 2, 3}


def branches(width: int = 512, length: int = 4, count: int = 3) -> Lowered:
    """Chains of products side by side, whose ends are added."""
    weight = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    lines, ends = [], []
    for branch in range(count):
        value = "x"
        for number in range(length):
            lines.append(f"v{branch}_{number} = MatMul({value}, w)")
            value = f"v{branch}_{number}"
        ends.append(value)
    lines.append(f"y = Sum({', '.join(ends)})")
    text = f"g (float[4,{width}] x) => (float[4,{width}] y) {{ {' '.join(lines)} }}"
    return in_best_order(lower(ir.from_proto(support.model(text, 18, w=weight)), host()))


def plan(lowered: Lowered, budget: int | None = None) -> Ticketed:
    linked = link(lowered, "g", threads=1)
    found = plan_shared(lowered, linked.listing.runs, linked.plan.arena_size, budget)
    assert found is not None, "it is worth two workers"
    return found


def test_branches_get_memory_to_run_side_by_side_and_less_under_a_budget() -> None:
    lowered = branches()
    alone = link(lowered, "g", threads=1).plan.arena_size
    free, held = plan(lowered), plan(lowered, alone)
    assert held.arena_bytes == alone < free.arena_bytes
    claimed = [step.run for step in free.steps if isinstance(step, Claim)]
    assert sorted(claimed) == list(range(len(lowered.regions)))
    first = [run for run, before in free.waits if not before]
    assert len(first) == 3, "each branch begins at once"
    assert len([run for run, before in held.waits if not before]) < 3, "where bytes are shared, one waits"


def test_short_runs_of_a_branch_are_one_workers_with_their_own_kernels() -> None:
    lowered = branches(width=192, length=6, count=4)
    linked = link(lowered, "g", threads=1)
    found = plan_shared(lowered, linked.listing.runs, linked.plan.arena_size, workers=2)
    assert found is not None and found.following
    order = [run for run, _ in found.waits]
    for run in found.following:
        before = order[order.index(run) - 1]
        assert set(lowered.regions[before].writes) & set(lowered.regions[run].reads), "a chain hands its results on"
    for run in found.whole:
        assert found.runs[run].kernel == lowered.regions[run].kernel.name


def test_what_only_a_chain_touches_lies_in_its_bytes() -> None:
    """However long bytes are left alone: the values of a chain follow each other in them, two at a time."""
    lowered = branches(width=64, length=6, count=2)
    runs = link(lowered, "g", threads=1).listing.runs
    makes = {region.writes[0]: number for number, region in enumerate(lowered.regions)}
    chains: list[list[int]] = []
    for number, region in enumerate(lowered.regions):
        before = [makes[one] for one in region.reads if one in makes]
        found = next((chain for chain in chains if len(before) == 1 and chain[-1] == before[0]), None)
        chains.append([number]) if found is None else found.append(number)
    listed = [Chain(tuple(chain), whole=True) for chain in chains]
    assert sorted(len(chain.runs) for chain in listed) == [1, 5, 6], "two branches, of which the last product adds"
    placed, size = packed(lowered, runs, listed, len(runs))
    value = lowered.temporaries[0].size
    assert size == 6 * value, "of each branch two within and one that is handed on"
    needs = dict(ticketed(placed, {one.kernel.name: one.kernel for one in lowered.regions}, listed, size).waits)
    assert sum(map(len, needs.values())) == 2, "nobody waits for bytes"


def test_a_chain_takes_no_more_memory() -> None:
    lowered = branches(count=1, width=512)
    assert plan(lowered).arena_bytes == link(lowered, "g", threads=1).plan.arena_size


def test_what_is_too_short_is_run_by_one() -> None:
    lowered = branches(width=16)
    assert link(lowered, "g").listing.ticketed is None


@pytest.fixture(scope="module")
def wide() -> graphopt.Compiled:
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    proto = support.model("g (float[64,512] x) => (float[64,512] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }",
                          18, w=weight)  # fmt: skip
    return graphopt.compile(proto, threads=3)


def test_threads_of_compile(wide: graphopt.Compiled) -> None:
    assert wide.linked.listing.ticketed is not None
    alone = wide.program.another(threads=1)
    x = np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32)
    assert wide(x=x)["y"].tobytes() == alone(x=x)["y"].tobytes()


def test_a_program_for_one_thread_holds_nothing_for_several() -> None:
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    proto = support.model("g (float[64,512] x) => (float[64,512] y) { y = MatMul(x, w) }", 18, w=weight)
    compiled = graphopt.compile(proto, threads=1)
    assert compiled.linked.listing.ticketed is None
    assert compiled.program.description["shared_arena_bytes"] is None


def test_a_negative_number_of_threads_is_refused() -> None:
    with pytest.raises(OptionError, match="-1 threads cannot run a program"):
        graphopt.compile(support.model("g (float[4] x) => (float[4] y) { y = Exp(x) }"), threads=-1)

"""Chains: times of lists by hand, and a search whose lists can be run and are no slower than without chains."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.chain_bound import least
from scheduler.chains import Chain, Runs, chained, simulated


def runs(
    blocks: list[int],
    times: list[float],
    needs: dict[int, list[int]],
    saved: dict[tuple[int, int], float] | None = None,
) -> Runs:
    """Runs that take as long whole as shared."""
    return Runs.of(blocks, times, times, {run: needs.get(run, []) for run in range(len(blocks))}, saved or {})


def test_blocks_are_claimed_by_who_is_free_and_a_chain_by_one() -> None:
    """0 in two blocks, then 1 and 2 side by side, each followed by one that needs it."""
    drawn = runs([2, 1, 1, 1, 1], [20, 30, 30, 10, 10], {1: [0], 2: [0], 3: [1], 4: [2]})
    apart = [Chain((0,)), Chain((1,)), Chain((2,)), Chain((3,)), Chain((4,))]
    # 1 + 10, the signal of it 5, 30; then 3 and 4 on either side, each after a claim and what it may need of the other
    assert simulated(drawn, apart, 2, 5.0, 1.0) == 1 + 10 + 5 + 30 + 5 + 10
    together = [Chain((0,)), Chain((1, 3), whole=True), Chain((2, 4), whole=True)]
    assert simulated(drawn, together, 2, 5.0, 1.0) == 1 + 10 + 5 + 30 + 10
    assert simulated(drawn, together, 1, 5.0, 1.0) == pytest.approx(4 * 1 + 100 + 5, abs=5)


def test_others_wait_for_the_run_that_they_need_and_not_for_its_chain() -> None:
    drawn = runs([1, 1, 1], [10, 50, 20], {1: [0], 2: [0]})
    assert simulated(drawn, [Chain((0, 1), whole=True), Chain((2,), whole=True)], 2, 5.0, 1.0) == 61
    alone = runs([1, 1, 1], [10, 5, 50], {1: [0], 2: [0]})
    assert simulated(alone, [Chain((0, 1), whole=True), Chain((2,), whole=True)], 2, 5.0, 1.0) == 1 + 10 + 5 + 50


def test_a_chain_saves_what_its_worker_has() -> None:
    drawn = runs([1, 1], [10, 50], {1: [0]}, {(0, 1): 7.0})
    assert simulated(drawn, [Chain((0, 1), whole=True)], 2, 5.0, 1.0) == 1 + 10 + 50 - 7


def test_short_runs_are_chained_and_long_ones_shared() -> None:
    """Two branches of four short runs behind one that is long."""
    blocks, times = [8, *[4] * 8], [8000.0, *[100.0] * 8]
    needs = {1: [0], 2: [1], 3: [2], 4: [3], 5: [0], 6: [5], 7: [6], 8: [7]}
    found, time = chained(runs(blocks, times, needs), 2, 200.0, 100.0, 1000)
    assert sorted(chain.runs for chain in found if len(chain.runs) > 1) == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert found[0] == Chain((0,)) and time < 4000 + 4 * 100 + 200 + 600


def test_a_run_that_a_chain_needs_from_outside_comes_before_it() -> None:
    """0 -> 1 -> 3 and 0 -> 2 -> 3: 2 needs 0, so that 0 and 3 are never in one chain without it."""
    drawn = runs([1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0], {1: [0], 2: [0], 3: [1, 2]})
    found, _ = chained(drawn, 2, 100.0, 50.0, 1000)
    order = [run for chain in found for run in chain.runs]
    assert order.index(0) < order.index(2) < order.index(3)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Runs, dict[int, list[int]]]:
    count = draw(st.integers(1, 9))
    needs = {run: sorted(draw(st.sets(st.integers(0, run - 1), max_size=3))) if run else [] for run in range(count)}
    blocks = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    shared, whole = (draw(st.lists(st.integers(1, 900), min_size=count, max_size=count)) for _ in range(2))
    return Runs.of(blocks, shared, whole, needs, {}), needs


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(2, 4), st.integers(4, 300))
def test_a_list_can_be_run_and_is_no_slower_than_without_chains(
    drawn: tuple[Runs, dict[int, list[int]]], workers: int, evaluations: int
) -> None:
    program, needs = drawn
    found, time = chained(program, workers, 50.0, 20.0, evaluations)
    order = [run for chain in found for run in chain.runs]
    assert sorted(order) == list(range(len(program.blocks)))
    place = {run: at for at, run in enumerate(order)}
    assert all(place[one] < place[run] for run, before in needs.items() for one in before)
    for chain in found:
        assert chain.whole or len(chain.runs) == 1
        assert all(one in needs[run] for one, run in itertools.pairwise(chain.runs)), "a run follows one that it needs"
    assert time == pytest.approx(simulated(program, found, workers, 50.0, 20.0))
    assert chained(program, workers, 50.0, 20.0, evaluations) == (found, time), "the same input, the same list"
    first, _ = chained(program, workers, 50.0, 20.0, 4)
    assert time <= simulated(program, first, workers, 50.0, 20.0) + 1e-6
    assert least(program, workers, 50.0, 20.0) <= time + 1e-6


def test_runs_that_need_one_another_take_their_longest_way_at_least() -> None:
    """Ten runs of four pieces for four workers: each piece takes 25, and whoever needs them waits for 5."""
    drawn = runs([4] * 10, [100.0] * 10, {run: [run - 1] for run in range(1, 10)})
    shared = simulated(drawn, [Chain((run,)) for run in range(10)], 4, 5.0, 1.0)
    assert least(drawn, 4, 5.0, 1.0) == 10 * (25 + 5) - 5 <= shared


def test_the_steps_of_a_recurrent_layer_are_searched_without_numba() -> None:
    """A hundred runs, each of which needs the one before; compiling the search takes longer than it does."""
    code = """
import sys
from scheduler.chains import Runs, chained, simulated
count = 100
drawn = Runs.of([4] * count, [4e3] * count, [4e3] * count, {run: [run - 1] if run else [] for run in range(count)}, {})
found, time = chained(drawn, 4, 300.0, 150.0, 8000)
assert len(found) == count and simulated(drawn, found, 4, 300.0, 150.0) == time
assert "numba" not in sys.modules
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

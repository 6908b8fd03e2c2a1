"""Tuning: candidates take turns where they lie in a program; what is found is kept under what decides it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.kernel import Kernel
from kernels.listing import Argument, Listing, Place, Run
from kernels.run import Executable, aligned, placed
from kernels.target import host, x86_64_v3
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.ways import CONVOLUTION, EXACT_CONVOLUTION
from kernels.templates.convolution.winograd_choice import Winograd
from kernels.templates.gemm import GEMM, Gemm
from kernels.tune import SEVERAL, Choice, Database, Rival, Trial, key
from tests.kernels.clocks import Ticks

PROBLEM = Gemm(20, 40, 30)


def _candidates() -> list[Kernel]:
    return [GEMM.build(PROBLEM, one, host(), "product") for one in GEMM.rivals(PROBLEM, host(), 3)]


def _stage(kernel: Kernel, runs: int, clock: Ticks) -> tuple[Trial, Executable, np.ndarray]:
    """`runs` of one product, from the input to as many outputs."""
    rows, depth, columns = PROBLEM.rows, PROBLEM.depth, PROBLEM.columns
    outputs = tuple(Argument(f"y{number}", _f32(), (rows, columns)) for number in range(runs))
    weights = kernel.operand("b").bytes
    listing = Listing(
        "model", (Argument("x", _f32(), (rows, depth)),), outputs, (kernel,),
        tuple(Run("product", (Place("input"), Place("weights"), Place("output", 0, one))) for one in range(runs)),
        0, weights,
    )  # fmt: skip
    x, code = aligned(rows * depth), Executable([kernel])
    x.fill(1)
    ones = placed(np.ones(weights // 4, np.float32).view(np.uint8))
    return Trial(listing, code.address, ones, [x], host(), clock=clock), code, ones


def _f32():
    return PROBLEM.epilogue.dtype


def test_rivals_take_turns_and_the_least_reading_of_each_counts() -> None:
    own, *others = _candidates()
    # A pass reads the clock before and after each of the two runs, which have different ways; three ways, two rounds.
    clock = Ticks([5, 1, 7, 2, 3, 3, 4, 9, 9, 9, 1, 9])
    stage, _, _ = _stage(own, 2, clock)
    found = stage.contest({"product": [Rival(one) for one in others]}, rounds=2)
    assert found == {"product": [1e9 * (4 + 3), 1e9 * (7 + 1), 1e9 * (1 + 2)]}
    assert stage.count("product") == 2


def test_who_has_clearly_lost_takes_no_more_turns() -> None:
    own, *others = _candidates()
    # Two turns of each of three ways; the second is more than a quarter slower than the first, the third is not.
    clock = Ticks([4, 6, 5, 4, 6, 5, 3, 4, 4, 2])
    stage, _, _ = _stage(own, 1, clock)
    found = stage.contest({"product": [Rival(one) for one in others]}, rounds=4)
    assert found == {"product": [1e9 * 3, 1e9 * 6, 1e9 * 2]}
    clock = Ticks([4, 6, 4, 6])
    stage, _, _ = _stage(own, 1, clock)
    assert stage.contest({"product": [Rival(others[0])]}, rounds=4) == {"product": [4e9, 6e9]}, "the end of it"


def test_rivals_that_are_not_ahead_soon_take_no_more_turns() -> None:
    own, *others = _candidates()
    # Two turns of each of three ways; the second takes nine tenths of the first, the third as long as that.
    clock = Ticks([10, 9, 10, 10, 9, 10, 10, 8, 10, 7])
    stage, _, _ = _stage(own, 1, clock)
    found = stage.contest({"product": [Rival(one) for one in others]}, rounds=4, ahead=0.99)
    assert found == {"product": [1e9 * 10, 1e9 * 7, 1e9 * 10]}
    stage, _, _ = _stage(own, 1, Ticks([10, 10, 10, 10]))
    found = stage.contest({"product": [Rival(others[0])]}, rounds=4, ahead=0.99)
    assert found == {"product": [1e10, 1e10]}, "the end of it"


def test_one_turn_of_many_runs_tells_enough() -> None:
    own, other = _candidates()[:2]
    stage, _, _ = _stage(own, SEVERAL, Ticks([10, 9.95] * SEVERAL))
    found = stage.contest({"product": [Rival(other)]}, rounds=4, ahead=0.99)
    assert found == {"product": [1e9 * (2 * 10 + 2 * 9.95)] * 2}, "in each pass every second run has the rival"


def test_turns_end_with_the_time_but_each_has_one() -> None:
    own, other = _candidates()[:2]
    stage, _, _ = _stage(own, 1, Ticks([1] * 100))
    found = stage.contest({"product": [Rival(other)]}, rounds=50, until=0.0)
    assert found == {"product": [1e9, 1e9]}


def test_times_are_those_of_the_program_itself() -> None:
    stage, _, _ = _stage(_candidates()[0], 2, Ticks([3, 4, 2, 5]))
    assert stage.times(2) == {"product": 1e9 * (2 + 4)}


def test_whole_programs_are_compared_by_turns() -> None:
    own, other = _candidates()[:2]
    stage, _, _ = _stage(own, 2, Ticks([3, 2, 5, 1]))
    assert stage.whole({"product": Rival(other)}, 2) == (3, 1)


def test_whole_programs_are_compared_until_one_has_most_rounds() -> None:
    own, other = _candidates()[:2]
    stage, _, _ = _stage(own, 2, Ticks([3, 2, 5, 4, 1, 9]))
    assert stage.whole({"product": Rival(other)}, 3) == (3, 2), "a third round changes nothing"
    stage, _, _ = _stage(own, 2, Ticks([3, 2, 5, 6, 4, 1]))
    assert stage.whole({"product": Rival(other)}, 3) == (3, 1), "it decides where each had one"


def test_who_has_lost_the_first_turn_takes_no_second_in_a_little_time() -> None:
    own, slow, near = _candidates()[:3]
    stage, _, _ = _stage(own, 1, Ticks([40, 60, 45, 42, 41]))
    found = stage.contest({"product": [Rival(slow), Rival(near)]}, rounds=4, ahead=0.97)
    assert found == {"product": [40e9, 60e9, 42e9]}


def test_a_rival_with_larger_weights_has_room_of_its_own() -> None:
    narrow = GEMM.build(Gemm(20, 16, 30), GEMM.candidates(Gemm(20, 16, 30), host())[0], host(), "product")
    wide = GEMM.build(Gemm(20, 64, 30), GEMM.candidates(Gemm(20, 64, 30), host())[0], host(), "product")
    rows = tuple(Run("product", (Place("input"), Place("weights"), Place("output", 0, one))) for one in (0, 1))
    outputs = tuple(Argument(f"y{one}", _f32(), (20, 64)) for one in (0, 1))
    listing = Listing(
        "model", (Argument("x", _f32(), (20, 30)),), outputs, (narrow,), rows, 0, narrow.operand("b").bytes
    )
    code = Executable([narrow])
    weights = placed(np.ones(narrow.operand("b").elements, np.float32).view(np.uint8))
    stage = Trial(listing, code.address, weights, [aligned(600)], host(), clock=Ticks([1] * 8))
    more = wide.operand("b").bytes + wide.operand("c").bytes
    assert stage.extra_bytes(wide) == 2 * more
    assert stage.contest({"product": [Rival(wide)]}, rounds=1) == {"product": [2e9, 2e9]}


def test_a_program_and_its_rivals_share_one_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch of its own would be cold: a rival that is the very same kernel then took up to a quarter longer."""
    image = Layout(1, 16, (1, 12, 12), "NHWC", 0, (0, 1, 1), (0, 1, 1))
    problem = Convolution(image, replace(image, before=(0, 0, 0), after=(0, 0, 0)), (1, 3, 3), pads=(0, 1, 1))
    ways = [one for one in CONVOLUTION.candidates(problem, host()) if isinstance(one, Winograd)]
    own, same, larger = (
        CONVOLUTION.build(problem, one, host(), "convolution") for one in (ways[0], ways[0], replace(ways[0], room=12))
    )
    assert 0 < own.scratch_bytes < larger.scratch_bytes
    sizes = [operand.bytes for operand in own.operands]
    places = (Place("input"), Place("weights"), Place("output"))
    output = (Argument("y", _f32(), (1, 12, 12, 16)),)
    inputs = (Argument("x", _f32(), (1, 14, 14, 16)),)
    listing = Listing("model", inputs, output, (own,), (Run("convolution", places),), 0, sizes[1])
    seen: list[int] = []

    def driver(*_: object, **__: object) -> Callable[[int, int], None]:
        return lambda row, _: seen.append(np.frombuffer(ctypes.string_at(row, 40), np.uint64)[4])

    monkeypatch.setattr("kernels.tune.driver", driver)
    code = Executable([own])
    ones = placed(np.ones(sizes[1] // 4, np.float32).view(np.uint8))
    stage = Trial(listing, code.address, ones, [aligned(sizes[0] // 4)], host(), clock=Ticks([1] * 100))
    stage.contest({"convolution": [Rival(same)]}, rounds=1)
    assert len(seen) == 2 and len(set(seen)) == 1
    seen.clear()
    stage.contest({"convolution": [Rival(same), Rival(larger)]}, rounds=1)
    stage.whole({"convolution": Rival(same)}, 1)
    assert len(seen) == 5 and len(set(seen)) == 1


def test_choices_are_kept_and_replaced(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuned" / "kernels.json")
    assert database.choices() == {}
    one, other = (Choice("product", "cpu", name, 3.0, {name: 3.0}) for name in ("a", "b"))
    database.add({"k": one, "l": one})
    database.add({"k": other})
    assert database.choices() == {"k": other, "l": one}


@pytest.mark.parametrize("text", ["{", '{"schema": "other", "choices": {}}', '{"schema": 3}'])
def test_a_file_of_something_else_holds_nothing_and_is_written_anew(text: str, tmp_path: Path) -> None:
    database = Database(tmp_path / "kernels.json")
    database.path.write_text(text)
    assert database.choices() == {}
    choice = Choice("product", "cpu", "a", 1.0, {})
    database.add({"k": choice})
    assert database.choices() == {"k": choice}


def test_problem_target_and_what_may_be_chosen_decide() -> None:
    keys = {key(GEMM, problem, target) for problem in (PROBLEM, Gemm(2, 3, 5)) for target in (host(), x86_64_v3())}
    assert len(keys) == 4
    assert key(CONVOLUTION, "same", host()) != key(EXACT_CONVOLUTION, "same", host())

"""Kernels by measurement: what is faster where it lies is taken, kept, and found again."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program import tuning
from graphopt.program.deploy.session import Program
from graphopt.program.listing import link
from graphopt.program.make import make, make_listing
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.tuning import Tuning, tuned, with_choices
from kernels.target import host
from kernels.templates.template import Template
from kernels.tune import Choice, Database, Rival, Trial, key
from tests import support

ENOUGH = 1e9  # seconds: a test never runs out of them
TEXT = "g (float[1,4,20,20] x) => (float[1,32,20,20] y) { a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Conv(b, v) }"


def _model() -> ir.Model:
    generator = np.random.default_rng(0)
    w, v = (generator.standard_normal(shape).astype(np.float32) for shape in ((32, 4, 3, 3), (32, 32, 1, 1)))
    return ir.from_proto(support.model(TEXT, 18, w=w, v=v))


@pytest.fixture
def lowered() -> Lowered:
    return lower(_model(), host(), exact=True)  # of direct kernels alone, which are few


class _Figures(Trial):
    """A stage whose readings are made up: the more letters a candidate's name has, the faster it is."""

    gain = 1.0
    whole_gain = 0.5

    def times(self, rounds: int) -> dict[str, float]:
        return {run.kernel: 100.0 for run in self.runs}

    def contest(
        self, rivals: dict[str, list[Rival]], rounds: int, until: float | None = None, ahead: float | None = None
    ) -> dict[str, list[float]]:
        return {
            name: [100.0, *(100.0 - self.gain * (number + 1) for number, _ in enumerate(some))]
            for name, some in rivals.items()
        }

    def whole(self, chosen: dict[str, Rival], rounds: int, until: float | None = None) -> tuple[float, float]:
        assert chosen, "there is something to compare"
        return 1.0, 1.0 - self.whole_gain


def _measured(lowered: Lowered, database: Database, seconds: float = ENOUGH) -> dict[str, str]:
    linked = link(lowered, "model", threads=1)
    program = Program(linked.listing, linked.weights, host(), threads=1)
    found = tuned(lowered, linked.listing, program, Tuning(database, seconds))
    return {name: kernel.choice for name, kernel in found.items()}


def _rivals(lowered: Lowered, name: str) -> list[str]:
    template, problem = lowered.problems[name]
    return [str(one) for one in template.rivals(problem, host(), 1 << 30)]


def test_what_loses_clearly_is_exchanged_and_kept(
    lowered: Lowered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "Trial", _Figures)
    monkeypatch.setattr(_Figures, "gain", 4.0)
    database = Database(tmp_path / "tuned.json")
    found = _measured(lowered, database)
    assert set(found) == {"convolution_0", "convolution_1"}
    for name, choice in found.items():
        assert choice == _rivals(lowered, name)[-1]
        kept = database.choices()[key(*lowered.problems[name], lowered.target)]
        assert kept.candidate == choice and set(kept.measured) == set(_rivals(lowered, name))
    again = with_choices(lowered, database.choices())
    assert {
        region.kernel.name: region.kernel.choice for region in again.regions if region.kernel.name in found
    } == found
    assert not _measured(again, database), "all of it is known"


@pytest.mark.parametrize(("gain", "whole"), [(0.1, 0.5), (4.0, -0.5)])
def test_the_likely_best_stays_unless_it_loses_clearly_and_in_the_whole_program(
    lowered: Lowered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: float, whole: float
) -> None:
    monkeypatch.setattr(tuning, "Trial", _Figures)
    monkeypatch.setattr(_Figures, "gain", gain)
    monkeypatch.setattr(_Figures, "whole_gain", whole)
    database = Database(tmp_path / "tuned.json")
    assert not _measured(lowered, database)
    assert {choice.candidate for choice in database.choices().values()} <= {
        _rivals(lowered, name)[0] for name in lowered.problems
    }
    assert with_choices(lowered, database.choices()) == lowered


def test_a_longer_search_goes_on_where_a_short_one_ended(
    lowered: Lowered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "Trial", _Figures)
    database = Database(tmp_path / "tuned.json")
    monkeypatch.setattr(tuning, "WIDE", 2 * ENOUGH)
    _measured(lowered, database)
    few = {name: len(choice.measured) for name, choice in database.choices().items()}
    monkeypatch.setattr(tuning, "WIDE", 0.0)
    _measured(lowered, database)
    many = {name: len(choice.measured) for name, choice in database.choices().items()}
    assert few.keys() == many.keys() and all(few[name] <= many[name] for name in few) and few != many


def test_in_a_little_time_rivals_are_those_that_may_gain_enough(tmp_path: Path) -> None:
    little, much = (Tuning(Database(tmp_path / "tuned.json"), seconds) for seconds in (tuning.WIDE, 2 * tuning.WIDE))
    of_kin, of_others = tuning.LEAST_GAIN / tuning.KIN, tuning.LEAST_GAIN / tuning.STRANGER
    assert little.is_worth(1.01 * of_kin, True) and not little.is_worth(0.99 * of_kin, True)
    assert little.is_worth(1.01 * of_others, False) and not little.is_worth(0.99 * of_others, False)
    assert much.is_worth(0.0, True)


def test_losses_of_a_kind_end_what_is_tried_of_it_in_a_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = (16, 32, 48, 64, 80, 96, 112)
    weights, lines = {}, []
    for number, (depth, width) in enumerate(itertools.pairwise(widths)):
        weights[f"w{number}"] = np.ones((width, depth, 1, 1), np.float32)
        lines.append(f"a{number + 1} = Conv(a{number}, w{number})")
    text = f"g (float[1,16,20,20] a0) => (float[1,112,20,20] a6) {{ {' '.join(lines)} }}"
    lowered = lower(ir.from_proto(support.model(text, 18, **weights)), host())
    monkeypatch.setattr(tuning, "Trial", _Figures)
    monkeypatch.setattr(_Figures, "gain", -4.0)
    monkeypatch.setattr(tuning, "WIDE", 2 * ENOUGH)
    database = Database(tmp_path / "tuned.json")
    assert not _measured(lowered, database)
    first = database.choices()
    tried = sum(len(one.measured) - 1 for one in first.values())
    assert tried == tuning.WAVE and sum(len(one.left_out) for one in first.values()) >= 2
    assert not _measured(lowered, database) and database.choices() == first, "as it was left"
    monkeypatch.setattr(tuning, "WIDE", 0.0)
    assert not _measured(lowered, database)
    assert all(set(first[name].left_out) <= set(one.measured) for name, one in database.choices().items())


def test_no_time_measures_nothing(lowered: Lowered, tmp_path: Path) -> None:
    database = Database(tmp_path / "tuned.json")
    assert not _measured(lowered, database, 0.0) and not database.path.exists()


def test_without_time_to_compile_rivals_nothing_is_kept_of_them(lowered: Lowered, tmp_path: Path) -> None:
    database = Database(tmp_path / "tuned.json")
    assert not _measured(lowered, database, 1e-9)
    assert all(len(choice.measured) == 1 for choice in database.choices().values())


def test_a_choice_that_is_no_candidate_is_passed_over(lowered: Lowered) -> None:
    choices = {key(*problem, lowered.target): Choice("", "", "gone", 1.0, {}) for problem in lowered.problems.values()}
    assert with_choices(lowered, choices) == lowered


@pytest.mark.parametrize("place", [0, -1])
def test_programs_of_any_choice_compute_the_same(lowered: Lowered, place: int) -> None:
    choices = {
        key(*problem, lowered.target): Choice("", "", _rivals(lowered, name)[place], 1.0, {})
        for name, problem in lowered.problems.items()
    }
    x = np.random.default_rng(1).standard_normal((1, 4, 20, 20)).astype(np.float32)
    results = []
    for one in (lowered, with_choices(lowered, choices)):
        linked = link(one, "model")
        results.append(Program(linked.listing, linked.weights, host()).run(None, {"x": x})[0])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-3)


def test_a_measured_program_is_that_of_its_choices(tmp_path: Path) -> None:
    """Measured in earnest: what comes out first is what the kept choices give afterwards, byte for byte."""
    database = Database(tmp_path / "tuned.json")
    made = make(_model(), host(), "model", False, None, None, tuning=Tuning(database, ENOUGH))
    _, linked = make_listing(_model(), host(), "model", False, None, tuning=Tuning(database, 0.0))
    texts = [
        [(one.name, one.choice, one.module.text()) for one in given.listing.kernels] for given in (linked, made.linked)
    ]
    assert texts[0] == texts[1] and linked.listing.runs == made.linked.listing.runs
    assert linked.weights.tobytes() == made.linked.weights.tobytes()
    assert all(choice.measured[choice.candidate] == choice.nanoseconds for choice in database.choices().values())


def test_rivals_are_of_every_family_the_best_first_and_not_hopeless() -> None:
    def template(times: dict[str, float]) -> Template[int, str]:
        return Template(
            "t", int, lambda problem, target: tuple(times), lambda *_: pytest.fail("nothing is built"),  # type: ignore[arg-type,return-value]
            lambda problem, candidate, target: times[candidate], family=lambda one: (one[0], one[:2]),
        )  # fmt: skip

    times = {"a1x": 1.0, "a1y": 1.1, "a2": 1.2, "a3": 1.3, "b1": 1.9, "c1": 2.1, "b2": 2.0}
    assert template(times).rivals(0, host(), 1) == ("a1x", "b1")
    assert template(times).rivals(0, host(), 2) == ("a1x", "b1", "a2")
    assert template(times).rivals(0, host(), 9, 1.5) == ("a1x", "a2", "a3")
    assert template(times).rivals(0, host(), 9) == ("a1x", "b1", "a2", "b2", "a3")

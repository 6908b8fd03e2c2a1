"""Kernels that other machines measure: who measures what, what is taken of it here, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.flows import cluster, measured_elsewhere
from graphopt.flows.measured_elsewhere import OnCluster, of_this_kind
from graphopt.flows.tune import kept_choices
from graphopt.program import tuning
from graphopt.program.deploy.compiled import Whole
from graphopt.program.elsewhere import Elsewhere, Job, shares
from graphopt.program.make import make, make_listing
from graphopt.program.tuning import Tuning
from kernels.target import host
from kernels.tune import Choice, Database, Rival, Trial, key
from tests import support
from tests.clients import InThisProcess

ENOUGH = 1e9  # seconds: a test never runs out of them
TEXT = """g (float[1,4,20,20] x) => (float[1,24,20,20] y) {
    a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv(b, v) y = Conv(c, u)
}"""


def _model() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    shapes = {"w": (32, 4, 3, 3), "v": (48, 32, 1, 1), "u": (24, 48, 1, 1)}
    weights = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return support.model(TEXT, 18, **weights)


class _Figures(Trial):
    """A stage whose readings are made up: the later a candidate is tried, the faster it is."""

    whole_gain = 0.5
    contests: list[dict[str, list[str]]] = []  # noqa: RUF012  # of all stages of a test

    def times(self, rounds: int) -> dict[str, float]:
        return {run.kernel: 100.0 for run in self.runs}

    def contest(
        self, rivals: dict[str, list[Rival]], rounds: int, until: float | None = None, ahead: float | None = None
    ) -> dict[str, list[float]]:
        self.contests.append({name: [one.kernel.choice for one in some] for name, some in rivals.items()})
        return {name: [100.0, *(90.0 - number for number, _ in enumerate(some))] for name, some in rivals.items()}

    def whole(self, chosen: dict[str, Rival], rounds: int, until: float | None = None) -> tuple[float, float]:
        return 1.0, 1.0 - self.whole_gain


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Trial", _Figures)
    monkeypatch.setattr(_Figures, "contests", [])


def _made(database: Database, elsewhere: Elsewhere | None) -> Whole:
    found = make(
        ir.from_proto(_model()), host(), "model", False, None, None, 1,
        tuning=Tuning(database, ENOUGH, elsewhere=elsewhere),
    )  # fmt: skip
    assert isinstance(found, Whole)
    return found


def _choices(made: Whole) -> dict[str, str]:
    return {region.kernel.name: region.kernel.choice for region in made.lowered.regions}


def _keys() -> dict[str, str]:
    """The keys of kernels by their names."""
    lowered, _ = make_listing(ir.from_proto(_model()), host(), "model", False, None, 1)
    return {name: key(*problem, lowered.target) for name, problem in lowered.problems.items()}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_every_kernel_is_measured_by_one_machine(count: int) -> None:
    times = np.random.default_rng(count).exponential(size=20)
    taken = {f"k{number}": float(time) for number, time in enumerate(times)}
    parts = shares(taken, count)
    assert sorted(one for part in parts for one in part) == sorted(taken)
    assert len(parts) == min(count, len(taken)) and all(parts)
    loads = [sum(taken[one] for one in part) for part in parts]
    assert max(loads) <= max(sum(times) / count + max(times), max(times))
    assert parts == shares(dict(reversed(taken.items())), count)


def test_nothing_is_divided_into_nothing() -> None:
    assert shares({}, 3) == ()


def test_machines_measure_what_one_would_have(tmp_path: Path) -> None:
    alone = Database(tmp_path / "alone.json")
    expected = _made(alone, None)
    tried = {name: choices for contest in _Figures.contests for name, choices in contest.items()}
    _Figures.contests.clear()
    together = Database(tmp_path / "together.json")
    found = _made(together, OnCluster(InThisProcess(2)))
    several = [contest for contest in _Figures.contests if contest]
    assert len(several) == 2 and not several[0].keys() & several[1].keys(), "each kernel by one machine"
    assert several[0] | several[1] == tried
    assert _choices(found) == _choices(expected) and together.path.read_bytes() == alone.path.read_bytes()
    _Figures.contests.clear()
    assert _choices(_made(together, OnCluster(InThisProcess(2)))) == _choices(found)
    assert not any(_Figures.contests), "nothing is measured twice"


def test_whole_programs_are_compared_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "tuned.json")
    before = _choices(_made(Database(tmp_path / "none.json"), lambda *_: {}))
    monkeypatch.setattr(_Figures, "whole_gain", -0.5)
    assert _choices(_made(database, OnCluster(InThisProcess(2)))) == before
    assert all(len(one.measured) > 1 for one in database.choices().values())


def test_kernels_for_which_no_machine_had_time_are_left_for_the_next_time(tmp_path: Path) -> None:
    asked: dict[str, float] = {}

    def elsewhere(
        job: Job, taken: Mapping[str, float], known: Mapping[str, Choice], seconds: float
    ) -> Mapping[str, Choice]:  # fmt: skip
        asked.update(taken)
        assert seconds == ENOUGH and not known and onnx.ModelProto.FromString(job.model).graph.node
        return {}

    database = Database(tmp_path / "tuned.json")
    _made(database, elsewhere)
    assert asked and set(asked) <= set(_keys().values()) and all(time == 100.0 for time in asked.values())
    assert not asked.keys() & database.choices().keys()


def test_workers_of_another_kind_are_named(tmp_path: Path) -> None:
    assert of_this_kind(InThisProcess(2)) == ["tcp://0", "tcp://1"]
    sentence = r"kernels are measured on machines of one kind.*: tcp://1 is A strange one \(LLVM 1.2.3\); start workers"
    with pytest.raises(OptionError, match=sentence):
        of_this_kind(InThisProcess(2, strangers=1))
    with pytest.raises(OptionError, match=sentence):
        graphopt.compile(_model(), tune=ENOUGH, dask=InThisProcess(2, strangers=1))
    assert not _Figures.contests


def test_a_worker_that_came_later_and_is_of_another_kind_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = measured_elsewhere.own_key()
    monkeypatch.setattr(measured_elsewhere, "own_key", lambda: None)
    assert measured_elsewhere.measured_there(None, {}, frozenset(), ENOUGH, own) == {}  # type: ignore[arg-type]


def test_a_cluster_without_a_time_is_refused() -> None:
    with pytest.raises(OptionError, match="kernels are measured on a cluster in a time to tune; give one"):
        graphopt.compile(_model(), dask=InThisProcess(1))


def test_a_program_of_a_cluster_computes_what_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = graphopt.compile(_model(), tune=ENOUGH, dask=InThisProcess(2), threads=1)
    assert program.verification.passed and len(kept_choices().choices()) == len(_keys())


def test_a_share_that_is_lost_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Choice("product", "cpu", "a", 1.0, {"a": 1.0})
    asked: list[frozenset[str]] = []

    def measured(job: object, known: object, only: frozenset[str], seconds: float, own: object) -> dict[str, Choice]:
        asked.append(only)
        return dict.fromkeys(only, choice)

    monkeypatch.setattr(measured_elsewhere, "measured_there", measured)
    monkeypatch.setattr(cluster, "PAUSE", 0)
    found = OnCluster(InThisProcess(2, losing=1))(None, {"k": 3.0, "l": 1.0, "m": 1.0}, {}, 1.0)  # type: ignore[arg-type]
    assert found == dict.fromkeys("klm", choice)
    assert asked == [frozenset("k"), frozenset("lm")] * 2

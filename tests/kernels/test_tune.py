"""Tuning: what is measured is kept under what decides it, and found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import tune
from kernels.target import host, x86_64_v3
from kernels.templates.gemm import GEMM, Gemm
from kernels.tune import Database, TuningError


def test_the_measured_best_is_found_again_without_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, database = Gemm(20, 40, 30), Database(tmp_path / "tuned" / "kernels.json")
    chosen = tune.best(GEMM, problem, host(), database, most=3, rounds=1)
    (choice,) = database.choices().values()
    assert choice.candidate == str(chosen) and len(choice.measured) == 3
    assert choice.nanoseconds == min(choice.measured.values()) > 0 and (choice.predicted or 0) > 0
    monkeypatch.setattr(tune, "measure", lambda *_, **__: pytest.fail("it was measured again"))
    assert tune.best(GEMM, problem, host(), database) == chosen


def test_problem_and_target_decide() -> None:
    keys = {
        tune.key(GEMM, problem, target)
        for problem in (Gemm(2, 3, 4), Gemm(2, 3, 5))
        for target in (host(), x86_64_v3())
    }
    assert len(keys) == 4


def test_a_choice_that_is_no_candidate_any_more_is_measured_again(tmp_path: Path) -> None:
    problem, database = Gemm(4, 4, 4), Database(tmp_path / "kernels.json")
    tune.best(GEMM, problem, host(), database, most=1, rounds=1)
    text = database.path.read_text()
    (choice,) = database.choices().values()
    database.path.write_text(text.replace(f'"candidate": "{choice.candidate}"', '"candidate": "gone"'))
    tune.best(GEMM, problem, host(), database, most=1, rounds=1)
    assert [one.candidate for one in database.choices().values()] == [choice.candidate]


@pytest.mark.parametrize(
    ("text", "fault"), [("{", "is no tuning file"), ('{"schema": "other", "choices": {}}', "of schema 'other'")]
)
def test_another_file_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(text)
    with pytest.raises(TuningError, match=fault):
        Database(path).choices()

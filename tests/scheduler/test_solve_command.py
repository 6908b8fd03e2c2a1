"""`python -m scheduler solve`: JSON that a person can check by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scheduler.cli.solve import command
from scheduler.errors import SchedulerError
from tests.scheduler.lists.checking import faults

ROWS = "3\n0 0 0\n1 5 1 0\n2 3 1 0\n3 4 1 1\n4 0 2 2 3\n# the rest 1 2 3\n"
TIMES, BEFORE = [0, 5, 3, 4, 0], [[], [0], [0], [1], [2, 3]]


def _answer(tmp_path: Path, text: str, *options: str) -> dict[str, Any]:
    file = tmp_path / "graph.stg"
    file.write_text(text)
    result = CliRunner().invoke(command, [str(file), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize(("workers", "makespan", "bound"), [(1, 12, "work"), (2, 9, "critical path")])
def test_the_answer_for_a_graph(tmp_path: Path, workers: int, makespan: int, bound: str) -> None:
    answer = _answer(tmp_path, ROWS, "--workers", str(workers))
    assert (answer["makespan"], answer["lower_bound"], answer["bound"]) == (makespan, makespan, bound)
    assert answer["proved_optimal"] is True
    assert answer["seconds"] >= 0 and answer["limited"] is None
    rows = answer["assignment"]
    assert [row["task"] for row in rows] == [0, 1, 2, 3, 4]
    assert not faults(TIMES, BEFORE, workers, [row["start"] for row in rows], [row["worker"] for row in rows])


def test_whole_numbers_stay_whole_and_others_do_not(tmp_path: Path) -> None:
    answer = _answer(tmp_path, ROWS, "--workers", "2", "--work", "4000000")
    assert all(type(row["start"]) is int for row in answer["assignment"])
    assert type(answer["makespan"]) is int and type(answer["lower_bound"]) is int
    assert _answer(tmp_path, ROWS.replace(" 5 ", " 5.5 "), "--workers", "2")["makespan"] == 9.5


@pytest.mark.parametrize(
    ("rows", "workers", "message"),
    [
        (ROWS, "0", "0 workers cannot run anything: give at least 1."),
        (ROWS, "-1", "-1 workers cannot run anything: give at least 1."),
        (
            ROWS.replace("1 5 1 0", "1 5 1 3"),
            "2",
            "the tasks wait for each other in a circle: 1 -> 3 -> 1; drop one of",
        ),
        (ROWS.replace("1 5 1 0", "1 -5 1 0"), "2", "'graph.stg', line 3: the time -5 of task 1 is not between 0 and"),
    ],
)
def test_what_cannot_be_solved_is_one_sentence(tmp_path: Path, rows: str, workers: str, message: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        _answer(tmp_path, rows, "--workers", workers)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)

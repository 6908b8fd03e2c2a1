"""Loops that some data never end: other data are drawn, and a heavy model still has all the time there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.check.feeds import Feed
from graphopt.check.patience import FIRST_SECONDS, Patience
from graphopt.check.runner import CannotRun, OutOfTime, Runner
from graphopt.model.load import load
from graphopt.model.trips import MOST_TRIPS, has_open_loop
from tests import support

MODEL = """g (float x) => (float y) {{
    {count} three = Constant<value_float = 3.0>() go = Less(x, three)
    y = Loop({given}, go, x) <body = b (int64 i, bool c, float s) => (bool d, float t)
        {{ t = Add(s, x) limit = Constant<value_float = 3.0>() d = Less(t, limit) }}>
}}"""


def _model(count: int | None) -> onnx.ModelProto:
    """Adds x until that is 3 or more, which it never is where x is below zero."""
    constant = "" if count is None else f"n = Constant<value_int = {count}>()"
    return support.model(MODEL.format(count=constant, given="" if count is None else "n"), 18)


@pytest.mark.parametrize(
    ("count", "is_open"), [(None, True), ((1 << 63) - 1, True), (MOST_TRIPS + 1, True), (MOST_TRIPS, False), (1, False)]
)
def test_a_loop_is_open_where_no_count_ends_it(count: int | None, is_open: bool) -> None:
    assert has_open_loop(load(_model(count))) == is_open


def test_a_model_is_verified_with_data_that_end_its_loop() -> None:
    result = graphopt.optimize(_model(None))
    assert result.verification.passed and result.verification.feeds > 1
    program = graphopt.compile(_model(None), threads=1)
    assert program.verification.passed
    assert program.run(None, {"x": np.float32(2)})[0] == 4


class _Endless:
    """A run that takes so many seconds, told without a clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.allowed = seconds, list[float]()

    def run(self, feed: Feed, seconds: float) -> Sequence[object]:
        self.allowed.append(seconds)
        if seconds < self.seconds:
            raise OutOfTime
        return [1]


def test_runs_are_cut_at_first_and_take_all_the_time_if_none_ends() -> None:
    patience, runner = Patience(load(_model(None))), _Endless(100)
    with pytest.raises(CannotRun, match="a loop of the model did not end within 2 s"):
        patience.run(cast(Runner, runner), {}, 300)
    with pytest.raises(OutOfTime):  # no time is left for another
        patience.run(cast(Runner, runner), {}, 1)
    assert patience.renewed() and not patience.renewed()
    assert patience.run(cast(Runner, runner), {}, 300) == [1]
    assert runner.allowed == [FIRST_SECONDS, 1, 300]


def test_without_an_open_loop_nothing_is_cut() -> None:
    patience, runner = Patience(load(_model(5))), _Endless(100)
    assert patience.run(cast(Runner, runner), {}, 300) == [1] and not patience.renewed()
    with pytest.raises(OutOfTime):
        patience.run(cast(Runner, runner), {}, 50)

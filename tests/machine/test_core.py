"""What kernels are chosen by, out of a record."""

from __future__ import annotations

import pytest

from graphopt.program.core import with_core
from kernels.target import x86_64_v4
from tests.machine.records import record


@pytest.mark.parametrize(
    ("rates", "few", "tall"),
    [
        ({}, "near", "near"),  # none is faster
        ({"few_half": 6.5, "tall_far": 5.4}, "near", "near"),  # by less than readings differ
        ({"few_half": 12.0, "few_far": 8.0, "tall_far": 6.0}, "half", "far"),
    ],
)
def test_tiles_ask_in_the_way_that_was_clearly_fastest(rates: dict[str, float], few: str, tall: str) -> None:
    core = with_core(x86_64_v4(), record(**rates)).core
    assert (core.few, core.tall) == (few, tall)


def test_tiles_ask_into_the_first_cache_where_no_way_was_measured() -> None:
    core = with_core(x86_64_v4(), record("few_near", "few_far", "few_half", "tall_half")).core
    assert (core.few, core.tall) == ("near", "near")
    assert with_core(x86_64_v4(), "znver4").core.few == "half"

"""Budgets as shares of what is needed without one, by every use case that takes a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphopt
import models
from graphopt.errors import BudgetNotKept, OptionError
from graphopt.memory.share import Share, in_bytes, read_budget
from graphopt.program.deploy.manifest import read_manifest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("share") / "m.onnx"
    models.write("dscnn_kws", path)
    return path


@pytest.mark.parametrize(
    ("given", "size"),
    [(7, 7), ("4096", 4096), ("40MiB", 40 << 20), ("50%", 500), (" 12.5 % ", 125), ("100%", 1000), ("0.1%", 1)],
)
def test_a_budget_is_bytes_or_a_share(given: int | str, size: int) -> None:
    budget = read_budget(given)
    assert budget is not None and in_bytes(budget, 1000) == size
    assert isinstance(budget, Share) == (isinstance(given, str) and given.strip().endswith("%"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("much", "'much' is no number of bytes, such as 4096, 192GiB or 1.5GB, nor a share such as 50%."),
        ("-5%", "'-5%' is no number of bytes"),
        ("0%", "'0%' is no share of what is needed without a budget, which is above 0% and at most 100%."),
        ("100.1%", "is above 0% and at most 100%"),
        ("0.5", "'0.5' is no byte; a share is told in percent, such as 50%."),
    ],
)
def test_what_is_no_budget_is_said(given: str, said: str) -> None:
    with pytest.raises(OptionError) as refusal:
        read_budget(given)
    assert said in str(refusal.value)


def test_memory_takes_a_share_of_the_best_orders_arena(model: Path) -> None:
    best = graphopt.memory(model, order="best").record.arena
    record = graphopt.memory(model, budget="100%").record
    assert record.budget == record.arena == best
    with pytest.raises(BudgetNotKept) as refusal:
        graphopt.memory(model, budget="1%")
    assert refusal.value.budget == best // 100


def test_optimize_takes_a_share_of_the_best_orders_arena(model: Path) -> None:
    budgeted = graphopt.optimize(model, memory_budget="100%", measure=False).budgeted
    assert budgeted is not None and budgeted.record.bit_equal
    assert budgeted.record.budget == budgeted.record.arena == budgeted.record.arena_best
    with pytest.raises(BudgetNotKept) as refusal:
        graphopt.optimize(model, memory_budget="1%", verify=False, measure=False)
    assert refusal.value.budget == budgeted.record.arena_best // 100


def test_a_program_takes_a_share_of_its_own_arena(model: Path, tmp_path: Path) -> None:
    graphopt.compile(model, threads=1).save(tmp_path / "whole")
    graphopt.compile(model, threads=1, memory_budget="100%").save(tmp_path / "all")
    whole, kept = (read_manifest(tmp_path / name).program.arena_bytes for name in ("whole", "all"))
    assert 0 < kept <= whole
    with pytest.raises(BudgetNotKept) as refusal:
        graphopt.compile(model, threads=1, memory_budget="1%")
    assert refusal.value.budget == whole // 100 and whole // 100 < refusal.value.least <= whole


def test_a_process_takes_a_share_of_what_it_needs(model: Path, tmp_path: Path) -> None:
    graphopt.compile(model, ram="100%", threads=1).save(tmp_path / "all")
    taken = read_manifest(tmp_path / "all").ram
    assert taken is not None and taken.fetched == 0, "everything stays in memory"
    with pytest.raises(BudgetNotKept) as refusal:
        graphopt.compile(model, ram="1%", threads=1)
    assert refusal.value.budget == taken.bytes // 100 < refusal.value.least <= taken.bytes


@pytest.mark.parametrize("device", ["v100", "cpu:2"])
def test_a_schedule_takes_a_share_of_its_arena(model: Path, device: str) -> None:
    def arena(budget: str) -> int:
        ways = graphopt.schedule(model, device=device, work=2_000, measure=False, memory_budget=budget).record.ways
        return next(way.arena for way in ways if way.taken)

    whole = arena("100%")
    with pytest.raises(BudgetNotKept) as refusal:
        arena("1%")
    assert whole // 100 <= refusal.value.budget < refusal.value.least <= whole

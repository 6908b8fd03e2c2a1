"""A budget by every means: order, recomputation, tiles; the one that takes least time; and what cannot be kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
import models
from graphopt.check.verification import Verification
from graphopt.errors import BudgetNotKept, OptionError, VerificationError
from graphopt.flows.optimize import DEFAULT_VERIFY_SECONDS
from graphopt.memory import budget as budgets
from graphopt.memory.fit import counts, fit
from graphopt.memory.levers.lever import Fitted, Lever
from graphopt.memory.levers.order import best_order
from graphopt.memory.levers.recompute import RECOMPUTATION
from graphopt.memory.levers.tile import TILES
from graphopt.memory.plan import given
from graphopt.memory.tensors import model_memory
from graphopt.model import nodes
from graphopt.model.load import load
from tests import support

# e is cheap to make, large, and read first and last: it can be computed again; s between is large and can be tiled.
BOTH = """g (float[64,16] x) => (float[64,256] y) {
    e = MatMul(x, w) s = MatMul(e, v) t = Sigmoid(s) u = MatMul(t, w2) y = Mul(u, e)
}"""


def both() -> ir.Model:
    draw = np.random.default_rng(3)
    weights = {
        name: draw.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (16, 256)), ("v", (256, 1024)), ("w2", (1024, 256)))
    }
    return load(support.model(BOTH, **weights))


def fitted(model: ir.Model, share: float, without: Lever | None = None) -> Fitted:
    memory = model_memory(model)
    start = best_order(memory)
    return fit(
        model,
        memory,
        int(start.packing.arena_size * share),
        start=start,
        work={} if without is None else {without.name: 0},
    )


def test_the_best_order_is_enough_where_it_fits() -> None:
    model = both()
    found = fitted(model, 1.0)
    assert found.model is model and not found.uses and found.planned.recomputations == 0 and counts(found) == ""


def test_the_means_of_least_time_is_taken() -> None:
    separately = [fitted(both(), 0.9, without=TILES), fitted(both(), 0.9, without=RECOMPUTATION)]
    assert set(separately[0].uses) == {"recomputation"} and counts(separately[0]).endswith(" again")
    assert separately[1].uses["tiles"] and not separately[1].planned.recomputations
    assert fitted(both(), 0.9).planned.time == min(one.planned.time for one in separately)


def test_tiles_reach_what_recomputation_does_not() -> None:
    with pytest.raises(BudgetNotKept) as refused:
        fitted(both(), 0.6, without=TILES)
    model = both()
    memory = model_memory(model)
    start = best_order(memory)
    wanted = int(start.packing.arena_size * 0.6)
    assert wanted < refused.value.least <= start.packing.arena_size
    found = fit(model, memory, wanted, start=start)
    assert found.planned.packing.arena_size <= wanted and found.uses["tiles"] == 1


def test_what_no_means_keeps_is_refused_with_the_least_that_was_found() -> None:
    with pytest.raises(BudgetNotKept) as refused:
        fitted(both(), 0.01)
    model = both()
    least = refused.value.least
    start = best_order(model_memory(model))
    assert 64 << 10 < least < start.packing.arena_size
    assert least % 1024 == 0, "rows of 1 KiB and more"
    assert f"takes {least >> 10} KiB, " in str(refused.value)
    assert str(refused.value).endswith(f" KiB more; {least >> 10}KiB would be kept.")
    with pytest.raises(OptionError, match="cannot be kept"):
        budgets.keep_budget(both(), 1 << 10, verify_seconds=None)


def test_u_net_keeps_three_quarters_of_its_best_order_and_every_bit() -> None:
    done = budgets.keep_budget(
        load(models.load("unet_own")), 21 << 20, verify_seconds=DEFAULT_VERIFY_SECONDS, measure=False
    )
    record = done.record
    assert (record.arena_best >> 20, record.sharing, record.bit_equal) == (32, False, True), (
        "28 where results share bytes"
    )
    assert done.record.tiled_regions >= 1 and 0 < done.record.extra_time_percent < 5
    assert given(model_memory(done.model)).packing.arena_size <= 21 << 20, "the file's own order keeps it"


def test_tiles_whose_bits_differ_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = budgets._compare
    refused = []

    def doubting(model: ir.Model, changed: ir.Model, seconds: float) -> Verification:
        if any(nodes.TILED in node.metadata_props for node in changed.graph):
            refused.append(changed)
            raise VerificationError("a library that sums tiles in another order")
        return compare(model, changed, seconds)

    monkeypatch.setattr(budgets, "_compare", doubting)
    model = load(models.load("unet_own"))
    budget = (24 << 20) + budgets.TIES
    assert budgets.keep_budget(model, budget, verify_seconds=None, measure=False).record.tiled_regions == 1
    done = budgets.keep_budget(model, budget, verify_seconds=DEFAULT_VERIFY_SECONDS, measure=False)
    assert refused and done.record.tiled_regions == 0 and 24 << 20 <= done.record.arena <= budget
    assert done.record.bit_equal and 0 < done.record.extra_time_percent < 10, "by recomputation"


def test_a_model_that_nothing_runs_is_not_said_to_be_equal() -> None:
    """Row 9 of a table of four rows: no engine gives an output to compare."""
    text = """g (float[4,8] x) => (float[8] y) <int64 nine = {9}> {
        a = Relu(x) b = Sigmoid(a) c = Add(a, b) y = Gather<axis = 0>(c, nine)
    }"""
    done = budgets.keep_budget(load(support.model(text)), 1 << 10, verify_seconds=DEFAULT_VERIFY_SECONDS, measure=False)
    assert not done.record.bit_equal and done.not_compared is not None and "Gather" in done.not_compared
    unasked = budgets.keep_budget(load(support.model(text)), 1 << 10, verify_seconds=None, measure=False)
    assert (unasked.record.bit_equal, unasked.not_compared) == (False, None)


def test_a_model_not_compared_under_its_budget_is_saved_only_when_that_is_wanted(tmp_path: Path) -> None:
    result = graphopt.optimize(support.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), memory_budget=1 << 10)
    assert result.budgeted is not None and result.budgeted.record.bit_equal and result.unverified is None
    doubtful = replace(result, budgeted=replace(result.budgeted, not_compared="time was up"))
    with pytest.raises(VerificationError, match="not saved: under the memory budget, time was up; pass unchecked"):
        doubtful.save(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    doubtful.save(tmp_path / "m.onnx", unchecked=True)
    assert (tmp_path / "m.onnx").is_file()

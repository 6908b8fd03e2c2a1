"""The search for a program within a budget: what it tries, what it takes, and what it says where nothing does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.errors import BudgetNotKept
from graphopt.program import fitting
from graphopt.program.clock import Clock
from graphopt.program.fitting import fitted
from graphopt.program.lifetimes import planned
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import host
from memplan.problem import Buffer, MemoryProblem
from tests import support
from tests.program.regions.running import run_lowered


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32) / 4


MIDDLE = """g (float[1,64,32] x) => (float[1,64,32] y) {
    a = MatMul(x, square) b = MatMul(a, wide) c = Gelu(b) d = MatMul(c, narrow) e = Add(d, a) y = MatMul(e, square)
}"""
IMAGES = """g (float[1,3,32,32] x) => (float[1,16,14,14] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, first) b = Relu(a) c = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(b)
    y = Conv(c, last)
}"""
ARRAYS = {
    "square": _weight(32, 32), "wide": _weight(32, 128), "narrow": _weight(128, 32),
    "w": _weight(1, 96, 32), "r": _weight(1, 96, 32), "taps": _weight(16, 16, 3, 3), "one": np.array([1]),
    "first": _weight(32, 3, 3, 3), "last": _weight(16, 32, 2, 2),
    "grow": _weight(16, 64), "shrink": _weight(64, 16), "near": _weight(64, 1, 3, 3),
    "image": np.array([1, 64, 16, 8]), "rows": np.array([1, 64, 128]),
    "heads": np.array([1, 48, 4, 8]), "joined": np.array([1, 48, 32]),
    "five": _weight(5, 5, 3, 3), "scales": np.array([1, 1, 4, 4], np.float32),
}  # fmt: skip


def _fit(text: str, share: float) -> tuple[Lowered, Lowered, int]:
    model = ir.from_proto(support.model(text, 20, **ARRAYS))
    whole = lower(model, host())
    budget = int(share * planned(whole).plan.arena_size)
    return whole, fitted(model, whole, budget, lambda one: lower(one, host(), tight=True)), budget


# Positions become rows of an image and come back, as in a pyramid of attention; heads of queries, keys and values; and
# an image that is enlarged into the caller's memory.
POSITIONS = """g (float[1,128,16] x) => (float[1,128,16] y) {
    a = MatMul(x, grow) t = Transpose<perm = [0, 2, 1]>(a) i = Reshape<allowzero = 1>(t, image)
    c = Conv<pads = [1, 1, 1, 1], group = 64>(i, near) f = Reshape<allowzero = 1>(c, rows)
    u = Transpose<perm = [0, 2, 1]>(f) g = Gelu(u) y = MatMul(g, shrink)
}"""
HEADS = """g (float[1,48,32] x) => (float[1,48,32] y) {
    n = MatMul(x, square) q = MatMul(n, square) k = MatMul(n, square) v = MatMul(n, square)
    qs = Reshape(q, heads) ks = Reshape(k, heads) vs = Reshape(v, heads)
    qt = Transpose<perm = [0, 2, 1, 3]>(qs) kt = Transpose<perm = [0, 2, 3, 1]>(ks)
    vt = Transpose<perm = [0, 2, 1, 3]>(vs) s = MatMul(qt, kt) p = Softmax(s) o = MatMul(p, vt)
    b = Transpose<perm = [0, 2, 1, 3]>(o) j = Reshape(b, joined) y = MatMul(j, square)
}"""
ENLARGED = """g (float[1,5,12,12] x) => (float[1,5,48,48] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, five) b = Resize<mode = "linear">(a, , scales)
    y = Conv<pads = [1, 1, 1, 1]>(b, five)
}"""


@pytest.mark.parametrize(
    ("text", "share"),
    [(MIDDLE, 0.9), (MIDDLE, 0.75), (MIDDLE, 0.6), (IMAGES, 0.9), (IMAGES, 0.75), (IMAGES, 0.6), (POSITIONS, 0.5),
     (HEADS, 0.62), (ENLARGED, 0.75), (ENLARGED, 0.4)],
)  # fmt: skip
def test_a_budget_is_kept_with_the_same_results(text: str, share: float) -> None:
    whole, kept, budget = _fit(text, share)
    assert planned(kept).plan.arena_size <= budget
    feed = {"x": np.random.default_rng(0).standard_normal(whole.inputs[0].shape).astype(np.float32)}
    np.testing.assert_allclose(run_lowered(kept, feed)[0], run_lowered(whole, feed)[0], rtol=1e-4, atol=1e-4)


RECURRENT = """g (float[48,1,32] x) => (float[1,1,32] y) {
    a = GRU<hidden_size = 32>(x, w, r) b = Squeeze(a, one) t, y = GRU<hidden_size = 32>(b, w, r)
}"""
STACK = """g (float[1,16,24,8] x) => (float[1,16,6,2] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, taps) b = Relu(a) d = Conv<pads = [1, 1, 1, 1]>(b, taps) e = Relu(d)
    f = Conv<pads = [1, 1, 1, 1]>(e, taps) h = Relu(f) i = Conv<pads = [1, 1, 1, 1]>(h, taps) k = Relu(i)
    y = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(k)
}"""


@pytest.mark.parametrize(("text", "share"), [(RECURRENT, 0.3), (STACK, 0.7)])
def test_states_and_halos_are_handed_on(text: str, share: float) -> None:
    """Layers take turns; tiles keep what the next ones need, so that no more is computed than without a budget."""
    whole, kept, budget = _fit(text, share)
    assert planned(kept).plan.arena_size <= budget
    assert sum(region.kernel.flops for region in kept.regions) == sum(region.kernel.flops for region in whole.regions)
    feed = {"x": np.random.default_rng(0).standard_normal(whole.inputs[0].shape).astype(np.float32)}
    np.testing.assert_allclose(run_lowered(kept, feed)[0], run_lowered(whole, feed)[0], rtol=1e-4, atol=1e-4)


def test_tiles_of_a_program_are_its_kernels_and_no_copies() -> None:
    whole, kept, _ = _fit(MIDDLE, 0.6)
    kinds = {tuple(node.operator for node in region.nodes) for region in whole.regions}
    assert {tuple(node.operator for node in region.nodes) for region in kept.regions} == kinds


def test_what_needs_no_lever_stays() -> None:
    model = ir.from_proto(support.model(MIDDLE, 20, **ARRAYS))
    whole = lower(model, host())

    def refused(_: ir.Model) -> Lowered:
        raise AssertionError("nothing else is tried")

    assert fitted(model, whole, 1 << 30, refused).regions == whole.regions


class _Plan(str):
    """The name of a plan in the place of regions."""

    target = host()


@pytest.mark.parametrize("is_step", [False, True])
def test_the_cheapest_of_what_keeps_it_is_taken(is_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that run again are not, where tiles take less time; a training step is not cut for that."""
    least = {"plain": None, "placed": 5.0, "tiles 1": 4.0, "tiles 2": 3.0}
    monkeypatch.setattr(fitting, "step_of", lambda _: object() if is_step else None)
    tried, _ = _plans(monkeypatch, least)
    expected = list(least)[: 2 if is_step else None]
    assert _fit_plans() == expected[-1] and tried == expected


def test_further_ways_are_tried_only_where_the_others_keep_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    least = {"plain": None, "placed": None, "tiles 1": None, "tiles 2": None, "tiles 3": None, "tiles 4": 3.0}
    monkeypatch.setattr(fitting, "step_of", lambda _: None)
    tried, further = _plans(monkeypatch, least)
    assert _fit_plans() == "tiles 4" and tried == list(least)
    assert further == [False, False, True, True]


def _plans(monkeypatch: pytest.MonkeyPatch, least: Mapping[str, float | None]) -> tuple[list[str], list[bool]]:
    """Names of plans instead of plans, by how long each takes where it keeps the budget: what is tried, and how."""
    tried: list[str] = []
    further: list[bool] = []

    def within(lowered: str, budget: int, _: Clock, __: int) -> str:
        tried.append(lowered)
        if least[lowered] is None:
            raise BudgetNotKept(budget, 700)
        return lowered

    def tile(*_: object, **how: bool) -> tuple[str, int]:
        further.append(how["further"])
        return f"tiles {len(further)}", 1

    monkeypatch.setattr(fitting.Clock, "of", lambda _, one: least[one] or 1.0)
    monkeypatch.setattr(fitting, "within_budget", within)
    monkeypatch.setattr(fitting, "in_place", lambda one: one)
    monkeypatch.setattr(fitting, "_arena", lambda _: 600)
    monkeypatch.setattr(fitting, "_lie", lambda one: [one])
    monkeypatch.setattr(fitting, "with_pools_in_steps", lambda model: model)
    monkeypatch.setattr(fitting, "_in_order", lambda model, _: model)
    monkeypatch.setattr(fitting, "_apart", lambda model, *_, **__: model.clone())
    monkeypatch.setattr(fitting, "memory_problem", lambda _: MemoryProblem((Buffer("all", 700, 0, 1),)))
    monkeypatch.setattr(fitting, "with_slices_before", lambda model: model)
    monkeypatch.setattr(fitting, "tile_within", tile)
    return tried, further


def _fit_plans() -> object:
    model = ir.from_proto(support.model(MIDDLE, 20, **ARRAYS))
    plain = _Plan("plain")
    return fitted(model, plain, 600, lambda one: one if isinstance(one, str) else "placed")  # type: ignore[arg-type, return-value]


def test_what_packing_loses_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence within the budget whose arena is not within it is planned again for less."""
    aims: list[int] = []

    def within(lowered: Lowered, budget: int, _: Clock, __: int) -> Lowered:
        aims.append(budget)
        return lowered

    arenas = iter((1_100, 1_010, 990))
    monkeypatch.setattr(fitting, "within_budget", within)
    monkeypatch.setattr(fitting, "_arena", lambda _: next(arenas))
    model = ir.from_proto(support.model(MIDDLE, 20, **ARRAYS))
    whole = lower(model, host())
    assert fitted(model, whole, 1_000, lambda one: lower(one, host(), tight=True)).regions == whole.regions
    assert aims == [1_000, 900, 900 - 1_000 // fitting.LOST]


def test_the_least_that_was_found_is_named() -> None:
    with pytest.raises(BudgetNotKept) as refusal:
        _fit(MIDDLE, 0.005)
    whole = planned(lower(ir.from_proto(support.model(MIDDLE, 20, **ARRAYS)), host())).plan.arena_size
    assert whole * 0.005 < refusal.value.least < whole

"""Attention against NumPy in float64, between guard pages: any lengths and masks, causal, grouped heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import Target, host
from kernels.templates.attention.build import build
from kernels.templates.attention.problem import Attention, InvalidAttention, Mask, Strides, candidates
from tests.kernels.attention import attention_inputs, exact_attention
from tests.kernels.guard import run_guarded
from tests.kernels.machine_code import spills
from tests.kernels.targets import HERE, NAMED, NAMES

TOLERANCE = 4e-6  # of results of size 1: sums of some hundred float32 products, and exponentials within 1 ULP


def _check(one: Attention, target: Target, choice: int, seed: int, **more: np.ndarray) -> None:
    given_arrays = attention_inputs(one, seed)
    found = candidates(one, target)
    kernel = build(one, found[choice % len(found)], target)
    stored = dict(more)
    if "mask" in more and more["mask"].dtype == bool:
        stored["mask"] = more["mask"].view(np.uint8)
    if "lengths" in more:
        stored["lengths"] = more["lengths"].astype(np.int64)
    got = run_guarded(kernel, {**given_arrays, **stored})["output"]
    exact = exact_attention(one, **given_arrays, **more)
    np.testing.assert_allclose(got.reshape(exact.shape), exact, rtol=TOLERANCE, atol=TOLERANCE)


shapes = st.builds(
    Attention,
    batch=st.integers(1, 2),
    heads=st.sampled_from([1, 2, 4]),
    queries=st.one_of(st.integers(1, 4), st.integers(5, 40)),
    keys=st.integers(1, 70),
    size=st.integers(1, 40),
    value_size=st.integers(1, 40),
)
choices, seeds = st.integers(0, 5), st.integers(0, 1000)


@settings(deadline=None, max_examples=15)
@given(one=shapes, choice=choices, seed=seeds, target=st.sampled_from(HERE))
def test_any_size(one: Attention, choice: int, seed: int, target: Target) -> None:
    _check(one, target, choice, seed)


@settings(deadline=None, max_examples=15)
@given(one=shapes, groups=st.sampled_from([1, 2, 4]), choice=choices, seed=seeds)
def test_grouped_heads_share_keys(one: Attention, groups: int, choice: int, seed: int) -> None:
    grouped = Attention(one.batch, 4, one.queries, one.keys, one.size, groups, one.value_size)
    _check(grouped, host(), choice, seed)


@settings(deadline=None, max_examples=20)
@given(one=shapes, past=st.integers(0, 80), choice=choices, seed=seeds, target=st.sampled_from(HERE))
def test_causal_rows_see_what_stands_before_them(
    one: Attention, past: int, choice: int, seed: int, target: Target
) -> None:
    _check(replace(one, causal=True, past=past), target, choice, seed)


@settings(deadline=None, max_examples=20)
@given(one=shapes, boolean=st.booleans(), softcap=st.sampled_from([0.0, 3.0]), choice=choices, seed=seeds)
def test_masks_of_both_kinds(one: Attention, boolean: bool, softcap: float, choice: int, seed: int) -> None:
    shape = (one.batch, one.heads, one.queries, one.keys)
    generator = np.random.default_rng(seed)
    mask = generator.random(shape) > 0.3 if boolean else generator.standard_normal(shape).astype(np.float32)
    place = Mask(
        one.heads * one.queries * one.keys, one.queries * one.keys, one.keys, dtype=DType.BOOL if boolean else DType.F32
    )
    _check(replace(one, mask=place, softcap=softcap), host(), choice, seed, mask=mask)


@pytest.mark.parametrize("kind", [DType.F32, DType.BOOL])
def test_a_mask_begins_where_its_offset_says(kind: DType) -> None:
    one = Attention(1, 2, 5, 20, 4, mask=Mask(0, 150, 30, dtype=kind, offset=7))
    generator = np.random.default_rng(2)
    whole = generator.random(307) > 0.3 if kind is DType.BOOL else generator.standard_normal(307).astype(np.float32)
    rows = 7 + 150 * np.arange(2)[:, None, None] + 30 * np.arange(5)[:, None] + np.arange(20)
    arrays = attention_inputs(one, 1)
    for candidate in candidates(one, host()):
        kernel = build(one, candidate, host())
        given = whole[: kernel.operand("mask").elements]
        got = run_guarded(kernel, {**arrays, "mask": given.view(np.uint8) if kind is DType.BOOL else given})["output"]
        exact = exact_attention(replace(one, mask=replace(one.mask, offset=0)), **arrays, mask=whole[rows][None])
        np.testing.assert_allclose(got.reshape(exact.shape), exact, rtol=TOLERANCE, atol=TOLERANCE)


@settings(deadline=None, max_examples=15)
@given(one=shapes, causal=st.booleans(), choice=choices, seed=seeds, data=st.data())
def test_lengths_known_only_in_the_run(
    one: Attention, causal: bool, choice: int, seed: int, data: st.DataObject
) -> None:
    lengths = np.array([data.draw(st.integers(0, one.keys)) for _ in range(one.batch)])
    _check(replace(one, with_lengths=True, causal=causal), host(), choice, seed, lengths=lengths)


def test_operands_as_projections_leave_them() -> None:
    heads, size, rows = 3, 8, 11
    width = heads * size
    place = Strides(rows * 3 * width, size, 3 * width)
    one = Attention(
        1, heads, rows, rows, size, q=place, k=replace(place, offset=width), v=replace(place, offset=2 * width),
        output=Strides(rows * width, size, width),
    )  # fmt: skip
    merged = np.random.default_rng(0).standard_normal((rows, 3 * width)).astype(np.float32)
    split = {
        name: merged[:, number * width : (number + 1) * width].reshape(rows, heads, size).transpose(1, 0, 2)[None]
        for number, name in enumerate("qkv")
    }
    kernel = build(one, candidates(one, host())[0], host())
    flat = {name: merged.reshape(-1)[: kernel.operand(name).elements] for name in "qkv"}
    got = run_guarded(kernel, flat)["output"].reshape(rows, heads, size).transpose(1, 0, 2)
    np.testing.assert_allclose(got, exact_attention(one, **split)[0], rtol=TOLERANCE, atol=TOLERANCE)


def test_scores_far_apart_neither_overflow_nor_lose_the_largest() -> None:
    one = Attention(1, 1, 2, 40, 4, scale=1.0)
    arrays = attention_inputs(one, 0)
    arrays["q"] *= 100
    kernel = build(one, candidates(one, host())[-1], host())
    got = run_guarded(kernel, arrays)["output"].reshape(1, 1, 2, 4)
    np.testing.assert_allclose(got, exact_attention(one, **arrays), rtol=1e-4, atol=1e-4)  # scores of 300 carry 2e-5


def test_a_negative_scale() -> None:
    _check(replace(Attention(1, 1, 3, 20, 4), scale=-0.5), host(), 0, 1)


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("kind", ["bool", "-inf"])
@pytest.mark.parametrize("queries", [1, 3])
def test_a_row_that_sees_nothing_is_zero_and_a_nan_is_nan(queries: int, kind: str, target: Target) -> None:
    shape = (1, 1, queries, 20)
    hidden = replace(
        Attention(1, 1, queries, 20, 4), mask=Mask(0, 0, 20, dtype=DType.BOOL if kind == "bool" else DType.F32)
    )
    mask = np.ones(shape, bool) if kind == "bool" else np.zeros(shape, np.float32)
    mask[0, 0, 0] = False if kind == "bool" else -np.inf
    arrays = attention_inputs(hidden, 1)
    if queries > 1:
        arrays["q"][0, 0, 2] = np.nan
    for candidate in candidates(hidden, target):
        kernel = build(hidden, candidate, target)
        stored = mask.view(np.uint8) if kind == "bool" else mask
        got = run_guarded(kernel, {**arrays, "mask": stored})["output"].reshape(queries, 4)
        assert (got[0] == 0).all()
        if queries > 1:
            assert np.isfinite(got[1]).all() and np.isnan(got[2]).all()


@pytest.mark.parametrize("target", NAMED, ids=NAMES)
def test_no_candidate_spills(target: Target) -> None:
    one = Attention(1, 12, 128, 128, 64)
    for candidate in candidates(one, target):
        listing = assembly(build(one, candidate, target).module.text(), target)
        # Turning a square of K takes all registers; the products do not spill.
        assert spills(listing) < 60, f"{candidate} on {target.cpu} spills {spills(listing)} registers"


def test_heads_must_divide() -> None:
    with pytest.raises(InvalidAttention, match="3 heads of queries do not divide among 2 of keys"):
        Attention(1, 3, 4, 4, 8, groups=2)

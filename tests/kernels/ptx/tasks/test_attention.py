"""The task of attention on the PTX machine, against the definition in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.ptx.tasks.attention import attention
from kernels.ptx.tasks.attention_plan import planned
from kernels.templates.attention.problem import Attention, Mask, Strides
from tests.kernels.attention import attention_inputs, exact_attention
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Array, Case, check

TOLERANCE = 4e-6  # of results of size 1, as the CPU's


@st.composite
def problems(draw: Any) -> tuple[Attention, int]:
    heads = draw(st.sampled_from([1, 2, 4]))
    batch, queries = draw(st.integers(1, 2)), draw(st.one_of(st.integers(1, 3), st.integers(4, 40)))
    keys = draw(st.one_of(st.integers(1, 40), st.integers(41, 300)))
    kind = draw(st.sampled_from([None, "f32", "bool"]))
    mask = None
    if kind is not None:
        strides = (heads * queries * keys, queries * keys, keys, 1)
        some = [draw(st.booleans()) for _ in range(3)]
        mask = Mask(
            *(stride if one else 0 for stride, one in zip(strides[:3], some, strict=True)), 1,
            DType.BOOL if kind == "bool" else DType.F32,
        )  # fmt: skip
    groups = draw(st.sampled_from([one for one in (1, 2, 4) if one <= heads]))
    one = Attention(
        batch, heads, queries, keys, draw(st.integers(1, 40)), groups, draw(st.integers(1, 70)),
        causal=draw(st.booleans()), past=draw(st.integers(0, 40)), softcap=draw(st.sampled_from([0.0, 3.0])),
        with_lengths=draw(st.booleans()), mask=mask,
    )  # fmt: skip
    return one, draw(st.integers(0, 1000))


def case(one: Attention, seed: int, name: str, target: Any = SM_90) -> Case:
    """Drawn operands, and what the definition makes of them."""
    arrays: dict[str, Array] = dict(attention_inputs(one, seed))
    more: dict[str, Array] = {}
    generator = np.random.default_rng(seed)
    kernel = attention(one, target, name)
    if one.mask is not None:
        whole = (one.batch, one.heads, one.queries, one.keys)
        flat = generator.random(kernel.operand("mask").elements).astype(np.float32)
        stored = flat > 0.3 if one.mask.dtype is DType.BOOL else flat
        steps = (one.mask.batch, one.mask.head, one.mask.query, one.mask.key)
        places = np.tensordot(steps, np.indices(whole), (0, 0))
        more["mask"] = stored[places]
        arrays["mask"] = stored.view(np.uint8) if one.mask.dtype is DType.BOOL else stored
    if one.with_lengths:
        arrays["lengths"] = more["lengths"] = generator.integers(0, one.keys + 1, one.batch)
    exact = exact_attention(one, arrays["q"], arrays["k"], arrays["v"], **more)
    return Case(kernel, arrays, {"output": exact.astype(np.float32)}, TOLERANCE)


@settings(deadline=None, max_examples=3)
@given(st.lists(problems(), min_size=3, max_size=3), st.sampled_from([SM_80, SM_90]))
def test_any_size_mask_and_length(some: list[tuple[Attention, int]], target: Any) -> None:
    check([case(one, seed, f"attention_{number}", target) for number, (one, seed) in enumerate(some)], target)


def test_many_rows_of_a_warp_and_few_that_share_keys() -> None:
    few, many = Attention(1, 2, 1, 300, 24), Attention(24, 12, 70, 40, 24)
    plans = [planned(one, SM_90) for one in (few, many)]
    assert plans[0].shares > 1 and plans[1].shares == 1 and plans[1].rows > 1
    small = replace(SM_90, workers=1)
    some = [Attention(1, 2, 70, 40, 24), Attention(1, 1, 33, 90, 65, value_size=33, causal=True), few]
    check([case(one, 1, f"attention_{number}", small) for number, one in enumerate(some)])


def test_operands_as_projections_leave_them() -> None:
    heads, size, rows = 3, 8, 11
    width = heads * size
    place = Strides(rows * 3 * width, size, 3 * width)
    one = Attention(
        1, heads, rows, rows, size, q=place, k=replace(place, offset=width), v=replace(place, offset=2 * width),
        output=Strides(rows * width, size, width),
    )  # fmt: skip
    merged = np.random.default_rng(0).standard_normal((rows, 3 * width)).astype(np.float32)
    split = [
        merged[:, number * width : (number + 1) * width].reshape(rows, heads, size).transpose(1, 0, 2)[None]
        for number in range(3)
    ]
    kernel = attention(one, SM_90, "attention")
    flat = {name: merged.reshape(-1)[: kernel.operand(name).elements] for name in "qkv"}
    exact = exact_attention(one, *split)[0].transpose(1, 0, 2).reshape(rows, width).astype(np.float32)
    check([Case(kernel, flat, {"output": exact}, TOLERANCE)])


def test_a_row_that_sees_nothing_is_zero_and_a_nan_is_nan() -> None:
    cases = []
    for number, (queries, keys) in enumerate([(3, 20), (3, 140), (40, 20)]):
        one = Attention(1, 1, queries, keys, 4, mask=Mask(0, 0, keys, dtype=DType.F32))
        arrays: dict[str, Array] = dict(attention_inputs(one, 1))
        arrays["mask"] = np.zeros((queries, keys), np.float32)
        arrays["mask"][0] = -np.inf
        arrays["q"][0, 0, 2] = np.nan
        exact = exact_attention(one, arrays["q"], arrays["k"], arrays["v"], arrays["mask"][None, None])
        assert (exact[0, 0, 0] == 0).all() and np.isnan(exact[0, 0, 2]).all()
        kernel = attention(one, SM_90, f"attention_{number}")
        cases.append(Case(kernel, arrays, {"output": exact.astype(np.float32)}, TOLERANCE))
    check(cases)


def test_nothing_to_attend_to_is_zero() -> None:
    one = Attention(1, 2, 5, 0, 8)
    arrays = {"q": np.ones((1, 2, 5, 8), np.float32), "k": np.zeros(0, np.float32), "v": np.zeros(0, np.float32)}
    check([Case(attention(one, SM_90, "attention"), arrays, {"output": np.zeros((1, 2, 5, 8), np.float32)})])
    assert attention(Attention(0, 2, 5, 7, 8), SM_90, "attention").blocks == 0

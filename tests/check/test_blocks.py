"""Arrays that are compared block by block: what is found does not depend on where they are cut."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.check import blocks
from graphopt.check.tolerance import Compared, Nature, compare


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 40))
def test_blocks_hold_every_element_once(shape: list[int], most: int) -> None:
    seen = np.zeros(shape, int)
    with mock.patch.object(blocks, "BLOCK", most):
        for block in blocks.blocks_of(tuple(shape)):
            seen[block] += 1
            assert 0 < seen[block].size <= most
    assert (seen == 1).all()


@pytest.mark.parametrize("shape", [(), (1,), (37,), (5, 7), (2, 1, 9, 3)])
@pytest.mark.parametrize("stepped", [False, True])
def test_a_difference_does_not_depend_on_the_blocks(shape: tuple[int, ...], stepped: bool) -> None:
    rng = np.random.default_rng(len(shape))
    one = np.asarray(rng.standard_normal(shape), np.float32)
    found, *samples = (np.asarray(one * (1 + 1e-4 * rng.standard_normal(shape)), np.float32) for _ in range(4))
    for array in (one, found, samples[1]):
        if array.size > 20:
            array.reshape(-1)[3] = np.nan
    if one.size > 20:
        samples[2].reshape(-1)[7] = np.inf
    nature = Nature(stepped=stepped)
    whole = compare(one, found, samples=samples, nature=nature)
    with mock.patch.object(blocks, "BLOCK", 4):
        parts = compare(one, found, samples=samples, nature=nature)
        later = Compared(one, found, nature=nature)
        for sample in samples:
            later.add(sample)
    for other in (parts, later.difference()):
        assert (other.max_abs, other.max_rel, other.reason) == (whole.max_abs, whole.max_rel, whole.reason)
        assert other.rounding == pytest.approx(whole.rounding, rel=1e-12)


def test_a_level_stands_in_for_luck_and_infinities_have_none() -> None:
    numbers = np.array([[1.0, -1.0, np.inf, 1.0]] * 8, np.float32)
    noise = np.zeros(numbers.shape)
    noise[0, 0] = 4e-3
    blocks.level(numbers, noise, 3.0)
    assert noise[0, 0] == pytest.approx(1.2e-2)
    assert (noise[:, 2] == 0).all()
    assert noise[1, 1] == pytest.approx(3 * 4e-3 / np.sqrt(numbers.size), rel=1e-6)


def test_sequences_and_other_types_keep_their_samples() -> None:
    """Arrays of a sequence have dims of their own, and integers are held to how many are undecided."""
    parts = [np.ones(3, np.float32), np.ones((2, 2), np.float32)]
    compared = Compared(parts, [one + np.float32(1e-4) for one in parts])
    assert compared.difference().reason is not None
    compared.add([one + np.float32(1e-4) for one in parts])
    assert compared.difference().reason is None
    numbers = Compared(np.arange(4), np.array([0, 1, 2, 9]))
    assert numbers.difference().reason is not None
    numbers.add(np.array([0, 1, 2, 8]))
    assert numbers.difference().reason is None
    assert Compared(np.ones(2), np.ones(3)).difference().reason == "the shape is [3], it was [2]"

"""The check against pairs made by hand: wrong ones must be called different, right ones verified."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
import pytest

import graphopt
from tests import support
from tests.check.pairs.dims import DIMS
from tests.check.pairs.integers import INTEGERS
from tests.check.pairs.pair import Class, Right, Wrong
from tests.check.pairs.right import RIGHT
from tests.check.pairs.runs import RUNS
from tests.check.pairs.values import VALUES

WRONG = (*DIMS, *INTEGERS, *VALUES, *RUNS)
# Ratchets: what the check does not see yet, and what it takes for a fault. A name goes when the check has learnt it.
MISSED: frozenset[str] = frozenset()
ALARMS: frozenset[str] = frozenset()


def _differ(expected: object, found: object) -> bool:
    """Clearly more than rounding: another type, shape or place of NaN, or beyond a hundred units in the last place."""
    one, other = np.asarray(expected), np.asarray(found)
    if one.dtype != other.dtype or one.shape != other.shape:
        return True
    if one.dtype.kind != "f":
        return not np.array_equal(one, other)
    unit = float(np.finfo(one.dtype).eps)
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        beyond = np.abs(a - b) > 100 * unit * np.abs(a)
    return bool(np.any(np.isnan(a) != np.isnan(b)) or np.any(np.isinf(a) != np.isinf(b)) or np.any(beyond))


@pytest.mark.parametrize("pair", WRONG, ids=lambda pair: pair.name)
def test_a_wrong_pair_differs_on_its_input(pair: Wrong) -> None:
    feed = pair.arrays()
    original, wrong = support.session(pair.original()), support.session(pair.wrong())
    expected = original.run(None, feed)
    try:
        found = wrong.run(None, feed)
    except Exception:  # ONNX Runtime's errors share no base class: the wrong model refuses what the original takes
        return
    assert any(_differ(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("pair", WRONG, ids=lambda pair: pair.name)
def test_a_wrong_pair_is_called_different(pair: Wrong) -> None:
    status = graphopt.verify(pair.original(), pair.wrong()).status
    assert status == ("verified" if pair.name in MISSED else "different")


@pytest.mark.parametrize("pair", RIGHT, ids=lambda pair: pair.name)
def test_a_right_pair_is_verified(pair: Right) -> None:
    verdict = graphopt.verify(pair.original(), pair.other())
    assert verdict.status == ("different" if pair.name in ALARMS else "verified"), verdict.reason


@pytest.mark.parametrize("pair", RIGHT, ids=lambda pair: pair.name)
def test_a_right_pair_agrees_within_rounding(pair: Right) -> None:
    """A hundred units in the last place of the tensor's largest; a quantized value may be one step off."""
    original, other = support.session(pair.original()), support.session(pair.other())
    for seed in range(3):
        feed = support.feeds(pair.original(), {"n": 6, "h": 7, "w": 5, "b": 2, "l": 4, "m": 3}, seed)
        for one, two in zip(original.run(None, feed), other.run(None, feed), strict=True):
            assert one.dtype == two.dtype and one.shape == two.shape
            if one.dtype.kind != "f":
                assert np.array_equal(one, two)
            else:
                unit = max(pair.step, 100 * float(np.finfo(one.dtype).eps))
                a, b = one.astype(np.float64), two.astype(np.float64)
                assert float(np.abs(a - b).max()) <= unit * float(np.abs(a).max())


def test_every_class_has_its_pairs() -> None:
    counts = Counter(pair.kind for pair in WRONG)
    assert set(counts) == set(get_args(Class))
    assert min(counts.values()) >= 5
    assert len(WRONG) >= 70 and len(RIGHT) >= 25
    names = [pair.name for pair in (*WRONG, *RIGHT)]
    assert len(set(names)) == len(names)


def test_the_ratchets_name_pairs() -> None:
    assert {pair.name for pair in WRONG} >= MISSED
    assert {pair.name for pair in RIGHT} >= ALARMS

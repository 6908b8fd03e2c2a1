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
MISSED: frozenset[str] = frozenset({
    # equal dims
    "height taken for width in a reshape", "positions counted on the other sequence", "ceil_mode dropped",
    "a mask made square of the query's length", "SAME_UPPER written for even sides", "half a side rounded down",
    "a mean over the other length", "sides exchanged in a resize",
    # few lengths
    "a length cut at five", "a window of eight dropped", "a batch cut at four", "a squeeze of every dim of one",
    "the second of a sequence for its last", "positions not held at 31", "the fifth position for the last",
    "a mean that counts at least two", "chunks of sixteen for chunks of any length",
    # small integers
    "Abs of integers dropped", "maximum with zero dropped", "the sign of Mod", "int64 through int32",
    "a product that overflows, divided again", "k of TopK held at two", "lengths of reversed sequences dropped",
    "a bound of one moved to two", "Sign of integers dropped", "a square dropped", "a negative class of OneHot",
    "a pad token that is not masked",
    # tables
    "one row of 3,000", "rows beyond the second, behind a Cast", "a row behind a Reshape",
    "a row reached through OneHot", "one entry of a table of bytes", "one weight of 65,536, half a per cent off",
    "a row behind an offset", "a row for negative ids",
    # magnitude
    "a clip at six dropped", "Relu6 taken for Relu", "softmax without the maximum", "softplus that overflows",
    "a hard sigmoid without bounds", "a minimum of a hundred dropped",
    "the logarithm of a sum of exponentials, plain", "sigmoid as a quotient of exponentials",
    "a clip at the range of float16 dropped", "a threshold of twenty forgotten",
    # special values
    "a guard against NaN dropped", "x * 0 is 0", "x / x is 1", "the sign of zero", "not less for greater or equal",
    "a square root of minus infinity", "x - x is 0", "x equals x", "an infinite value that is not replaced",
    # epsilons
    "epsilon of a layer normalization", "epsilon of a logarithm", "epsilon of a batch normalization",
    "a norm that is kept from zero", "an addend that keeps a divisor from zero", "epsilon of a root mean square",
    # ties
    "the last of equal maxima", "half rounded up", "greater or equal", "every maximum for the first",
    "half of a quantization step rounded up", "one below the ceiling for the floor", "a step at zero",
    "the order of equal values",
    # branches and trips
    "a branch for large values", "a side of Where for large values", "a loop that goes wrong with its third trip",
    "a branch for which all must be true", "a loop that ends after eight trips",
    "a loop over the first five of a sequence", "a branch for long sequences", "a branch for no trips at all",
    # precision
    "float32 through float16", "float64 computed in float32", "weights rounded to float16",
    "a sum of doubles in float32", "five digits of a double constant", "int64 through float32",
    "a softmax of float16", "a double constant through float32",
    # mixed magnitudes
    "the small channel of three", "probabilities beside large logits", "the small row of four",
    "features beside a time in milliseconds", "the small exponentials",
    # defaults
    "a factor with a default, folded", "k of TopK with a default, folded", "a flag with a default, decided",
    "a bias with a default of zero, dropped", "a scale with a default of one, dropped",
    "a target of Reshape with a default, folded",
})  # fmt: skip
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

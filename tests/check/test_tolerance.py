"""The comparison says no to every way of being wrong."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.check.tolerance import Nature, compare, without_subnormals

ONES = np.ones(4, np.float32)
NAN = np.array([1, np.nan, 1, 1], np.float32)
INF = np.array([1, np.inf, 1, 1], np.float32)


@pytest.mark.parametrize(
    ("expected", "found", "reason"),
    [
        (ONES, ONES.astype(np.float64), "the type is float64, it was float32"),
        (ONES, np.ones(5, np.float32), "the shape is [5], it was [4]"),
        (ONES, ONES * 1.02, "off by 1.0e-02, more than 4e-06 for float32"),
        (ONES, NAN, "NaN stands in other places"),
        (NAN, ONES, "NaN stands in other places"),
        (ONES, INF, "infinity stands in other places"),
        (INF, -INF, "infinity stands in other places"),
        (np.arange(3), np.array([0, 1, 3]), "1 of 3 elements differ (int64 must be equal)"),
        (np.array(["a", "b"]), np.array(["a", "c"]), "1 of 2 elements differ (<U1 must be equal)"),
        ([ONES], [ONES, ONES], "a sequence has 2 elements, it had 1"),
        (None, ONES, "one of the two is absent"),
        ({"a": ONES}, {"b": ONES}, "the maps have different keys"),
        (np.zeros(4, np.float32), ONES * 1e-9, "off by inf, more than 4e-06 for float32"),
    ],
)
def test_says_no(expected: object, found: object, reason: str) -> None:
    assert compare(expected, found).reason == reason


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (ONES, ONES * (1 + 1e-6)),
        (NAN, NAN.copy()),
        (INF, INF.copy()),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
        ([ONES, NAN], [ONES, NAN]),
        (np.array([1000.0, 1e-5], np.float32), np.array([1000.0, 2e-5], np.float32)),  # far below the tensor's largest
    ],
)
def test_says_yes(expected: object, found: object) -> None:
    assert compare(expected, found).reason is None


CHANCES = [{1: 0.25, 2: 0.75}, {1: 1.0, 2: 1e-39}]  # the last is a subnormal number of ZipMap's type


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([{1: 0.25, 2: 0.75 + 1e-7}, {1: 1.0, 2: 1e-39}], None),
        ([{1: 0.25, 2: 0.75}, {1: 1.0, 2: 1e-5}], "off by 1.0e-05, more than 4e-06 for float32"),
        ([{1: 0.25, 2: 0.75}, {1: 1.0, 3: 1e-39}], "the maps have different keys"),
        ([{1: 0.25, 2: 0.75}], "a sequence has 1 elements, it had 2"),
        ([{1: 0.25, 2: 0.75}, {1: 1.0, 2: 0}], "the type is int64, it was float32"),
    ],
)
def test_maps_in_a_sequence_are_rows_of_an_array(found: object, reason: str | None) -> None:
    assert compare(CHANCES, found).reason == reason


def test_a_program_gives_zeros_for_subnormal_numbers_in_maps() -> None:
    assert without_subnormals(CHANCES) == [{1: 0.25, 2: 0.75}, {1: 1.0, 2: 0.0}]
    assert np.asarray(without_subnormals([np.array([1e-39, 2], np.float32)])).tolist() == [[0.0, 2.0]]


def test_a_step_may_be_taken_by_as_many_elements_as_the_model_itself_moves() -> None:
    """Behind quantized numbers a sample moves few elements by a whole step, and which ones is luck."""
    plain = np.tile(np.arange(1, 5, dtype=np.float32), 250)
    sample, found, far, many = plain.copy(), plain.copy(), plain.copy(), plain.copy()
    sample[7] += 0.5
    found[[30, 40]] += 0.5
    far[30] += 1.5
    many[:11] += 0.5
    stepped = Nature(stepped=True)
    assert compare(plain, found, samples=[sample], nature=stepped).reason is None
    assert compare(plain, found, samples=[sample]).reason is not None
    assert compare(plain, far, samples=[sample], nature=stepped).reason is not None
    assert compare(plain, many, samples=[sample], nature=stepped).reason is not None
    assert compare(plain, found, samples=[plain], nature=stepped).reason is not None


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_few_quantized_bytes_may_be_a_step_off(kind: type[np.generic]) -> None:
    plain, stepped = np.full(1 << 16, 7, kind), Nature(stepped=True)
    found = plain.copy()
    found[[3, 9]] = [8, 6]
    assert compare(plain, found, nature=stepped).reason is None
    assert compare(plain, found).reason == f"2 of 65536 elements differ ({np.dtype(kind)} must be equal)"
    found[5] = 8
    assert compare(plain, found, nature=stepped).reason is not None
    assert compare(plain[:9], found[:9][::-1], nature=stepped).reason is not None
    one = plain[:9].copy()
    one[0] = 8
    assert compare(plain[:9], one, nature=stepped).reason is None
    one[0] = 9
    assert compare(plain[:9], one, nature=stepped).reason is not None


def scaled(row: float) -> np.ndarray:
    """Ordinary numbers, but for a row of another magnitude."""
    array = np.random.default_rng(7).standard_normal((32, 32)).astype(np.float32)
    array[3] *= np.float32(row)
    return array


def test_a_row_of_which_nothing_is_left_excuses_no_other() -> None:
    """Behind a sigmoid of zero a gradient is rounding alone, however many times the row itself."""
    expected, sample, wrong = scaled(1e-20), scaled(1e-20), scaled(1e-20)
    sample[3] += np.float32(1e-12)
    wrong[3] += np.float32(1e-12)
    assert compare(expected, wrong, samples=[sample]).reason is None
    assert compare(expected, wrong, samples=[sample]).max_rel < 1e-6, "what is rounding alone has no scale"
    wrong[5] *= np.float32(1.01)
    assert "the model's own rounding" in (compare(expected, wrong, samples=[sample]).reason or "")


def test_subnormal_numbers_may_be_zeros_and_their_sums_too() -> None:
    expected = scaled(1e-36)
    found = np.where(np.abs(expected) < np.finfo(np.float32).tiny * 8, np.float32(0), expected)
    assert not np.array_equal(found, expected)
    assert compare(expected, found).reason is None
    expected = scaled(1e-28)
    assert compare(expected, np.where(np.abs(expected) < 1e-29, np.float32(0), expected)).reason is not None
    halves = np.full(64, 1e-5, np.float16)
    assert compare(halves, np.zeros_like(halves)).reason is not None, (
        "they are ordinary numbers where they are computed"
    )

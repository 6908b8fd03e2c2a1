"""Resize and Upsample of every mode, beside ONNX Runtime without optimizations; or the reference, where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import same

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
EMPTY = np.zeros(0, "f4")


def image(*shape: int, kind: str = "f4") -> np.ndarray:
    drawn = np.random.default_rng([9, *shape]).standard_normal(shape)
    return (drawn if kind[0] == "f" else drawn * 40 + 100).astype(kind)


def sizes_or_scales(data: st.DataObject, shape: tuple[int, ...]) -> list[np.ndarray | None]:
    """Sizes, or scales that give at least one pixel; ONNX Runtime copies where no dim changes, whatever the scales."""
    if data.draw(st.booleans()):
        return [None, None, np.array([data.draw(st.integers(1, 9)) for _ in shape])]
    choices = st.sampled_from([0.5, 0.6, 0.8, 1.0, 1.3, 2.0, 2.5, 3.0])
    scales = np.array([max(data.draw(choices), 1.01 / one) for one in shape], "f4")
    assume(any(int(scale * one) != one for scale, one in zip(scales, shape, strict=True)))
    return [None, scales]


def with_images(given_sizes: list[np.ndarray | None], *dims: int) -> list[np.ndarray | None]:
    """The same with images and channels, which stay as they are."""
    lead = dims if len(given_sizes) == 3 else (1, 1)
    return [None if one is None else np.concatenate([lead, one]).astype(one.dtype) for one in given_sizes]


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), st.sampled_from(["f4", "u1", "i4"]))
@settings(max_examples=8, deadline=None)
def test_nearest_pixels(data: st.DataObject, shape: tuple[int, ...], kind: str) -> None:
    x = image(*shape, kind=kind)
    given_sizes = sizes_or_scales(data, shape)
    attributes = {
        "coordinate_transformation_mode": data.draw(st.sampled_from(COORDINATES)),
        "nearest_mode": data.draw(st.sampled_from(ROUNDINGS)),
    }
    same("Resize", [x, *given_sizes], **attributes)


@given(st.data(), st.integers(1, 6), st.integers(1, 6), st.sampled_from(COORDINATES), st.booleans())
@settings(max_examples=8, deadline=None)
def test_sums_of_two_pixels(data: st.DataObject, rows: int, columns: int, mode: str, is_known: bool) -> None:
    given_sizes = sizes_or_scales(data, (rows, columns))
    lead = with_images(given_sizes, 2, 3)
    known = (2, 3) if is_known else ()
    x = image(2, 3, rows, columns)
    same("Resize", [x, *lead], known=known, tolerance=1e-5, mode="linear", coordinate_transformation_mode=mode)


@given(st.data(), st.integers(1, 6), st.integers(1, 6), st.sampled_from(COORDINATES), st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_sums_of_four_pixels(data: st.DataObject, rows: int, columns: int, mode: str, exclude: int) -> None:
    given_sizes = sizes_or_scales(data, (rows, columns))
    lead = with_images(given_sizes, 1, 2)
    attributes: dict[str, Any] = {"coordinate_transformation_mode": mode, "exclude_outside": exclude}
    attributes["cubic_coeff_a"] = data.draw(st.sampled_from([-0.75, -0.5]))
    same("Resize", [image(1, 2, rows, columns), *lead], tolerance=1e-4, mode="cubic", **attributes)


@given(st.data(), st.sampled_from(["linear", "cubic"]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_pixels_that_get_fewer_without_aliases(
    data: st.DataObject, mode: str, rows: int, columns: int, exclude: int
) -> None:
    sizes = np.array([1, 2, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))])
    x = image(1, 2, rows, columns)
    same("Resize", [x, None, None, sizes], tolerance=1e-4, mode=mode, antialias=1, exclude_outside=exclude,
         engine="reference")  # fmt: skip


@given(st.data(), st.sampled_from(["nearest", "linear", "cubic"]))
@settings(max_examples=8, deadline=None)
def test_regions_of_images(data: st.DataObject, mode: str) -> None:
    ends = sorted(data.draw(st.integers(-20, 80)) / 64 for _ in range(4))
    roi = np.array([0, 0, *ends[:2], 1, 1, *ends[2:]], "f4")
    # ONNX Runtime crops no axis whose size stays.
    sizes = np.array([1, 1, *(data.draw(st.sampled_from([1, 2, 3, 6, 7])) for _ in range(2))])
    same(
        "Resize", [image(1, 1, 4, 5), roi, None, sizes], tolerance=1e-4, mode=mode, extrapolation_value=10.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_kept_aspect_ratios_and_chosen_axes(mode: str, policy: str) -> None:
    sizes = np.array([7, 8])
    for axes in ([2, 3], [3, 2]):
        same("Resize", [image(1, 2, 4, 3), None, None, sizes], tolerance=1e-4, mode=mode, axes=axes,
             keep_aspect_ratio_policy=policy)  # fmt: skip


def test_operators_before_opset_11() -> None:
    x = image(1, 2, 5, 4)
    for scales in ([1, 1, 2, 3], [1, 1, 1.6, 1.2]):
        for mode in ("nearest", "linear"):
            same("Upsample", [x, np.array(scales, "f4")], opset=9, tolerance=1e-5, mode=mode)
            same("Upsample", [x], opset=7, tolerance=1e-5, mode=mode, scales=[float(one) for one in scales])
    for scales in ([1, 1, 0.6, 0.5], [1, 1, 1.6, 0.7]):
        for mode in ("nearest", "linear"):
            same("Resize", [x, np.array(scales, "f4")], opset=10, tolerance=1e-5, mode=mode)


@pytest.mark.parametrize("kind", ["f8", "f2", "u1", "i4"])
def test_types(kind: str) -> None:
    x, sizes = image(1, 2, 4, 5, kind=kind), np.array([1, 2, 6, 3])
    for mode in ("nearest", "linear", "cubic"):
        tolerance = {"f2": 2e-3, "f8": 1e-6}.get(kind, 1.0 if mode != "nearest" else 0.0)
        same("Resize", [x, None, None, sizes], engine="reference", tolerance=tolerance, mode=mode)

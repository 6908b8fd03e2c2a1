"""Images read between pixels and regions of interest, beside ONNX Runtime without optimizations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import same


def image(*shape: int, kind: str = "f4") -> np.ndarray:
    return np.random.default_rng([9, *shape]).standard_normal(shape).astype(kind)


@given(
    st.sampled_from(["linear", "nearest", "cubic"]), st.sampled_from(["zeros", "border", "reflection"]),
    st.integers(0, 1), st.integers(1, 5), st.integers(2, 5), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_grids_over_planes(mode: str, padding: str, aligned: int, rows: int, columns: int, seed: int) -> None:
    grid = np.random.default_rng(seed).uniform(-1.7, 1.7, (2, 3, 4, 2)).astype("f4")
    x = image(2, 3, rows + 1, columns)
    same("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=aligned, tolerance=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grids_over_lines_and_volumes(mode: str, padding: str) -> None:
    for shape in ((1, 2, 5), (1, 2, 3, 4, 2)):
        rank = len(shape) - 2
        # Outside of the image the reference moves the place of a cubic sum, ONNX Runtime its pixels.
        far = 0.9 if mode == "cubic" else 1.5
        grid = np.random.default_rng(rank).uniform(-far, far, (1, *[2] * rank, rank)).astype("f4")
        same("GridSample", [image(*shape), grid], engine="reference", mode=mode, padding_mode=padding, tolerance=1e-4)


def test_grids_before_opset_20_and_of_other_types() -> None:
    grid = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 3, 3, 2))
    same("GridSample", [image(1, 2, 4, 5), grid.astype("f4")], opset=16, mode="bicubic", tolerance=1e-4)
    same("GridSample", [image(1, 2, 4, 5, kind="f8"), grid], engine="reference", tolerance=1e-4)
    whole = np.arange(20).reshape(1, 1, 4, 5)
    same("GridSample", [whole, grid.astype("f4")], engine="reference", mode="nearest")


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_places_that_are_no_numbers_or_too_far_are_the_first_pixel(mode: str, padding: str) -> None:
    far = [np.nan, np.inf, -np.inf, 1e19, -1e30]
    grid = np.array([*((one, 0.2) for one in far), *((0.2, one) for one in far), (np.nan, np.inf)], "f4")
    given = [image(1, 2, 4, 5), grid[None, None]]
    same("GridSample", given, mode=mode, padding_mode=padding, align_corners=1, tolerance=1e-4)


@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grids(aligned: int) -> None:
    for size in ((2, 3, 4, 5), (2, 1, 3, 2, 4)):
        rank = len(size) - 2
        theta = image(2, rank, rank + 1)
        same("AffineGrid", [theta, np.array(size)], engine="reference", align_corners=aligned, tolerance=1e-5)


@given(
    st.sampled_from(["avg", "max"]), st.integers(0, 3), st.sampled_from(["half_pixel", "output_half_pixel"]),
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_regions_of_interest(mode: str, ratio: int, coordinates: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    first = generator.uniform(-4, 12, (4, 2))
    rois = np.concatenate([first, first + generator.uniform(0, 12, (4, 2))], 1).astype("f4")
    attributes = {"output_height": 2, "output_width": 3, "spatial_scale": 0.5, "sampling_ratio": ratio, "mode": mode}
    attributes["coordinate_transformation_mode"] = coordinates
    same("RoiAlign", [image(2, 3, 7, 6), rois, generator.integers(0, 2, 4)], tolerance=1e-4, **attributes)
    del attributes["coordinate_transformation_mode"]
    same("RoiAlign", [image(2, 3, 7, 6), rois, generator.integers(0, 2, 4)], opset=10, tolerance=1e-4, **attributes)


@given(st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_the_largest_pixels_of_regions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    first = generator.uniform(-4, 16, (4, 2))
    ends = first + generator.uniform(-2, 12, (4, 2))
    rois = np.concatenate([generator.integers(0, 2, (4, 1)), first, ends], 1).astype("f4")
    same("MaxRoiPool", [image(2, 3, 7, 6), rois], opset=13, pooled_shape=[2, 3], spatial_scale=0.5)

"""Convolutions and pools of any rank and type, beside ONNX Runtime without optimizations or the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphopt.program.regions.lower import lower
from graphopt.program.regions.routines import row_sums
from kernels.target import host
from tests.program.regions.routines.one_node import held, model, same
from tests.program.regions.running import run_lowered


def array(*shape: int, kind: str = "f4") -> np.ndarray:
    drawn = np.random.default_rng([9, *shape]).standard_normal(shape)
    return (drawn if kind[0] == "f" else drawn * 50).astype(kind)


def geometry(data: st.DataObject, rank: int, sizes: tuple[int, ...]) -> tuple[dict[str, Any], list[int]]:
    """Attributes of windows that are not larger than the image with its pads."""
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [data.draw(st.integers(0, kernel[axis % rank] - 1)) for axis in range(2 * rank)]
    for axis in range(rank):
        assume((kernel[axis] - 1) * dilations[axis] + 1 <= sizes[axis] + pads[axis] + pads[rank + axis])
    strides = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    return {"kernel_shape": kernel, "dilations": dilations, "strides": strides, "pads": pads}, kernel


def sizes_of(data: st.DataObject, rank: int) -> tuple[int, ...]:
    return tuple(data.draw(st.integers(2, 6)) for _ in range(rank))


@pytest.mark.parametrize(
    ("image", "kernel", "attributes"),
    [
        ((1, 6, 9, 21), (3, 2, 8, 20), {"group": 3}),
        ((2, 4, 7, 40), (4, 2, 6, 18), {"group": 2, "dilations": [1, 2], "pads": [1, 0, 0, 1]}),
        ((1, 2, 5, 17), (2, 1, 5, 17), {"group": 2, "pads": [1, 1, 1, 1], "strides": [1, 2]}),
        ((1, 2, 20), (2, 1, 21), {"group": 2, "pads": [3, 3]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("biased", [False, True])
def test_kernels_that_are_longer_than_results(
    image: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], biased: bool
) -> None:
    inputs = [array(*image), array(*kernel)] + ([array(kernel[0])] if biased else [])
    same("Conv", inputs, tolerance=1e-4, **attributes)


@given(st.data(), st.integers(1, 3), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.booleans())
@settings(max_examples=8, deadline=None)
def test_convolutions_with_weights_of_a_run(
    data: st.DataObject, rank: int, groups: int, each: int, biased: bool
) -> None:
    sizes = sizes_of(data, rank)
    attributes, kernel = geometry(data, rank, sizes)
    if data.draw(st.integers(0, 3)) == 0:
        del attributes["pads"]
        assume(all(k <= size for k, size in zip(kernel, sizes, strict=True)))
        attributes["dilations"] = [1] * rank  # ONNX Runtime has no automatic pads with others
        attributes["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    inputs = [array(2, groups * 3, *sizes), array(groups * each, 3, *kernel)]
    inputs += [array(groups * each)] if biased else []
    same("Conv", inputs, tolerance=1e-4, group=groups, **attributes)


def test_convolutions_of_other_types_and_of_four_dims() -> None:
    for kind in ("f8", "f2"):
        tolerance = 1e-2 if kind == "f2" else 1e-9
        x, weights, bias = array(2, 3, 5, 4, kind=kind), array(8, 3, 3, 2, kind=kind), array(8, kind=kind)
        same("Conv", [x, weights, bias], engine="reference", tolerance=tolerance, pads=[1, 0, 1, 1])
        same("Conv", [x, array(8, 3, 1, 1, kind=kind)], engine="reference", tolerance=tolerance)
    x, weights = array(1, 4, 3, 4, 3, 2), array(2, 2, 2, 2, 1, 2)
    same("Conv", [x, weights], engine="reference", tolerance=1e-4, group=2, strides=[1, 2, 1, 1])


@pytest.mark.parametrize(("operator", "groups"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 2)])
def test_a_large_batch_is_convolved_in_parts(operator: str, groups: int) -> None:
    """Parts of 2, 2 and 1 images: columns of one take the memory of those before, and equal parts are one kernel."""
    inputs = [array(5, 16, 24, 24), array(16, 16 // groups, 3, 3), array(16)]
    attributes = {"group": groups, "pads": [1, 1, 1, 1], "strides": [1, 1] if operator == "Conv" else [2, 2]}
    (wanted,) = same(operator, inputs, tolerance=1e-4, **attributes)
    proto = model(operator, inputs, [wanted], (), 20, attributes)
    lowered = lower(ir.from_proto(proto), host())
    columns = [one.size for one in lowered.temporaries]
    assert columns == [4 * images * 16 * 9 * 24 * 24 for images in (2, 2, 1)]
    assert len(lowered.regions) == 6 and len({region.kernel.name for region in lowered.regions}) == 4


def test_with_steps_of_one_a_transposed_convolution_is_a_convolution_of_turned_windows() -> None:
    """What it unfolds are the few channels that it reads, not the many that it writes; nothing is added up behind."""
    inputs = [array(1, 4, 40, 40), array(4, 64, 3, 3), array(64)]
    attributes: dict[str, Any] = {"pads": [1, 0, 2, 1]}
    (wanted,) = same("ConvTranspose", inputs, tolerance=1e-4, **attributes)
    lowered = lower(ir.from_proto(model("ConvTranspose", inputs, [wanted], (), 20, attributes)), host())
    assert [one.size for one in lowered.temporaries] == [4 * 64 * 4 * 9, 4 * 4 * 9 * 39 * 41]


@given(st.data(), st.sampled_from([1, 1 << 20]))
@settings(max_examples=30, deadline=None)
def test_rows_of_columns_are_gathered_by_places_in_a_stride(data: st.DataObject, piece: int) -> None:
    """Rows long enough for vectors, under kernels that overlap, leave gaps, and reach out of the result.

    Pieces of one byte are channels alone, and bands of as few rows as there can be.
    """
    rank, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    batch, each = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    depth = data.draw(st.sampled_from([1, 3, 5]))  # of these only five have columns
    sizes = (*(data.draw(st.integers(2, 4)) for _ in range(rank - 1)), data.draw(st.integers(16, 21)))
    kernel = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    strides = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    strides[0] += strides == [1] * rank  # steps of one are another routine
    dilations = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [data.draw(st.integers(0, 2)) for _ in range(2 * rank)]
    made = [
        (size - 1) * step + (k - 1) * dilation + 1 - before - after
        for size, step, k, dilation, before, after in zip(
            sizes, strides, kernel, dilations, pads[:rank], pads[rank:], strict=True
        )
    ]
    assume(min(made) > 0)
    inputs = [array(batch, depth * groups, *sizes), array(depth * groups, each, *kernel), array(each * groups)]
    attributes = {"group": groups, "strides": strides, "dilations": dilations, "pads": pads}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sums, "PIECE", piece)
        same("ConvTranspose", inputs, tolerance=1e-4, **attributes)


def test_large_images_of_few_channels_are_summed_in_bands_of_rows() -> None:
    inputs = [array(2, 8, 60, 60), array(8, 3, 6, 6), array(3)]
    attributes = {"strides": [2, 2], "pads": [1, 2, 2, 1]}
    (wanted,) = same("ConvTranspose", inputs, tolerance=1e-4, **attributes)
    lowered = lower(ir.from_proto(model("ConvTranspose", inputs, [wanted], (), 20, attributes)), host())
    bands = len(lowered.temporaries) // 2
    assert bands == 2 and len(lowered.regions) == 2 * bands * 4, "a product, and the sums of three channels"
    assert max(one.size for one in lowered.temporaries) < 4 * 3 * 36 * 60 * 60 / bands * 1.2


def test_the_columns_of_some_channels_at_a_time_take_little_memory() -> None:
    inputs = [array(1, 8, 40, 40), array(8, 7, 16, 16), array(7)]
    attributes = {"strides": [8, 8], "pads": [4, 4, 4, 4]}
    (wanted,) = same("ConvTranspose", inputs, tolerance=1e-3, **attributes)
    lowered = lower(ir.from_proto(model("ConvTranspose", inputs, [wanted], (), 20, attributes)), host())
    assert [one.size for one in lowered.temporaries] == [4 * 16 * 16 * 40 * 40] * 7
    assert len(lowered.regions) == 14 and len({region.kernel.name for region in lowered.regions}) == 2


def test_large_images_are_convolved_in_bands_of_columns_as_large_as_operand_and_result() -> None:
    inputs = [array(1, 8, 90, 90), array(8, 8, 5, 5)]
    (wanted,) = same("Conv", inputs, tolerance=1e-4, pads=[2, 2, 2, 2])
    lowered = lower(ir.from_proto(model("Conv", inputs, [wanted], (), 20, {"pads": [2, 2, 2, 2]})), host())
    assert [one.size // (4 * 8 * 25 * 90) for one in lowered.temporaries] == [7] * 12 + [6], "rows of windows"


def test_bands_are_a_quarter_as_large_where_memory_is_tight() -> None:
    inputs = [array(1, 32, 160, 160), array(32, 32, 3, 3)]
    (wanted,) = same("Conv", inputs, tolerance=1e-3, pads=[1, 1, 1, 1])
    given = ir.from_proto(model("Conv", inputs, [wanted], (), 20, {"pads": [1, 1, 1, 1]}))
    wide, narrow = (lower(given, host(), tight=tight) for tight in (False, True))
    assert max(one.size for one in wide.temporaries) > 3.5 * max(one.size for one in narrow.temporaries)
    feeds = {one.name: array_of_it for one, array_of_it in zip(narrow.inputs, inputs, strict=True)}
    np.testing.assert_array_equal(run_lowered(narrow, feeds)[0], run_lowered(wide, feeds)[0])


@pytest.mark.parametrize(("images", "groups", "pads"), [(1, 1, [1, 1, 1, 1]), (2, 2, [3, 0, 2, 1])])
def test_deep_images_are_convolved_in_bands(images: int, groups: int, pads: list[int]) -> None:
    """As in the gradient to weights: a part has one image, and a band some rows of windows."""
    inputs = [array(images, 32 * groups, 34, 34), array(16 * groups, 32, 29, 29), array(16 * groups)]
    attributes = {"group": groups, "pads": pads}
    (wanted,) = same("Conv", inputs, tolerance=1e-3, **attributes)
    rows, columns = wanted.shape[2:]
    lowered = lower(ir.from_proto(model("Conv", inputs, [wanted], (), 20, attributes)), host())
    each = -(-rows // 4)
    bands = [min(each, rows - first) for first in range(0, rows, each)] * images
    assert [one.size for one in lowered.temporaries] == [4 * 32 * groups * 29 * 29 * columns * one for one in bands]


@given(st.data(), st.integers(1, 3), st.sampled_from([1, 2]), st.integers(1, 3), st.booleans())
@settings(max_examples=8, deadline=None)
def test_transposed_convolutions(data: st.DataObject, rank: int, groups: int, each: int, biased: bool) -> None:
    sizes = sizes_of(data, rank)
    kernel, strides, dilations = ([data.draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    more = [data.draw(st.integers(0, strides[axis] - 1)) for axis in range(rank)]
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "output_padding": more, "group": groups}
    reach = [strides[axis] * (sizes[axis] - 1) + (kernel[axis] - 1) * dilations[axis] + 1 for axis in range(rank)]
    match data.draw(st.integers(0, 2)):
        case 0:
            attributes["pads"] = [data.draw(st.integers(0, (reach[axis % rank] - 1) // 2)) for axis in range(2 * rank)]
        case 1:
            attributes["output_shape"] = [data.draw(st.integers(max(1, one - 2), one)) for one in reach]
            attributes["auto_pad"] = data.draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER"]))
    inputs = [array(2, groups * 2, *sizes), array(groups * 2, each, *kernel)]
    inputs += [array(groups * each)] if biased else []
    known = data.draw(st.sampled_from([(), (1, 2)]))
    same("ConvTranspose", inputs, known=known, tolerance=1e-4, **attributes)


def test_transposed_convolutions_of_other_types() -> None:
    x, weights, bias = (array(*shape) for shape in ((2, 4, 5, 4), (4, 3, 3, 2), (6,)))
    (wanted,) = same("ConvTranspose", [x, weights, bias], tolerance=1e-5, group=2, strides=[2, 1])
    for kind, tolerance in (("f8", 1e-5), ("f2", 2e-2)):
        other = [one.astype(kind) for one in (x, weights, bias)]
        held("ConvTranspose", other, [wanted.astype(kind)], tolerance=tolerance, group=2, strides=[2, 1])


@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.booleans(), st.sampled_from(["f4", "f8"]))
@settings(max_examples=8, deadline=None)
def test_convolutions_off_their_places(data: st.DataObject, groups: int, offsets: int, whole: bool, kind: str) -> None:
    sizes = sizes_of(data, 2)
    attributes, kernel = geometry(data, 2, sizes)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"], strict=True)]
    pads = attributes["pads"]
    out = [
        (sizes[axis] + pads[axis] + pads[2 + axis] - reach[axis]) // attributes["strides"][axis] + 1 for axis in (0, 1)
    ]
    places = kernel[0] * kernel[1]
    x, weights = array(2, 4, *sizes, kind=kind), array(groups * 4, 4 // groups, *kernel, kind=kind)
    off = array(2, offsets * places * 2, *out, kind=kind)
    inputs = [x, weights, off]
    inputs += [array(groups * 4, kind=kind), array(2, offsets * places, *out, kind=kind)] if whole else []
    same("DeformConv", inputs, opset=19, tolerance=1e-4, group=groups, offset_group=offsets, **attributes)


@given(st.data(), st.integers(1, 3), st.integers(0, 1), st.integers(0, 1), st.sampled_from(["f4", "f8", "i1", "u1"]))
@settings(max_examples=8, deadline=None)
def test_the_largest_pixels_and_their_places(
    data: st.DataObject, rank: int, ceil: int, by_columns: int, kind: str
) -> None:
    sizes = sizes_of(data, rank)
    attributes, _ = geometry(data, rank, sizes)
    count = data.draw(st.integers(1, 2))
    same(
        "MaxPool", [array(2, 3, *sizes, kind=kind)], outputs=count, opset=22, ceil_mode=ceil,
        **({"storage_order": by_columns} if count == 2 else {}), **attributes,
    )  # fmt: skip


@given(st.data(), st.integers(1, 3), st.integers(0, 1), st.integers(0, 1), st.sampled_from(["f4", "f8"]))
@settings(max_examples=8, deadline=None)
def test_means_of_windows(data: st.DataObject, rank: int, ceil: int, counted: int, kind: str) -> None:
    sizes = sizes_of(data, rank)
    attributes, _ = geometry(data, rank, sizes)
    attributes |= {"ceil_mode": ceil, "count_include_pad": counted}
    x = array(2, 3, *sizes)
    (wanted,) = same("AveragePool", [x], opset=22, tolerance=1e-5, **attributes)
    held("AveragePool", [x.astype(kind)], [wanted.astype(kind)], opset=22, tolerance=1e-5, **attributes)


@given(st.data(), st.integers(1, 3), st.sampled_from([1, 2, 3]))
@settings(max_examples=8, deadline=None)
def test_norms_of_windows(data: st.DataObject, rank: int, p: int) -> None:
    sizes = sizes_of(data, rank)
    attributes, _ = geometry(data, rank, sizes)
    same("LpPool", [array(2, 3, *sizes)], tolerance=1e-4, p=p, **attributes)
    same("GlobalLpPool", [array(2, 3, *sizes)], tolerance=1e-4, p=p)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_whole_planes(op: str) -> None:
    for shape in ((2, 3, 5), (2, 3, 5, 4), (1, 2, 3, 2, 4), (1, 2, 2, 2, 3, 2)):
        for kind in ("f4", "f8", "f2"):
            x, axes = array(*shape, kind=kind), tuple(range(2, len(shape)))
            wanted = (x.max if op == "GlobalMaxPool" else x.astype("f8").mean)(axes, keepdims=True).astype(kind)
            held(op, [x], [wanted], tolerance=2e-3 if kind == "f2" else 1e-5)


def test_what_was_pooled_back_at_its_places() -> None:
    x = array(2, 3, 6, 8)
    for attributes in ({"strides": [2, 2]}, {"strides": [2, 2], "pads": [0, 0, 0, 0]}):
        pooled, places = same("MaxPool", [x], outputs=2, kernel_shape=[2, 2], **attributes)
        same("MaxUnpool", [pooled, places], opset=11, kernel_shape=[2, 2], **attributes)
    same(
        "MaxUnpool", [pooled, places, np.array([2, 3, 7, 9])], engine="reference", opset=11, kernel_shape=[2, 2],
        strides=[2, 2],
    )  # fmt: skip


def test_places_outside_take_nothing_and_the_last_of_equal_ones_stays() -> None:
    x = np.array([[[[1, 2]], [[3, 4]], [[5, 6]]]], "f4")
    places = np.array([[[[-1, 3]], [[3, 24]], [[1 << 40, 23]]]])
    wanted = np.zeros((1, 3, 2, 4), "f4")
    wanted[0, 0, 0, 3], wanted[0, 2, 1, 3] = 3, 6
    held("MaxUnpool", [x, places], [wanted], kernel_shape=[2, 2], strides=[2, 2])
    wide = np.zeros((1, 3, 3, 5), "f4")
    wide[0, :, :2, :4] = wanted[0]
    held("MaxUnpool", [x, places, np.array(wide.shape)], [wide], kernel_shape=[2, 2], strides=[2, 2])


@given(st.data(), st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_blocks_put_back(data: st.DataObject, rank: int) -> None:
    sizes = sizes_of(data, rank)
    attributes, kernel = geometry(data, rank, sizes)
    del attributes["kernel_shape"]
    count = 1
    for axis in range(rank):
        free = sizes[axis] + attributes["pads"][axis] + attributes["pads"][rank + axis] - 1
        count *= (free - (kernel[axis] - 1) * attributes["dilations"][axis]) // attributes["strides"][axis] + 1
    x = array(2, 2 * int(np.prod(kernel)), count)
    known = data.draw(st.sampled_from([(), (1, 2)]))
    blocks = [x, np.array(sizes), np.array(kernel)]
    same("Col2Im", blocks, engine="reference", known=known, tolerance=1e-5, **attributes)

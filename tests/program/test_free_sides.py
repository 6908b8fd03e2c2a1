"""Convolutions, poolings and resizing along sides that a run sets: spelled out with operators of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.flows.source import resize
from graphopt.program.choosing import dims_in
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.make import make_ranged
from graphopt.program.regions import rounding
from kernels.size import Dim
from kernels.target import host
from kernels.templates.convolution.ways import CONVOLUTION
from kernels.templates.convolution.winograd_sizes import WinogradSizes
from tests import support

_random = np.random.default_rng(0)
ALONG = {
    "convolution": ("Conv<pads = [2, 1]>(x, w, b)", (6, 4, 3), 18),
    "of a stride": ("Conv<strides = [2], pads = [2, 1]>(x, w, b)", (6, 4, 3), 18),
    "of a stride, dilated": ("Conv<strides = [3], dilations = [2], pads = [4, 0]>(x, w)", (6, 4, 3), 11),
    "of one element and a stride": ("Conv<strides = [2]>(x, w)", (6, 4, 1), 18),
    "in groups": ("Conv<group = 2, strides = [2], pads = [2, 1]>(x, w, b)", (6, 2, 3), 18),
    "each channel apart, a stride": ("Conv<group = 4, strides = [3], pads = [3, 0]>(x, w, b)", (4, 1, 4), 18),
    "long, of a stride": ("Conv<strides = [5], pads = [9, 10]>(x, w, b)", (6, 4, 18), 18),
    "long, in groups": ("Conv<group = 2, strides = [4], pads = [8, 7]>(x, w, b)", (6, 2, 16), 13),
    "twice": ("Conv<strides = [2], pads = [1, 1]>(c, w)", (4, 4, 3), 18),
    "a pyramid": ("Conv<strides = [2], pads = [1, 1]>(c, w)", (4, 4, 3), 18),
    "dilated": ("Conv<dilations = [2], pads = [4, 0]>(x, w)", (6, 4, 3), 11),
    "of one element": ("Conv(x, w, b)", (6, 4, 1), 18),
    "each channel apart": ("Conv<group = 4, pads = [3, 0]>(x, w, b)", (4, 1, 4), 18),
    "transposed": ("ConvTranspose<strides = [3], pads = [1, 1], output_padding = [2]>(x, w, b)", (4, 6, 5), 18),
    "transposed, dilated": ("ConvTranspose<dilations = [2]>(x, w, b)", (4, 6, 3), 18),
    "transposed, apart": ("ConvTranspose<group = 4, strides = [2]>(x, w, b)", (4, 1, 3), 18),
    "mean": ("GlobalAveragePool(x)", None, 13),
    "largest": ("GlobalMaxPool(x)", None, 18),
    "of instances": ("InstanceNormalization(x, b, b)", None, 18),
}


@pytest.mark.parametrize("kind", sorted(ALONG))
def test_any_length(kind: str) -> None:
    node, dims, opset = ALONG[kind]
    drawn = np.random.default_rng(sorted(ALONG).index(kind))  # whatever ran before
    w = np.ones((4, 4), "f4") if dims is None else drawn.standard_normal(dims).astype("f4")
    count = 4 if dims is None else dims[1 if kind in ("transposed", "transposed, dilated") else 0]
    before = {
        "twice": "c = Conv<strides = [3], pads = [2, 2]>(x, w)",
        "a pyramid": "l = Pad(x, around) d = Conv<strides = [2]>(l, w) e = Conv(d, w) c = Conv<strides = [3]>(e, w)",
    }.get(kind, "")
    text = f"g (float[2,4,s] x) => (float[2,{count},t] y) {{ {before} a = {node} y = Tanh(a) }}"
    around = np.array([0, 0, 20, 0, 0, 20])
    model = support.model(text, opset, w=w, b=np.linspace(0.1, 1, count, dtype="f4"), around=around)
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    for length in (1, 2, 7, 30):
        x = drawn.standard_normal((2, 4, length)).astype("f4")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=2e-6)


SEQUENCES = {
    "one row": ("float[2,4,1,s]", "Conv<pads = [0, 2, 0, 1]>(x, w, b)", (6, 4, 1, 4)),
    "one row, padded as the operator says": ("float[2,4,1,s]", 'Conv<auto_pad = "SAME_UPPER">(x, w, b)', (6, 4, 1, 4)),
    "one row, padded in front": ("float[2,4,1,s]", 'Conv<auto_pad = "SAME_LOWER">(x, w)', (6, 4, 1, 4)),
    "one row, each channel apart": ("float[2,4,1,s]", "Conv<group = 4, pads = [0, 1, 0, 1]>(x, w)", (4, 1, 1, 3)),
    "all rows": ("float[2,4,3,s]", "Conv<pads = [0, 1, 0, 1], strides = [1, 2]>(x, w, b)", (6, 4, 3, 3)),
    "all rows in groups": ("float[2,4,3,s]", "Conv<group = 2, pads = [0, 1, 0, 1]>(x, w, b)", (6, 2, 3, 3)),
    "all rows and padding": ("float[2,4,2,s]", "Conv<pads = [1, 1, 2, 1]>(x, w)", (6, 4, 5, 3)),
    "all rows, dilated": ("float[2,4,5,s]", "Conv<dilations = [2, 2], pads = [0, 2, 0, 2]>(x, w)", (6, 4, 3, 3)),
    "one column": ("float[2,4,s,1]", "Conv<pads = [2, 0, 1, 0]>(x, w, b)", (6, 4, 4, 1)),
    "all columns": ("float[2,4,s,3]", "Conv<pads = [1, 0, 1, 0]>(x, w, b)", (6, 4, 3, 3)),
}


@pytest.mark.parametrize("kind", sorted(SEQUENCES))
def test_sequences_that_are_written_as_images(kind: str) -> None:
    """tf2onnx writes a Conv1D as a Conv of one row; spectrograms have kernels as high as they are."""
    given, node, dims = SEQUENCES[kind]
    w = _random.standard_normal(dims).astype("f4")
    model = support.model(
        f"g ({given} x) => (float[2,{dims[0]},u,v] y) {{ a = {node} y = Tanh(a) }}", 18,
        w=w, b=np.linspace(0.1, 1, dims[0], dtype="f4"),
    )  # fmt: skip
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    fixed = [int(one) if one.isdigit() else None for one in given[len("float[") : -1].split(",")]
    for length in (1, 2, 7, 30):
        x = _random.standard_normal([length if one is None else one for one in fixed]).astype("f4")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("dims", [(6, 4, 3), (4, 1, 3)])
def test_weights_of_half_precision(dims: tuple[int, ...]) -> None:
    """They are widened where they are multiplied; ours rounds once, ONNX Runtime after the convolution too."""
    w = _random.standard_normal(dims).astype("f2")
    node = f"Conv<group = {4 // dims[1]}, pads = [1, 1]>(x, w)"
    model = support.model(f"g (float16[2,4,s] x) => (float16[2,{dims[0]},t] y) {{ y = {node} }}", 18, w=w)
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    for length in (1, 7, 30):
        x = _random.standard_normal((2, 4, length)).astype("f2")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=2e-3, atol=2e-3)


MODE = "coordinate_transformation_mode"
IMAGES = {
    "convolution": ("Conv<pads = [0, 1, 2, 0]>(x, w, b)", (6, 4, 3, 2), 18),
    "of a stride": ("Conv<strides = [2, 3], pads = [1, 1, 1, 1]>(x, w, b)", (6, 4, 3, 3), 18),
    "of many channels": ("Conv<pads = [1, 1, 1, 1]>(c, w)", (5, 16, 3, 3), 18),
    "without padding": ("Conv<strides = [2, 2]>(x, w)", (6, 4, 5, 3), 13),
    "of patches": ("Conv<strides = [2, 3]>(x, w, b)", (6, 4, 2, 3), 18),
    "of begun strides": ('Conv<strides = [2, 1], auto_pad = "SAME_UPPER">(x, w, b)', (6, 4, 3, 5), 18),
    "of begun strides, more in front": ('Conv<strides = [3, 2], auto_pad = "SAME_LOWER">(x, w, b)', (6, 4, 4, 3), 18),
    "of begun strides, in groups": (
        'Conv<strides = [2, 2], group = 2, auto_pad = "SAME_UPPER">(x, w)', (6, 2, 3, 3), 18
    ),
    "of begun strides, each channel apart": (
        'Conv<strides = [2, 2], group = 4, auto_pad = "SAME_UPPER">(x, w, b)', (4, 1, 5, 3), 18
    ),
    "of a pixel of each begun stride": ('Conv<strides = [3, 2], auto_pad = "SAME_UPPER">(x, w, b)', (6, 4, 1, 1), 18),
    "largest, of begun strides": (
        'MaxPool<kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_UPPER">(x)', None, 18
    ),
    "mean, of begun strides": (
        'AveragePool<kernel_shape = [3, 3], strides = [2, 3], auto_pad = "SAME_LOWER">(x)', None, 18
    ),
    "mean of all, of begun strides": (
        'AveragePool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER", count_include_pad = 1>(x)', None,
        18,
    ),
    "of one pixel": ("Conv(x, w, b)", (6, 4, 1, 1), 18),
    "dilated": ("Conv<dilations = [2, 1], pads = [2, 2, 2, 2]>(x, w, b)", (6, 4, 3, 3), 18),
    "in groups": ("Conv<group = 2, pads = [1, 1, 1, 1]>(x, w, b)", (6, 2, 3, 3), 18),
    "each channel apart": ("Conv<group = 4, strides = [2, 1], pads = [1, 1, 1, 1]>(x, w, b)", (4, 1, 3, 3), 18),
    "transposed, as long as a stride": ("ConvTranspose<strides = [2, 2]>(x, w, b)", (4, 6, 2, 2), 18),
    "transposed": (
        "ConvTranspose<strides = [2, 3], pads = [2, 1, 0, 2], dilations = [2, 1], output_padding = [1, 0]>(x, w)",
        (4, 6, 3, 5), 18,
    ),
    "transposed, in groups": ("ConvTranspose<strides = [2, 2], group = 2>(x, w)", (4, 3, 3, 3), 18),
    "largest": ("MaxPool<kernel_shape = [3, 2], strides = [2, 2], pads = [1, 1, 1, 0]>(x)", None, 18),
    "largest, rounded up": ("MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)", None, 18),
    "largest, dilated and rounded up": (
        "MaxPool<kernel_shape = [2, 2], strides = [3, 2], dilations = [3, 1], ceil_mode = 1>(x)", None, 18,
    ),
    "mean": ("AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x)", None, 18),
    "mean, rounded up": ("AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)", None, 18),
    "mean of all, rounded up": (
        "AveragePool<kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1, count_include_pad = 1>(x)", None, 18,
    ),
    "mean of what is inside, rounded up": (
        "AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1>(x)", None, 18,
    ),
    "mean of what is inside": ("AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)", None, 18),
    "mean with zeros around": (
        "AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1>(x)", None, 18,
    ),
    "mean with zeros around, rounded up": (
        "AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1, "
        "count_include_pad = 1>(x)", None, 18,
    ),
} | {
    f"resized, {kind}": (f"Resize<{attributes}>({operands})", None, 18)
    for kind, operands, attributes in (
        ("nearest", "x, , s", f'{MODE} = "asymmetric", nearest_mode = "floor"'),
        ("nearest, by parts", "x, , t", f'{MODE} = "asymmetric", nearest_mode = "floor"'),
        ("linear", "x, , s", 'mode = "linear"'),
        ("linear, by parts", "x, , t", f'mode = "linear", {MODE} = "pytorch_half_pixel"'),
        ("corners on corners", "x, , s", f'mode = "linear", {MODE} = "align_corners"'),
        ("to sizes", "x, , , d", f'mode = "linear", {MODE} = "align_corners"'),
        ("from one pixel", "c, , , d", 'mode = "linear"'),
        ("from corners", "x, , s", f'mode = "linear", {MODE} = "asymmetric"'),
    )
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(IMAGES))
def test_images_of_any_sides(kind: str) -> None:
    node, dims, opset = IMAGES[kind]
    random = np.random.default_rng(0)
    w = (
        np.ones((4, 4), "f4")
        if dims is None
        else (random.standard_normal(dims) / np.prod(dims[1:]) ** 0.5).astype("f4")
    )
    groups = 2 if "group = 2" in node else 1
    count = 4 if dims is None else dims[1] * groups if node.startswith("ConvTranspose") else dims[0]
    before = {
        "of many channels": "c = Concat<axis = 1>(x, x, x, x)",
        "resized, from one pixel": "c = GlobalAveragePool(x) d = Shape(x)",
        "resized, to sizes": "i = Shape<end = 2>(x) j = Shape<start = 2>(x) e = Constant<value_ints = [2, 3]>() "
        "k = Mul(j, e) m = Constant<value_ints = [-1, 1]>() l = Add(k, m) d = Concat<axis = 0>(i, l)",
    }.get(kind, "")
    model = support.model(
        f"g (float[2,4,h,v] x) => (float[2,{count},p,q] y) {{ {before} a = {node} y = Tanh(a) }}", opset,
        w=w, b=np.linspace(0.1, 1, count, dtype="f4"),
        s=np.array([1, 1, 2, 3], "f4"), t=np.array([1, 1, 0.5, 0.25], "f4"),
    )  # fmt: skip
    made, session = graphopt.compile(model, dims={"h": (5, 20), "v": (6, 24)}), support.session(model)
    for sides in ((5, 6), (20, 24), (7, 13), (16, 8)):
        x = random.standard_normal((2, 4, *sides)).astype("f4")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=5e-6)


def test_channels_behind_stay_there_between_convolutions() -> None:
    """Transposes around each disappear, and windows over rows are read where they overlap: no image is copied."""
    w, v = (_random.standard_normal((16, 16, 3, 3)).astype("f4") / 12 for _ in range(2))
    graph = "c = Conv(x, w) r = Relu(c) y = Conv(r, v)"
    model = support.model(f"g (float[1,16,h,v] x) => (float[1,16,p,q] y) {{ {graph} }}", 18, w=w, v=v)
    made = graphopt.compile(model, dims={"h": (6, 20), "v": (6, 24)}, threads=1, exact=True)
    kinds = [made.lowered.problems[region.kernel.name][0].name for region in made.lowered.regions]
    assert kinds.count("product") == 6 and len(kinds) == 8, "three products each, and a Transpose at either end"


FILTERED = {
    "around": ("float[2,32,h,v]", "Conv<pads = [1, 1, 1, 1]>(x, w, b)", (48, 32, 3, 3)),
    "on one side": ("float[2,32,h,v]", "Conv<pads = [2, 0, 0, 1]>(x, w)", (40, 32, 3, 3)),
    "nowhere, of channels that fill no vector": ("float[2,27,h,v]", "Conv(x, w, b)", (37, 27, 3, 3)),
    "dilated": ("float[2,32,h,v]", "Conv<dilations = [1, 2], pads = [1, 2, 1, 2]>(x, w, b)", (32, 32, 3, 3)),
    "of one column": ("float[2,64,h,v]", 'Conv<auto_pad = "SAME_UPPER">(x, w, b)', (64, 64, 3, 1)),
    "of five columns": ("float[2,32,h,v]", 'Conv<auto_pad = "SAME_LOWER">(x, w, b)', (32, 32, 3, 5)),
    "along a sequence": ("float[2,64,h]", "Conv<pads = [1, 1]>(x, w, b)", (80, 64, 3)),
    "of one row": ("float[2,64,1,h]", "Conv<pads = [0, 1, 0, 1]>(x, w, b)", (64, 64, 1, 3)),
    "of five rows": ("float[2,32,h,v]", "Conv<pads = [2, 2, 2, 2]>(x, w)", (32, 32, 5, 5)),
    "of five rows, two strides": (
        "float[2,64,h,v]", "Conv<strides = [2, 2], pads = [2, 2, 2, 2]>(x, w, b)", (64, 64, 5, 5)
    ),
    "of eleven along a sequence": ("float[2,64,h]", "Conv<pads = [5, 5]>(x, w, b)", (64, 64, 11)),
    "dilated along a sequence": ("float[2,64,h]", "Conv<pads = [9, 9], dilations = [3]>(x, w, b)", (64, 64, 7)),
    "in groups": ("float[2,128,h,v]", "Conv<pads = [1, 1, 1, 1], group = 4>(x, w, b)", (128, 32, 3, 3)),
    "in groups of few channels": ("float[2,128,h,v]", "Conv<pads = [1, 1, 1, 1], group = 32>(x, w)", (128, 4, 3, 3)),
    "of rows that are given": ("float[2,32,7,v]", "Conv<pads = [1, 1, 1, 1]>(x, w, b)", (48, 32, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(FILTERED))
def test_kernels_of_any_sides(kind: str) -> None:
    """Winograd's, with the operators behind the convolution; or exactly, as a plain sum rounds."""
    given, node, dims = FILTERED[kind]
    random = np.random.default_rng(0)
    w = (random.standard_normal(dims) / np.prod(dims[1:]) ** 0.5).astype("f4")
    rest = ",p,q" if len(dims) == 4 else ",p"
    model = support.model(
        f"g ({given} x) => (float[2,{dims[0]}{rest}] y) {{ a = {node} y = Tanh(a) }}", 18, w=w,
        b=np.linspace(0.1, 1, dims[0], dtype="f4"),
    )  # fmt: skip
    sides = {one: (12, 90) for one in "hv" if f",{one}" in given}
    made, session = graphopt.compile(model, dims=sides, tolerance=1e-3), support.session(model)
    assert _filtered(made) == 1
    names = [one if one.isdigit() else "s" for one in given[len("float[") : -1].split(",")]
    for length in (12, 13, 14, 25, 64, 90):
        x = random.standard_normal([length if one == "s" else int(one) for one in names]).astype("f4")
        np.testing.assert_allclose(made.run(None, {"x": x})[0], session.run(None, {"x": x})[0], rtol=2e-5, atol=2e-5)
    assert _filtered(graphopt.compile(model, dims=sides, exact=True)) == 0


def test_a_program_whose_points_are_wrong_is_made_again_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: WinogradSizes, *given: Any) -> None:
        begin(self, *given)
        self.window_matrices = [matrix[::-1] for matrix in self.window_matrices]

    begin = WinogradSizes.__init__
    w = _random.standard_normal((64, 64, 3)).astype("f4")
    model = support.model("g (float[1,64,s] x) => (float[1,64,s] y) { y = Conv<pads = [1, 1]>(x, w) }", 18, w=w)
    monkeypatch.setattr(WinogradSizes, "__init__", wrong)
    made = graphopt.compile(model, dims={"s": (12, 90)})
    assert _filtered(made) == 0 and made.remade is not None and made.remade.startswith("output 'y': off by ")
    assert made.verification.passed


def test_a_program_without_a_kernel_of_any_sides_has_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every way to write it asks for a size, it is spelled out after all."""
    w = _random.standard_normal((64, 64, 3)).astype("f4")
    model = support.model("g (float[1,64,s] x) => (float[1,64,s] y) { y = Conv<pads = [1, 1]>(x, w) }", 18, w=w)
    monkeypatch.setattr(rounding, "CONVOLUTION", replace(CONVOLUTION, serves=lambda problem, _: not dims_in(problem)))
    made = graphopt.compile(model, dims={"s": (12, 90)})
    kinds = {made.lowered.problems[region.kernel.name][0].name for region in made.lowered.regions}
    assert "product" in kinds and "convolution" not in kinds


def _filtered(made: Compiled) -> int:
    return sum("winograd" in region.kernel.choice for region in made.lowered.regions)


def test_nothing_is_copied_between_filtered_images() -> None:
    w, v = (_random.standard_normal((64, 64, 3, 3)).astype("f4") / 12 for _ in range(2))
    graph = "c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) y = Conv<pads = [1, 1, 1, 1]>(r, v)"
    model = support.model(f"g (float[1,64,h,v] x) => (float[1,64,p,q] y) {{ {graph} }}", 18, w=w, v=v)
    made = graphopt.compile(model, dims={"h": (12, 90), "v": (12, 90)}, threads=1)
    kinds = [made.lowered.problems[region.kernel.name][0].name for region in made.lowered.regions]
    assert kinds.count("convolution") == 2 and len(kinds) == 4, "channels go last before the first, and back at the end"


def test_levels_of_a_pyramid_meet_where_a_caller_promises_their_sides() -> None:
    """Doubled, a level has the sides of the one before, as those are even: then it can be resized at any size."""
    text = """g (float[1,4,h,v] x) => (float y) {
        c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) d = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(c, w)
        u = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(d, , s)
        a = Add(u, c) y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(a, , s) }"""
    drawn = np.random.default_rng(0)
    w = (drawn.standard_normal((4, 4, 3, 3)) / 6).astype("f4")
    model = support.model(text, 18, w=w, s=np.array([1, 1, 2, 2], "f4"))
    sides: dict[str, Any] = {"h": "4*a", "v": "4*b", "a": (1, 9), "b": (1, 7)}
    made, session = graphopt.compile(model, dims=sides), support.session(model)
    for high, wide in ((4, 4), (8, 28), (36, 20)):
        x = drawn.standard_normal((1, 4, high, wide)).astype("f4")
        mine, its = made.run(None, {"x": x})[0], session.run(None, {"x": x})[0]
        np.testing.assert_allclose(mine, its, rtol=0, atol=36 * 2.0**-23)  # sums of 36 products that are one together


def test_a_program_found_beyond_its_range_has_the_greatest_tensors_of_a_run() -> None:
    """Where two sides that are greatest together look alike, it is found at others, which no run has."""
    source = support.model("g (float[1,4,h,v] x) => (float[1,4,v,h] y) { y = Transpose<perm = [0, 1, 3, 2]>(x) }", 18)

    def model_of(point: Sequence[int]) -> ir.Model:
        model = ir.from_proto(source)
        resize(model, {}, dict(zip("hv", point, strict=True)))
        return model

    found, allowed = ([Dim("h", 2, 8, 0), Dim("v", 2, most, 1)] for most in (9, 8))
    made = make_ranged(found, model_of, host(), "net", False, None, allowed=allowed)
    assert made.program is not None
    assert [one.shape for one in (*made.program.inputs, *made.program.outputs)] == [(1, 4, 8, 8)] * 2


def test_a_pooling_whose_last_window_follows_from_the_sides_is_refused_for_a_range() -> None:
    """It may begin behind the image, and is then left out."""
    node = "MaxPool<kernel_shape = [2, 2], strides = [3, 3], ceil_mode = 1>(x)"
    model = support.model(f"g (float[2,4,h,s] x) => (float y) {{ y = {node} }}", 18)
    with pytest.raises(graphopt.GraphoptError, match="cannot be made for a range"):
        graphopt.compile(model, dims={"h": (3, 30), "s": (3, 30)})


@pytest.mark.parametrize("scale", ["", "scale = 0.25"])
@pytest.mark.parametrize("mask", ["", ", m"])
def test_attention_between_channels(scale: str, mask: str) -> None:
    """Rows are as long as the image has pixels, as in XCiT and EdgeNeXt; without a scale it follows from them."""
    text = f"""g (float[1,8,h,v] x, float[4,4] m) => (float[1,2,4,r] y) {{
        t = Constant<value_ints = [1, 2, 4, -1]>() q = Reshape(x, t) k = Neg(q) y = Attention<{scale}>(q, k, q{mask})
    }}"""
    model = support.model(text.replace("<>", ""), 23)
    made, session = graphopt.compile(model, dims={"h": (2, 12), "v": (2, 15)}), support.session(model)
    for sides in ((2, 2), (7, 9), (12, 15)):
        feed = {"x": _random.standard_normal((1, 8, *sides)).astype("f4"), "m": np.eye(4, dtype="f4")}
        np.testing.assert_allclose(made.run(None, feed)[0], session.run(None, feed)[0], rtol=1e-5, atol=5e-6)


JOINED = {
    "branches": (
        "a = Conv(x, k) r = Relu(a) b = Conv<pads = [1, 1, 1, 1]>(x, w) "
        "m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) "
        "e = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) f = Conv(e, k) "
        "j = Concat<axis = 1>(r, b, m, f) y = Conv<pads = [1, 1, 1, 1]>(j, z)",
        244, 0,
    ),
    "layers of a stage": (
        "a = Conv<pads = [1, 1, 1, 1]>(x, w) c = Concat<axis = 1>(x, a) b = Conv<pads = [1, 1, 1, 1]>(c, v) "
        "d = Concat<axis = 1>(x, a, b) e = Conv(d, z) y = Relu(e)",
        144, 2,
    ),
    "twice, and one of them twice": (
        "a = Conv<pads = [1, 1, 1, 1]>(x, w) t = Tanh(a) c = Concat<axis = 1>(a, t) d = Concat<axis = 1>(c, a, c) "
        "y = Conv<pads = [1, 1, 1, 1]>(d, z)",
        300, 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(JOINED))
def test_images_are_computed_among_the_channels_that_they_become(kind: str) -> None:
    """What no kernel of these computes, as the input, is copied; so are further places of the same image."""
    random, (graph, channels, copies) = np.random.default_rng(0), JOINED[kind]
    shapes = {"w": (60, 64, 3, 3), "v": (20, 124, 3, 3), "k": (60, 64, 1, 1), "z": (64, channels, 3, 3)}
    if kind == "layers of a stage":
        shapes["z"] = 64, channels, 1, 1
    weights = {
        one: (random.standard_normal(dims) / np.prod(dims[1:]) ** 0.5).astype("f4") for one, dims in shapes.items()
    }  # fmt: skip
    model = support.model(f"g (float[2,64,h,v] x) => (float[2,64,p,q] y) {{ {graph} }}", 18, **weights)
    made, session = graphopt.compile(model, dims={"h": (12, 90), "v": (12, 90)}, threads=1), support.session(model)
    for sides in ((12, 12), (13, 31), (64, 15), (90, 90)):
        x = random.standard_normal((2, 64, *sides)).astype("f4")
        mine, its = made.run(None, {"x": x})[0], session.run(None, {"x": x})[0]
        np.testing.assert_allclose(mine, its, rtol=2e-5, atol=2e-5)
    assert sum([one.operator for one in region.nodes] == ["Concat"] for region in made.lowered.regions) == copies

"""Each gradient rule against central differences in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper

import graphopt
from graphopt.model.operators.gradients import windows
from graphopt.model.operators.table import OPERATORS
from tests.gradient.differences import agree, weighted

RNG = np.random.default_rng(3)


def _floats(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Numbers apart from one another and from 0, so that a difference crosses no kink."""
    count = int(np.prod(shape))
    grid = np.linspace(low, high, count + 2)[1:-1] + 0.013
    return RNG.permutation(grid).reshape(shape)


def _ints(*values: object) -> np.ndarray:
    return np.array(values, np.int64)


# Operators, and forms of others, that neither evaluator computes in float64, or one computes wrongly.
SINGLE = (
    "Celu",
    "Erf",
    "Gelu",
    "LRN",
    "Shrink",
    "LSTM",
    "GRU",
    "RNN",
    "Resize",
    "Upsample",
    "LpPool",
    "GlobalLpPool",
    "DequantizeLinear",
    "MaxRoiPool",
)
SINGLE_OPSETS = {("Gather", 13), ("GridSample", 16)}
Case = tuple[str, dict[str, object], dict[str, np.ndarray], int, int]  # operator, attributes, inputs, results, opset


def _case(op_type: str, *operands: np.ndarray | None, results: int = 1, opset: int = 18, **attributes: object) -> Case:
    if op_type in SINGLE or attributes.get("group") in (2, 4) or (op_type, opset) in SINGLE_OPSETS:
        operands = tuple(one.astype(np.float32) if _is_double(one) else one for one in operands)
    given = {f"x{at}": operand for at, operand in enumerate(operands) if operand is not None}
    return (op_type, attributes, given, results, opset)


def _is_double(operand: np.ndarray | None) -> bool:
    return operand is not None and operand.dtype == np.float64


def _recurrent(
    op_type: str, *, directions: int = 1, lengths: Sequence[int] = (), starts: bool = True, biases: bool = True,
    peepholes: bool = False, **attributes: object,
) -> Case:  # fmt: skip
    """A layer of 2 hidden units over 3 steps of 2 sequences of 2 numbers."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    state = _floats(directions, 2, 2, low=-0.8, high=0.8)
    states = [state if starts else None, *([-state if starts else None] if op_type == "LSTM" else [])]
    return _case(
        op_type, _floats(3, 2, 2), _floats(directions, 2 * gates, 2), _floats(directions, 2 * gates, 2),
        _floats(directions, 4 * gates) if biases else None, np.array(lengths, np.int32) if lengths else None,
        *states, *([_floats(directions, 6)] if peepholes else []),
        results=3 if op_type == "LSTM" else 2, hidden_size=2, **attributes,
    )  # fmt: skip


def _resized(
    mode: str, *, scales: Sequence[float] = (1, 1, 1.7, 0.6), sizes: Sequence[int] = (), area: Sequence[float] = (),
    opset: int = 19, **attributes: object,
) -> Case:  # fmt: skip
    return _case(
        "Resize", _floats(2, 3, 4, 5), np.array(area, np.float32) if area or opset < 13 else None,
        np.array(() if sizes else scales, np.float32) if not sizes or opset < 13 else None,
        _ints(*sizes) if sizes else None,
        opset=opset, mode=mode, **attributes,
    )  # fmt: skip


def _deformed(
    *, kernel: tuple[int, int], channels: int, biases: bool = False, masked: bool = False, **attributes: object
) -> Case:
    """A DeformConv whose positions are nowhere near whole numbers, where its slopes jump."""
    given = {"pads": [0, 0, 0, 0], "strides": [1, 1], "dilations": [1, 1], "offset_group": 1, "group": 1, **attributes}
    pads, strides, dilations = given["pads"], given["strides"], given["dilations"]
    out = [
        (size + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis, size in enumerate((5, 6))
    ]
    places, apart = kernel[0] * kernel[1], given["offset_group"]
    offsets = RNG.integers(-2, 2, (1, apart * places * 2, *out)) + RNG.uniform(0.1, 0.9, (1, apart * places * 2, *out))
    return _case(
        "DeformConv", _floats(1, channels, 5, 6), _floats(4, channels // given["group"], *kernel), offsets,
        _floats(4) if biases else None, _floats(1, apart * places, *out) if masked else None, opset=19,
        kernel_shape=list(kernel), **attributes,
    )  # fmt: skip


SMOOTH = ("Asinh", "Atan", "Cos", "Cosh", "Erf", "Exp", "Neg", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Tanh")
INSIDE = ("Acos", "Asin", "Atanh")
POSITIVE = ("Log", "Sqrt", "Reciprocal")
KINKED = ("Abs", "Celu", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Selu", "Shrink", "ThresholdedRelu")
IMAGE = _floats(2, 4, 6, 5)
APART = IMAGE + 0.1 * np.sign(IMAGE)  # no element within the step of a difference in float32 from 0
ZEROS = _floats(3, 4) * np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]])
SQUARE = _floats(2, 2, 5, 6)
GRID = _floats(2, 3, 4, 2, low=-1.7, high=1.7)
REGIONS = np.array([[0.3, 1.1, 7.2, 6.4], [2.2, -3.7, 11.3, 4.1], [-4.3, 2.6, 3.4, 13.2]])
CASES: list[Case] = [
    *(_case(name, _floats(3, 4)) for name in (*SMOOTH, *KINKED, "Mish", "Identity")),
    *(_case(name, _floats(3, 4, low=-0.9, high=0.9)) for name in (*INSIDE, "Tan")),
    *(_case(name, _floats(3, 4, low=0.5)) for name in POSITIVE),
    _case("Acosh", _floats(3, 4, low=1.5, high=4.0)),
    _case("LeakyRelu", _floats(3, 4), alpha=-0.3),
    _case("Elu", _floats(3, 4), alpha=-0.3),
    _case("Celu", _floats(3, 4), alpha=0.7),
    _case("Gelu", _floats(3, 4), opset=20),
    _case("Gelu", _floats(3, 4), opset=20, approximate="tanh"),
    _case("Swish", _floats(3, 4), opset=24, alpha=1.3),
    _case("Clip", _floats(3, 4), np.array(-0.8), np.array(0.9)),
    _case("Cast", _floats(3, 4), to=11),
    *(_case(name, _floats(3, 4), _floats(4, low=0.5)) for name in ("Add", "Sub", "Mul", "Div", "PRelu")),
    *(_case(name, _floats(3, 1), _floats(2, 1, 4, low=0.5)) for name in ("Add", "Sub", "Mul", "Div")),
    *(_case(name, _floats(3, 4), _floats(4), _floats(3, 1)) for name in ("Sum", "Mean", "Max", "Min")),
    _case("Pow", _floats(3, 4, low=0.3), _floats(4)),
    *(_case("Pow", _floats(3, 4), np.array(power, np.int64)) for power in (1, 2, 3, -1, 4)),
    _case("Mod", _floats(3, 4, low=0.3, high=9.0), _floats(4, low=1.7, high=2.6), fmod=1),
    _case("Where", RNG.integers(0, 2, (3, 4)).astype(bool), _floats(3, 4), _floats(4)),
    # reductions
    *(
        _case(name, _floats(2, 3, 4, low=0.4), _ints(0, 2), keepdims=keep)
        for keep in (0, 1)
        for name in (
            "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
            "ReduceLogSumExp", "ReduceSumSquare",
        )
    ),
    _case("ReduceMean", _floats(2, 3, 4), opset=13, axes=[1], keepdims=0),
    _case("ReduceSum", _floats(2, 3)),
    _case("CumSum", _floats(3, 4), np.array(1, np.int64)),
    _case("CumSum", _floats(3, 4), np.array(0, np.int64), exclusive=1, reverse=1),
    *(_case("CumProd", factors, np.array(axis, np.int64), opset=26, exclusive=exclusive, reverse=reverse)
      for factors in (_floats(3, 4), ZEROS) for axis in (0, 1) for exclusive in (0, 1) for reverse in (0, 1)),
    _case("TopK", _floats(3, 5), _ints(2), results=2, axis=1),
    # movement
    _case("Reshape", _floats(3, 4), _ints(2, -1)),
    _case("Flatten", _floats(2, 3, 4), axis=2),
    _case("Squeeze", _floats(3, 1, 4), _ints(1)),
    _case("Unsqueeze", _floats(3, 4), _ints(0, 3)),
    _case("Transpose", _floats(2, 3, 4), perm=[2, 0, 1]),
    _case("Transpose", _floats(2, 3, 4)),
    _case("Concat", _floats(2, 3), _floats(2, 1), _floats(2, 4), axis=1),
    _case("Split", _floats(2, 7), _ints(3, 4), results=2, axis=1),
    _case("Expand", _floats(3, 1), _ints(2, 3, 4)),
    _case("Tile", _floats(2, 3), _ints(2, 3)),
    _case("Slice", _floats(5, 7), _ints(1, 6), _ints(4, -8), _ints(0, 1), _ints(1, -2)),
    _case("Slice", _floats(5, 7), _ints(0), _ints(7), _ints(1), _ints(3)),
    _case("Slice", _floats(5, 7), opset=9, starts=[1, 2], ends=[4, 100]),
    _case("Pad", _floats(3, 4), _ints(1, 0, 2, 3)),
    _case("Pad", _floats(3, 4), _ints(1, 0, 2, 3), np.array(0.4)),
    _case("Pad", _floats(3, 4), _ints(1, 2, 2, 3), mode="reflect"),
    _case("Pad", _floats(3, 4), _ints(1, 2, 0, 3), mode="edge"),
    _case("Pad", _floats(3, 4), _ints(1, 2, 0, 3), mode="wrap", opset=19),
    _case("DepthToSpace", _floats(1, 8, 2, 3), blocksize=2),
    _case("DepthToSpace", _floats(1, 8, 2, 3), blocksize=2, mode="CRD"),
    _case("SpaceToDepth", _floats(1, 2, 4, 6), blocksize=2),
    _case("ReverseSequence", _floats(4, 3), _ints(2, 4, 1)),
    _case("Trilu", _floats(3, 4), np.array(1, np.int64), upper=0),
    # indexing
    *(_case("Gather", _floats(4, 3, 2), _ints([0, 2, 2], [1, 0, -1]), axis=axis, opset=opset)
      for axis, opset in ((0, 18), (1, 18), (0, 13), (1, 13))),
    _case("Gather", _floats(4, 3), np.array(-1, np.int64), axis=1),
    _case("Gather", _floats(4, 3), _ints([2]), axis=0),
    _case("GatherElements", _floats(3, 4), _ints([0, 2, 2, 1], [1, 1, 0, 0]), axis=0),
    _case("GatherND", _floats(3, 4), _ints([0, 2], [2, 1], [0, 2])),
    _case("ScatterElements", _floats(3, 4), _ints([0, 2], [1, 1]), _floats(2, 2), axis=0),
    _case("ScatterElements", _floats(3, 4), _ints([0, 2], [0, 1]), _floats(2, 2), axis=0, reduction="add"),
    _case("ScatterND", _floats(3, 4), _ints([0], [2]), _floats(2, 4)),
    _case("GatherND", _floats(2, 3, 4), _ints([[0], [2]], [[1], [1]]), batch_dims=1),
    *(_case("ScatterElements", _floats(3, 4), _ints([0, 2], [0, 1]), _floats(2, 2), axis=0, reduction=how)
      for how in ("mul", "max", "min")),
    *(_case("ScatterND", _floats(3, 4), _ints([0], [2], [0]), _floats(3, 4), reduction=how)
      for how in ("add", "mul", "max", "min")),
    _case("ScatterND", _floats(3), _ints([0], [2], [0], [1]), np.array([0.0, 2, 3, 0]), reduction="mul"),
    _case("Compress", _floats(3, 4), np.array([True, False, True]), axis=1),
    _case("Compress", _floats(3, 4), np.array([False, True, True, False, True])),
    _case("OneHot", _ints(0, 2, -1), np.array(3, np.int64), _floats(2), axis=0),
    *(_case("TensorScatter", _floats(2, 3, 4, 2), _floats(2, 3, 2, 2), _ints(*first), opset=24, mode=mode)
      for mode, first in (("linear", (0, 2)), ("circular", (3, 1)))),
    # quantization
    _case("DequantizeLinear", _ints([3, -2], [5, 7]).astype(np.int8), np.array(0.3), np.array(2, np.int8)),
    _case("DequantizeLinear", _ints([3, -2], [5, 7]).astype(np.int8), np.array([0.3, 0.7]), axis=0),
    # products
    *(_case("MatMul", _floats(*left), _floats(*right)) for left, right in (
        ((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 2)),
        ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
    )),
    *(_case("Gemm", _floats(*((4, 3) if a else (3, 4))), _floats(*((2, 4) if b else (4, 2))), _floats(2), transA=a,
            transB=b, alpha=0.7, beta=1.3) for a in (0, 1) for b in (0, 1)),
    _case("Einsum", _floats(2, 3, 4), _floats(4, 5), equation="bij,jk->bik"),
    _case("Einsum", _floats(2, 3), _floats(3, 4), equation="ij,jk"),
    _case("Einsum", _floats(2, 3, 4), equation="bij->j"),
    _case("Einsum", _floats(2, 3, 4), _floats(1, 4, 5), equation="...ij,...jk->...ik"),
    _case("Einsum", _floats(2, 3, 4), _floats(4), equation="...j,j"),
    # windows
    _case("Conv", IMAGE, _floats(3, 4, 3, 2), _floats(3), pads=[1, 0, 1, 1], strides=[2, 1]),
    _case("Conv", IMAGE, _floats(3, 4, 2, 2), strides=[3, 2], dilations=[2, 1]),
    _case("Conv", IMAGE, _floats(6, 2, 3, 3), _floats(6), group=2, pads=[1, 1, 1, 1], strides=[2, 2]),
    _case("Conv", IMAGE, _floats(4, 1, 3, 3), group=4, pads=[1, 1, 1, 1]),
    _case("Conv", _floats(2, 1, 6, 5), _floats(2, 1, 3, 3), strides=[2, 3]),
    _case("Conv", IMAGE, _floats(2, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    _case("Conv", _floats(2, 3, 9), _floats(4, 3, 2), strides=[2]),
    _case("Conv", IMAGE, _floats(3, 4, 1, 1)),
    _case("ConvTranspose", _floats(2, 4, 3, 3), _floats(4, 2, 3, 3), _floats(2), strides=[2, 2], pads=[1, 1, 1, 1],
          output_padding=[1, 0]),
    _case("ConvTranspose", _floats(1, 4, 3, 3), _floats(4, 2, 2, 3), group=2, strides=[2, 1]),
    _case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    *(_case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1], opset=opset)
      for opset in (9, 10, 12)),
    _case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], opset=9),
    _case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], opset=12),
    _case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    _case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 0], count_include_pad=1),
    _case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, opset=19),
    _case("GlobalAveragePool", IMAGE),
    *(_case("LpPool", APART, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], p=p) for p in (1, 2, 3)),
    *(_case("GlobalLpPool", APART, p=p) for p in (1, 2, 3)),
    _case("MaxUnpool", _floats(1, 2, 2, 2), _ints([[[5, 2], [8, 15]], [[16, 19], [29, 26]]]), kernel_shape=[2, 2],
          strides=[2, 2]),
    _case("Col2Im", _floats(1, 8, 9), _ints(5, 4), _ints(2, 2), pads=[1, 0, 0, 1], strides=[2, 1], dilations=[1, 2]),
    _case("Col2Im", _floats(1, 4, 12), _ints(4, 5), _ints(2, 2)),
    _case("GlobalMaxPool", IMAGE),
    # resampling
    *(_resized(mode, coordinate_transformation_mode=where) for mode in ("linear", "nearest", "cubic") for where in (
        "half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners", "pytorch_half_pixel",
    )),
    *(_resized("nearest", nearest_mode=how) for how in ("floor", "ceil", "round_prefer_ceil")),
    *(_resized(mode, sizes=(2, 3, 3, 2), antialias=1) for mode in ("linear", "cubic")),
    _resized("cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    _resized("linear", area=(0, 0, 0.1, -0.2, 1, 1, 0.8, 1.1), extrapolation_value=2.0,
             coordinate_transformation_mode="tf_crop_and_resize"),
    _resized("nearest", scales=(1, 1, 2, 3)),
    _resized("nearest", scales=(2, 3), axes=[2, 3]),
    _resized("linear", sizes=(5, 7), axes=[3, 2]),
    _resized("linear", scales=(1, 2, 1.5, 1)),
    _resized("linear", sizes=(2, 3, 7, 9), opset=11),
    *(_case("Resize", _floats(2, 2, 3, 4), np.array(scales, np.float32), opset=10, mode=mode)
      for mode, scales in (("nearest", (1, 1, 2, 2)), ("linear", (1, 1, 1.5, 2)), ("nearest", (1, 1, 1.5, 2)))),
    *(_case("Upsample", _floats(2, 2, 3, 4), np.array((1, 1, 2, 3), np.float32), opset=9, mode=mode)
      for mode in ("nearest", "linear")),
    _case("AffineGrid", _floats(2, 2, 3), _ints(2, 1, 3, 4), opset=20),
    _case("AffineGrid", _floats(1, 3, 4), _ints(1, 1, 2, 3, 2), align_corners=1, opset=20),
    # between elements
    *(_case("GridSample", SQUARE, GRID, opset=22, mode=mode, padding_mode=outside, align_corners=corners)
      for mode in ("linear", "cubic", "nearest") for outside in ("zeros", "border", "reflection")
      for corners in (0, 1)),
    *(_case("GridSample", SQUARE, GRID[:, :1, :1], opset=16, mode=mode) for mode in ("bilinear", "bicubic")),
    *(_case("GridSample", _floats(1, 2, 3, 4, 2), _floats(1, 2, 1, 3, 3, low=-1.4, high=1.4), opset=20, mode=mode,
            padding_mode=outside) for mode in ("linear", "nearest") for outside in ("zeros", "border", "reflection")),
    _deformed(kernel=(2, 3), channels=2, biases=True, masked=True),
    _deformed(kernel=(3, 2), channels=4, pads=[1, 0, 1, 1], strides=[2, 1], dilations=[1, 2], offset_group=2),
    _deformed(kernel=(2, 2), channels=4, group=2, offset_group=2, masked=True, pads=[1, 1, 0, 0]),
    # regions
    *(_case("RoiAlign", SQUARE, REGIONS, _ints(0, 1, 0), opset=16, output_height=2, output_width=3, sampling_ratio=2,
            spatial_scale=0.5, coordinate_transformation_mode=mode) for mode in ("half_pixel", "output_half_pixel")),
    _case("RoiAlign", SQUARE, REGIONS, _ints(0, 1, 1), opset=10, output_height=3, output_width=1, sampling_ratio=1),
    *(_case("MaxRoiPool", SQUARE, np.concatenate([np.array([[0], [1], [0]]), REGIONS], 1), pooled_shape=shape,
            spatial_scale=scale) for shape, scale in (([2, 3], 0.5), ([1, 2], 1.0))),
    # normalizations
    *(_case(name, _floats(2, 3, 4), axis=1, opset=opset) for name in ("Softmax", "LogSoftmax") for opset in (11, 13)),
    _case("LayerNormalization", _floats(2, 3, 4), _floats(3, 4), _floats(3, 4), axis=1),
    _case("RMSNormalization", _floats(2, 3, 4), _floats(4), axis=-1, opset=23),
    _case("InstanceNormalization", _floats(2, 3, 4, 2), _floats(3), _floats(3)),
    _case("GroupNormalization", _floats(2, 4, 3), _floats(4), _floats(4), num_groups=2, opset=21, stash_type=11),
    _case("BatchNormalization", _floats(2, 3, 4), _floats(3), _floats(3), _floats(3), _floats(3, low=0.4)),
    _case("LpNormalization", _floats(3, 4), axis=1, p=2),
    _case("LpNormalization", _floats(3, 4), axis=0, p=1),
    _case("LRN", _floats(2, 5, 2, 2), size=3, alpha=0.2, beta=0.6, bias=1.5),
    _case("LRN", _floats(2, 5, 2, 2), size=5, alpha=0.2),
    # recurrent layers
    *(_recurrent(name) for name in ("LSTM", "GRU", "RNN")),
    *(_recurrent(name, starts=False, biases=False, direction="reverse") for name in ("LSTM", "GRU", "RNN")),
    *(_recurrent(name, directions=2, lengths=(3, 1), direction="bidirectional") for name in ("LSTM", "GRU", "RNN")),
    _recurrent("GRU", linear_before_reset=1),
    _recurrent("GRU", linear_before_reset=1, directions=2, lengths=(2, 3), direction="bidirectional"),
    _case("RNN", _floats(3, 2, 2), _floats(1, 2, 2), _floats(1, 2, 2, low=-0.5, high=0.5), np.array([[9.0, -9, 0, 0]]),
          results=2, hidden_size=2, activations=["Relu"]),  # one unit is on, and one is off
    _recurrent("LSTM", activations=["Sigmoid", "Sigmoid", "Tanh"], opset=9),
    _recurrent("LSTM", directions=2, direction="bidirectional", opset=9),
    *(_recurrent("LSTM", peepholes=True, **more) for more in ({}, {"input_forget": 1}, {
        "directions": 2, "lengths": (3, 1), "direction": "bidirectional"}, {"starts": False, "biases": False})),
    _recurrent("LSTM", input_forget=1),
    # spectra
    *(_case("DFT", _floats(2, 5, 3, parts), opset=17, **attributes) for parts in (1, 2) for attributes in (
        {}, {"axis": 2}, {"inverse": 1})),
    *(_case("DFT", _floats(2, 5, 3, 1), None if length is None else np.array(length), opset=17, onesided=1, axis=axis)
      for axis in (1, 2) for length in (None, 4, 7)),
    _case("DFT", _floats(2, 6, 2), np.array(4), np.array(1), opset=20, inverse=1),
    _case("DFT", _floats(2, 6, 1), opset=20),
    # losses
    *(_case("SoftmaxCrossEntropyLoss", _floats(3, 4, 2), _ints([0, 3], [1, 1], [2, 0]), results=1, reduction=kind)
      for kind in ("mean", "sum", "none")),
    _case("SoftmaxCrossEntropyLoss", _floats(3, 4), _ints(0, 3, 1), RNG.uniform(0.5, 2, 4), ignore_index=3),
    _case("NegativeLogLikelihoodLoss", _floats(3, 4), _ints(0, 3, 1), ignore_index=1, reduction="mean"),
    _case("NegativeLogLikelihoodLoss", _floats(3, 4), _ints(0, 3, 1), RNG.uniform(0.5, 2, 4), reduction="sum"),
]  # fmt: skip
# How many operands of floats have gradients, where not all have: not what a loss weighs classes by, scales, regions.
FLAT = {
    "RoiAlign": 1,
    "MaxRoiPool": 1,
    "SoftmaxCrossEntropyLoss": 1,
    "NegativeLogLikelihoodLoss": 1,
    "Resize": 1,
    "Upsample": 1,
}


def _title(case: Case) -> str:
    op_type, attributes, inputs, _, opset = case
    shapes = "_".join("x".join(map(str, array.shape)) for array in inputs.values())
    return "-".join([op_type, shapes, str(opset), *(f"{name}{value}" for name, value in attributes.items())])


@pytest.mark.parametrize("case", CASES, ids=_title)
def test_gradient_is_that_of_central_differences(case: Case) -> None:
    op_type, attributes, inputs, results, opset = case
    outputs = [f"y{at}" for at in range(results)]
    last = max(int(name[1:]) for name in inputs)
    operands = [f"x{at}" if f"x{at}" in inputs else "" for at in range(last + 1)]
    node = helper.make_node(op_type, operands, outputs, name="n", **attributes)
    # Positions that read the nearest element have none, and of cubics differences in float32 are too coarse.
    flat = 1 if attributes.get("mode") in ("nearest", "bicubic") and op_type == "GridSample" else FLAT.get(op_type)
    floats = [name for name, array in inputs.items() if array.dtype.kind == "f"][:flat]
    agree([node], inputs, outputs[:1] if op_type == "TopK" else outputs, floats, opset)


def test_every_operator_with_a_rule_is_compared() -> None:
    ruled = {name for (domain, name), one in OPERATORS.items() if one.gradient is not None and not domain}
    flat = {"Ceil", "Floor", "Round", "Sign", "IsInf", "IsNaN", "Equal", "Less", "Greater", "LessOrEqual",
            "GreaterOrEqual", "ArgMax", "ArgMin", "Hardmax"}  # fmt: skip
    elsewhere = {"Dropout", "QuantizeLinear", "Scan", "Loop", "If"}  # test_training, _quantized, _scan, _loops
    assert ruled - flat - elsewhere - {case[0] for case in CASES} == {"CastLike"}


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    "attributes", [{"pads": [2, 0, 1, 1]}, {"pads": [6, 1, 7, 0]}, {"strides": [2, 1]}, {"dilations": [2, 1]}], ids=str
)
def test_large_images_go_in_bands_into_the_gradient_to_weights(
    images: int, attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one image, or images of a batch: at most so many bytes together."""
    monkeypatch.setattr(windows, "BAND", 300)
    inputs = {"x0": _floats(images, 4, 9, 5), "x1": _floats(3, 4, 2, 2)}
    node = helper.make_node("Conv", ["x0", "x1"], ["y0"], name="n", **attributes)
    agree([node], inputs, ["y0"], list(inputs), 18)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
@pytest.mark.parametrize("attributes", [{}, {"pads": [2, 0, 1, 1], "dilations": [2, 1]}], ids=str)
def test_the_gradient_to_a_large_image_is_a_convolution(
    kernel: tuple[int, int], attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights turned around; where the pads are wider than the kernel it stays a transposed convolution."""
    monkeypatch.setattr(windows, "TURNED", 8)
    inputs = {"x0": _floats(2, 4, 9, 5), "x1": _floats(3, 4, *kernel)}
    node = helper.make_node("Conv", ["x0", "x1"], ["y0"], name="n", **attributes)
    agree([node], inputs, ["y0"], list(inputs), 18)
    made = graphopt.gradient(weighted([node], inputs, ["y0"], list(inputs), 18), loss="loss", with_respect_to=["x0"])
    kinds = [one.op_type for one in made.to_proto().graph.node if one.name.startswith("gradient/n/")]
    assert kinds[-1] == ("ConvTranspose" if kernel == (1, 1) and attributes else "Conv")

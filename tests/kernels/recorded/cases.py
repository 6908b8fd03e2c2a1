"""Problems of every template, small ones with rests and one of a network's size, whose kernels are recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from kernels.dtype import DType
from kernels.templates import indexed
from kernels.templates.attention.build import ATTENTION
from kernels.templates.attention.problem import Attention, Mask, Strides
from kernels.templates.convolution.choose import DIRECT
from kernels.templates.convolution.depthwise import DEPTHWISE
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.convolution.ways import CONVOLUTION
from kernels.templates.convolution.winograd import WINOGRAD
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.epilogue import ACCUMULATED, ACCUMULATED_INTEGER, Epilogue
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.matrix import Matrix
from kernels.templates.normalization import NORMALIZATION, NORMALIZED, Normalization
from kernels.templates.pooling import POOLING
from kernels.templates.pooling_problem import Pooling
from kernels.templates.recurrent.build import RECURRENT
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.reduction import REDUCTION, Op, Reduction, reduced
from kernels.templates.resize import RESIZE, Coordinates, Resize
from kernels.templates.scan import CUMULATIVE_SUM, CumulativeSum
from kernels.templates.softmax import SOFTMAX, SOFTMAX_ROWS, Softmax
from kernels.templates.template import Template
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Expression,
    Load,
    Number,
    Unary,
    Variable,
    clip,
    gelu,
    gelu_tanh,
    index,
    relu,
    silu,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem by what is special about it."""

    name: str
    template: Template[Any, Any]
    problem: Any
    weights: tuple[int, ...] | None = None  # dims of the packed constant; None: there is none, or packing rounds


def _with_bias(plain: Gemm) -> Gemm:
    bias = Buffer("bias", DType.F32, (plain.columns,))[plain.column]
    return replace(plain, epilogue=Epilogue(relu(ACCUMULATED[()] + bias)))


def _products() -> list[Case]:
    heads = Gemm(
        37, 45, 24, (2, 3), a=Matrix(24, 1, (3 * 37 * 24, 37 * 24)), b=Matrix(1, 24, (3 * 45 * 24, 45 * 24)),
        constant_b=False,
    )  # fmt: skip
    residual = Gemm(5, 20, 7)
    added = Buffer("r", DType.F32, (5, 20))[residual.row, residual.column]
    return [
        Case("a layer", GEMM, _with_bias(Gemm(128, 768, 768)), (768, 768)),
        Case("one row", GEMM, _with_bias(Gemm(1, 1000, 2048)), (2048, 1000)),
        Case("rests everywhere", GEMM, Gemm(29, 77, 65), (65, 77)),
        Case("two computed matrices", GEMM, Gemm(100, 70, 33, constant_b=False)),
        Case("a computed matrix a page apart", GEMM, Gemm(40, 1024, 33, constant_b=False)),
        Case("heads with transposed keys", GEMM, heads),
        Case("a constant for each of a batch", GEMM, Gemm(3, 20, 6, (4,)), (4, 6, 20)),
        Case("a residual, gelu, half precision", GEMM,
             replace(residual, epilogue=Epilogue(Cast(DType.F16, gelu(ACCUMULATED[()] + added)))), (7, 20)),
        Case("no depth", GEMM, Gemm(3, 4, 0), (0, 4)),
        Case("no rows", GEMM, Gemm(0, 4, 3), (3, 4)),
        Case("two rows", GEMM, Gemm(2, 4096, 4096)),
        Case("tall", GEMM, Gemm(4096, 64, 512)),
        Case("tall and computed", GEMM, Gemm(2048, 256, 1024, constant_b=False)),
        Case("computed by columns", GEMM, Gemm(64, 300, 90, b=Matrix(1, 90), constant_b=False)),
        Case("deep", GEMM, Gemm(70, 70, 3000), (3000, 70)),
        Case("many rows of few columns", GEMM, Gemm(3000, 9, 300), (300, 9)),
    ]  # fmt: skip


def low_precision() -> list[Case]:
    """Products of bytes and of bfloat16, for processors that have the instructions."""
    whole = Epilogue(ACCUMULATED_INTEGER[()])
    return [
        Case("bytes", GEMM, Gemm(29, 77, 65, arithmetic="u8s8", epilogue=whole), (65, 77)),
        Case("bytes, computed", GEMM, Gemm(29, 77, 65, arithmetic="u8s8", epilogue=whole, constant_b=False)),
        Case("bytes by columns", GEMM, Gemm(9, 20, 6, a=Matrix(1, 9), arithmetic="u8s8", epilogue=whole), (6, 20)),
        Case("bfloat16", GEMM, Gemm(29, 77, 65, arithmetic="bf16"), (65, 77)),
    ]


def _convolutions() -> list[Case]:
    def joined(plain: Convolution) -> Convolution:
        """With a bias, a residual and an activation."""
        bias = Buffer("bias", DType.F32, (plain.output.channels,))[plain.channel]
        return replace(plain, epilogue=Epilogue(relu(ACCUMULATED[()] + bias + plain.like_output("r"))))

    pads = (1, 1, 1, 1)
    three = convolution(1, 64, 64, (28, 28), (3, 3), pads=pads, order="NCHWc")
    first = convolution(1, 3, 64, (56, 56), (7, 7), pads=(3,) * 4, strides=(2, 2), output_order="NCHWc")
    single = convolution(1, 64, 256, (14, 14), (1, 1), order="NCHWc")
    late = convolution(1, 512, 2048, (7, 7), (1, 1), order="NCHWc")
    rests = convolution(2, 5, 21, (9, 13), (3, 2), pads=(1, 0, 2, 1), strides=(2, 1), dilations=(1, 2), order="NHWC")
    grouped = convolution(1, 24, 12, (5, 6), (3, 3), pads=pads, groups=4, order="NHWC")
    ahead = convolution(1, 64, 64, (14, 14), (3, 3), pads=pads, order="NCHWc", halo=1)
    planes = convolution(1, 6, 20, (4, 5, 6), (2, 2, 2), order="NHWC")
    turned = convolution(1, 20, 18, (6, 7), (3, 3), pads=pads, order="NHWC", output_order="NCHW")
    spread = Convolution(
        Layout(1, 8, (1, 5, 6), "NHWC"), Layout(1, 12, (1, 11, 13), "NHWC"), (1, 3, 3), pads=(0, 2, 2),
        input_dilations=(1, 2, 2), transposed=True,
    )  # fmt: skip
    uneven = convolution(1, 32, 48, (9, 11), (3, 3), pads=(1, 0, 0, 1), order="NHWC")
    alone = convolution(1, 32, 32, (28, 28), (3, 3), pads=pads, groups=32, order="NHWC")
    blocks = convolution(2, 40, 40, (9, 15), (5, 5), pads=(2,) * 4, strides=(2, 2), groups=40, order="NCHWc", halo=2)
    return [
        Case("3x3, joined", CONVOLUTION, joined(three)),
        Case("the first layer", CONVOLUTION, first, (64, 3, 7, 7)),
        Case("1x1", CONVOLUTION, joined(single), (256, 64, 1, 1)),
        Case("1x1 of many weights", DIRECT, late),
        Case("rests everywhere", DIRECT, joined(rests), (21, 5, 3, 2)),
        Case("groups", DIRECT, grouped, (12, 6, 3, 3)),
        Case("zeros that are stored", DIRECT, ahead, (64, 64, 3, 3)),
        Case("planes", DIRECT, planes, (20, 6, 2, 2, 2)),
        Case("to channels first", DIRECT, turned, (18, 20, 3, 3)),
        Case("transposed", DIRECT, spread, (8, 12, 3, 3)),
        Case("many channels last", DIRECT, convolution(1, 256, 256, (56, 56), (3, 3), pads=pads, order="NHWC")),
        Case("a large kernel", DIRECT, convolution(1, 32, 48, (60, 60), (5, 5), order="NCHWc", strides=(2, 2))),
        Case("late 3x3", DIRECT, convolution(2, 512, 512, (7, 7), (3, 3), pads=pads, order="NCHWc")),
        Case("late 3x3 with zeros", DIRECT,
             convolution(1, 512, 512, (14, 14), (3, 3), pads=pads, order="NCHWc", halo=1)),
        Case("1x1 of planes a page apart", CONVOLUTION, convolution(1, 256, 64, (32, 32), (1, 1), order="NCHWc")),
        Case("1x1 of few planes a page apart", CONVOLUTION,
             convolution(1, 64, 64, (32, 32), (1, 1), order="NCHWc")),
        Case("1x1 of few pixels", CONVOLUTION, convolution(1, 1024, 256, (7, 7), (1, 1), order="NCHWc")),
        Case("groups in blocks", DIRECT, convolution(1, 64, 64, (14, 14), (3, 3), pads=pads, order="NCHWc", groups=4)),
        Case("small groups in blocks", DIRECT,
             convolution(1, 64, 64, (14, 14), (3, 3), pads=pads, order="NCHWc", groups=32)),
        Case("odd groups in blocks", CONVOLUTION,
             convolution(1, 104, 104, (14, 14), (3, 3), pads=pads, order="NCHWc", strides=(2, 2), groups=13),
             (104, 8, 3, 3)),
        Case("one row of pixels", DIRECT, convolution(1, 16, 32, (50,), (3,), pads=(1, 1), order="NHWC")),
        Case("few channels, direct or not", CONVOLUTION,
             convolution(1, 16, 16, (5, 5), (3, 3), pads=pads, order="NCHWc")),
        Case("depthwise", DEPTHWISE, joined(alone), (32, 1, 3, 3)),
        Case("depthwise in blocks", DEPTHWISE, blocks, (40, 1, 5, 5)),
        Case("Winograd", WINOGRAD, joined(three)),
        Case("Winograd with rests", WINOGRAD, uneven),
        Case("Winograd of few pixels", WINOGRAD,
             convolution(1, 128, 128, (7, 7), (3, 3), pads=pads, order="NCHWc")),
        Case("Winograd along rows, dilated", WINOGRAD,
             convolution(1, 64, 64, (400,), (3,), pads=(5, 5), dilations=(5,), order="NCHWc")),
        Case("Winograd down columns, in parts", WINOGRAD,
             convolution(1, 64, 64, (33, 20), (11, 1), pads=(5, 0, 5, 0), order="NCHWc")),
        Case("Winograd of stride 2", WINOGRAD,
             convolution(1, 64, 64, (33, 40), (5, 3), pads=(2, 1, 2, 1), strides=(2, 2), order="NCHWc")),
        Case("Winograd of 5x5, dilated", WINOGRAD,
             convolution(1, 64, 64, (33, 20), (5, 5), pads=(4,) * 4, dilations=(2, 2), order="NCHWc")),
        Case("Winograd of groups", WINOGRAD,
             convolution(1, 104, 104, (14, 14), (3, 3), pads=pads, order="NCHWc", groups=13)),
    ]  # fmt: skip


def _pooling() -> list[Case]:
    def windows(size: Sequence[int], kernel: Sequence[int], order: Order = "NHWC", **more: Any) -> Convolution:
        channels = more.pop("channels", 20)
        return convolution(2, channels, channels, size, kernel, groups=channels, order=order, **more)

    halved = windows((9, 12), (3, 3), pads=(1,) * 4, strides=(2, 2))
    blocks = Layout(1, 24, (1, 6, 5), "NCHWc", 16)
    return [
        Case("largest", POOLING, Pooling(halved, "max")),
        Case("average with pads", POOLING, Pooling(halved, "average", count_pads=True, after=(0, 1, 1))),
        Case("average of what is there", POOLING, Pooling(halved, "average")),
        Case("all of it, in blocks", POOLING, Pooling(windows((7, 7), (7, 7), "NCHWc", channels=40), "average")),
        Case("channels first", POOLING, Pooling(windows((8, 9), (2, 3), "NCHW", strides=(2, 1)), "max")),
        Case("dilated, in planes", POOLING, Pooling(windows((4, 5, 6), (2, 2, 2), dilations=(1, 2, 1)), "max")),
        Case("a large image", POOLING,
             Pooling(windows((112, 112), (3, 3), "NCHWc", pads=(1,) * 4, channels=64), "max")),
        Case("wide windows", POOLING, Pooling(windows((30, 90), (9, 31)), "average")),
        Case("a large image, linear", RESIZE,
             Resize(Layout(1, 64, (1, 56, 56), "NCHWc", 16), Layout(1, 64, (1, 112, 112), "NCHWc", 16), "linear",
                    "half_pixel_symmetric", scales=(1.0, 2.0, 2.0))),
        *(
            Case(f"{way} of sizes that were rounded down", RESIZE,
                 Resize(Layout(1, 8, (1, 4, 5), "NHWC"), Layout(1, 8, (1, 6, 12), "NHWC"), "linear", way,
                        scales=(1.0, 1.6, 2.5)))
            for way in get_args(Coordinates)
        ),
        Case("to twice the size", RESIZE, Resize(blocks, replace(blocks, size=(1, 12, 10)), "nearest")),
        Case("linear", RESIZE, Resize(Layout(2, 5, (1, 6, 5)), Layout(2, 5, (1, 4, 11)), "linear", "align_corners")),
        Case("linear, channels last", RESIZE,
             Resize(Layout(1, 21, (2, 3, 4), "NHWC"), Layout(1, 21, (3, 6, 4), "NHWC"), "linear")),
    ]  # fmt: skip


def _attention() -> list[Case]:
    mask = Mask(5 * 40, 0, 40)
    beside = Strides(9 * 32, 8, 32)
    return [
        Case("heads", ATTENTION, Attention(2, 4, 64, 64, 32)),
        Case("a mask, rests, another size of values", ATTENTION, Attention(2, 2, 5, 40, 24, value_size=20, mask=mask)),
        Case("causal, grouped, capped", ATTENTION,
             Attention(1, 4, 30, 33, 16, groups=2, causal=True, past=3, softcap=2.0)),
        Case("many rows", ATTENTION, Attention(1, 2, 400, 400, 64, causal=True)),
        Case("two rows, grouped", ATTENTION, Attention(1, 8, 2, 50, 32, groups=2)),
        Case("four rows", ATTENTION, Attention(1, 1, 4, 50, 20)),
        Case("no rows", ATTENTION, Attention(1, 2, 0, 5, 8)),
        Case("a mask for each row", ATTENTION, Attention(1, 2, 20, 30, 8, mask=Mask(0, 20, 1, 0))),
        Case("one row, lengths", ATTENTION, Attention(3, 2, 1, 70, 64, with_lengths=True)),
        Case("a mask of bools, heads beside each other", ATTENTION,
             Attention(2, 4, 9, 9, 8, mask=Mask(81, 0, 9, 1, DType.BOOL), q=beside, k=beside, v=beside, output=beside)),
    ]  # fmt: skip


def _recurrent() -> list[Case]:
    both = ("forward", "reverse")
    return [
        Case("LSTM", RECURRENT, Recurrent("lstm", 5, 3, 24), (1, 96, 24)),
        Case("LSTM both ways, lengths, peepholes", RECURRENT,
             Recurrent("lstm", 4, 9, 20, both, with_lengths=True, with_peepholes=True), (2, 80, 20)),
        Case("GRU", RECURRENT, Recurrent("gru", 5, 3, 40), (1, 120, 40)),
        Case("GRU, bias before the reset", RECURRENT,
             Recurrent("gru", 5, 13, 17, ("reverse",), linear_before_reset=True), (1, 51, 17)),
        Case("no units", RECURRENT, Recurrent("gru", 5, 3, 0)),
        Case("many units", RECURRENT, Recurrent("lstm", 2, 1, 200)),
        Case("RNN", RECURRENT, Recurrent("rnn", 2, 30, 9), (1, 9, 9)),
    ]  # fmt: skip


def _rows_and_columns(rows: int, columns: int) -> tuple[Variable, Variable]:
    return Variable("row", rows), Variable("column", columns)


def _row_wise() -> list[Case]:
    found = []
    for rows, columns, dtype in ((40, 768, DType.F32), (5, 37, DType.F16), (3, 5000, DType.F32), (7, 9, DType.BF16)):
        row, column = _rows_and_columns(rows, columns)
        x, y = Buffer("x", dtype, (rows, columns))[row, column], Buffer("y", DType.F32, (rows, columns))
        scale = Buffer("scale", DType.F32, (columns,))[column]
        name = f"{rows} x {columns} of {dtype.value}"
        soft, norm = Output(y, SOFTMAX[()]), Output(y, NORMALIZED[()] * scale)
        found += [
            Case(f"softmax, {name}", SOFTMAX_ROWS, Softmax((row,), (column,), x, (soft,))),
            Case(f"log-softmax, {name}", SOFTMAX_ROWS, Softmax((row,), (column,), x, (soft,), True)),
            Case(f"layer normalization, {name}", NORMALIZATION, Normalization((row,), (column,), x, (norm,))),
            Case(f"root mean square, {name}", NORMALIZATION,
                 Normalization((row,), (column,), x, (norm,), 1e-3, "none")),
        ]  # fmt: skip
    # As many vectors as registers hold at most, and one element more; no elements; two dims of columns.
    for rows, columns in ((9, 32), (9, 33), (9, 96), (9, 97), (9, 192), (9, 193), (0, 8), (8, 0)):
        row, column = _rows_and_columns(rows, columns)
        x, y = Buffer("x", DType.F32, (rows, columns))[row, column], Buffer("y", DType.F32, (rows, columns))
        found += [
            Case(f"softmax of {rows} x {columns}", SOFTMAX_ROWS,
                 Softmax((row,), (column,), x, (Output(y, SOFTMAX[()]),))),
            Case(f"layer normalization of {rows} x {columns}", NORMALIZATION,
                 Normalization((row,), (column,), x, (Output(y, NORMALIZED[()]),))),
        ]  # fmt: skip
    planes, (row, column) = Variable("plane", 3), _rows_and_columns(7, 20)
    whole = Buffer("x", DType.F32, (3, 7, 20))[planes, row, column]
    norm = Output(Buffer("y", DType.F32, (3, 7, 20)), NORMALIZED[()] + whole)
    found.append(
        Case("layer normalization of planes", NORMALIZATION, Normalization((planes,), (row, column), whole, (norm,)))
    )
    row, column = _rows_and_columns(6, 50)
    across = Buffer("x", DType.F32, (50, 6))[column, row]
    turned = Output(Buffer("y", DType.F32, (50, 6)), SOFTMAX[()], (index(column), index(row)))
    found.append(Case("softmax across", SOFTMAX_ROWS, Softmax((row,), (column,), across, (turned,))))
    norm = Output(Buffer("y", DType.F32, (50, 6)), NORMALIZED[()], (index(column), index(row)))
    found.append(Case("layer normalization across", NORMALIZATION, Normalization((row,), (column,), across, (norm,))))
    return found


def _reductions() -> list[Case]:
    found = []
    every: dict[Op, DType] = {
        "sum": DType.F32, "mean": DType.F16, "max": DType.F32, "min": DType.I8, "prod": DType.I64, "l1": DType.F64,
        "l2": DType.F32, "sum_square": DType.I32, "log_sum_exp": DType.F32, "argmax": DType.F32, "argmin": DType.U8,
    }  # fmt: skip
    for op, dtype in every.items():
        row, column = _rows_and_columns(9, 130)
        x = Buffer("x", dtype, (9, 130))
        value = reduced(op, dtype)
        output = Output(Buffer("y", value.dtype, (9,)), value[()])
        found.append(
            Case(f"{op} of {dtype.value}", REDUCTION, Reduction((row,), (column,), op, x[row, column], (output,)))
        )
        across = Buffer("x", dtype, (130, 9))[column, row]
        found.append(Case(f"{op} of {dtype.value} across", REDUCTION,
                          Reduction((row,), (column,), op, across, (output,), last=True)))  # fmt: skip
    for rows, columns in ((0, 4), (4, 0), (1, 100_000), (3000, 2)):
        row, column = _rows_and_columns(rows, columns)
        x = Buffer("x", DType.F32, (rows, columns))[row, column]
        output = Output(Buffer("y", DType.F32, (rows,)), reduced("sum", DType.F32)[()])
        found.append(Case(f"sum of {rows} x {columns}", REDUCTION, Reduction((row,), (column,), "sum", x, (output,))))
    image, channel, line, pixel = (Variable(name, size) for name, size in zip("icrp", (2, 3, 40, 50), strict=True))
    x = Buffer("x", DType.F32, (2, 3, 40, 50))[image, channel, line, pixel]
    whole = Output(Buffer("y", DType.F32, (3,)), reduced("sum", DType.F32)[()] * 2.0)
    found.append(Case("sums of images", REDUCTION, Reduction((channel,), (image, line, pixel), "sum", x, (whole,))))
    return found


def _elementwise() -> list[Case]:
    def chain(name: str, shape: tuple[int, ...], value: Any, dtype: DType = DType.F32) -> Case:
        axes = tuple(Variable(f"d{place}", size) for place, size in enumerate(shape))
        made: Expression = value(axes)
        return Case(name, ELEMENTWISE, Elementwise(axes, (Output(Buffer("y", made.dtype, shape), made),)))

    def read(name: str, shape: tuple[int, ...], dtype: DType = DType.F32, strides: tuple[int, ...] = ()) -> Any:
        buffer = Buffer(name, dtype, shape, strides)
        return lambda axes: Load(buffer, tuple(index(axis) for axis in axes))

    def scaled(axes: tuple[Variable, ...]) -> Expression:
        scale = Buffer("scale", DType.F32, (12,))[axes[1:2]]
        return Unary("tanh", read("x", (7, 12, 33))(axes) * scale) + read("z", (7, 12, 33))(axes)

    def power(exponent: float, dtype: DType = DType.F32) -> Any:
        return lambda axes: Binary("pow", read("x", (40,), dtype)(axes), Number(exponent, dtype))

    def placed(axes: tuple[Variable, ...]) -> Expression:
        return read("x", (300, 400))(axes) + Buffer("row", DType.F32, (300,))[axes[:1]]

    return [
        *(chain(f"to the power {exponent}", (40,), power(exponent)) for exponent in (0.5, 2.0, 3.0, 4.0)),
        chain("bfloat16 and a number", (40,), lambda axes: read("x", (40,), DType.BF16)(axes) * 1.7),
        chain("gelu by tanh", (40,), lambda axes: gelu_tanh(read("x", (40,))(axes))),
        chain("silu, clipped", (40,), lambda axes: clip(silu(read("x", (40,))(axes)), -1.0, 1.0)),
        chain("a copy", (1000,), read("x", (1000,))),
        chain("a long chain", (7, 12, 33), scaled),
        chain("broadcast rows", (300, 400), placed),
        chain("turned", (40, 50), read("x", (40, 50), strides=(1, 40))),
        chain("every third", (5, 21), read("x", (5, 21), strides=(63, 3))),
        chain("bytes", (3, 77), read("x", (3, 77), DType.U8)),
        chain("bytes to floats", (3, 77), lambda axes: Cast(DType.F32, read("x", (3, 77), DType.I8)(axes))),
        chain("of one", (1,), read("x", (1,))),
        chain("of none", (0, 4), read("x", (0, 4))),
        chain("a million", (1024, 1024), lambda axes: Unary("erf", read("x", (1024, 1024))(axes))),
    ]


def _moved() -> list[Case]:
    f32, i64, i32 = DType.F32, DType.I64, DType.I32
    shape = (6, 7, 8)
    return [
        Case("rows by number", indexed.INDEXED, indexed.gather((50, 40), 0, (3, 5), f32)),
        Case("columns by number", indexed.INDEXED, indexed.gather((9, 12), 1, (4,), DType.U8, i32)),
        Case("elements", indexed.INDEXED, indexed.gather_elements(shape, 1, (6, 3, 8), f32)),
        Case("slices", indexed.INDEXED, indexed.gather_nd(shape, (6, 2, 1), f32, i64, 1)),
        Case("scattered elements", indexed.INDEXED, indexed.scatter_elements(shape, 2, (6, 7, 2), f32, i64, "none")),
        Case("added elements", indexed.INDEXED, indexed.scatter_elements(shape, 0, (2, 7, 8), f32, i32, "add")),
        Case("scattered slices", indexed.INDEXED, indexed.scatter_nd(shape, (5, 1), f32, i64, "max")),
        Case("multiplied slices", indexed.INDEXED, indexed.scatter_nd(shape, (5, 3), i64, i64, "mul")),
        Case("a running sum of nothing", CUMULATIVE_SUM, CumulativeSum((0, 6), 1)),
        Case("a long running sum", CUMULATIVE_SUM, CumulativeSum((70, 40, 30), -2, reverse=True)),
        Case("many rows by number", indexed.INDEXED, indexed.gather((30_000, 300), 0, (128,), f32)),
        Case("numbers outside", indexed.INDEXED, indexed.gather((4,), 0, (), f32)),
        Case("running sums", CUMULATIVE_SUM, CumulativeSum((5, 6, 40), 1)),
        Case("from the end, without oneself", CUMULATIVE_SUM, CumulativeSum((5, 60), 1, i32, True, True)),
    ]


FAMILIES: dict[str, Callable[[], list[Case]]] = {
    "products": _products,
    "convolutions": _convolutions,
    "pooling": _pooling,
    "attention": _attention,
    "recurrent": _recurrent,
    "rows": _row_wise,
    "reductions": _reductions,
    "elementwise": _elementwise,
    "moved": _moved,
}

"""What no kernel computes is refused where it is described, each for one reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand
from kernels.listing import Argument, Listing, Place, Run
from kernels.run import Array, Executable
from kernels.target import host, x86_64_v3
from kernels.templates.attention.problem import Attention
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, convolution, whole
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.matrix import Matrix
from kernels.templates.pooling_problem import Pooling
from kernels.templates.quantized.arithmetic import shift_of_a, shift_of_b
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.reduction import Reduction, reduced
from kernels.templates.resize import Resize
from kernels.templates.scan import CumulativeSum
from kernels.templates.softmax import SOFTMAX, Softmax
from kernels.tensor.check import check_types
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
    index,
)
from kernels.tensor.program import Program, Stage
from tests.kernels.listings import perceptron

I, J = Variable("i", 4), Variable("j", 5)  # noqa: E741
X = Buffer("x", DType.F32, (4, 5))
WINDOWS = convolution(1, 8, 8, (6, 5), (2, 2), groups=8, order="NHWC")
ONE, SIX = (Layout(1, channels, (1, 6, 5), "NHWC") for channels in (8, 6))


def _reduction(op: str, dtype: DType) -> Reduction:
    value = reduced(op, dtype)  # type: ignore[arg-type]
    x = Buffer("x", dtype, (4, 5))[I, J]
    return Reduction((I,), (J,), op, x, (Output(Buffer("y", value.dtype, (4,)), value[()]),))  # type: ignore[arg-type]


def _given(a: Array) -> object:
    """A call of the product of six matrices of 3 x 5 with one of 5 x 4."""
    kernel = _product()
    arrays = {one.name: np.zeros(one.elements, np.float32) for one in kernel.operands}
    return Executable([kernel]).calls([(kernel, arrays | {"a": a})])


def _product(**changes: object) -> Kernel:
    gemm = Gemm(3, 4, 5, (2, 3), **changes)  # type: ignore[arg-type]
    return GEMM.build(gemm, GEMM.candidates(gemm, x86_64_v3())[0], x86_64_v3(), "p")


REFUSED: dict[str, Callable[[], object]] = {
    "8 channels to 6 cannot be split into 4 groups": lambda: Convolution(ONE, SIX, (1, 1, 1), groups=4),
    "6 channels to 8 cannot be split into 4 groups": lambda: Convolution(SIX, ONE, (1, 1, 1), groups=4),
    "must be positive, and pads not negative": lambda: Convolution(ONE, ONE, (1, 1, 1), pads=(0, -1, 0)),
    "kernel, strides and dilations must be": lambda: Convolution(ONE, ONE, (1, 0, 1)),
    "1 images come in and 2 go out": lambda: Convolution(ONE, replace(ONE, batch=2), (1, 1, 1)),
    "one to three spatial dims, not 4": lambda: whole((1, 2, 3, 4), 1),
    "one to three spatial dims, not 0": lambda: whole((), 1),
    "sees nothing whole in an input of": lambda: convolution(1, 1, 1, (3, 3), (4, 1)),
    "NHWC of 8 channels cannot have blocks of 4 channels": lambda: Layout(1, 8, (1, 6, 5), "NHWC", 4),
    "NCHWc of 8 channels cannot have blocks of 0": lambda: Layout(1, 8, (1, 6, 5), "NCHWc"),
    "an image needs positive dims and no negative halo": lambda: Layout(1, 8, (1, 0, 5)),
    "and no negative halo": lambda: Layout(1, 8, (1, 6, 5), after=(0, 0, -1)),
    "pooling keeps channels apart": lambda: Pooling(replace(WINDOWS, groups=4), "max"),
    "pooling keeps the order of dims": lambda: Pooling(
        replace(WINDOWS, output=replace(WINDOWS.output, order="NCHW", block=0)), "max"),
    "pooling keeps the order of dims and the blocks": lambda: Pooling(
        replace(WINDOWS, input=replace(WINDOWS.input, order="NCHWc", block=8),
                output=replace(WINDOWS.output, order="NCHWc", block=16)), "max"),
    "pooling has no zeros between": lambda: Pooling(replace(WINDOWS, input_dilations=(1, 2, 1)), "max"),
    "a window lies outside of the image": lambda: Pooling(replace(WINDOWS, pads=(0, 2, 0)), "max"),
    "resizing keeps images and channels": lambda: Resize(ONE, replace(ONE, batch=2), "nearest"),
    "5 heads of queries do not divide among 2": lambda: Attention(1, 5, 3, 3, 8, groups=2),
    "only an LSTM has peepholes, not gru": lambda: Recurrent("gru", 1, 1, 1, with_peepholes=True),
    "axis 2 is outside of 2 dims": lambda: CumulativeSum((3, 4), 2),
    "axis -3 is outside of 2 dims": lambda: CumulativeSum((3, 4), -3),
    "cumulative sums of bool are not supported": lambda: CumulativeSum((3, 4), 0, DType.BOOL),
    "log_sum_exp of f64 is not offered": lambda: _reduction("log_sum_exp", DType.F64),
    "mean of i32: cast to a float type": lambda: _reduction("mean", DType.I32),
    "max of bool: cast to a float type": lambda: _reduction("max", DType.BOOL),
    "rows of f64 are not computed in f32": lambda: Softmax(
        (I,), (J,), Buffer("x", DType.F64, (4, 5))[I, J], (Output(Buffer("y", DType.F32, (4, 5)), SOFTMAX[()]),)),
    "rows of i8 are not computed in f32": lambda: Softmax(
        (I,), (J,), Buffer("x", DType.I8, (4, 5))[I, J], (Output(Buffer("y", DType.F32, (4, 5)), SOFTMAX[()]),)),
    "'y' is f16 and its value f32: cast it": lambda: Softmax(
        (I,), (J,), X[I, J], (Output(Buffer("y", DType.F16, (4, 5)), SOFTMAX[()]),)),
    "'x' is read and written": lambda: Elementwise((I, J), (Output(X, X[I, J]),)),
    "matrix b has 0 batch strides for 1": lambda: Gemm(3, 4, 5, (2,), b=Matrix(4)),
    "must hold its matrices one after the other": lambda: _product(b=Matrix(4, 1, (20, 40))),
    "has no instruction for bf16": lambda: _product(arithmetic="bf16"),
    "an epilogue uses an index as a value": lambda: _product(
        epilogue=Epilogue(ACCUMULATED[()] + Cast(DType.F32, Position(index(Variable("row", 3)))))),
    "a reduction inside an expression: give it a template": lambda: ELEMENTWISE.kernel(
        Elementwise((I,), (Output(Buffer("y", DType.F32, (4,)), -Reduce("sum", (J,), X[I, J])),)), host()),
    "a transposed convolution of bytes is not built": lambda: QuantizedConvolution(
        Convolution(ONE, replace(ONE, size=(1, 11, 9)), (1, 1, 1), input_dilations=(1, 2, 2), transposed=True)),
    "constant weights have constant zero points": lambda: QuantizedConvolution(WINDOWS, weights_zero=None),
    "and are the same for all images": lambda: QuantizedConvolution(WINDOWS, weights_per_image=True),
    "takes u8 or i8, not f32: dequantize it first": lambda: shift_of_a("u8s8", DType.F32),
    "takes u8 or i8, not i32: dequantize it first": lambda: shift_of_b("pairs", DType.I32),
    "operand 'a' of kernel 'p' needs 360 contiguous bytes; the array has 356": lambda: _given(np.zeros(89, np.float32)),
    "operand 'a' of kernel 'p' needs 360 contiguous bytes; the array has 360": lambda: _given(
        np.zeros(180, np.float32)[::2]),
    "buffer 'x' has 2 dims but 1 strides": lambda: Buffer("x", DType.F32, (2, 3), (1,)),
    "buffer 'x' has 2 dims and is read with 1 indices": lambda: X[I],
    "add of f32 and i8: cast one": lambda: Binary("add", X[I, J], Number(1, DType.I8)),
    "lt of f32 and i8: cast one": lambda: Compare("lt", X[I, J], Number(1, DType.I8)),
    "a selection needs a bool": lambda: Select(X[I, J], X[I, J], X[I, J]),
    "a selection needs a bool and two operands of one type": lambda: Select(
        Number(True, DType.BOOL), X[I, J], Number(1, DType.I8)),
    "a reduction of bool": lambda: check_types(Reduce("sum", (I,), Buffer("b", DType.BOOL, (4,))[I])),
    "a reduction names an axis twice": lambda: check_types(Reduce("sum", (I, I), X[I, J])),
    "a reduction inside an expression": lambda: check_types(-Reduce("sum", (I,), X[I, J])),
    "and of f32: it is for bool and integers": lambda: check_types(Binary("and", X[I, J], X[I, J])),
    "shl of f32: it is for integers": lambda: check_types(Binary("shl", X[I, J], X[I, J])),
    "add of bool: use and, or, xor": lambda: check_types(
        Binary("add", Number(True, DType.BOOL), Number(True, DType.BOOL))),
    "stage 2 writes to 't' after an earlier stage has read it": lambda: Program(
        "p", (X,), (Buffer("u", DType.F32, (2,)),), (_half(0), _reader(), _half(2))),
    "has two axes of one name: i, i": lambda: Program(
        "p", (X,), (Buffer("y", DType.F32, (4,)),),
        (Stage(Buffer("y", DType.F32, (4,)), (I,), Reduce("sum", (Variable("i", 5),), X[I, Variable("i", 5)])),)),
}  # fmt: skip


HALF = Variable("i", 2)


def _half(start: int) -> Stage:
    """Two elements of t."""
    return Stage(Buffer("t", DType.F32, (4,)), (HALF,), X[HALF, 0], (HALF + start,))


def _reader() -> Stage:
    return Stage(Buffer("u", DType.F32, (2,)), (HALF,), Buffer("t", DType.F32, (4,))[HALF])


@pytest.mark.parametrize("message", REFUSED)
def test_one_reason(message: str) -> None:
    with pytest.raises(KernelsError, match=message):
        REFUSED[message]()


LISTING = perceptron(host()).listing
FIRST = LISTING.runs[0]
LISTINGS: dict[str, dict[str, object]] = {
    "two kernels of listing 'mlp' have the same name": {"kernels": (*LISTING.kernels, LISTING.kernels[0])},
    "step 0 runs kernel 'nothing', which the listing does not hold": {"runs": (Run("nothing", ()),)},
    "step 0 gives 3 operands to kernel 'dense0', which has 4": {"runs": (Run("dense0", FIRST.operands[:3]),)},
    "'two words' is no C identifier": {"name": "two words"},
    "'größe' is no C identifier": {"name": "größe"},
    "has two inputs called 'x'": {"inputs": LISTING.inputs * 2},
    "has two outputs called 'y'": {"outputs": LISTING.outputs * 2},
    "has a null character": {"inputs": (Argument("x\0", DType.F32, (1, 16)),)},
    "operand 'a' .* takes 64 bytes from 4 of the input, which has 64": {
        "runs": (Run("dense0", (Place("input", 4), *FIRST.operands[1:])),)},
    "operand 'a' .* takes 64 bytes from -4 of the input": {
        "runs": (Run("dense0", (Place("input", -4), *FIRST.operands[1:])),)},
    "operand 'a' .* of the input, which has -1": {
        "runs": (Run("dense0", (Place("input", 0, 1), *FIRST.operands[1:])),)},
    "operand 'c' .* takes 128 bytes from 0 of the arena, which has 127": {"arena_bytes": 127},
    "starts at byte 2, which is no multiple of its element's 4 bytes": {
        "runs": (Run("dense0", (*FIRST.operands[:3], Place("arena", 2))),), "arena_bytes": 200},
    "writes operand 'c', which lies in the weights: that is only read": {
        "runs": (Run("dense0", (*FIRST.operands[:3], Place("weights"))),)},
}  # fmt: skip


@pytest.mark.parametrize("message", LISTINGS)
def test_a_listing_that_does_not_fit(message: str) -> None:
    with pytest.raises(KernelsError, match=message):
        replace(LISTING, **LISTINGS[message])  # type: ignore[arg-type]


def test_a_listing_that_fits_to_the_last_byte() -> None:
    assert replace(LISTING, arena_bytes=128).scratch_bytes == max(kernel.scratch_bytes for kernel in LISTING.kernels)
    assert Listing("empty", (), (), (), (), 0, 0).scratch_bytes == 0


def test_operators_of_expressions_and_indices() -> None:
    value = X[I, J]
    assert 1 + value == Binary("add", Number(1), value) and 2 * value == Binary("mul", Number(2), value)
    assert 3 / value == Binary("div", Number(3), value) and 4 - value == Binary("sub", Number(4), value)
    assert value - 4 == Binary("sub", value, Number(4)) and -value == Unary("neg", value)
    assert (3 + I) == (I + 3) and (I - 3).offset == -3 and (2 * I) == (I * 2)
    assert Operand("x", "input", DType.F64, 3).bytes == 24
    assert not Convolution(
        ONE, replace(ONE, size=(1, 11, 9)), (1, 1, 1), input_dilations=(1, 2, 2), transposed=True
    ).has_halo
    wide = replace(ONE, after=(0, 30, 30))
    assert not Convolution(wide, replace(ONE, size=(1, 11, 9)), (1, 1, 1), input_dilations=(1, 2, 2)).has_halo

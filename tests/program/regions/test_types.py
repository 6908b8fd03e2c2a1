"""What casts, powers and quantization give beyond their types, and casts to powers of two."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.program.regions.routines.one_node import held, same


def test_an_integer_to_the_power_of_a_float_ends_at_the_least_number() -> None:
    x, y = np.array([-3, 4, 10, 2], np.int32), np.array([-2.5, 3, 40, 0.5], np.float32)
    held("Pow", [x, y], [np.array([-(2**31), 64, -(2**31), 1], np.int32)])


def test_a_float_to_the_power_of_an_integer_keeps_its_sign() -> None:
    x, y = np.array([-43.6, -2, 2], np.float32), np.array([277254473691, 3, 10], np.uint64)
    held("Pow", [x, y], [np.array([-np.inf, -8, 1024], np.float32)])


def test_a_scale_of_zero_quantizes_to_the_limits() -> None:
    x = np.array([1, -1, 0], np.float32)
    held("QuantizeLinear", [x, np.array(0, np.float32), np.array(7, np.int8)], [np.array([127, -128, 0], np.int8)])


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_casts_to_powers_of_two(mode: str) -> None:
    x = np.array([1, 1.2, 1.5, 1.75, 2, 3, 2.0**-100, 3 * 2.0**100, 0.7, 3e38, np.nan], np.float32)
    if mode == "nearest":
        x = x[:-2]
    same("Cast", [x], engine="reference", opset=25, to=24, round_mode=mode)


def test_what_stands_for_no_power_of_two_is_nan_unless_it_saturates() -> None:
    x = np.array([0, np.inf, 3e38, 1], np.float32)
    kept, nan = [0, 254, 254, 127], [255, 255, 255, 127]
    for saturate, codes in ((1, kept), (0, nan)):
        wanted = np.array(codes, np.uint8).view(ml_dtypes.float8_e8m0fnu)
        held("Cast", [x], [wanted], opset=25, to=24, saturate=saturate, round_mode="up")


@pytest.mark.parametrize("kind", [17, 18, 19, 20, 23])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_short_floats(kind: int, saturate: int) -> None:
    x = np.array([0, -0.0, 1.1, -700, 1e6, np.inf, -np.inf, 5e-4], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for given in (x, x.astype(np.float16), x.astype(ml_dtypes.bfloat16)):
            same("Cast", [given], engine="reference", opset=25, to=kind, saturate=saturate)


def test_a_bit_cast_reads_the_same_bytes() -> None:
    x = np.array([[1.5, -2], [np.inf, 0]], np.float32)
    held("BitCast", [x], [x.view(np.int32)], opset=26, to=6)
    held("BitCast", [x.view(np.uint32)], [x], opset=26, to=1)


@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_casts_beyond_the_type_are_those_of_onnx_runtime(source: type, kind: type) -> None:
    x = np.array([-3.5, 300, -1.5, 0.9, 255.6, -129], source)
    with np.errstate(over="ignore"):
        beyond = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 3e9, 1e10]).astype(source)
    same("Cast", [x], opset=21, to=int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))))
    if np.dtype(kind) not in (np.uint32, np.uint64):
        same("Cast", [beyond], opset=21, to=int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))))

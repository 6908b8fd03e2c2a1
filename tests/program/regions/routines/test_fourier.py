"""Fourier transforms as loops, beside NumPy, and mel weights beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.program.regions.routines.one_node import held, same

LENGTHS = [1, 2, 3, 4, 8, 12, 35, 49, 64, 66, 97, 121, 360]


def parted(x: np.ndarray, kind: str) -> np.ndarray:
    return np.stack([x.real, x.imag], -1).astype(kind)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length(length: int) -> None:
    x = drawn(2, length, 2)
    wanted = parted(np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1), "f8")
    held("DFT", [x], [wanted], tolerance=1e-10)
    back = parted(np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1), "f8")
    held("DFT", [x], [back], inverse=1, tolerance=1e-10)


@pytest.mark.parametrize("asked", [5, 8, 12])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_lengths_and_axes_that_only_a_run_knows(axis: int, asked: int) -> None:
    x = drawn(3, 8, 4, 1).astype("f4")
    place = axis % 4 if axis >= 0 else axis + 4
    wanted = parted(np.fft.fft(x[..., 0].astype("f8"), n=asked, axis=place), "f4")
    held("DFT", [x, np.array(asked), np.array(axis)], [wanted], tolerance=1e-5)
    half = parted(np.fft.rfft(x[..., 0].astype("f8"), n=asked, axis=place), "f4")
    held("DFT", [x, np.array(asked), np.array(axis)], [half], onesided=1, tolerance=1e-5)


@pytest.mark.parametrize("asked", [6, 7])
def test_back_to_what_is_real(asked: int) -> None:
    x = drawn(2, asked // 2 + 1, 2)
    wanted = np.fft.irfft(x[..., 0] + 1j * x[..., 1], n=asked, axis=1)[..., None]
    held("DFT", [x, np.array(asked)], [wanted], inverse=1, onesided=1, tolerance=1e-10)


def test_the_axis_as_an_attribute() -> None:
    x = drawn(2, 3, 4, 1).astype("f4")
    held("DFT", [x], [parted(np.fft.fft(x[..., 0], axis=2), "f4")], axis=2, opset=17, tolerance=1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("length", [8, 9])
def test_frames(length: int, windowed: bool, onesided: int) -> None:
    x, window = drawn(2, 30, 1).astype("f4"), np.hanning(length).astype("f4")
    frames = [x[:, at : at + length, 0] * (window if windowed else 1) for at in range(0, 30 - length + 1, 5)]
    transform = np.fft.rfft if onesided else np.fft.fft
    wanted = np.stack([parted(transform(one.astype("f8"), axis=1), "f4") for one in frames], 1)
    inputs = [x, np.array(5), window, None] if windowed else [x, np.array(5), None, np.array(length)]
    held("STFT", inputs, [wanted], opset=17, onesided=onesided, tolerance=1e-5)
    plain = [x[:, :, 0], *inputs[1:]]  # as PyTorch's exporter writes a signal of real numbers
    held("STFT", plain, [wanted], opset=17, onesided=onesided, tolerance=1e-5)


def test_mel_weights() -> None:
    inputs = [np.array(one) for one in (8, 64, 8000)] + [np.array(one, np.float32) for one in (100, 3500)]
    same("MelWeightMatrix", inputs, opset=17, tolerance=1e-6)

"""Transposed convolution, as ONNX's ConvTranspose defines it: a convolution of its input with zeros in between.

    y[n, o, s * i + d * t - pad] += x[n, c, i] * w[c, o, t]

is the convolution of stride 1 of x with s - 1 zeros between neighbours, with mirrored taps, and d * (k - 1) - pad zeros
before it. Correct for all attributes, and not tuned: the zeros are multiplied too.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.templates.convolution.layout import Layout, Order, Triple
from kernels.templates.convolution.problem import Convolution, InvalidConvolution, whole


def transposed(
    batch: int,
    channels: int,
    output_channels: int,
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    groups: int = 1,
    order: Order = "NCHW",
    output_order: Order | None = None,
    block: int = 16,
) -> Convolution:
    """A ConvTranspose by its attributes (pads: all begins, then all ends)."""
    rank = len(size)
    ones, zeros = (1,) * rank, (0,) * rank
    given = tuple(pads) or zeros * 2
    sizes, window = whole(size, 1), whole(kernel, 1)
    steps, spacing = whole(strides or ones, 1), whole(dilations or ones, 1)
    before, after = whole(given[:rank], 0), whole(given[rank:], 0)
    more = whole(output_padding or zeros, 0)
    reach = [(k - 1) * d for k, d in zip(window, spacing, strict=True)]
    out = [
        (s - 1) * step + far + 1 + extra - b - a
        for s, step, far, extra, b, a in zip(sizes, steps, reach, more, before, after, strict=True)
    ]
    first = [far - b for far, b in zip(reach, before, strict=True)]
    if min(out) < 1:
        raise InvalidConvolution(f"pads of {given} leave nothing of the output")
    if min(first) < 0:
        raise InvalidConvolution(f"pads of {given} are wider than the kernel reaches, {tuple(reach)}")
    target = output_order or order
    return Convolution(
        Layout(batch, channels, sizes, order, block if order == "NCHWc" else 0),
        Layout(batch, output_channels, _triple(out), target, block if target == "NCHWc" else 0),
        window,
        dilations=spacing,
        pads=_triple(first),
        groups=groups,
        input_dilations=steps,
        transposed=True,
    )


def _triple(values: Sequence[int]) -> Triple:
    a, b, c = values
    return a, b, c

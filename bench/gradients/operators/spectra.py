"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bench.gradients.node import Function, Node, Results


def _transform(node: Node) -> Results:
    x, inverse, one_sided = node.inputs[0], node.get("inverse", 0), node.get("onesided", 0)
    if inverse and one_sided:
        raise node.refuse("inverse and one-sided")
    axis, length = node.ints(2), node.ints(1)
    at = (axis[0] if axis else node.get("axis", 1) if node.opset < 20 else -2) % x.dim()
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    count = length[0] if length else x.shape[at]
    found = (torch.fft.ifft if inverse else torch.fft.fft)(signal, count, at)
    return [torch.view_as_real(found.narrow(at, 0, count // 2 + 1) if one_sided else found)]


OPERATORS: Mapping[str, Function] = {"DFT": _transform}

"""Convolutions, pools and sampling of images with one to three dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gradients.node import Function, Node, Results

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def _padded(x: Tensor, begins: Sequence[int], ends: Sequence[int], value: float = 0.0) -> Tensor:
    both = [side for pair in zip(begins[::-1], ends[::-1], strict=True) for side in pair]
    return F.pad(x, both, value=value) if any(both) else x


def _window(node: Node, sizes: Sequence[int], taps: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and the pads before and behind each spatial dim, with those that ceil_mode adds."""
    rank = len(sizes)
    strides, dilations = (list(node.get(name) or [1] * rank) for name in ("strides", "dilations"))
    reach = [step * (tap - 1) + 1 for step, tap in zip(dilations, taps, strict=True)]
    auto = node.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        totals = [max((-(-size // s) - 1) * s + r - size, 0) for size, s, r in zip(sizes, strides, reach, strict=True)]
        small, large = [one // 2 for one in totals], [one - one // 2 for one in totals]
        return (strides, dilations, small, large) if auto == "SAME_UPPER" else (strides, dilations, large, small)
    pads = [0] * (2 * rank) if auto == "VALID" else list(node.get("pads") or [0] * (2 * rank))
    return strides, dilations, pads[:rank], pads[rank:]


def _ceiled(
    node: Node, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], begins: Sequence[int],
    ends: Sequence[int],
) -> list[int]:  # fmt: skip
    """Rows behind the pads that the last windows of ceil_mode reach; negative where windows leave rows unread."""
    more = []
    for size, far, stride, begin, end in zip(sizes, reach, strides, begins, ends, strict=True):
        room = size + begin + end - far
        count = room // stride + 1
        if node.get("ceil_mode", 0):
            count = -(-room // stride) + 1
            count -= (count - 1) * stride >= size + begin
        more.append(max((count - 1) * stride + far - (size + begin + end), 0))
    return more


def _conv(node: Node) -> Results:
    x, weight, bias = (*node.inputs, None)[:3]
    strides, dilations, begins, ends = _window(node, x.shape[2:], weight.shape[2:])
    convolve = CONVOLVE[x.dim() - 2]
    if begins != ends:
        x, begins = _padded(x, begins, ends), [0] * len(begins)
    return [convolve(x, weight, bias, strides, begins, dilations, node.get("group", 1))]


def _conv_transpose(node: Node) -> Results:
    x, weight, bias = (*node.inputs, None)[:3]
    rank = x.dim() - 2
    strides, dilations, begins, ends = _window(node, x.shape[2:], weight.shape[2:])
    extra = list(node.get("output_padding") or [0] * rank)
    reach = [step * (tap - 1) + 1 for step, tap in zip(dilations, weight.shape[2:], strict=True)]
    whole = [(size - 1) * s + r for size, s, r in zip(x.shape[2:], strides, reach, strict=True)]
    wanted, auto = node.get("output_shape"), node.get("auto_pad", "NOTSET")
    if wanted is None and auto.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        totals = [one + more - want for one, more, want in zip(whole, extra, wanted[-rank:], strict=True)]
        small, large = [one // 2 for one in totals], [one - one // 2 for one in totals]
        begins, ends = (small, large) if auto == "SAME_UPPER" else (large, small)
    y = TRANSPOSED[rank](x, weight, bias, strides, 0, 0, node.get("group", 1), dilations)
    if bias is not None and any(more > end for more, end in zip(extra, ends, strict=True)):
        raise node.refuse("with a bias and output_padding beyond its pads")
    return [_padded(y, [-one for one in begins], [more - end for more, end in zip(extra, ends, strict=True)])]


def _max_pool(node: Node) -> Results:
    (x,) = node.inputs
    if node.outputs > 1:
        raise node.refuse("with the places of its maxima")
    taps = node.get("kernel_shape")
    strides, dilations, begins, ends = _window(node, x.shape[2:], taps)
    reach = [step * (tap - 1) + 1 for step, tap in zip(dilations, taps, strict=True)]
    more = _ceiled(node, x.shape[2:], reach, strides, begins, ends)
    x = _padded(x, begins, [end + one for end, one in zip(ends, more, strict=True)], -torch.inf)
    return [MAX_POOL[len(taps)](x, taps, strides, 0, dilations)]


def _window_sums(node: Node, x: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of every window, and how many of its elements count."""
    taps = node.get("kernel_shape")
    strides, dilations, begins, ends = _window(node, x.shape[2:], taps)
    reach = [step * (tap - 1) + 1 for step, tap in zip(dilations, taps, strict=True)]
    more = _ceiled(node, x.shape[2:], reach, strides, begins, ends)
    ones = torch.ones(1, 1, *taps, dtype=x.dtype)
    counted = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    counted = _padded(counted, begins, ends, float(node.get("count_include_pad", 0)))
    counted = _padded(counted, [0] * len(more), more)
    x = _padded(x, begins, [end + one for end, one in zip(ends, more, strict=True)])
    convolve = CONVOLVE[len(taps)]
    flat = x.reshape(-1, 1, *x.shape[2:])
    sums = convolve(flat, ones, None, strides, 0, dilations)
    return sums.reshape(*x.shape[:2], *sums.shape[2:]), convolve(counted, ones, None, strides, 0, dilations)


def _average_pool(node: Node) -> Results:
    sums, counts = _window_sums(node, node.inputs[0])
    return [sums / counts]


def _length_pool(node: Node) -> Results:
    power = node.get("p", 2)
    return [_window_sums(node, node.inputs[0].abs() ** power)[0] ** (1 / power)]


def _all_places(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _global_average(node: Node) -> Results:
    (x,) = node.inputs
    return [x.mean(_all_places(x), keepdim=True)]


def _global_max(node: Node) -> Results:
    (x,) = node.inputs
    return [x.amax(_all_places(x), keepdim=True)]


def _global_length(node: Node) -> Results:
    (x,) = node.inputs
    return [torch.linalg.vector_norm(x, node.get("p", 2), _all_places(x), keepdim=True)]


def _grid_sample(node: Node) -> Results:
    x, grid = node.inputs
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.get("mode", "linear"), node.get("mode", "linear"))
    padding, aligned = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    return [F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned)]


def _col2im(node: Node) -> Results:
    x, sizes, block = node.inputs[0], node.ints(1) or [], node.ints(2) or []
    if len(sizes) != 2:
        raise node.refuse(f"of {len(sizes)} dims")
    strides, dilations, begins, ends = _window(node, sizes, block)
    padded = [size + begin + end for size, begin, end in zip(sizes, begins, ends, strict=True)]
    y = F.fold(x, padded, block, dilations, 0, strides)
    return [_padded(y, [-one for one in begins], [-one for one in ends])]


OPERATORS: Mapping[str, Function] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool, "AveragePool": _average_pool,
    "LpPool": _length_pool, "GlobalAveragePool": _global_average, "GlobalMaxPool": _global_max,
    "GlobalLpPool": _global_length, "GridSample": _grid_sample, "Col2Im": _col2im,
}  # fmt: skip

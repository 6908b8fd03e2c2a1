"""Operators that move elements: shapes, slices, gathers, scatters, pads; and those that make tensors of integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx.numpy_helper
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gradients.node import Function, Node, Results
from bench.gradients.operators.elementwise import torch_type


def _reshape(node: Node) -> Results:
    x = node.inputs[0]
    dims = node.ints(1) or []
    if not node.get("allowzero", 0):
        dims = [x.shape[place] if dim == 0 else dim for place, dim in enumerate(dims)]
    return [x.reshape(dims)]


def _flatten(node: Node) -> Results:
    (x,) = node.inputs
    axis = node.get("axis", 1)
    before = x.shape[: axis if axis >= 0 else axis + x.dim()]
    return [x.reshape(int(np.prod(before, dtype=np.int64)), -1)]


def _squeeze(node: Node) -> Results:
    x, axes = node.inputs[0], node.ints(1, "axes")
    return [x.squeeze() if axes is None else x.squeeze(tuple(axes))]


def _unsqueeze(node: Node) -> Results:
    x, axes = node.inputs[0], node.ints(1, "axes") or []
    rank = x.dim() + len(axes)
    for axis in sorted(one % rank for one in axes):
        x = x.unsqueeze(axis)
    return [x]


def _transpose(node: Node) -> Results:
    (x,) = node.inputs
    return [x.permute(node.get("perm", list(range(x.dim()))[::-1]))]


def _expand(node: Node) -> Results:
    x = node.inputs[0]
    return [x.expand(torch.broadcast_shapes(x.shape, node.ints(1)))]


def _concat(node: Node) -> Results:
    return [torch.cat(node.inputs, node.get("axis"))]


def _split(node: Node) -> Results:
    x, axis, sizes = node.inputs[0], node.get("axis", 0), node.ints(1, "split")
    if sizes is None:
        each = -(-x.shape[axis] // node.outputs)
        sizes = [min(each, x.shape[axis] - each * place) for place in range(node.outputs)]
    return list(torch.split(x, sizes, axis))


def _slice(node: Node) -> Results:
    x, starts, ends = node.inputs[0], node.ints(1) or [], node.ints(2) or []
    axes = node.ints(3) or list(range(len(starts)))
    steps = node.ints(4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        first = max(start + size, 0) if start < 0 else start
        last = end + size if end < 0 else end
        stop = None if step < 0 and last < 0 else last
        kept = np.arange(size)[slice(first, stop, step)]
        if step > 0:
            axis %= x.dim()
            x = x[(*[slice(None)] * axis, slice(min(first, size), max(last, 0), step))]
        else:
            x = x.index_select(axis, torch.from_numpy(kept.copy()))
    return [x]


def _positive(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index).to(torch.int64)


def _gather(node: Node) -> Results:
    x, index = node.inputs
    axis = node.get("axis", 0) % x.dim()
    chosen = x.index_select(axis, _positive(index, x.shape[axis]).reshape(-1))
    return [chosen.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])]


def _gather_elements(node: Node) -> Results:
    x, index = node.inputs
    axis = node.get("axis", 0)
    return [torch.gather(x, axis, _positive(index, x.shape[axis]))]


def _places(index: Tensor, shape: Tensor, batch: int) -> tuple[Tensor, ...]:
    """The last dim of `index` as one index for each dim, behind those of the batch dims."""
    own = [_positive(index[..., place], shape[batch + place]) for place in range(index.shape[-1])]
    rest = own[0].dim() if own else index.dim() - 1
    batches = [torch.arange(shape[dim]).reshape([-1 if at == dim else 1 for at in range(rest)]) for dim in range(batch)]
    return (*batches, *own)


def _gather_nd(node: Node) -> Results:
    x, index = node.inputs
    return [x[_places(index, x.shape, node.get("batch_dims", 0))]]


def _scatter_nd(node: Node) -> Results:
    x, index, updates = node.inputs
    places, kind = _places(index, x.shape, 0), node.get("reduction", "none")
    if kind in ("none", "add"):
        return [x.index_put(places, updates, accumulate=kind == "add")]
    inner = int(np.prod(x.shape[len(places) :], dtype=np.int64))
    flat = torch.from_numpy(np.ravel_multi_index([one.numpy() for one in places], x.shape[: len(places)]))
    rows = flat.reshape(-1, 1).expand(-1, inner)
    found = x.reshape(-1, inner).scatter_reduce(0, rows, updates.reshape(-1, inner), _REDUCTIONS[kind])
    return [found.reshape(x.shape)]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(node: Node) -> Results:
    x, index, updates = node.inputs
    axis, kind = node.get("axis", 0), node.get("reduction", "none")
    index = _positive(index, x.shape[axis])
    if kind == "none":
        return [x.scatter(axis, index, updates)]
    if kind == "add":
        return [x.scatter_add(axis, index, updates)]
    return [x.scatter_reduce(axis, index, updates, _REDUCTIONS[kind])]


def _pad(node: Node) -> Results:
    x, pads = node.inputs[0], node.ints(1) or []
    axes = node.ints(3) or list(range(len(pads) // 2))
    mode, fill = node.get("mode", "constant"), node.input(2)
    for place, axis in enumerate(one % x.dim() for one in axes):
        before, after = pads[place], pads[place + len(axes)]
        if mode == "constant":
            both = [0, 0] * (x.dim() - 1 - axis) + [before, after]
            x = F.pad(x, both, value=0 if fill is None else fill.item())
        else:
            kept = np.arange(max(-before, 0), x.shape[axis] - max(-after, 0))
            kept = np.pad(kept, (max(before, 0), max(after, 0)), mode=mode)
            x = x.index_select(axis, torch.from_numpy(kept.copy()))
    return [x]


def _tile(node: Node) -> Results:
    return [node.inputs[0].repeat(node.ints(1))]


def _depth_to_space(node: Node) -> Results:
    (x,) = node.inputs
    batch, channels, height, width = x.shape
    size = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        x = x.reshape(batch, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, channels // size**2, size, size, height, width).permute(0, 1, 4, 2, 5, 3)
    return [x.reshape(batch, channels // size**2, height * size, width * size)]


def _space_to_depth(node: Node) -> Results:
    (x,) = node.inputs
    batch, channels, height, width = x.shape
    size = node.get("blocksize")
    x = x.reshape(batch, channels, height // size, size, width // size, size)
    x = x.permute(0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else x.permute(0, 1, 3, 5, 2, 4)
    return [x.reshape(batch, channels * size**2, height // size, width // size)]


def _trilu(node: Node) -> Results:
    x, k = node.inputs[0], (node.ints(1) or [0])[0]
    return [torch.triu(x, k) if node.get("upper", 1) else torch.tril(x, k)]


def _shape(node: Node) -> Results:
    (x,) = node.inputs
    return [torch.tensor(list(x.shape)[slice(node.get("start", 0), node.get("end"))], dtype=torch.int64)]


def _constant(node: Node) -> Results:
    for name, value in node.attributes.items():
        if name == "value":
            array = onnx.numpy_helper.to_array(value)
            if array.dtype.kind not in "fV" and "float" not in array.dtype.name:
                return [torch.from_numpy(array.copy())]
            return [torch.from_numpy(array.astype(np.float64)).to(node.dtype)]
        if name in ("value_int", "value_ints"):
            return [torch.tensor(value, dtype=torch.int64)]
        if name in ("value_float", "value_floats"):
            return [torch.tensor(value, dtype=node.dtype)]
    raise node.refuse("holds neither a tensor nor numbers")


def _constant_of_shape(node: Node) -> Results:
    given = node.get("value")
    if given is None:
        return [torch.zeros(node.ints(0), dtype=node.dtype)]
    array = onnx.numpy_helper.to_array(given)
    return [torch.full(node.ints(0), array.item(), dtype=torch_type(node, given.data_type))]


def _range(node: Node) -> Results:
    start, limit, step = node.inputs
    return [torch.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)]


def _one_hot(node: Node) -> Results:
    index, depth, values = node.inputs
    size = int(depth.item())
    rank = index.dim() + 1
    axis = node.get("axis", -1) % rank
    index = index.to(torch.int64)
    inside = (index >= -size) & (index < size)
    classes = torch.arange(size).reshape([-1 if at == axis else 1 for at in range(rank)])
    hot = (_positive(index, size).unsqueeze(axis) == classes) & inside.unsqueeze(axis)
    return [torch.where(hot, values[1], values[0])]


def _nonzero(node: Node) -> Results:
    return [torch.nonzero(node.inputs[0]).T]


def _compress(node: Node) -> Results:
    x, condition = node.inputs
    axis = node.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return [x.index_select(axis, torch.nonzero(condition).reshape(-1))]


def _eye_like(node: Node) -> Results:
    (x,) = node.inputs
    dtype = x.dtype if node.get("dtype") is None else torch_type(node, node.get("dtype"))
    return [torch.from_numpy(np.eye(x.shape[0], x.shape[1], k=node.get("k", 0))).to(dtype)]


def _reverse_sequence(node: Node) -> Results:
    x, lengths = node.inputs
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    wide = x.movedim((time, batch), (0, 1))
    return [reversed_rows(wide, lengths).movedim((0, 1), (time, batch))]


def reversed_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """[steps, batch, ...] with the first `lengths` steps of each sequence in reversed order."""
    steps = torch.arange(x.shape[0]).unsqueeze(1)
    index = torch.where(steps < lengths, lengths - 1 - steps, steps).to(torch.int64)
    return torch.gather(x, 0, index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand(x.shape))


OPERATORS: Mapping[str, Function] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Expand": _expand, "Concat": _concat, "Split": _split, "Slice": _slice, "Gather": _gather,
    "GatherElements": _gather_elements, "GatherND": _gather_nd, "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements, "Pad": _pad, "Tile": _tile, "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth, "Trilu": _trilu, "Shape": _shape,
    "Size": lambda node: [torch.tensor(node.inputs[0].numel())], "Constant": _constant,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "OneHot": _one_hot, "NonZero": _nonzero,
    "Compress": _compress, "EyeLike": _eye_like, "ReverseSequence": _reverse_sequence,
}  # fmt: skip

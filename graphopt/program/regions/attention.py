"""ONNX's Attention as one kernel: heads are strides, so that the projections before and after need no transposes."""

from __future__ import annotations

from dataclasses import replace
from math import prod, sqrt

import numpy as np
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import float_attribute, input_at, int_attribute, is_used, required_input
from graphopt.model.operators.table import RESHAPES
from graphopt.program.regions.copies import dense
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.templates.attention.build import ATTENTION
from kernels.templates.attention.problem import Attention, Mask, Strides

SHUT = -1e30  # what a mask adds to scores that do not count, or less


def lower_attention(scope: Scope, node: ir.Node) -> None:
    """The region of one Attention; a row that the mask shuts out is 0, as ONNX defines it.

    Raises NotLowered for lengths of a cache, for its score outputs, for a window of keys, and for a mask
    of another type than float32 and bool, that is shorter than the keys, or does not fit the scores.
    """
    label = f"Attention '{node.name or node.outputs[0].name}'"
    if input_at(node, 6) is not None or any(map(is_used, node.outputs[3:])):
        raise NotLowered(f"{label} has lengths of a cache or gives its scores, which has no kernel yet.")
    for name in ("left_window_size", "right_window_size"):
        if int_attribute(node, name, -1) != -1:
            raise NotLowered(f"{label} has a window of keys ('{name}'), which has no kernel yet.")
    if scope.dtype(node.outputs[0]) is not DType.F32:
        raise NotLowered(f"{label} is not of float32.")
    q, k, v = (_with_rows(scope, required_input(node, position)) for position in range(3))
    heads, groups = int_attribute(node, "q_num_heads", 0), int_attribute(node, "kv_num_heads", 0)
    q, k, v = by_heads(q, heads), by_heads(k, groups), by_heads(v, groups)
    new = k.shape[2]
    k, v = (_present(scope, node, one, 4 + at, 1 + at) for at, one in enumerate((k, v)))
    if q.shape[::3] != k.shape[::3] or k.shape[:3] != v.shape[:3] or k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        shapes = ", ".join(str(list(one.shape)) for one in (q, k, v))
        raise NotLowered(f"{label} has queries, keys and values of {shapes}, which do not fit one another.")
    output = _over_queries(scope, node) or scope.result(node.outputs[0], apart=True)
    shown = by_heads(output, q.shape[1]) if len(output.shape) == 3 else output
    batch, heads, queries, size = q.shape
    mask_value, buffers = input_at(node, 3), {"q": q.buffer, "k": k.buffer, "v": v.buffer, "output": output.buffer}
    mask, past = None, k.shape[2] - new
    causal = bool(int_attribute(node, "is_causal", 0))
    if mask_value is not None and not causal and _sees_up_to_itself(scope, mask_value, (queries, k.shape[2]), past):
        mask_value, causal = None, True
    if mask_value is not None:
        whole, given = (batch, heads, queries, k.shape[2]), scope.shape(mask_value)
        lead = len(whole) - len(given)
        if lead < 0 or any(have not in (1, want) for have, want in zip(given[:-1], whole[lead:-1], strict=True)):
            raise NotLowered(f"{label} has a mask of {list(given)}, which does not fit scores of {list(whole)}.")
        if given[-1:] != whole[-1:]:
            raise NotLowered(f"{label} has a mask for fewer keys than there are, which has no kernel yet.")
        if scope.dtype(mask_value) not in (DType.F32, DType.BOOL):
            raise NotLowered(f"{label} has a mask of {scope.dtype(mask_value).value}, which has no kernel yet.")
        view = _with_rows(scope, mask_value).expanded(whole)
        steps = view.strides
        mask = Mask(steps[0], steps[1], steps[2], 1 if steps[3] else 0, view.dtype, view.offset)
        buffers["mask"] = view.buffer
    problem = Attention(
        batch, heads, queries, k.shape[2], size, k.shape[1], v.shape[3], float_attribute(node, "scale", 1 / sqrt(size)),
        causal, past, float_attribute(node, "softcap", 0.0), False, mask,
        _place(q), _place(k), _place(v), _place(shown),
    )  # fmt: skip
    scope.add(scope.kernel(ATTENTION, problem), buffers, (node,))


def _over_queries(scope: Scope, node: ir.Node) -> View | None:
    """The place of the queries for the result, where they are a part of a larger value and nothing else needs them.

    None where memory is not tight, or they stand alone: then their bytes are found when memory is planned. A block
    reads a head's rows of queries before it writes those of the result, and no other block reads them.
    """
    value, result = required_input(node, 0), node.outputs[0]
    place = scope.place(value)
    if not scope.tight or place.buffer.role != "temporary" or place.shape != scope.shape(result):
        return None
    while len(value.uses()) == 1 and not value.is_graph_output():
        producer = value.producer()
        if producer is None or producer.op_type not in (*RESHAPES, "Transpose", "Split"):
            return None
        source = required_input(producer, 0)
        if producer.op_type == "Split":
            if len(source.uses()) > 1 or source.is_graph_output() or source.is_graph_input():
                return None
            scope.places[result] = replace(place, dtype=scope.dtype(result))
            return scope.places[result]
        value = source
    return None


def _sees_up_to_itself(scope: Scope, mask: ir.Value, dims: tuple[int, int], past: int) -> bool:
    """Whether a constant mask lets each query see the keys of the past and those up to its own place, and no other.

    What it adds there is 0, and elsewhere as good as minus infinity: every row sees its first key.
    """
    array = scope.constant(mask)
    if array is None or array.shape != (1,) * (array.ndim - 2) + dims or array.dtype.kind not in "bf":
        return False
    seen = np.tri(*dims, past, dtype=np.bool_)
    matrix = array.reshape(dims)
    if array.dtype == np.bool_:
        return bool(np.array_equal(matrix, seen))
    return bool((matrix[seen] == 0).all() and np.less_equal(matrix[~seen], SHUT).all())


def _present(scope: Scope, node: ir.Node, new: View, past: int, result: int) -> View:
    """The rows of the cache and the new ones behind them; the new ones alone where the node keeps none."""
    cache = input_at(node, past)
    wanted = result < len(node.outputs) and is_used(node.outputs[result])
    if cache is None and not wanted:
        return new
    old = None if cache is None else scope.place(cache)
    before = 0 if old is None else old.shape[2]
    shape = (*new.shape[:2], before + new.shape[2], new.shape[3])
    if old is not None and old.shape != (*new.shape[:2], before, new.shape[3]):
        raise NotLowered(f"a cache of {list(old.shape)} does not fit new rows of {list(new.shape)}.")
    if wanted:
        whole = scope.result(node.outputs[result])
    else:
        name = node.outputs[0].name
        whole = View.dense(scope.temporary("present", name, new.dtype.bytes * prod(shape)), new.dtype, shape)
    if old is not None and before:
        scope.copy(old, whole.sliced(2, 0, before), (node,))
    scope.copy(new, whole.sliced(2, before, new.shape[2]), (node,))
    return whole


def _with_rows(scope: Scope, value: ir.Value) -> View:
    """The value's view; a copy where the elements of a head, or of a row of a mask, do not lie side by side."""
    view = scope.place(value)
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else dense(scope, value)


def by_heads(view: View, heads: int) -> View:
    """[batch, rows, heads * size] as [batch, heads, rows, size]; raises NotLowered where there are no such heads."""
    if len(view.shape) == 4:
        return view
    if len(view.shape) != 3 or heads < 1 or view.shape[2] % heads:
        raise NotLowered(f"'{view.buffer.value}' of {list(view.shape)} has no {heads} heads.")
    batch, rows, width = view.shape
    size = width // heads
    strides = (view.strides[0], size * view.strides[2], view.strides[1], view.strides[2])
    return View(view.buffer, view.dtype, (batch, heads, rows, size), strides, view.offset)


def _place(view: View) -> Strides:
    return Strides(view.strides[0], view.strides[1], view.strides[2], view.offset)

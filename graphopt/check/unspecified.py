"""Results that an operator leaves open: they are compared as zeros.

GroupQueryAttention with `sliding_window_cache` says nothing of the rows of a cache behind those that it holds, and what
ONNX Runtime leaves there differs from run to run. How many rows are held stands in the operator's description: of T
keys in room for C rows, a window of W and G = C - W + 1, T - G * max(0, ceil((T - C) / G)).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

DOMAIN = "com.microsoft"
SINCE = 15  # the opset of ai.onnx that has CastLike


def with_zeros(model: onnx.ModelProto) -> None:
    """Let the model itself put zeros where an operator of its main graph leaves results open."""
    versions = {one.domain: one.version for one in model.opset_import}
    if versions.get("", 1) < SINCE:
        return
    found = [node for node in model.graph.node if _leaves_open(node)]
    if not found:
        return
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        behind = list(_zeroed(node)) if _leaves_open(node) else []
        model.graph.node.extend([node, *behind])


def _leaves_open(node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "GroupQueryAttention"
        and node.domain == DOMAIN
        and _number(node, "sliding_window_cache") == 1
        and any(node.output[1:3])
    )


def _number(node: onnx.NodeProto, name: str) -> int:
    return next((one.i for one in node.attribute if one.name == name), 0)


def _zeroed(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Nodes that make the caches of what the node gives, whose results are given names of their own."""
    first = next(name for name in node.output[1:3] if name)
    own, lengths, window = f"{first}:held", node.input[5], _number(node, "local_window_size")
    numbers = {"one": 1, "two": 2, "nought": 0, "less": window - 1}
    yield from (_constant(f"{own}_{name}", np.array(value, np.int64)) for name, value in numbers.items())
    yield _constant(f"{own}_axis", np.array([1], np.int64))
    yield _constant(f"{own}_axes", np.array([1, 3], np.int64))
    old = node.input[3]

    def step(kind: str, name: str, *operands: str) -> onnx.NodeProto:
        return helper.make_node(kind, list(operands), [f"{own}_{name}"])

    yield helper.make_node("Cast", [lengths], [f"{own}_behind"], to=onnx.TensorProto.INT64)
    yield step("Add", "keys", f"{own}_behind", f"{own}_one")
    yield step("Shape", "dims", old)
    yield step("Gather", "room", f"{own}_dims", f"{own}_two")
    yield step("Sub", "go", f"{own}_room", f"{own}_less")
    yield step("Sub", "over", f"{own}_keys", f"{own}_room")
    yield step("Add", "up", f"{own}_over", f"{own}_go")
    yield step("Sub", "up_1", f"{own}_up", f"{own}_one")
    yield step("Div", "times_0", f"{own}_up_1", f"{own}_go")
    yield step("Max", "times", f"{own}_times_0", f"{own}_nought")
    yield step("Mul", "gone", f"{own}_times", f"{own}_go")
    yield step("Sub", "rows", f"{own}_keys", f"{own}_gone")
    yield step("Range", "places", f"{own}_nought", f"{own}_room", f"{own}_one")
    yield step("Unsqueeze", "rows_u", f"{own}_rows", f"{own}_axis")
    yield step("Less", "holds", f"{own}_places", f"{own}_rows_u")
    yield step("Unsqueeze", "holds_u", f"{own}_holds", f"{own}_axes")
    yield _constant(f"{own}_zero_f", np.array(0, np.float32))
    yield step("CastLike", "zero", f"{own}_zero_f", old)
    for at in (1, 2):
        name = node.output[at] if at < len(node.output) else ""
        if name:
            node.output[at] = f"{name}:open"
            yield helper.make_node("Where", [f"{own}_holds_u", f"{name}:open", f"{own}_zero"], [name])


def _constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))

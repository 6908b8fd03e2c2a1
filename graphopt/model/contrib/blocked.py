"""Operators of com.microsoft.nchwc, on images in blocks of channels, as those of the standard on plain images.

ONNX Runtime writes them when it saves a model with all its optimizations. A blocked image has its channels filled up
to whole blocks; here it is a plain image of as many channels, and only weights are put back into their plain order:

    [outputs / b, inputs / b, rows, columns, b inputs, b outputs]  -->  [outputs, inputs, rows, columns]

How many channels a block has depends on the processor; a saved model runs on such a processor only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from graphopt.model import nodes
from graphopt.model.contrib.lines import int_vector
from graphopt.model.contrib.node import Node

DOMAIN = "com.microsoft.nchwc"
_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")


@cache
def block_size() -> int:
    """How many channels a block has in the installed ONNX Runtime on this processor; 0 where it has no blocks."""
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    ends[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 1, 1])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (blocked,) = session.run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})
    except Exception:  # ONNX Runtime raises its own kinds; a build without blocks has no kernel
        return 0
    return int(np.asarray(blocked).shape[1])


def _filled(node: Node) -> str | None:
    """Channels of zeros behind those of the image, up to a whole block."""
    dims, block, last = node.dims[0], block_size(), node.flag("channels_last")
    channels = None if dims is None else dims[-1 if last else 1]
    if not isinstance(channels, int) or not block:
        return None
    more = -channels % block
    plain = "x = Transpose <perm = [0, 3, 1, 2]> (i0)" if last else "x = Identity(i0)"
    return (
        f"{plain}\n {int_vector('p', 0, 0, 0, 0, 0, more, 0, 0)}\n y = Pad(x, p)"
        if more
        else f"{plain}\n y = Identity(x)"
    )


def _taken(node: Node) -> str:
    """The channels without those that fill up the last block."""
    count = nodes.int_attribute(node.node, "channels", 0)
    lines = [int_vector("f", 0), int_vector("t", count), int_vector("a", 1), "x = Slice(i0, f, t, a)"]
    return "\n ".join(
        [*lines, "y = Transpose <perm = [0, 2, 3, 1]> (x)" if node.flag("channels_last") else "y = Identity(x)"]
    )


def _convolution(node: Node) -> str | None:
    """Few channels are read as they are, and have no blocks in the weights; nor has a channel that stands alone."""
    dims, block = node.dims[1], block_size()
    if dims is None or not block or not all(isinstance(one, int) for one in dims) or len(dims) != 4:
        return None
    outputs, inputs, rows, columns = (int(str(one)) for one in dims)
    group = nodes.int_attribute(node.node, "group", 1)
    if outputs % block:
        return None
    if inputs < block and (group == 1 or inputs == 1):
        lines = [int_vector("w_d", outputs // block, inputs, rows, columns, block), "w_b = Reshape(i1, w_d)",
                 "w_t = Transpose <perm = [0, 4, 1, 2, 3]> (w_b)"]  # fmt: skip
    elif inputs % block == 0:
        lines = [int_vector("w_d", outputs // block, inputs // block, rows, columns, block, block),
                 "w_b = Reshape(i1, w_d)", "w_t = Transpose <perm = [0, 5, 1, 4, 2, 3]> (w_b)"]  # fmt: skip
    else:
        return None
    lines += [int_vector("w_p", outputs, inputs, rows, columns), "w = Reshape(w_t, w_p)"]
    operands = "i0, w, i2" if node.has(2) else "i0, w"
    lines += [
        f"c = Conv {node.kept(_CONVOLUTION)} ({operands})",
        "x = Add(c, i3)" if node.has(3) else "x = Identity(c)",
    ]
    return "\n ".join([*lines, node.activated()])


def _pooling(operator: str) -> Callable[[Node], str]:
    return lambda node: f"y = {operator} {node.kept(_POOLING)} (i0)"


def _larger(node: Node) -> str | None:
    """Whole factors of rows and columns: pixels repeated, or between their neighbours."""
    given = nodes.attribute_of(node.node, "scales")
    mode = nodes.string_attribute(node.node, "mode", "nearest")
    if given is None:
        return None
    scales = f"s = Constant <value: tensor = float[4] {{{', '.join(str(float(one)) for one in given.value)}}}> ()"
    places = nodes.string_attribute(node.node, "coordinate_transformation_mode", "asymmetric")
    options = f'mode = "{mode}", coordinate_transformation_mode = "{places}"'
    if mode == "nearest":
        options = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    return f'{scales}\n y = Resize <{options}> (i0, "", s)'


BLOCKED: Mapping[str, Callable[[Node], str | None]] = {
    "AveragePool": _pooling("AveragePool"),
    "Conv": _convolution,
    "GlobalAveragePool": _pooling("GlobalAveragePool"),
    "GlobalMaxPool": _pooling("GlobalMaxPool"),
    "MaxPool": _pooling("MaxPool"),
    "ReorderInput": _filled,
    "ReorderOutput": _taken,
    "Upsample": _larger,
}

"""What kernels of ONNX Runtime take for themselves beside their results, where that is as much as these.

A Where computes what it takes of either side as a result of its own. A ConvTranspose makes for each place of the kernel
a copy of one image, which it then adds up. As measured of ONNX Runtime 1.31 on processors.
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts


def scratch_of(facts: Facts, node: ir.Node) -> int:
    """Bytes at most; 0 for operators whose kernels take little, and where a size is not known."""
    if not nodes.is_standard(node):
        return 0
    made = nodes.used_outputs(node)
    dtype = facts.dtype(made[0]) if made else None
    if dtype is None:
        return 0
    if node.op_type == "Where":
        shape = facts.static_shape(made[0])
        return 0 if shape is None else int(2 * prod(shape) * dtype.itemsize)
    if node.op_type == "ConvTranspose":
        image, weights = (None if value is None else facts.static_shape(value) for value in node.inputs[:2])
        if image is None or weights is None:
            return 0
        return int(prod(weights[1:]) * prod(image[2:]) * dtype.itemsize)
    return 0

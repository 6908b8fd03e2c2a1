"""Attention between channels, whose rows are as long as an image has pixels.

Attention(q, k, v, mask)  -->  MatMul(Softmax(MatMul(q, Transpose(k)) * scale + mask), v)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.nodes import float_attribute, input_at, int_attribute, is_used
from graphopt.program.free_sides.writer import Sides, Writer

RANK = 4  # of batch, heads, rows and elements of a row


def attention(writer: Writer, sides: Sides) -> None:
    """Two products and a Softmax where a run sets how long rows are.

    One that is causal, or has a cache, a soft cap, a mask of booleans or heads that share keys, stays as it is.
    """
    node, facts = writer.node, writer.facts
    q, k, v, mask = (input_at(node, at) for at in range(4))
    if q is None or k is None or v is None or len(sides.given[0]) != RANK or len({one[3] for one in sides.given}) == 1:
        return
    heads = {None if (shape := facts.shape(one)) is None else shape[1] for one in (q, k, v)}
    is_plain = not any(int_attribute(node, name, 0) for name in ("is_causal", "qk_matmul_output_mode"))
    adds = mask is None or facts.dtype(mask) is ir.DataType.FLOAT
    kept = any(map(is_used, node.outputs[1:])) or any(
        input_at(node, at) is not None for at in range(4, len(node.inputs))
    )
    if len(heads) != 1 or None in heads or not is_plain or not adds or kept or float_attribute(node, "softcap", 0.0):
        return
    if facts.dtype(q) is not ir.DataType.FLOAT or facts.dtype(v) is not ir.DataType.FLOAT:
        return
    scale = float_attribute(node, "scale", 0.0)
    scores = writer.add("MatMul", [q, writer.add("Transpose", [k], {"perm": [0, 1, 3, 2]})])
    if scale:
        scores = writer.add("Div", [scores, writer.constant(np.array(1 / scale, np.float32))])
    else:  # as long as rows are
        length = writer.add("Cast", [writer.dims(q, 3, 1)], {"to": int(ir.DataType.FLOAT)})
        scores = writer.add("Div", [scores, writer.add("Sqrt", [length])])
    if mask is not None:
        scores = writer.add("Add", [scores, mask])
    writer.put(writer.add("MatMul", [writer.add("Softmax", [scores], {"axis": -1}), v]))

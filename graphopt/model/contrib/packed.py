"""Operators of com.microsoft whose weights are codes of a few bits, in operators of the standard.

Codes are widened where they lie: rows that are looked up after the look-up, weights of products before, as constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.contrib.lines import int_vector
from graphopt.model.contrib.node import Node, scalar
from graphopt.model.dims import Dim

_OF_FOUR_BITS = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
# Sixteen numbers between -1 and 1 that codes stand for: of bitsandbytes' floats of four bits, and of normal quantiles.
_FLOATS = (0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_TABLES = (
    (*_FLOATS, *(-one for one in _FLOATS)),
    (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)  # fmt: skip


def unpacked(name: str, source: str, dims: Sequence[Dim], bits: int, *, low_first: bool = True) -> list[str]:
    """Lines that make the codes of bytes of these dims, along the last one, as bytes of their own."""
    if bits == 8:
        return [f"{name} = Identity({source})"]
    shifts = [bits * at for at in range(8 // bits)]
    numbers = ", ".join(map(str, shifts if low_first else reversed(shifts)))
    return [int_vector(f"{name}_u", len(dims)), f"{name}_1 = Unsqueeze({source}, {name}_u)",
            f"{name}_s = Constant <value: tensor = uint8[{len(shifts)}] {{{numbers}}}> ()",
            f'{name}_2 = BitShift <direction = "RIGHT"> ({name}_1, {name}_s)',
            f"{name}_m = Constant <value: tensor = uint8 {{{1 << bits}}}> ()", f"{name}_3 = Mod({name}_2, {name}_m)",
            int_vector(f"{name}_d", *(0 for _ in dims[:-1]), -1), f"{name} = Reshape({name}_3, {name}_d)"]  # fmt: skip


def widened(name: str, codes: str, scale: str, zero: str | None, rank: int, blocks: int, middle: int) -> list[str]:
    """Lines that make floats of codes: scales, and codes of zero, are of so many equal parts of the last dim."""
    behind = [*(0 for _ in range(rank - 1)), blocks, -1]
    lines = [f"{name}_f = Cast <to = 1> ({codes})", int_vector(f"{name}_b", *behind),
             f"{name}_r = Reshape({name}_f, {name}_b)", int_vector(f"{name}_a", *behind[:-1], 1),
             f"{name}_t = Cast <to = 1> ({scale})", f"{name}_x = Reshape({name}_t, {name}_a)"]  # fmt: skip
    if zero is None:
        lines += [f"{name}_z = {scalar(float(middle))}"]
    else:
        lines += [f"{name}_y = Cast <to = 1> ({zero})", f"{name}_z = Reshape({name}_y, {name}_a)"]
    return [*lines, f"{name}_c = Sub({name}_r, {name}_z)", f"{name}_p = Mul({name}_c, {name}_x)",
            int_vector(f"{name}_e", *behind[:-2], -1), f"{name} = Reshape({name}_p, {name}_e)"]  # fmt: skip


def product_of_codes(node: Node) -> str | None:
    """A matrix by the transpose of codes, whose columns have a scale and a zero point for each block of their rows."""
    columns, depth, block = (nodes.int_attribute(node.node, name, 0) for name in ("N", "K", "block_size"))
    bits, kind = nodes.int_attribute(node.node, "bits", 4), node.kinds[3] if node.has(3) else None
    if bits not in (2, 4, 8) or node.has(4) or (node.has(3) and kind is None) or min(columns, depth, block) < 1:
        return None
    blocks = -(-depth // block)
    lines = [*unpacked("c", "i1", (1, 1, 1), bits), int_vector("c_v", columns, -1), "c_w = Reshape(c, c_v)",
             int_vector("s_v", columns, blocks), "s = Reshape(i2, s_v)"]  # fmt: skip
    if kind is not None and kind.is_floating_point():
        lines += ["z = Reshape(i3, s_v)"]
    elif kind is not None:
        lines += ["z_b = Reshape(i3, c_v)", *unpacked("z_a", "z_b", (1, 1), bits), int_vector("z_0", 0),
                  int_vector("z_n", blocks), int_vector("z_x", 1), "z = Slice(z_a, z_0, z_n, z_x)"]  # fmt: skip
    lines += [*widened("w", "c_w", "s", None if kind is None else "z", 2, blocks, 1 << bits - 1),
              int_vector("w_0", 0), int_vector("w_n", depth), int_vector("w_1", 1), "w_k = Slice(w, w_0, w_n, w_1)",
              "k = Transpose <perm = [1, 0]> (w_k)", "x = Cast <to = 1> (i0)"]  # fmt: skip
    if node.has(5):
        lines += ["y_p = MatMul(x, k)", "y_b = Cast <to = 1> (i5)", "y_f = Add(y_p, y_b)"]
    else:
        lines += ["y_f = MatMul(x, k)"]
    return "\n ".join([*lines, "y = CastLike(y_f, i0)"])


def gather_block_quantized(node: Node) -> str | None:
    """Rows of a table of codes, by the scales of their blocks."""
    table, scales, kind = node.dims[0], node.dims[2], node.kinds[0]
    if table is None or scales is None or node.rank[1] is None or node.kinds[2] is None:
        return None
    rank, to = len(table), int(node.kinds[2])
    block = nodes.int_attribute(node.node, "block_size", 128)
    gathered, blocked = (
        nodes.int_attribute(node.node, name, otherwise) % rank
        for name, otherwise in (("gather_axis", 0), ("quantize_axis", 1))
    )
    zeros = node.dims[3] if node.has(3) else None
    if kind in _OF_FOUR_BITS:
        given = ", i3" if node.has(3) else ""
        return (f"w = DequantizeLinear <axis = {blocked}, block_size = {block}> (i0, i2{given})\n "
                f"y = Gather <axis = {gathered}> (w, i1)")  # fmt: skip
    parts = scales[-1]
    if kind != ir.DataType.UINT8 or gathered != 0 or blocked != rank - 1 or not isinstance(parts, int):
        return None
    bits, found = nodes.int_attribute(node.node, "bits", 4), node.rank[1] + rank - 1
    lines = ["rows = Gather <axis = 0> (i0, i1)", *unpacked("codes", "rows", (1,) * found, bits),
             "of = Gather <axis = 0> (i2, i1)"]  # fmt: skip
    if zeros is not None:
        each = 8 // bits
        lines += ["z_rows = Gather <axis = 0> (i3, i1)", *unpacked("z_all", "z_rows", (1,) * found, bits)]
        if parts % each:
            lines += [int_vector("z_0", 0), int_vector("z_n", parts), int_vector("z_x", found - 1),
                      "zeros = Slice(z_all, z_0, z_n, z_x)"]  # fmt: skip
        else:
            lines += ["zeros = Identity(z_all)"]
    lines += widened("w", "codes", "of", None if zeros is None else "zeros", found, parts, 1 << bits - 1)
    return "\n ".join([*lines, f"y = Cast <to = {to}> (w)"])


def matmul_bnb4(node: Node) -> str | None:
    """A product with weights of bitsandbytes: a code for each of sixteen numbers, by the largest of its block.

    The last block may have fewer.
    """
    columns, depth, block = (nodes.int_attribute(node.node, name, 0) for name in ("N", "K", "block_size"))
    kind = nodes.int_attribute(node.node, "quant_type", 1)
    total = columns * depth
    if kind not in (0, 1) or total <= 0 or block < 2:
        return None
    if not nodes.int_attribute(node.node, "transB", 1):
        return None
    numbers = ", ".join(map(str, _TABLES[kind]))
    lines = [*unpacked("codes", "i1", (1,), 4, low_first=False), "places = Cast <to = 6> (codes)",
             f"table = Constant <value: tensor = float[16] {{{numbers}}}> ()",
             "shares = Gather <axis = 0> (table, places)", int_vector("in_blocks", -1, block),
             int_vector("last", 0, -(-total // block) * block - 2 * -(-total // 2)), "whole = Pad(shares, last)",
             "blocks = Reshape(whole, in_blocks)", "most_f = Cast <to = 1> (i2)", int_vector("one_each", -1, 1),
             "most = Reshape(most_f, one_each)", "scaled = Mul(blocks, most)", int_vector("flat", -1),
             "row = Reshape(scaled, flat)", int_vector("begin", 0), int_vector("end", total),
             "all = Slice(row, begin, end)", int_vector("matrix", columns, depth), "w_r = Reshape(all, matrix)",
             "w_t = Transpose <perm = [1, 0]> (w_r)", "w = CastLike(w_t, i0)",
             "y = MatMul(i0, w)"]  # fmt: skip
    return "\n ".join(lines)

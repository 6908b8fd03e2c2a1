"""GroupQueryAttention of com.microsoft in operators of the standard, as ONNX Runtime computes it on processors.

Each sequence has `seqlens_k` + 1 keys: those of its cache, then the new ones. Queries look back only. The rows of the
cache that stand behind them are zeros in the result. A cache may hold a window of the last keys (windowed.py). Caches
of bytes, norms of queries and keys inside, and scores as results have no body.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.contrib import caches, windowed
from graphopt.model.contrib.lines import dim_of, float_like, in_heads, int_scalar, int_vector, out_of_heads, turned
from graphopt.model.contrib.node import Node, scalar

ATTENTION_SINCE = 23  # opset
SHUT = -3.4028234663852886e38  # a score that is not seen; each row sees one
_LEFT_OUT = {"causal": 1, "qk_output": 0, "kv_cache_bit_width": 0}  # what alone has a body


def group_query_attention(node: Node) -> str | None:
    """Heads of queries share those of keys and values in groups; turned by their positions where `do_rotary` is set."""
    heads, groups = (nodes.int_attribute(node.node, name, 0) for name in ("num_heads", "kv_num_heads"))
    given = node.dims[0]
    kinds = {nodes.string_attribute(node.node, name, "NONE") for name in ("k_quant_type", "v_quant_type")}
    plain = all(nodes.int_attribute(node.node, name, value) == value for name, value in _LEFT_OUT.items())
    if given is None or len(given) != 3 or not isinstance(given[2], int) or not heads or not groups or not plain:
        return None
    window, is_windowed = nodes.int_attribute(node.node, "local_window_size", -1), node.flag("sliding_window_cache")
    if is_windowed and (window <= 0 or not node.has(3) or node.has(10) or len(node.node.outputs) != 3):
        return None
    if kinds != {"NONE"} or any(node.has(at) for at in range(12, 16)) or len(node.node.outputs) > 3:
        return None
    packed = not node.has(1)
    size = given[2] // (heads + 2 * groups if packed else heads)
    lines = _taken_apart(packed=packed, heads=heads, groups=groups, size=size)
    lines += [*dim_of("n", "q_n", 2), "lengths_i = Cast <to = 7> (i5)", int_vector("flat", -1),
              "lengths = Reshape(lengths_i, flat)", int_vector("one", 1), int_vector("zero", 0),
              "ends = Add(lengths, one)", "begins = Sub(ends, n)", "later = Max(begins, zero)",
              "total_i = Cast <to = 7> (i6)", "total = Reshape(total_i, flat)", "first = Equal(total, n)",
              "before = Identity(later)" if is_windowed else "before = Where(first, zero, later)",
              "before_u = Unsqueeze(before, one)", int_scalar("r_0", 0), int_scalar("r_1", 1), "n_e = Squeeze(n)",
              "rows = Range(r_0, n_e, r_1)", "here = Add(before_u, rows)"]  # fmt: skip
    if node.flag("do_rotary"):
        table = node.dims[7] if node.has(7) else None
        half = None if table is None else table[-1]
        if not isinstance(half, int):
            return None
        lines += [f"at = Identity({'i9' if node.has(9) else 'here'})", "cos_r = Gather <axis = 0> (i7, at)",
                  "cos = Unsqueeze(cos_r, one)", "sin_r = Gather <axis = 0> (i8, at)",
                  "sin = Unsqueeze(sin_r, one)"]  # fmt: skip
        kept = {"interleaved": node.flag("rotary_interleaved"), "whole": 2 * half == size}
        lines += [*turned("q", "q_n", half, **kept), *turned("k_x", "k_n", half, **kept)]
    else:
        lines += ["q = Identity(q_n)", "k_x = Identity(k_n)"]
    if is_windowed:
        lines += [*windowed.seen_keys(window), *windowed.kept_rows()]
    else:
        lines += _caches(node)
    lines += dim_of("t", "k", 2)
    if not is_windowed:
        lines += ["t_e = Squeeze(t)", "keys = Range(r_0, t_e, r_1)"]
    lines += [int_vector("last", -1), "here_u = Unsqueeze(here, last)",
              "looked = LessOrEqual(keys, here_u)"]  # fmt: skip
    if window > 0:
        lines += [int_vector("w", window), "w_b = Sub(here_u, w)", "w_s = Greater(keys, w_b)",
                  "seen_3 = And(looked, w_s)"]  # fmt: skip
    else:
        lines += ["seen_3 = Identity(looked)"]
    lines += ["seen = Unsqueeze(seen_3, one)"]
    if node.has(10):
        lines += [*dim_of("b_n", "i10", 3), "b_m = Sub(t, b_n)", *_zeros("b_z", "i10", "b_m", 3),
                  "bias = Concat <axis = 3> (i10, b_z)", *float_like("b_f", SHUT, "q"),
                  "mask = Where(seen, bias, b_f)"]  # fmt: skip
    else:
        lines += ["mask = Identity(seen)"]
    return "\n ".join([*lines, *_attended(node, heads, groups, size)])


def _taken_apart(*, packed: bool, heads: int, groups: int, size: int) -> list[str]:
    """Lines that make q_n, k_n and v_n, each [batch, heads, rows, size]."""
    counts = {"q": heads, "k": groups, "v": groups}
    if not packed:
        return [
            line for at, (name, count) in enumerate(counts.items()) for line in in_heads(f"{name}_n", f"i{at}", count)
        ]
    return [int_vector("x_w", *(count * size for count in counts.values())),
            "q_p, k_p, v_p = Split <axis = 2> (i0, x_w)",
            *(one for name, count in counts.items() for one in in_heads(f"{name}_n", f"{name}_p", count))]  # fmt: skip


def _caches(node: Node) -> list[str]:
    """Lines that make k and v, all keys and values, and the results o1 and o2 of them."""
    past = node.dims[3] if node.has(3) else None
    wanted = [f"o{at} = Identity({name})" for at, name in ((1, "k"), (2, "v")) if len(node.node.outputs) > at]
    if not node.has(3) or (past is not None and past[2] == 0):
        return ["k = Identity(k_x)", "v = Identity(v_n)", *wanted]
    present = dims.declared(node.node.outputs[1]) if len(node.node.outputs) > 1 else None
    shares = past is not None and present is not None and present[2] == past[2]  # one buffer, of that many rows
    lines = [*dim_of("c", "i3", 2), "c_all = Identity(c)" if shares else "c_all = Max(c, total)"]
    lines += [f"{name} = {caches.DOMAIN}.Extend(i{at}, {source}, before, c_all, c_all)"
              for at, name, source in ((3, "k", "k_x"), (4, "v", "v_n"))]  # fmt: skip
    return [*lines, *wanted]


def _zeros(name: str, like: str, count: str, axis: int) -> list[str]:
    """Lines that make zeros of four dims, those of a value but for one."""
    lines = [line for at in range(4) if at != axis for line in dim_of(f"{name}_{at}", like, at)]
    parts = ", ".join(count if at == axis else f"{name}_{at}" for at in range(4))
    return [*lines, f"{name}_to = Concat <axis = 0> ({parts})", *float_like(f"{name}_nought", 0.0, "q"),
            f"{name} = Expand({name}_nought, {name}_to)"]  # fmt: skip


def _attended(node: Node, heads: int, groups: int, size: int) -> list[str]:
    """Lines that make y of q, k and v by `mask`, which numbers are added to or which is of bools.

    Scores and sums of short floats are of float32, as ONNX Runtime has them.
    """
    scale, softcap = node.number("scale", 0.0) or size**-0.5, node.number("softcap", 0.0)
    sinks = node.has(11) or node.flag("smooth_softmax")
    is_short = node.kind == ir.DataType.FLOAT16
    to = 10 if is_short else 1
    lines = [f"{name}_1 = Cast <to = 1> ({name})" for name in ("q", "k", "v")]
    if node.has(10):
        lines += ["added = Cast <to = 1> (mask)"]
    else:
        lines += ["added = Identity(mask)"]
    if node.opset >= ATTENTION_SINCE and not sinks:
        given = f"scale: float = {scale}, softcap: float = {softcap}"
        lines += [f"o_1 = Attention <{given}> (q_1, k_1, v_1, added)"]
        return [*lines, f"o = Cast <to = {to}> (o_1)", *out_of_heads("o")]
    lines += [int_vector("two", 2), int_vector("by", groups), int_vector("each", heads // groups),
              int_vector("all", heads)]  # fmt: skip
    for name in "kv":  # each head of queries with its own
        lines += [f"{name}_5 = Unsqueeze({name}_1, two)",
                  *(line for at in (0, 2, 3) for line in dim_of(f"{name}_d{at}", name, at)),
                  f"{name}_6 = Concat <axis = 0> ({name}_d0, by, each, {name}_d2, {name}_d3)",
                  f"{name}_7 = Expand({name}_5, {name}_6)",
                  f"{name}_8 = Concat <axis = 0> ({name}_d0, all, {name}_d2, {name}_d3)",
                  f"{name}_9 = Reshape({name}_7, {name}_8)"]  # fmt: skip
    lines += ["k_t = Transpose <perm = [0, 1, 3, 2]> (k_9)", f"scale = {scalar(scale)}", "q_s = Mul(q_1, scale)",
              "s_0 = MatMul(q_s, k_t)"]  # fmt: skip
    if softcap:
        lines += [f"cap = {scalar(softcap)}", "s_a = Div(s_0, cap)", "s_b = Tanh(s_a)", "s_1 = Mul(s_b, cap)"]
    else:
        lines += ["s_1 = Identity(s_0)"]
    if node.has(10):
        lines += ["s_2 = Add(s_1, added)"]
    else:
        lines += [f"shut = {scalar(SHUT)}", "s_2 = Where(added, s_1, shut)"]
    if sinks:  # a score beside those of the keys, whose value counts for nothing
        lines += ["sink_s = Cast <to = 1> (i11)"] if node.has(11) else [f"sink_s = {scalar(0.0)}"]
        lines += [int_vector("s_d", 1, -1, 1, 1), "sink_r = Reshape(sink_s, s_d)",
                  "s_n = Shape <start = 0, end = 3> (s_2)", "s_m = Concat <axis = 0> (s_n, one)",
                  "sink = Expand(sink_r, s_m)", "s_3 = Concat <axis = 3> (s_2, sink)",
                  "p_3 = Softmax <axis = -1> (s_3)",
                  int_vector("p_x", 3), "p = Slice(p_3, zero, t, p_x)"]  # fmt: skip
    else:
        lines += ["p = Softmax <axis = -1> (s_2)"]
    return [*lines, "o_1 = MatMul(p, v_9)", f"o = Cast <to = {to}> (o_1)", *out_of_heads("o")]

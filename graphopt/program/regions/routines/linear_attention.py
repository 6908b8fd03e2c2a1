"""LinearAttention of com.microsoft: a recurrence whose state is a matrix of keys and values for each head.

S = exp(g) S + k (v or b (v - exp(g) S^T k))^T,  o = scale S^T q

Each head of keys and values goes through the tokens by itself. States are f32 while the tokens last; products are
rounded before they are added, as ONNX Runtime does: where they overflow a sum is what it is there.
"""

from __future__ import annotations

from math import sqrt

from graphopt.program.regions.routines.stage import Defined, Definition
from kernels.dtype import DType
from kernels.routine.writer import as_type, quotient
from kernels.tensor.expression import Expression, Unary


def linear_attention(node: Defined) -> None:
    """All four rules; the decay is of each key's number or of a head, the rate of a head or of all."""
    rule = node.text("update_rule", "gated_delta")
    is_gated, is_delta = "gated" in rule, "delta" in rule
    heads, groups = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
    node.require(not node.integer("state_window", 0), "keeps states of several tokens")
    (batch, tokens, width), (_, _, keys), (_, _, values) = (node.shape(at) for at in range(3))
    node.require(heads > 0 and groups > 0 and not max(heads, groups) % min(heads, groups), "has heads that do not fit")
    size, given, size_v = width // heads, keys // groups, values // groups
    node.require(size == given, "has queries and keys of different sizes")
    each, shared = max(heads // groups, 1), max(groups // heads, 1)  # heads of queries for one of keys, or reversed
    scale = node.number("scale", 0.0) or 1 / sqrt(size)
    with node.stage() as w:
        q, k, v = (w.reads(node.input(at)) for at in range(3))
        past = w.reads(node.input(3)) if node.has(3) else None
        decay, rate = (w.reads(node.input(at)) if node.has(at) else None for at in (4, 5))
        node.require((not is_gated or decay is not None) and (not is_delta or rate is not None), "has no such operand")
        y = w.writes(node.output(0))
        kept = w.writes(node.output(1)) if node.wants(1) else None
        state, row = w.scratch(DType.F32, (size, size_v)), w.scratch(DType.F32, (size_v,))
        with w.shared(batch, groups) as (b, head):
            with w.loops(size, size_v) as (i, j):
                state[i, j] = 0.0 if past is None else _f32(past[b, head, i, j])
            with w.loop(tokens) as t:
                if is_gated:
                    assert decay is not None, "required"
                    with w.loop(size) as i:
                        place = head if decay.shape[2] == groups else head * size + i
                        factor = w.local(DType.F32, Unary("exp", _f32(decay[b, t, place])))
                        with w.loop(size_v) as j:
                            state[i, j] = state[i, j] * factor
                with w.loop(size_v) as j:
                    row[j] = 0.0 if is_delta else _f32(v[b, t, head * size_v + j])
                if is_delta:
                    assert rate is not None, "required"
                    with w.loop(size) as i:
                        key = w.local(DType.F32, _f32(k[b, t, head * size + i]))
                        with w.loop(size_v) as j:
                            row[j] = row[j] + w.local(DType.F32, key * state[i, j])
                    by = w.local(DType.F32, _f32(rate[b, t, head if rate.shape[2] == groups else 0]))
                    with w.loop(size_v) as j:
                        row[j] = (_f32(v[b, t, head * size_v + j]) - row[j]) * by
                with w.loop(size) as i:
                    key = w.local(DType.F32, _f32(k[b, t, head * size + i]))
                    with w.loop(size_v) as j:
                        state[i, j] = state[i, j] + w.local(DType.F32, key * row[j])
                with w.loop(each) as of:
                    query = w.local(DType.I64, head * each + of if heads >= groups else quotient(head, shared))
                    with w.loop(size_v) as j:
                        row[j] = 0.0
                    with w.loop(size) as i:
                        number = w.local(DType.F32, _f32(q[b, t, query * size + i]))
                        with w.loop(size_v) as j:
                            row[j] = row[j] + w.local(DType.F32, number * state[i, j])
                    with w.loop(size_v) as j:
                        y[b, t, (head * each + of) * size_v + j] = as_type(row[j] * scale, y.dtype)
            if kept is not None:
                with w.loops(size, size_v) as (i, j):
                    kept[b, head, i, j] = as_type(state[i, j], kept.dtype)


def _f32(x: Expression) -> Expression:
    return as_type(x, DType.F32)


MICROSOFT: dict[str, Definition] = {"LinearAttention": linear_attention}

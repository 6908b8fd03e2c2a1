"""What com.microsoft's operators of transformers compute, in operators of the standard.

Heads are taken apart, scores are masked by sums, and heads are put side by side again, as ONNX Runtime does on
processors. Forms that only its kernels for GPUs know are left out.
"""

from __future__ import annotations

from math import sqrt

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.contrib import caches
from graphopt.model.contrib.lines import dim_of, float_like, in_heads, int_scalar, int_vector, out_of_heads, turned
from graphopt.model.contrib.node import Node

_LEAST = -3.4028234663852886e38  # what ONNX Runtime adds to a score that is not seen


def _unseen(name: str, seen: str, filled: float) -> list[str]:
    """Lines that make 0 where a mask of integers is not 0, and `filled` elsewhere."""
    return [f"{name}_b = Cast <to = 9> ({seen})", *float_like(f"{name}_l", filled, "q"),
            *float_like(f"{name}_z", 0.0, "q"),
            f"{name} = Where({name}_b, {name}_z, {name}_l)"]  # fmt: skip


def _later() -> list[str]:
    """Lines that make `later`: what is added to the scores of q with k where keys come after their query."""
    return [*dim_of("c_q", "q", 2), *dim_of("c_k", "k", 2), "c_qs = Squeeze(c_q)", "c_ks = Squeeze(c_k)",
            int_scalar("c_0", 0),
            int_scalar("c_1", 1), "c_b = Sub(c_ks, c_qs)", "c_r = Range(c_b, c_ks, c_1)", "c_c = Range(c_0, c_ks, c_1)",
            int_vector("c_u", 1), "c_l = Unsqueeze(c_r, c_u)", "c_s = Less(c_l, c_c)", *float_like("c_f", _LEAST, "q"),
            *float_like("c_z", 0.0, "q"), "later = Where(c_s, c_f, c_z)"]  # fmt: skip


def _attended(node: Node, size: int, added: list[str]) -> list[str]:
    """Lines that make y of q, k and v in heads; `added` are values that are added to scores."""
    scale = node.number("scale", 0.0) or 1 / sqrt(size)
    lines = ["k_t = Transpose <perm = [0, 1, 3, 2]> (k)", *float_like("scale", scale, "q"), "q_s = Mul(q, scale)",
             "s0 = MatMul(q_s, k_t)"]  # fmt: skip
    lines += [f"s{at + 1} = Add(s{at}, {one})" for at, one in enumerate(added)]
    return [*lines, f"p = Softmax <axis = -1> (s{len(added)})", "o = MatMul(p, v)", *out_of_heads("o")]


def _masked(node: Node, at: int) -> list[str] | None:
    """Lines that make `mask` of the operand with lengths, a row for each sequence, or a matrix; None: no such form."""
    filled = node.number("mask_filter_value", -10000.0)
    match node.rank[at]:
        case 1:
            rows, batch = node.dims[at], (node.dims[0] or (None,))[0]
            if rows is None or rows[0] != batch:
                return None
            seen = [*dim_of("m_k", "k", 2), "m_e = Squeeze(m_k)", int_scalar("m_0", 0),
                    int_scalar("m_1", 1), "m_p = Range(m_0, m_e, m_1)", f"m_c = Cast <to = 7> (i{at})",
                    int_vector("m_a", 1, 2, 3), "m_u = Unsqueeze(m_c, m_a)", "m_s = Less(m_p, m_u)"]  # fmt: skip
        case 2:
            seen = [int_vector("m_a", 1, 2), f"m_s = Unsqueeze(i{at}, m_a)"]
        case 3:
            seen = [int_vector("m_a", 1), f"m_s = Unsqueeze(i{at}, m_a)"]
        case _:
            return None
    return [*seen, *_unseen("mask", "m_s", filled)]


def _added(node: Node, at: int, bias: int | None = 5) -> tuple[list[str], list[str]] | None:
    """Lines for what is added to scores, a mask as operand `at` and a `bias`, and its names; None: no such mask."""
    mask = _masked(node, at) if node.has(at) else []
    if mask is None:
        return None
    lines, added = mask, ["mask"] if mask else []
    if node.flag("unidirectional"):
        lines, added = [*lines, *_later()], [*added, "later"]
    return lines, [*added, f"i{bias}"] if bias is not None and node.has(bias) else added


def attention(node: Node) -> str | None:
    """One product for queries, keys and values of all heads, then attention."""
    heads, given = nodes.int_attribute(node.node, "num_heads", 0), node.dims[1]
    sizes = nodes.attribute_of(node.node, "qkv_hidden_sizes")
    if given is None or not isinstance(given[-1], int) or not heads or node.flag("do_rotary") or node.has(6):
        return None
    widths = [int(one) for one in sizes.value] if sizes is not None else [given[-1] // 3] * 3
    lines = ["x_p = MatMul(i0, i1)", f"x = {'Add(x_p, i2)' if node.has(2) else 'Identity(x_p)'}"]
    return _of_one_product(node, lines, widths, mask=3, past=4, bias=5)


def quantized_attention(node: Node) -> str | None:
    """The same product of bytes, scaled."""
    given = node.dims[1]
    if given is None or not isinstance(given[-1], int) or node.flag("do_rotary"):
        return None
    node.kind = ir.DataType.FLOAT
    zeros = ", ".join(f"i{at}" if node.has(at) else '""' for at in (6, 7))
    lines = [f"x_i = MatMulInteger(i0, i1, {zeros})", "x_f = Cast <to = 1> (x_i)", "x_s = Mul(i3, i4)",
             "x_p = Mul(x_f, x_s)", "x = Add(x_p, i2)"]  # fmt: skip
    return _of_one_product(node, lines, [given[-1] // 3] * 3, mask=5, past=8, bias=None)


def _of_one_product(
    node: Node, lines: list[str], widths: list[int], *, mask: int, past: int, bias: int | None
) -> str | None:
    """Lines that make the results of x, in which queries, keys and values of these widths lie side by side."""
    heads = nodes.int_attribute(node.node, "num_heads", 0)
    added = _added(node, mask, bias)
    if added is None or not heads or len(node.node.outputs) > 2:
        return None
    lines = [*lines, int_vector("x_w", *widths), "q_x, k_x, v_x = Split <axis = -1> (x, x_w)"]
    before = ["", "", ""]
    if node.has(past):
        lines += [int_scalar("b_k", 0), int_scalar("b_v", 1), f"past_k = Gather <axis = 0> (i{past}, b_k)",
                  f"past_v = Gather <axis = 0> (i{past}, b_v)"]  # fmt: skip
        before = ["", "past_k", "past_v"]
    for name, old in zip("qkv", before, strict=True):
        lines += in_heads(f"{name}_n" if old else name, f"{name}_x", heads)
        lines += [f"{name} = Concat <axis = 2> ({old}, {name}_n)"] if old else []
    lines += [*added[0], *_attended(node, widths[0] // heads, added[1])]
    if len(node.node.outputs) > 1:
        lines += [int_vector("b_u", 0), "k_u = Unsqueeze(k, b_u)", "v_u = Unsqueeze(v, b_u)",
                  "o1 = Concat <axis = 0> (k_u, v_u)"]  # fmt: skip
    return "\n ".join(lines)


def multi_head_attention(node: Node) -> str | None:
    """Queries, keys and values that are products already; keys and values in heads where they are of an encoder."""
    return None if node.has(8) or node.has(9) else _of_products(node, bias=3, mask=4, added=5, past=6)


def decoder_attention(node: Node) -> str | None:
    """The same for one token, whose caches may be as long before as behind it; no beams that share caches."""
    shares = node.flag("past_present_share_buffer")
    has_all = node.has(5) and node.has(7) and node.rank[1] == 3  # a buffer with keys of an encoder is refused there too
    if node.has(8) or node.has(9) or node.flag("output_qk") or (shares and not has_all):
        return None
    return _of_products(node, bias=10, mask=3, added=4, past=5, length=7 if shares else None)


def _of_products(node: Node, *, bias: int, mask: int, added: int, past: int, length: int | None = None) -> str | None:
    """Lines that make the results, by the positions of operands; `length`: of how many rows of the caches count."""
    heads, given = nodes.int_attribute(node.node, "num_heads", 0), node.dims[0]
    ranks = [node.rank[at] if node.has(at) else None for at in range(3)]
    known = given is not None and isinstance(given[-1], int)
    if not known or not heads or ranks[0] != 3 or ranks[1:] not in ([3, 3], [4, 4]):
        return None
    assert given is not None and isinstance(given[-1], int), "its last dim is a number"
    width, lines, names = given[-1], list[str](), [f"i{at}" for at in range(3)]
    if node.has(bias):
        total = (node.dims[bias] or (None,))[0]
        if not isinstance(total, int) or ranks[1] == 4:
            return None
        lines += [int_vector("b_w", width, width, total - 2 * width),
                  f"b_q, b_k, b_v = Split <axis = 0> (i{bias}, b_w)"]  # fmt: skip
        lines += [f"{name}_x = Add(i{at}, b_{name})" for at, name in enumerate("qkv")]
        names = [f"{name}_x" for name in "qkv"]
    for at, name in enumerate("qkv"):
        old = past + at - 1
        has_past = at > 0 and node.has(old) and ranks[at] == 3
        new = f"{name}_n" if has_past else name
        lines += [f"{new} = Identity({names[at]})"] if ranks[at] == 4 else in_heads(new, names[at], heads)
        if has_past and length is not None:
            lines += [*dim_of(f"{name}_c", f"i{old}", 2), f"{name}_b = Cast <to = 7> (i{length})",
                      int_vector(f"{name}_flat", -1), f"{name}_f = Reshape({name}_b, {name}_flat)",
                      *dim_of(f"{name}_s", f"i{old}", 0),
                      f"{name}_a = Expand({name}_f, {name}_s)",
                      int_vector(f"{name}_0", 0),
                      f"{name}_all = {caches.DOMAIN}.Extend(i{old}, {new}, {name}_a, {name}_c, {name}_0)"]  # fmt: skip
        elif has_past:
            lines += [f"{name} = Concat <axis = 2> (i{old}, {new})"]
    told = next(((at, axis) for at, axis in ((mask, 1), (added, 3)) if node.has(at)), None)
    if length is not None and told is not None:  # as many keys as the mask or the bias is for
        lines += [*dim_of("t", f"i{told[0]}", told[1]), int_vector("t_0", 0), int_vector("t_x", 2)]
    if length is not None:
        seen = "Identity({})" if told is None else "Slice({}, t_0, t, t_x)"
        lines += [f"{name} = {seen.format(f'{name}_all')}" for name in "kv"]
    more = None if node.has(mask) and node.rank[mask] == 1 else _added(node, mask, added)
    if more is None:
        return None
    lines += [*more[0]]
    if length is not None and told is None:
        lines += _behind("k_f")
        more[1].append("behind")
    lines += _attended(node, width // heads, more[1])
    whole = "" if length is None else "_all"
    lines += [f"o{at} = Identity({name}{whole})" for at, name in enumerate("kv", 1) if len(node.node.outputs) > at]
    return "\n ".join(lines) if len(node.node.outputs) < 4 else None


def _behind(count: str) -> list[str]:
    """Lines that make `behind`: what is added to scores of keys from the place after `count` old rows on."""
    return [*dim_of("f_n", "k", 2), "f_e = Squeeze(f_n)", int_scalar("f_0", 0), int_scalar("f_1", 1),
            "f_r = Range(f_0, f_e, f_1)", f"f_s = LessOrEqual(f_r, {count})", *float_like("f_l", _LEAST, "q"),
            *float_like("f_z", 0.0, "q"), "behind = Where(f_s, f_z, f_l)"]  # fmt: skip


def rotary_embedding(node: Node) -> str | None:
    """Halves of each head, or neighbours, turned by the angle of their position."""
    if node.rank[1] == 1:  # the position of the first row
        angles = ["n_e = Squeeze(n)", int_scalar("n_0", 0), int_scalar("n_1", 1), "n_r = Range(n_0, n_e, n_1)",
                  "n_p = Add(n_r, i1)", int_vector("n_u", 0), "at = Unsqueeze(n_p, n_u)"]  # fmt: skip
    elif node.rank[1] == 2:
        angles = ["at = Identity(i1)"]
    else:
        return None
    angles += ["cos_r = Gather <axis = 0> (i2, at)", "sin_r = Gather <axis = 0> (i3, at)"]
    return _rotated(node, angles)


def rotary_embedding_of_three(node: Node) -> str | None:
    """Each pair is turned by the angle of one of three positions: in time, and in rows and columns of an image."""
    table, given = node.dims[2], nodes.attribute_of(node.node, "mrope_section")
    half = None if table is None else table[-1]
    sections = [int(one) for one in given.value] if given is not None else []
    if not isinstance(half, int) or len(sections) != 3 or node.rank[1] != 3 or node.number("scale", 1.0) != 1:
        return None
    if node.flag("mrope_layout"):
        of = [step if (step := pair % 3) and pair < 3 * sections[step] else 0 for pair in range(half)]
    else:
        of = [position for position, count in enumerate(sections) for _ in range(count)]
    if len(of) != half:
        return None
    angles = [int_vector("every", *of)]
    for name, source in (("cos", "i2"), ("sin", "i3")):
        angles += [f"{name}_all = Gather <axis = 0> ({source}, i1)"]
        angles += [f"{name}_n{at} = Gather <axis = 0> ({name}_all, p{at})" for at in range(3)]
        angles += [f"{name}_h = Where(is1, {name}_n1, {name}_n0)", f"{name}_r = Where(is2, {name}_n2, {name}_h)"]
    places = [line for at in range(3) for line in (int_scalar(f"p{at}", at), f"is{at} = Equal(every, p{at})")]
    return _rotated(node, [angles[0], *places, *angles[1:]])


def _rotated(node: Node, angles: list[str]) -> str | None:
    """Lines that make y of i0, turned by `cos_r` and `sin_r`, which `angles` make of the count of rows, n."""
    rank, table = node.rank[0], node.dims[2]
    heads, part = (nodes.int_attribute(node.node, name, 0) for name in ("num_heads", "rotary_embedding_dim"))
    half = None if table is None else table[-1]
    if rank not in (3, 4) or not isinstance(half, int) or node.flag("is_packed_batching") or (part and not heads):
        return None
    width = (node.dims[0] or (None,))[-1]
    lines = ["x = Identity(i0)"]
    if rank == 3:
        count = heads or (width // (2 * half) if isinstance(width, int) else 0)
        if not count:
            return None
        lines = in_heads("x", "i0", count)
    lines += [*dim_of("n", "x", 2), *angles, int_vector("h", 1), "cos = Unsqueeze(cos_r, h)",
              "sin = Unsqueeze(sin_r, h)"]  # fmt: skip
    lines += turned("r", "x", half, interleaved=node.flag("interleaved"), whole=not part)
    return "\n ".join((*lines, *(out_of_heads("r") if rank == 3 else ["y = Identity(r)"])))


def embed_layer_normalization(node: Node) -> str:
    """Rows of words, positions and segments, summed and normalized; how much of each mask is 1; the sum."""
    return "\n ".join(_embedded(node, [f"i{at}" for at in range(8)], "i8" if node.has(8) else None))


def quantized_embeddings(node: Node) -> str:
    """The same of tables, scale and shift in bytes, each with a scale and a zero point of its own."""
    names = [f"e{at}" if 2 <= at < 7 else f"i{at}" for at in range(8)]
    tables = [at for at in range(2, 7) if node.has(at)]
    return "\n ".join([*(f"e{at} = DequantizeLinear(i{at}, i{at + 6}, i{at + 11})" for at in tables),
                       *_embedded(node, names, None)])  # fmt: skip


def _embedded(node: Node, names: list[str], positions: str | None) -> list[str]:
    ids, segments, words, places, parts, scale, shift, mask = names
    lines = [f"w = Gather <axis = 0> ({words}, {ids})"]
    if positions is not None:
        lines += [f"p = Gather <axis = 0> ({places}, {positions})"]
    else:
        lines += [*dim_of("n", ids, 1), int_vector("z", 0), f"p = Slice({places}, z, n, z)"]
    lines += ["s0 = Add(w, p)"]
    if node.has(1) and node.has(4):
        lines += [f"g = Gather <axis = 0> ({parts}, {segments})", "s = Add(s0, g)"]
    else:
        lines += ["s = Identity(s0)"]
    epsilon = node.number("epsilon", 1e-12)
    lines += [f"y = LayerNormalization <axis = -1, epsilon: float = {epsilon}> (s, {scale}, {shift})"]
    if len(node.node.outputs) > 1:
        lines += [int_vector("one", 1)]
        lines += [f"m_1 = CastLike(one, {ids})", f"m_e = Equal({mask}, m_1)"] if node.has(7) else [
            f"m_e = Less({ids}, {ids})"]  # fmt: skip
        lines += ["m = Cast <to = 6> (m_e)", "o1 = ReduceSum <keepdims = 0> (m, one)"]
    return [*lines, *(["o2 = Identity(s)"] if len(node.node.outputs) > 2 else [])]

"""MoE and QMoE of com.microsoft in operators of the standard: products with experts, weighed by a router.

Few tokens beside the experts take the weights of those that the router chooses for each. Otherwise all tokens go
through all experts, of which those that the router does not choose count for nothing: which rows an expert has is known
only in a run, and most experts are chosen by one of many tokens.
"""

from __future__ import annotations

from math import prod

from graphopt.model import nodes
from graphopt.model.contrib.lines import int_vector
from graphopt.model.contrib.node import Node, scalar
from graphopt.model.contrib.packed import unpacked, widened

_INFINITE = 3.4e38
COPIED = 3  # times that a weight is read or written where it is gathered first


def experts(node: Node) -> str | None:
    """Experts of floats: operands are tokens, routes, and weights with biases of both products."""
    weights = {1: ["w1 = Identity(i2)"], 2: ["w2 = Identity(i4)"]}
    if any(node.has(at) for at in (6, 7)):
        return None
    return _routed(node, weights, {1: 3, 2: 5}, routes=None, whole=node.flag("normalize_routing_weights"))


def quantized_experts(node: Node) -> str | None:
    """Experts of codes with scales: the same with a scale, and where there is one a code of zero, for each weight."""
    if nodes.string_attribute(node.node, "quant_type", "int") != "int" or any(node.has(at) for at in range(15, 21)):
        return None
    if any(node.has(at) for at in (8, 9, 10, 13)) or nodes.int_attribute(node.node, "weights_prepacked", -1) == 1:
        return None
    every, weights = nodes.int_attribute(node.node, "expert_weight_bits", 4), dict[int, list[str]]()
    for number, (codes, scale, zero) in {1: (2, 3, 11), 2: (5, 6, 12)}.items():
        bits = nodes.int_attribute(node.node, f"fc{number}_expert_weight_bits", 0) or every
        scales, zeros = node.dims[scale], node.dims[zero] if node.has(zero) else None
        if scales is None or bits not in (2, 4, 8) or len(scales) not in (2, 3):
            return None
        blocks = scales[-1] if len(scales) == 3 else 1
        if not isinstance(blocks, int):
            return None
        name, lines = f"w{number}", unpacked(f"c{number}", f"i{codes}", (1, 1, 1), bits)
        if zeros is not None:
            lines += [*unpacked(f"z{number}_a", f"i{zero}", (1,) * len(zeros), bits), int_vector(f"z{number}_0", 0),
                      int_vector(f"z{number}_n", int(str(scales[-1]))), int_vector(f"z{number}_x", len(zeros) - 1),
                      f"z{number} = Slice(z{number}_a, z{number}_0, z{number}_n, z{number}_x)"]  # fmt: skip
        zero_name = None if zeros is None else f"z{number}"
        weights[number] = [*lines, *widened(name, f"c{number}", f"i{scale}", zero_name, 3, blocks, 1 << bits - 1)]
    return _routed(node, weights, {1: 4, 2: 7}, routes=14 if node.has(14) else None, whole=True)


def _routed(
    node: Node, weights: dict[int, list[str]], biases: dict[int, int], routes: int | None, *, whole: bool
) -> str | None:
    """Lines that make y of the tokens i0 and their routes i1, by `w1` and `w2`, [experts, results, operands].

    Of equal routes the last is taken. The shares of those that are taken are made to sum to 1 where they are `whole`.
    """
    given, gates = node.dims[0], node.dims[1]
    count = nodes.int_attribute(node.node, "k", 1)
    if given is None or gates is None or not isinstance(given[-1], int) or not isinstance(gates[1], int):
        return None
    activated = _activated(node)
    if activated is None or node.flag("use_sparse_mixer"):
        return None
    dims = [one for one in given[:-1] if isinstance(one, int)]
    tokens = prod(dims) if len(dims) == len(given) - 1 else None
    few = tokens is not None and (tokens == 1 or COPIED * tokens * count <= gates[1])
    lines = [int_vector("x_d", -1, given[-1]), "x_r = Reshape(i0, x_d)", "x_f = Cast <to = 1> (x_r)",
             "g_f = Cast <to = 1> (i1)", "g = Softmax <axis = -1> (g_f)", int_vector("g_k", count),
             int_vector("back", -1), int_vector("g_e", -(2**31)), int_vector("g_x", 1),
             "turned = Slice(g, back, g_e, g_x, back)", "g_v, g_j = TopK <axis = -1> (turned, g_k)",
             int_vector("g_l", gates[1] - 1), "g_i = Sub(g_l, g_j)"]  # fmt: skip
    if routes is not None:
        lines += [f"g_w = Cast <to = 1> (i{routes})", "g_t = GatherElements <axis = 1> (g_w, g_i)"]
    else:
        lines += ["g_t = Identity(g_v)"]
    if whole:
        lines += ["g_s = ReduceSum(g_t, g_x)", "g_n = Div(g_t, g_s)"]
    else:
        lines += ["g_n = Identity(g_t)"]
    for number in (1, 2):
        lines += weights[number]
    if few:  # a row for each expert of a token
        lines += [int_vector("g_d", -1), "chosen = Reshape(g_i, g_d)", int_vector("s_d", -1, 1, 1),
                  "share = Reshape(g_n, s_d)", int_vector("x_u", 1), "x_1 = Unsqueeze(x_f, x_u)",
                  int_vector("x_n", 1, count, 1), "x_k = Expand(x_1, x_n)", int_vector("x_m", -1, 1, given[-1]),
                  f"x_e = {'Identity(x_f)' if tokens == 1 else 'Reshape(x_k, x_m)'}"]  # fmt: skip
    else:
        lines += [f"g_0 = {scalar(0.0)}", "g_z = Mul(g, g_0)", "g_a = ScatterElements <axis = 1> (g_z, g_i, g_n)",
                  "share_t = Transpose <perm = [1, 0]> (g_a)", int_vector("s_u", 2),
                  "share = Unsqueeze(share_t, s_u)"]  # fmt: skip
    source = "x_e" if few else "x_f"
    for number, result in ((1, "h"), (2, "o")):
        name = f"w{number}"
        if few:
            lines += [f"{name}_g = Gather <axis = 0> ({name}, chosen)"]
        else:
            lines += [f"{name}_g = Identity({name})"]
        lines += [f"{name}_q = Cast <to = 1> ({name}_g)", f"{name}_w = Transpose <perm = [0, 2, 1]> ({name}_q)",
                  f"{result}_p = MatMul({source}, {name}_w)"]  # fmt: skip
        if node.has(biases[number]):
            at = biases[number]
            picked = f"b{number}_g = " + (f"Gather <axis = 0> (i{at}, chosen)" if few else f"Identity(i{at})")
            lines += [picked, f"b{number}_f = Cast <to = 1> (b{number}_g)", int_vector(f"b{number}_u", 1),
                      f"b{number} = Unsqueeze(b{number}_f, b{number}_u)",
                      f"{result} = Add({result}_p, b{number})"]  # fmt: skip
        else:
            lines += [f"{result} = Identity({result}_p)"]
        lines += activated if number == 1 else []
        source = "a"
    lines += ["o_w = Mul(o, share)", int_vector("o_x", int(few)), int_vector("o_t", -1, count, given[-1]),
              f"o_r = {'Reshape(o_w, o_t)' if few else 'Identity(o_w)'}", "o_s = ReduceSum <keepdims = 0> (o_r, o_x)",
              "o_d = Shape(i0)", "y_f = Reshape(o_s, o_d)"]  # fmt: skip
    return "\n ".join([*lines, "y = CastLike(y_f, i0)"])


def _activated(node: Node) -> list[str] | None:
    """Lines that make a of h; None where ONNX Runtime has no such form on processors."""
    match nodes.string_attribute(node.node, "activation_type", "relu"):
        case "relu":
            return ["a = Relu(h)"]
        case "identity":
            return ["a = Identity(h)"]
        case "silu":
            return ["h_s = Sigmoid(h)", "a = Mul(h, h_s)"]
        case "gelu":  # by its tangent
            numbers = {"half": 0.5, "one": 1.0, "inner": 0.7978845608028654, "cube": 0.044715}
            return [*(f"{name} = {scalar(number)}" for name, number in numbers.items()), "h_2 = Mul(h, h)",
                    "h_3 = Mul(h_2, cube)", "h_4 = Add(h_3, one)", "h_5 = Mul(h, h_4)", "h_6 = Mul(h_5, inner)",
                    "h_7 = Tanh(h_6)", "h_8 = Add(h_7, one)", "h_9 = Mul(h, h_8)", "a = Mul(h_9, half)"]  # fmt: skip
        case "swiglu" if nodes.int_attribute(node.node, "swiglu_fusion", 0) == 1:  # gates and values by turns
            limit = node.number("swiglu_limit", _INFINITE)
            alpha, beta = node.number("activation_alpha", 1.0), node.number("activation_beta", 0.0)
            return [int_vector("h_t", 2), int_vector("h_0", 0), int_vector("h_1", 1), int_vector("h_x", -1),
                    int_vector("h_e", 2**31 - 1), "h_a = Slice(h, h_0, h_e, h_x, h_t)",
                    "h_b = Slice(h, h_1, h_e, h_x, h_t)", f"h_l = {scalar(limit)}", f"h_m = {scalar(-limit)}",
                    "h_g = Min(h_a, h_l)", "h_v = Clip(h_b, h_m, h_l)", f"h_k = {scalar(alpha)}",
                    f"h_q = {scalar(beta)}", "h_w = Mul(h_g, h_k)", "h_s = Sigmoid(h_w)", "h_c = Mul(h_g, h_s)",
                    "h_d = Add(h_v, h_q)", "a = Mul(h_c, h_d)"]  # fmt: skip
    return None

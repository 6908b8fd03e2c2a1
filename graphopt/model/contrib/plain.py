"""Operators of com.microsoft that the standard has too, under other names or with other operands."""

from __future__ import annotations

from graphopt.model import nodes
from graphopt.model.contrib.lines import int_vector
from graphopt.model.contrib.node import Node, scalar

_POOLING = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_MODES_SINCE = 20  # GridSample calls its modes linear and cubic


def trilu(node: Node) -> str:
    """The same operands and attribute."""
    return f"y = Trilu <upper = {nodes.int_attribute(node.node, 'upper', 1)}> (i0{', i1' if node.has(1) else ''})"


def pad(node: Node) -> str:
    """Pads may be a row of a matrix."""
    given = ", i2" if node.has(2) else ""
    mode = nodes.string_attribute(node.node, "mode", "constant")
    return f'{int_vector("flat", -1)}\n p = Reshape(i1, flat)\n y = Pad <mode = "{mode}"> (i0, p{given})'


def gather_nd(node: Node) -> str:
    """Places of any integers."""
    return "p = Cast <to = 7> (i1)\n y = GatherND(i0, p)"


def grid_sample(node: Node) -> str:
    """Modes by their old names."""
    mode = nodes.string_attribute(node.node, "mode", "bilinear")
    if node.opset >= _MODES_SINCE:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    border = nodes.string_attribute(node.node, "padding_mode", "zeros")
    corners = int(node.flag("align_corners"))
    return f'y = GridSample <mode = "{mode}", padding_mode = "{border}", align_corners = {corners}> (i0, i1)'


def expand_dims(node: Node) -> str:
    """An axis that is a single number."""
    return f"{int_vector('flat', -1)}\n a = Cast <to = 7> (i1)\n b = Reshape(a, flat)\n y = Unsqueeze(i0, b)"


def cdist(node: Node) -> str:
    """Distances between the rows of two matrices."""
    lines = [int_vector("one", 1), int_vector("zero", 0), int_vector("last", 2), "a = Unsqueeze(i0, one)",
             "b = Unsqueeze(i1, zero)", "d = Sub(a, b)", "q = Mul(d, d)",
             "s = ReduceSum <keepdims = 0> (q, last)"]  # fmt: skip
    is_squared = nodes.string_attribute(node.node, "metric", "sqeuclidean") == "sqeuclidean"
    return "\n ".join([*lines, "y = Identity(s)" if is_squared else "y = Sqrt(s)"])


def unfold_tensor(node: Node) -> str | None:
    """Windows along one axis, each on an axis of its own at the end."""
    dims = node.dims[0]
    if dims is None:
        return None
    axis = nodes.int_attribute(node.node, "dim", -1) % len(dims)
    size, step = (nodes.int_attribute(node.node, name, 1) for name in ("size", "step"))
    length = dims[axis]
    if not isinstance(length, int) or size > length:
        return None
    starts = range(0, length - size + 1, step)
    places = ", ".join(str(start + at) for start in starts for at in range(size))
    order = [*range(axis + 1), *range(axis + 2, len(dims) + 1), axis + 1]
    return (f"p = Constant <value: tensor = int64[{len(starts)},{size}] {{{places}}}> ()\n "
            f"g = Gather <axis = {axis}> (i0, p)\n y = Transpose <perm = {order}> (g)")  # fmt: skip


def nhwc_max_pool(node: Node) -> str | None:
    """Images whose channels are last."""
    there, back = _orders(node)
    if not there:
        return None
    return (f"t = Transpose <perm = {there}> (i0)\n p = MaxPool {node.kept(_POOLING)} (t)\n "
            f"y = Transpose <perm = {back}> (p)")  # fmt: skip


def quantized_convolution(node: Node) -> str | None:
    """The standard's, also for images whose channels are last."""
    operands = ", ".join(f"i{at}" if node.has(at) else '""' for at in range(1, len(node.node.inputs)))
    options = node.kept(_CONVOLUTION)
    if not node.flag("channels_last"):
        return f"y = QLinearConv {options} (i0, {operands})"
    there, back = _orders(node)
    if not there:
        return None
    return (f"t = Transpose <perm = {there}> (i0)\n c = QLinearConv {options} (t, {operands})\n "
            f"y = Transpose <perm = {back}> (c)")  # fmt: skip


def _orders(node: Node) -> tuple[list[int], list[int]]:
    rank = node.rank[0]
    if rank is None:
        return [], []
    return [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]


def gated_sum(node: Node) -> str:
    """X + Y * gate."""
    return "p = Mul(i1, i2)\n y = Add(i0, p)"


def gated_normalization(node: Node) -> str | None:
    """Groups of a row by the root of their mean square, scaled, and times the gate's activation; in float32."""
    dims = node.dims[1]
    if dims is None or node.rank[0] is None or not isinstance(dims[-1], int):
        return None
    kind = nodes.string_attribute(node.node, "activation", "silu")
    lines = [int_vector("g", *(0 for _ in range(node.rank[0] - 1)), -1, dims[-1]), "x = Cast <to = 1> (i0)",
             "r = Reshape(x, g)", "q = Mul(r, r)", int_vector("last", -1), "m = ReduceMean(q, last)",
             f"e = {scalar(node.number('epsilon', 1e-5))}", "v = Add(m, e)", "d = Sqrt(v)", "n = Div(r, d)",
             "w = Cast <to = 1> (i1)", "s = Mul(n, w)", "t = Cast <to = 1> (i2)", "h = Shape(x)",
             "u = Reshape(s, h)", "a = Sigmoid(t)",
             "z = Identity(a)" if kind == "sigmoid" else "z = Mul(t, a)", "f = Mul(u, z)",
             "y = CastLike(f, i0)"]  # fmt: skip
    return "\n ".join(lines)


def causal_convolution(node: Node) -> str | None:
    """A convolution of each channel with what came before, of which the last is kept as the next call's past."""
    taps, dilation = (node.dims[1] or (None,))[-1], nodes.int_attribute(node.node, "dilation", 1)
    plain = not node.flag("channels_last") and not nodes.int_attribute(node.node, "state_window", 0)
    channels, kind = (node.dims[1] or (None,))[0], nodes.string_attribute(node.node, "activation", "none")
    if not plain or nodes.int_attribute(node.node, "ndim", 1) != 1 or node.rank[0] != 3:
        return None
    if not isinstance(taps, int) or not isinstance(channels, int):
        return None
    kept = (taps - 1) * dilation
    if node.has(3):
        lines = ["x = Concat <axis = 2> (i3, i0)"]
    else:
        lines = [int_vector("p", 0, 0, kept, 0, 0, 0), "x = Pad(i0, p)"]
    bias = ", i2" if node.has(2) else ""
    lines += [f"c = Conv <group = {channels}, dilations = [{dilation}]> (x, i1{bias})"]
    lines += ["s = Sigmoid(c)", "y = Mul(c, s)"] if kind in ("silu", "swish") else ["y = Identity(c)"]
    if len(node.node.outputs) > 1:
        lines += [int_vector("from", -kept), int_vector("to", 2**31 - 1), int_vector("two", 2),
                  "o1 = Slice(x, from, to, two)"] if kept else [
                 int_vector("none", 0), int_vector("two", 2), "o1 = Slice(x, none, none, two)"]  # fmt: skip
    return "\n ".join(lines)


def linear_attention_gates(node: Node) -> str:
    """Decay and rate of a recurrence, in float32."""
    lines = ["a = Cast <to = 1> (i0)", "a_b = Add(a, i1)", "p = Softplus(a_b)", "d = Mul(p, i2)", "y = CastLike(d, i0)"]
    if len(node.node.outputs) > 1:
        lines += ["b = Cast <to = 1> (i3)", "s = Sigmoid(b)", "o1 = CastLike(s, i3)"]
    return "\n ".join(lines)


def scaled_silu(node: Node) -> str:
    """Scaled by an operand, or else by a number."""
    scale = "c = CastLike(i1, i0)" if node.has(1) else f"a = {scalar(node.number('alpha', 1.0))}\n c = CastLike(a, i0)"
    return f"{scale}\n x = Mul(i0, c)\n s = Sigmoid(x)\n y = Mul(x, s)"


def branchwise_normalization(node: Node) -> str | None:
    """Roots of mean squares along the last dim, of branches that may lie side by side in it."""
    dims, branches = node.dims[0], nodes.int_attribute(node.node, "num_branches", 0)
    last = None if dims is None or len(dims) < 2 else dims[-1]
    count = branches or (None if last is None or dims is None else dims[-2])
    if not isinstance(last, int) or not isinstance(count, int):
        return None
    width, epsilon = last // branches if branches else last, scalar(node.number("epsilon", 1e-6))
    lines = ["i_f = Cast <to = 1> (i0)", int_vector("x_d", -1, count, width), "x = Reshape(i_f, x_d)",
             "q = Mul(x, x)", int_vector("last", -1), "m = ReduceMean(q, last)", f"e = {epsilon}", "v = Add(m, e)",
             "r = Sqrt(v)", "n = Div(x, r)"]  # fmt: skip
    if node.has(1):
        lines += ["w = Cast <to = 1> (i1)", int_vector("w_d", -1, width), "w_r = Reshape(w, w_d)", "s = Mul(n, w_r)"]
    else:
        lines += ["s = Identity(n)"]
    return "\n ".join([*lines, "d = Shape(i0)", "t = Reshape(s, d)", "y = CastLike(t, i0)"])

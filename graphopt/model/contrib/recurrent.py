"""DynamicQuantizeLSTM of com.microsoft in operators of the standard: an LSTM whose weights are bytes.

The input of all steps is quantized by its range at once, the state of all sequences by its range before each step.
Products are sums of integers. Each direction is a Scan over the steps.
"""

from __future__ import annotations

from graphopt.model import nodes
from graphopt.model.contrib.lines import dim_of, int_scalar, int_vector
from graphopt.model.contrib.node import Node

_USUAL = ("sigmoid", "tanh", "tanh")
_GATES = ("i", "o", "f", "c")
_SINCE = 11  # the opset of DynamicQuantizeLinear
_BIAS, _LENGTHS, _H, _C, _PEEPHOLES = 3, 4, 5, 6, 7


def dynamic_quantize_lstm(node: Node) -> str | None:
    """All directions; None for other activations than the usual ones, lengths, peepholes and a clip."""
    weights = node.dims[1]
    directions = None if weights is None else weights[0]
    hidden = nodes.int_attribute(node.node, "hidden_size", 0)
    given = nodes.attribute_of(node.node, "activations")
    if not isinstance(directions, int) or not hidden or node.opset < _SINCE:
        return None
    if given is not None and tuple(str(one).lower() for one in given.value) != _USUAL * directions:
        return None
    if node.has(_LENGTHS) or node.has(_PEEPHOLES) or node.number("clip", 0.0):
        return None
    backwards = nodes.string_attribute(node.node, "direction", "forward") == "reverse"
    lines = ["x_q, x_s, x_z = DynamicQuantizeLinear(i0)", *_bounds(hidden), *dim_of("steps", "i0", 0),
             *dim_of("batch", "i0", 1), int_vector("width", hidden), "state = Concat <axis = 0> (batch, width)",
             "none = ConstantOfShape(state)", "states = Concat <axis = 0> (one, batch, width)",
             "rows = Concat <axis = 0> (steps, one, batch, width)"]  # fmt: skip
    for number in range(directions):
        lines += _direction(node, number, backwards=backwards or number == 1)
    for result, dims, axis in (("y", "rows", 1), ("o1", "states", 0), ("o2", "states", 0)):
        lines += [f"{result}_{number} = Reshape({result}_all{number}, {dims})" for number in range(directions)]
        each = ", ".join(f"{result}_{number}" for number in range(directions))
        lines.append(f"{result} = Concat <axis = {axis}> ({each})")
    return "\n ".join(lines)


def _bounds(hidden: int) -> list[str]:
    """Where the columns of each gate begin and end, and those of both biases."""
    ends = (*range(len(_GATES) + 1), 2 * len(_GATES))
    return [int_vector("last", -1), int_vector("one", 1), *(int_vector(f"at{gate}", gate * hidden) for gate in ends)]


def _direction(node: Node, number: int, *, backwards: bool) -> list[str]:
    """One direction: gates of the input of all steps, then the steps."""
    lines = [int_scalar(f"n{number}", number)]

    def own(name: str, at: int) -> str:
        """The direction's part of an operand."""
        lines.append(f"{name}{number} = Gather <axis = 0> (i{at}, n{number})")
        return f"{name}{number}"

    w, w_scale, w_zero, r, r_scale, r_zero = (
        own(*one) for one in (("w", 1), ("ws", 8), ("wz", 9), ("r", 2), ("rs", 10), ("rz", 11))
    )
    h, c = (own(name, at) if node.has(at) else "none" for name, at in (("h", _H), ("c", _C)))
    lines += [f"p{number} = MatMulInteger(x_q, {w}, x_z, {w_zero})", f"pf{number} = Cast <to = 1> (p{number})",
              f"ps{number} = Mul(x_s, {w_scale})", f"g{number} = Mul(pf{number}, ps{number})"]  # fmt: skip
    gates = f"g{number}"
    if node.has(_BIAS):
        bias = own("b", _BIAS)
        lines += [f"bw{number} = Slice({bias}, at0, at4, last)", f"br{number} = Slice({bias}, at4, at8, last)",
                  f"bb{number} = Add(bw{number}, br{number})", f"gb{number} = Add({gates}, bb{number})"]  # fmt: skip
        gates = f"gb{number}"
    turned = "[1]" if backwards else "[0]"
    coupled = node.flag("input_forget")
    columns = [f"{gate}_g = Slice(all, at{at}, at{at + 1}, last)" for at, gate in enumerate(_GATES)]
    step = [
        "q, s, z = DynamicQuantizeLinear(h_in)", f"t = MatMulInteger(q, {r}, z, {r_zero})", "tf = Cast <to = 1> (t)",
        f"ts = Mul(s, {r_scale})", "tm = Mul(tf, ts)", "all = Add(g_in, tm)", *columns, "i_a = Sigmoid(i_g)",
        "all_of_it = Constant <value: tensor = float {1}> ()",
        "f_a = Sub(all_of_it, i_a)" if coupled else "f_a = Sigmoid(f_g)",
        "o_a = Sigmoid(o_g)", "c_a = Tanh(c_g)", "kept = Mul(f_a, c_in)", "new = Mul(i_a, c_a)",
        "c_out = Add(kept, new)", "c_t = Tanh(c_out)", "h_out = Mul(o_a, c_t)", "y_out = Identity(h_out)",
    ]  # fmt: skip
    batch = None if node.dims[0] is None else node.dims[0][1]
    rows, hidden = batch if isinstance(batch, int) else "rows", nodes.int_attribute(node.node, "hidden_size", 0)
    of_state, of_gates = f"float[{rows},{hidden}]", f"float[{rows},{4 * hidden}]"
    body = (
        f"step{number} ({of_state} h_in, {of_state} c_in, {of_gates} g_in)"
        f" => ({of_state} h_out, {of_state} c_out, {of_state} y_out)"
    )
    lines.append(
        f"o1_all{number}, o2_all{number}, y_all{number} = Scan <num_scan_inputs: int = 1, "
        f"scan_input_directions: ints = {turned}, scan_output_directions: ints = {turned}, "
        f"body: graph = {body} {{ {' '.join(step)} }}> ({h}, {c}, {gates})"
    )
    return lines

"""Unrolled cells in the forms in which exporters write them, as ONNX text with seeded weights."""

from __future__ import annotations

import numpy as np
import onnx

from tests import support

FEATURES, HIDDEN, BATCH = 3, 4, 2


def weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Seeded matrices and vectors."""
    generator = np.random.default_rng(7)
    return [generator.uniform(-0.7, 0.7, shape).astype(np.float32) for shape in shapes]


def gru(
    steps: int,
    *,
    update: str = "plain",
    reset_after: bool = True,
    packed: bool = False,
    start: str = "zeros",
    backwards: bool = False,
    returned: str = "last",
) -> onnx.ModelProto:
    """A GRU over x[batch, steps, features]; `update` picks one of three ways to write the new state."""
    lines, names = [], []
    state = "h" if start == "given" else "zeros"
    order = range(steps - 1, -1, -1) if backwards else range(steps)
    for step in order:
        lines.append(f"x{step} = Gather <axis = 1> (x, at{step})")
        lines += _gru_step(step, state, update, reset_after, packed)
        state = f"h{step}"
        names.append(state)
    given, shape = ("float[2, 4] h, " if start == "given" else "", "2, 4")
    if returned == "all":
        lines += [f"u{name} = Unsqueeze ({name}, one)" for name in names]
        lines.append(f"y = Concat <axis = 1> ({', '.join('u' + name for name in names)})")
        shape = f"2, {steps}, 4"
    else:
        lines.append(f"y = Relu ({state})")
    wide = HIDDEN * 3
    w, r, b, s = weights((FEATURES, wide), (HIDDEN, wide), (wide,), (wide,))
    initializers = {"one": np.array([1]), "number": np.float32(1), "zeros": np.zeros((BATCH, HIDDEN), np.float32)}
    initializers |= {f"at{step}": np.array(step) for step in range(steps)}
    if packed:
        initializers |= {"W": w, "R": r, "B": b, "S": s}
    else:
        for place, gate in enumerate("zrn"):
            columns = slice(place * HIDDEN, (place + 1) * HIDDEN)
            initializers |= {f"W{gate}": w[:, columns], f"R{gate}": r[:, columns]}
            initializers |= {f"b{gate}": b[columns], f"s{gate}": s[columns]}
    text = f"g ({given}float[2, {steps}, 3] x) => (float[{shape}] y) {{ {chr(10).join(lines)} }}"
    return support.model(text, 17, **{name: np.array(array, order="C") for name, array in initializers.items()})


def _gru_step(step: int, state: str, update: str, reset_after: bool, packed: bool) -> list[str]:
    t = str(step)
    if packed:
        lines = [
            f"gx{t} = Gemm (x{t}, W, B)", f"gh{t} = Gemm ({state}, R, S)",
            f"xz{t}, xr{t}, xn{t} = Split <axis = 1> (gx{t})", f"hz{t}, hr{t}, hn{t} = Split <axis = 1> (gh{t})",
            f"az{t} = Add (xz{t}, hz{t})", f"ar{t} = Add (hr{t}, xr{t})",
        ]  # fmt: skip
    else:
        lines = []
        for gate in "zr":
            lines += [
                f"x{gate}{t} = MatMul (x{t}, W{gate})", f"h{gate}{t} = MatMul ({state}, R{gate})",
                f"s{gate}{t} = Add (x{gate}{t}, h{gate}{t})", f"a{gate}{t} = Add (s{gate}{t}, b{gate})",
            ]  # fmt: skip
        lines.append(f"xn{t} = Gemm (x{t}, Wn, bn)")
        if reset_after:
            lines += [f"m{t} = MatMul ({state}, Rn)", f"hn{t} = Add (m{t}, sn)"]
    lines += [f"z{t} = Sigmoid (az{t})", f"r{t} = Sigmoid (ar{t})"]
    if reset_after:
        lines.append(f"rh{t} = Mul (r{t}, hn{t})")
    else:
        lines += [f"k{t} = Mul ({state}, r{t})", f"rh{t} = MatMul (k{t}, Rn)"]
    lines += [f"an{t} = Add (xn{t}, rh{t})", f"n{t} = Tanh (an{t})"]
    if update == "plain":  # (1 - z) n + z h
        lines += [f"i{t} = Sub (number, z{t})", f"p{t} = Mul (i{t}, n{t})", f"q{t} = Mul (z{t}, {state})"]
        return [*lines, f"h{t} = Add (p{t}, q{t})"]
    if update == "difference":  # n + z (h - n)
        return [*lines, f"d{t} = Sub ({state}, n{t})", f"p{t} = Mul (d{t}, z{t})", f"h{t} = Add (p{t}, n{t})"]
    # (1 - z) h + z n: the gate the other way round
    lines += [f"i{t} = Sub (number, z{t})", f"p{t} = Mul (i{t}, {state})", f"q{t} = Mul (z{t}, n{t})"]
    return [*lines, f"h{t} = Add (p{t}, q{t})"]


def lstm(steps: int, *, joined: bool = False, forget: float = 0.0, returned: str = "h") -> onnx.ModelProto:
    """An LSTM over x[batch, steps, features]; with `joined` input and state go through one product."""
    lines = []
    h = c = "zeros"
    for t in range(steps):
        lines.append(f"x{t} = Gather <axis = 1> (x, at{t})")
        if joined:
            lines += [f"xh{t} = Concat <axis = 1> (x{t}, {h})", f"g{t} = Gemm (xh{t}, K, B)"]
        else:
            lines += [f"m{t} = Gemm (x{t}, W, B)", f"k{t} = MatMul ({h}, R)", f"g{t} = Add (k{t}, m{t})"]
        lines += [
            f"gi{t}, gf{t}, gg{t}, go{t} = Split <axis = 1> (g{t})", f"gb{t} = Add (gf{t}, number)",
            f"i{t} = Sigmoid (gi{t})", f"f{t} = Sigmoid (gb{t})", f"n{t} = Tanh (gg{t})", f"o{t} = Sigmoid (go{t})",
            f"p{t} = Mul (f{t}, {c})", f"q{t} = Mul (i{t}, n{t})", f"c{t} = Add (p{t}, q{t})",
            f"e{t} = Tanh (c{t})", f"h{t} = Mul (o{t}, e{t})",
        ]  # fmt: skip
        h, c = f"h{t}", f"c{t}"
    outputs = {"h": "float[2, 4] y", "h and c": "float[2, 4] y, float[2, 4] w"}[returned]
    lines.append(f"y = Relu ({h})")
    if returned == "h and c":
        lines.append(f"w = Neg ({c})")
    wide = HIDDEN * 4
    w, r, b = weights((FEATURES, wide), (HIDDEN, wide), (wide,))
    initializers = {"number": np.float32(forget), "zeros": np.zeros((BATCH, HIDDEN), np.float32), "B": b}
    initializers |= {"K": np.concatenate([w, r])} if joined else {"W": w, "R": r}
    initializers |= {f"at{step}": np.array(step) for step in range(steps)}
    return support.model(f"g (float[2, {steps}, 3] x) => ({outputs}) {{ {chr(10).join(lines)} }}", 17, **initializers)

"""Lines of ONNX's own syntax that bodies of several operators share: small constants, dims, heads, turned pairs."""

from __future__ import annotations


def in_heads(name: str, source: str, count: int) -> list[str]:
    """Lines that make [batch, heads, rows, size] of [batch, rows, heads x size]."""
    return [int_vector(f"{name}_d", 0, 0, count, -1), f"{name}_r = Reshape({source}, {name}_d)",
            f"{name} = Transpose <perm = [0, 2, 1, 3]> ({name}_r)"]  # fmt: skip


def out_of_heads(source: str) -> list[str]:
    """Lines that make y, [batch, rows, heads x size], of [batch, heads, rows, size]."""
    return [f"y_t = Transpose <perm = [0, 2, 1, 3]> ({source})", int_vector("y_d", 0, 0, -1),
            "y = Reshape(y_t, y_d)"]  # fmt: skip


def int_vector(name: str, *values: int) -> str:
    """A line that makes a vector of integers."""
    return f"{name} = Constant <value: tensor = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()"


def int_scalar(name: str, value: int) -> str:
    """A line that makes one integer."""
    return f"{name} = Constant <value: tensor = int64 {{{value}}}> ()"


def dim_of(name: str, source: str, axis: int) -> list[str]:
    """Lines that make a vector of one dim."""
    return [
        f"{name}_s = Shape({source})",
        int_vector(f"{name}_a", axis),
        f"{name} = Gather <axis = 0> ({name}_s, {name}_a)",
    ]


def float_like(name: str, value: float, like: str) -> list[str]:
    """Lines that make a number of the type of another value."""
    return [f"{name}_f = Constant <value: tensor = float {{{value}}}> ()", f"{name} = CastLike({name}_f, {like})"]


def turned(name: str, source: str, half: int, *, interleaved: bool, whole: bool) -> list[str]:
    """Lines that turn pairs of numbers of each head by the angles of `cos` and `sin`; what is behind them stays."""
    at = [f"{name}_{one}" for one in ("f", "g", "e", "z", "big", "t", "u")]
    f, g, e, z, big, t, u = at
    lines = [int_vector(one, number) for one, number in zip(at, (0, half, 2 * half, 3, 2**31 - 1, 2, 1), strict=True)]
    one, other = (f"{f}, {e}, {z}, {t}", f"{u}, {e}, {z}, {t}") if interleaved else (f"{f}, {g}, {z}", f"{g}, {e}, {z}")
    lines += [f"{name}_a = Slice({source}, {one})", f"{name}_b = Slice({source}, {other})"]
    lines += [f"{name}_{one}_{angle} = Mul({name}_{one}, {angle})" for one in "ab" for angle in ("cos", "sin")]
    lines += [f"{name}_c = Sub({name}_a_cos, {name}_b_sin)", f"{name}_d = Add({name}_a_sin, {name}_b_cos)"]
    if interleaved:
        lines += [int_vector(f"{name}_l", -1), f"{name}_cu = Unsqueeze({name}_c, {name}_l)",
                  f"{name}_du = Unsqueeze({name}_d, {name}_l)", f"{name}_w = Concat <axis = -1> ({name}_cu, {name}_du)",
                  int_vector(f"{name}_wd", 0, 0, 0, -1), f"{name}_r = Reshape({name}_w, {name}_wd)"]  # fmt: skip
    else:
        lines += [f"{name}_r = Concat <axis = -1> ({name}_c, {name}_d)"]
    if whole:
        return [*lines, f"{name} = Identity({name}_r)"]
    return [*lines, f"{name}_o = Slice({source}, {e}, {big}, {z})", f"{name} = Concat <axis = -1> ({name}_r, {name}_o)"]

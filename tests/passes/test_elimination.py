"""Nodes that give back their input disappear; near misses stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.elimination import RULES
from tests.passes.algebra_checks import build, ints
from tests.support import apply_rules, assert_equal, op_types

IO = "g (float[N, 4] X) => (float[N, 4] Y)"
IMAGE = "g (float[N, 3, 5, 5] X) => (float[N, 3, 5, 5] Y)"


def check(proto: onnx.ModelProto, expected: list[str], **dims: int) -> None:
    """The operators that remain, and equal outputs to the last bit."""
    after, log = apply_rules(proto, RULES)
    assert op_types(after) == expected
    assert log
    assert_equal(proto, after, rtol=0, atol=0, **dims)


def refuse(proto: onnx.ModelProto) -> None:
    after, log = apply_rules(proto, RULES)
    assert log == []
    assert op_types(after) == op_types(proto)


FIRES: dict[str, tuple[str, int, dict[str, object]]] = {
    "identity": (f"{IO} {{ a = Neg(X) b = Identity(a) Y = Exp(b) }}", 17, {}),
    "identity before an output": (f"{IO} {{ a = Neg(X) b = Exp(a) Y = Identity(b) }}", 17, {}),
    "cast": (f"{IO} {{ a = Neg(X) b = Cast<to = 1>(a) Y = Exp(b) }}", 17, {}),
    "castlike": (f"{IO} {{ a = Neg(X) b = CastLike(a, X) Y = Exp(b) }}", 17, {}),
    "dropout": (f"{IO} {{ a = Neg(X) b = Dropout(a) Y = Exp(b) }}", 17, {}),
    "dropout with unused mask": (f"{IO} {{ a = Neg(X) b, m = Dropout(a) Y = Exp(b) }}", 17, {}),
    "dropout not training": (
        f"{IO} {{ a = Neg(X) b = Dropout(a, r, t) Y = Exp(b) }}", 17, {"r": np.float32(0.5), "t": np.bool_(False)},
    ),
    "dropout, training_mode in a Constant": (
        f"{IO} {{ a = Neg(X) t = Constant<value = bool {{0}}>() b = Dropout(a, , t) Y = Exp(b) }}", 17, {},
    ),
    "sum of one": (f"{IO} {{ a = Neg(X) b = Sum(a) Y = Exp(b) }}", 17, {}),
    "max of one": (f"{IO} {{ a = Neg(X) b = Max(a) Y = Exp(b) }}", 17, {}),
    "slice": (
        f"{IO} {{ a = Neg(X) b = Slice(a, s, e, x) Y = Exp(b) }}", 17,
        {"s": ints(0, -9), "e": ints(2**63 - 1, 4), "x": ints(0, 1)},
    ),
    "slice by attributes": (
        f"{IO} {{ a = Neg(X) b = Slice<starts = [0], ends = [99], axes = [1]>(a) Y = Exp(b) }}", 9, {},
    ),
    "expand": (f"{IO} {{ a = Neg(X) b = Expand(a, s) Y = Exp(b) }}", 17, {"s": ints(1, 4)}),
    "transpose": (f"{IO} {{ a = Neg(X) b = Transpose<perm = [0, 1]>(a) Y = Exp(b) }}", 17, {}),
    "reshape by 0 and -1": (f"{IO} {{ a = Neg(X) b = Reshape(a, s) Y = Exp(b) }}", 17, {"s": ints(0, -1)}),
    "reshape by -1": (f"{IO} {{ a = Neg(X) b = Reshape(a, s) Y = Exp(b) }}", 17, {"s": ints(-1, 4)}),
    "flatten": (f"{IO} {{ a = Neg(X) b = Flatten<axis = 1>(a) Y = Exp(b) }}", 17, {}),
    "unsqueeze by nothing": (f"{IO} {{ a = Neg(X) b = Unsqueeze(a, s) Y = Exp(b) }}", 17, {"s": ints()}),
    "concat of one": (f"{IO} {{ a = Neg(X) b = Concat<axis = 1>(a) Y = Exp(b) }}", 17, {}),
    "concat with nothing": (
        f"{IO} {{ a = Neg(X) b = Concat<axis = -1>(z, a) Y = Exp(b) }}", 17, {"z": np.zeros((3, 0), np.float32)},
    ),
    "split into one": (f"{IO} {{ a = Neg(X) b = Split<axis = 1>(a) Y = Exp(b) }}", 17, {}),
    "tile": (f"{IO} {{ a = Neg(X) b = Tile(a, r) Y = Exp(b) }}", 17, {"r": ints(1, 1)}),
    "pad": (f"{IO} {{ a = Neg(X) b = Pad(a, p) Y = Exp(b) }}", 17, {"p": ints(0, 0, 0, 0)}),
    "pad by attributes": (f"{IO} {{ a = Neg(X) b = Pad<pads = [0, 0, 0, 0]>(a) Y = Exp(b) }}", 9, {}),
    "scatter of nothing": (
        f"{IO} {{ a = Neg(X) b = ScatterND(a, i, u) Y = Exp(b) }}", 17,
        {"i": np.zeros((0, 1), np.int64), "u": np.zeros((0, 4), np.float32)},
    ),
    "maxpool": (f"{IMAGE} {{ a = Neg(X) b = MaxPool<kernel_shape = [1, 1]>(a) Y = Exp(b) }}", 17, {}),
    "averagepool": (
        f"{IMAGE} {{ a = Neg(X) b = AveragePool<kernel_shape = [1, 1], strides = [1, 1]>(a) Y = Exp(b) }}", 17, {},
    ),
    "resize by 1": (
        f"{IMAGE} {{ a = Neg(X) b = Resize<mode = \"linear\">(a, , s) Y = Exp(b) }}", 17, {"s": np.ones(4, np.float32)},
    ),
    "upsample by 1": (f"{IMAGE} {{ a = Neg(X) b = Upsample(a, s) Y = Exp(b) }}", 9, {"s": np.ones(4, np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_disappears(name: str) -> None:
    text, opset, weights = FIRES[name]
    check(build(text, opset, **weights), ["Neg", "Exp"], N=3)


def test_expand_to_the_shape_of_the_input_itself() -> None:
    check(build(f"{IO} {{ a = Neg(X) s = Shape(X) b = Expand(a, s) Y = Exp(b) }}"), ["Neg", "Exp"], N=3)


def test_resize_to_the_sizes_of_the_input_itself() -> None:
    proto = build(f'{IMAGE} {{ a = Neg(X) s = Shape(a) b = Resize<mode = "nearest">(a, , , s) Y = Exp(b) }}')
    check(proto, ["Neg", "Exp"], N=2)


def test_squeeze_without_axes_where_no_dim_is_1() -> None:
    check(build("g (float[2, 4] X) => (float[2, 4] Y) { a = Neg(X) b = Squeeze(a) Y = Exp(b) }"), ["Neg", "Exp"])


def test_global_pool_of_one_pixel() -> None:
    proto = build("g (float[N, 3, 1, 1] X) => (float[N, 3, 1, 1] Y) { a = Neg(X) b = GlobalAveragePool(a) Y = Exp(b) }")
    check(proto, ["Neg", "Exp"], N=2)


def test_concat_of_three_loses_the_empty_one() -> None:
    proto = build(
        "g (float[2, 4] X) => (float[2, 8] Y) { a = Neg(X) Y = Concat<axis = 1>(a, z, X) }",
        z=np.zeros((2, 0), np.float32),
    )
    check(proto, ["Neg", "Concat"])


@pytest.mark.parametrize("kind", ["Add", "Sub", "Div"])
def test_expand_before_broadcasting(kind: str) -> None:
    proto = build(
        f"g (float[1, 4] A, float[N, 4] B) => (float[N, 4] Y) {{ s = Shape(B) e = Expand(A, s) Y = {kind}(B, e) }}"
    )
    check(proto, [kind], N=3)


def test_expand_before_where() -> None:
    proto = build(
        "g (bool[1, 4] C, float[N, 4] A, float[N, 4] B) => (float[N, 4] Y)"
        " { s = Shape(B) e = Expand(C, s) Y = Where(e, A, B) }"
    )
    check(proto, ["Where"], N=3)


@pytest.mark.parametrize(
    "outer, inner, opset",
    [("Relu", "Relu", 17), ("Relu", "Sigmoid", 17), ("Relu", "Abs", 17), ("Abs", "Exp", 17), ("Ceil", "Round", 17),
     ("Floor", "Ceil", 17), ("Sign", "Sign", 17), ("Relu", "Softmax", 12)],
)  # fmt: skip
def test_absorbed(outer: str, inner: str, opset: int) -> None:
    check(build(f"{IO} {{ a = {inner}(X) Y = {outer}(a) }}", opset), [inner], N=3)


MISSES: dict[str, tuple[str, int, dict[str, object]]] = {
    "identity from input to output": (f"{IO} {{ Y = Identity(X) }}", 17, {}),
    "cast to another type": ("g (float[N, 4] X) => (double[N, 4] Y) { a = Cast<to = 11>(X) Y = Exp(a) }", 17, {}),
    "dropout whose mask is read": (
        "g (float[N, 4] X) => (float[N, 4] Y, bool[N, 4] M) { a = Neg(X) Y, M = Dropout(a) }", 17, {},
    ),
    "dropout in training": (
        f"{IO} {{ a = Neg(X) b = Dropout(a, r, t) Y = Exp(b) }}", 17, {"r": np.float32(0.5), "t": np.bool_(True)},
    ),
    "old dropout, which trains": (f"{IO} {{ a = Neg(X) b = Dropout(a) Y = Exp(b) }}", 6, {}),
    "slice backwards": (
        f"{IO} {{ a = Slice(X, s, e, x, t) Y = Exp(a) }}", 17,
        {"s": ints(-1), "e": ints(-99), "x": ints(1), "t": ints(-1)},
    ),
    "slice of three": ("g (float[N, 4] X) => (float[N, 3] Y) { a = Slice(X, s, e, x) Y = Exp(a) }", 17,
                       {"s": ints(0), "e": ints(3), "x": ints(1)}),
    "slice up to a number on an unknown axis": (
        "g (float[N, 4] X) => (float[M, 4] Y) { a = Slice(X, s, e) Y = Exp(a) }", 17, {"s": ints(0), "e": ints(3)},
    ),
    "expand": ("g (float[1, 4] X) => (float[3, 4] Y) { a = Expand(X, s) Y = Exp(a) }", 17, {"s": ints(3, 1)}),
    "transpose": ("g (float[N, 4] X) => (float[4, N] Y) { a = Transpose(X) Y = Exp(a) }", 17, {}),
    "reshape": ("g (float[N, 4] X) => (float[M, 2] Y) { a = Reshape(X, s) Y = Exp(a) }", 17, {"s": ints(-1, 2)}),
    "reshape of two symbols": (
        "g (float[N, M] X, int64[2] S) => (float[P, Q] Y) { a = Reshape(X, S) Y = Exp(a) }", 17, {},
    ),
    "squeeze of a symbol": ("g (float[N, 4] X) => (float[N, 4] Y) { a = Squeeze(X) Y = Exp(a) }", 17, {}),
    "split with parts": (
        "g (float[N, 4] X) => (float[N, 2] Y, float[N, 2] Z) { Y, Z = Split<axis = 1>(X) }", 12, {},
    ),
    "tile": ("g (float[N, 4] X) => (float[N, 8] Y) { a = Tile(X, r) Y = Exp(a) }", 17, {"r": ints(1, 2)}),
    "pad": ("g (float[N, 4] X) => (float[N, 5] Y) { a = Pad(X, p) Y = Exp(a) }", 17, {"p": ints(0, 0, 0, 1)}),
    "maxpool with stride": (
        "g (float[N, 3, 5, 5] X) => (float[N, 3, 3, 3] Y)"
        " { a = MaxPool<kernel_shape = [1, 1], strides = [2, 2]>(X) Y = Exp(a) }", 17, {},
    ),
    "maxpool with indices": (
        "g (float[N, 3, 5, 5] X) => (float[N, 3, 5, 5] Y, int64[N, 3, 5, 5] I)"
        " { a = Neg(X) Y, I = MaxPool<kernel_shape = [1, 1]>(a) }", 17, {},
    ),
    "resize, cubic": (
        f"{IMAGE} {{ a = Resize<mode = \"cubic\">(X, , s) Y = Exp(a) }}", 17, {"s": np.ones(4, np.float32)},
    ),
    "abs of relu, which may be -0.0": (f"{IO} {{ a = Relu(X) Y = Abs(a) }}", 17, {}),
    "expand that widens": (
        "g (float[1, 4] A, float[1, 4] B) => (float[3, 4] Y) { e = Expand(A, s) Y = Add(B, e) }", 17, {"s": ints(3, 4)},
    ),
    "custom operator called Identity": (
        'g (float[N, 4] X) => (float[N, 4] Y) { a = com.acme.Identity(X) Y = Exp(a) }', 17, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_stays(name: str) -> None:
    text, opset, weights = MISSES[name]
    proto = build(text, opset, **weights)
    if "acme" in text:
        proto.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    refuse(proto)


# -- recurrent operators ------------------------------------------------------------------------------------------

GRU = {
    "w": np.full((1, 6, 4), 0.1, np.float32), "r": np.full((1, 6, 2), 0.2, np.float32),
    "b": np.full((1, 12), 0.1, np.float32), "one": ints(1), "two": ints(2), "zero": np.array(0), "axis": ints(0),
    "lengths": np.full(3, 5, np.int32),
}  # fmt: skip
RECURRENT = """g (float[T, N, 4] X) => (float[T, 1, N, 2] Y) {
    s = Shape(X) n = Gather(s, one) d = Concat<axis = 0>(two, n, two) h = STATE i = Slice(h, axis, one, axis)
    Y = GRU<hidden_size = 2>(X, w, r, b, lengths, i) }"""


def test_a_zero_initial_state_is_not_given() -> None:
    proto = build(RECURRENT.replace("STATE", "ConstantOfShape(d)"), 17, **GRU)
    after, log = apply_rules(proto, RULES)
    assert len(log) == 1
    assert list(after.graph.node[-1].input) == ["X", "w", "r", "b", "lengths"]
    assert_equal(proto, after, rtol=0, atol=0, T=5, N=3)


@pytest.mark.parametrize("state", ["ConstantOfShape<value = float[1] {0.5}>(d)", "RandomNormalLike(X)"])
def test_another_initial_state_stays(state: str) -> None:
    refuse(build(RECURRENT.replace("STATE", state), 17, **GRU))


@pytest.mark.parametrize(
    ("attributes", "start", "end", "remains"),
    [
        ("", 0, 3, []), ("", 0, 2, ["Slice"]), ("<start = 1>", 0, 2, []), ("<start = 1>", 0, 1, ["Slice"]),
        ("<start = 1>", 1, 3, ["Slice"]), ("<start = -2>", 0, 9, []), ("<end = 2>", 0, 2, []),
        ("<end = -1>", -2, 9, []), ("<end = 2>", 0, -1, ["Slice"]), ("<start = -2, end = 9>", 0, 2, []),
        ("<start = -9, end = 1>", 0, 3, []), ("<start = 2, end = 1>", 0, 3, []),
    ],
)  # fmt: skip
def test_a_slice_of_a_part_of_a_shape(attributes: str, start: int, end: int, remains: list[str]) -> None:
    """How many dims a Shape gives is told by its start and end, which count from behind or lie outside."""
    text = f"g (float[N, 4, M] X) => (int64[K] Y) {{ s = Shape{attributes}(X) a = Slice(s, b, e) Y = Neg(a) }}"
    proto = build(text, 17, b=ints(start), e=ints(end))
    after, _ = apply_rules(proto, RULES)
    assert op_types(after) == ["Shape", *remains, "Neg"]
    assert_equal(proto, after, rtol=0, atol=0, N=2, M=3)

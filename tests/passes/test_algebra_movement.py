"""Transposes, reshapes, slices and concats that meet one another."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.algebra import expand
from tests.passes.algebra_checks import EXACT, build, constants, floats, ints, leaves, refuses
from tests.support import apply_rules, assert_equal, op_types

IMAGE = "g (float[N, 3, H, W] X) => "


def perm(proto: onnx.ModelProto) -> list[int]:
    """The permutation of the only Transpose."""
    (node,) = [node for node in proto.graph.node if node.op_type == "Transpose"]
    return list(node.attribute[0].ints)


# -- transposes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("(float[N, 3, H, W] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Transpose<perm = [0, 3, 1, 2]>(a)"
         " Y = Exp(b) }", ["Exp"]),
        ("(float[N, H, 3, W] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) Y = Transpose<perm = [0, 1, 3, 2]>(a) }",
         ["Transpose"]),
        ("(float[N, 3, H, W] Y) { a = Transpose(X) b = Transpose(a) Y = Exp(b) }", ["Exp"]),
        # The first Transpose stays for the sum; the others are gone, and so the Exp stands in the layout of the sum.
        ("(float[N, H, W, 3] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Transpose<perm = [0, 3, 1, 2]>(a)"
         " c = Exp(b) d = Transpose<perm = [0, 2, 3, 1]>(c) Y = Add(a, d) }",
         ["Transpose", "Exp", "Transpose", "Add"]),
    ],
)  # fmt: skip
def test_transposes(text: str, expected: list[str]) -> None:
    leaves(build(IMAGE + text), expected, EXACT, N=2, H=4, W=5)


def test_transposes_compose() -> None:
    text = "(float[N, H, W, 3] Y) { a = Transpose<perm = [1, 0, 2, 3]>(X) Y = Transpose<perm = [1, 2, 3, 0]>(a) }"
    after = leaves(build(IMAGE + text), ["Transpose"], EXACT, N=2, H=4, W=5)
    assert perm(after) == [0, 2, 3, 1]


def test_transposes_across_elementwise_operators_cancel() -> None:
    text = (
        "(float[N, 3, H, W] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Relu(a) c = Mul(two, b) d = Clip(c, lo, two)"
        " Y = Transpose<perm = [0, 3, 1, 2]>(d) }"
    )
    leaves(build(IMAGE + text, two=np.float32(2), lo=np.float32(0)), ["Relu", "Mul", "Clip"], EXACT, N=2, H=4, W=5)


def test_transposes_across_elementwise_operators_merge() -> None:
    text = (
        "(double[N, H, 3, W] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Cast<to = 11>(a)"
        " Y = Transpose<perm = [0, 1, 3, 2]>(b) }"
    )
    leaves(build(IMAGE + text), ["Cast", "Transpose"], EXACT, N=2, H=4, W=5)


@pytest.mark.parametrize(
    "text",
    [
        "(float[N, H, W, 3] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) Y = Softmax(a) }",
        # Softmax works along an axis.
        "(float[N, 3, H, W] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Softmax(a)"
        " Y = Transpose<perm = [0, 3, 1, 2]>(b) }",
        # One number for each channel.
        "(float[N, 3, H, W] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Add(a, c)"
        " Y = Transpose<perm = [0, 3, 1, 2]>(b) }",
        # The middle is read elsewhere.
        "(float[N, 3, H, W] Y, float[N, H, W, 3] Z) { a = Transpose<perm = [0, 2, 3, 1]>(X) Z = Relu(a)"
        " Y = Transpose<perm = [0, 3, 1, 2]>(Z) }",
        # The upper one stays for another reader, so that nothing is won.
        "(float[N, H, 3, W] Y, float[N, H, W, 3] Z) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Relu(a)"
        " Y = Transpose<perm = [0, 1, 3, 2]>(b) Z = Exp(a) }",
    ],
)
def test_transposes_stay(text: str) -> None:
    refuses(build(IMAGE + text, **({"c": floats(1, 2, 3)} if "Add" in text else {})))


def test_transposes_around_a_reshape_cancel() -> None:
    """Heads are split off and joined in another layout, and nothing has moved."""
    text = (
        "g (float[2, 3, 4, 5] X) => (float[2, 3, 20] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Reshape(a, s)"
        " Y = Transpose<perm = [0, 2, 1]>(b) }"
    )
    after = leaves(build(text, s=ints(2, 20, 3)), ["Reshape"])
    assert list(constants(after).values()) == [[2, 3, 20]]


def test_transposes_around_a_reshape_with_symbols() -> None:
    text = (
        "g (float[N, 3, 4, 5] X) => (float[N, 3, 20] Y) { a = Transpose<perm = [0, 2, 3, 1]>(X) b = Reshape(a, s)"
        " Y = Transpose<perm = [0, 2, 1]>(b) }"
    )
    after = leaves(build(text, s=ints(0, 20, 3)), ["Reshape"], N=2)
    assert list(constants(after).values()) == [[0, 3, 20]]


def test_transpose_of_a_dimension_of_1_beside_a_reshape() -> None:
    text = "g (float[2, 1, 6] X) => (float[2, 3, 2] Y) { a = Transpose<perm = [1, 0, 2]>(X) Y = Reshape(a, s) }"
    leaves(build(text, s=ints(2, 3, 2)), ["Reshape"])


def test_transpose_beside_a_reshape_stays() -> None:
    text = "g (float[2, 6] X) => (float[6, 1, 2] Y) { a = Reshape(X, s) Y = Transpose<perm = [2, 1, 0]>(a) }"
    refuses(build(text, s=ints(2, 1, 6)))


def test_a_transpose_of_ones_alone_stays() -> None:
    refuses(build("g (float[2, 1, 6] X) => (float[1, 2, 6] Y) { a = Exp(X) Y = Transpose<perm = [1, 0, 2]>(a) }"))


# -- reshapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, weights, expected, target",
    [
        ("g (float[N, 6] X) => (float[M, 3] Y) { a = Reshape(X, s) Y = Reshape(a, t) }",
         {"s": ints(-1, 2), "t": ints(-1, 3)}, ["Reshape"], [-1, 3]),
        # The 0 copies N from a; from X it does too.
        ("g (float[N, 6] X) => (float[N, 3, 2] Y) { a = Reshape(X, s) Y = Reshape(a, t) }",
         {"s": ints(0, 2, 3), "t": ints(0, 3, 2)}, ["Reshape"], [0, 3, 2]),
        ("g (float[N, M, 6] X) => (float[N, Q, 3] Y) { a = Reshape(X, s) Y = Reshape(a, t) }",
         {"s": ints(0, -1), "t": ints(0, -1, 3)}, ["Reshape"], [0, -1, 3]),
        # The 0 copies N * M, the first dim of a; from X it would copy N.
        ("g (float[N, M, 6] X) => (float[P, 2, 3] Y) { a = Reshape(X, s) Y = Reshape(a, t) }",
         {"s": ints(-1, 6), "t": ints(0, 2, 3)}, ["Reshape"], [-1, 2, 3]),
        ("g (float[2, 6] X) => (float[3, 4] Y) { a = Flatten<axis = 0>(X) Y = Reshape(a, t) }",
         {"t": ints(3, 4)}, ["Reshape"], [3, 4]),
        ("g (float[N, 2, 3] X) => (float[N, 3, 2] Y) { a = Flatten(X) Y = Reshape(a, t) }",
         {"t": ints(0, 3, 2)}, ["Reshape"], [0, 3, 2]),
        ("g (float[N, 2, 3] X) => (float[N, 1, 6] Y) { a = Flatten(X) Y = Unsqueeze(a, t) }",
         {"t": ints(1)}, ["Reshape"], [0, 1, 6]),
        ("g (float[N, 2, 1, 3] X) => (float[N, 6] Y) { a = Squeeze(X, t) Y = Flatten(a) }", {"t": ints(2)},
         ["Flatten"], None),
        ("g (float[2, 3] X) => (float[2, 1, 1, 3] Y) { a = Unsqueeze(X, t) Y = Unsqueeze(a, t) }", {"t": ints(1)},
         ["Unsqueeze"], [1, 2]),
        ("g (float[2, 3] X) => (float[1, 2, 1, 3, 1] Y) { a = Unsqueeze(X, s) Y = Unsqueeze(a, t) }",
         {"s": ints(0, -1), "t": ints(2)}, ["Unsqueeze"], [0, 2, 4]),
        ("g (float[1, N, 1, 3, 1] X) => (float[N, 3] Y) { a = Squeeze(X, s) Y = Squeeze(a, t) }",
         {"s": ints(0, -1), "t": ints(1)}, ["Squeeze"], [0, 2, 4]),
        ("g (float[N, 3] X) => (float[N, 1, 3] Y) { a = Unsqueeze(X, s) Y = Squeeze(a, t) }",
         {"s": ints(0, 2), "t": ints(0)}, ["Unsqueeze"], [1]),
        ("g (float[N, 1, 3] X) => (float[N, 3] Y) { a = Unsqueeze(X, s) Y = Squeeze(a, t) }",
         {"s": ints(1), "t": ints(1, 2)}, ["Squeeze"], [1]),
    ],
)  # fmt: skip
def test_reshapes(text: str, weights: dict[str, np.ndarray], expected: list[str], target: list[int] | None) -> None:
    after = leaves(build(text, **weights), expected, N=4, M=8)
    assert list(constants(after).values()) == ([] if target is None else [target])


@pytest.mark.parametrize(
    "text, weights",
    [
        ("g (float[N, M] X) => (float[N, M] Y) { a = Exp(X) b = Unsqueeze(a, s) c = Squeeze(b, s) Y = Abs(c) }",
         {"s": ints(1)}),
        ("g (float[N, 1, M] X) => (float[N, 1, M] Y) { a = Exp(X) b = Squeeze(a, s) c = Unsqueeze(b, s) Y = Abs(c) }",
         {"s": ints(1)}),
        ("g (float[N, 2, 3] X) => (float[N, 2, 3] Y) { a = Exp(X) b = Flatten(a) c = Reshape(b, s) Y = Abs(c) }",
         {"s": ints(-1, 2, 3)}),
        ("g (float[N, 2, M] X) => (float[N, 2, M] Y)"
         " { a = Exp(X) b = Flatten(a) s = Shape(X) c = Reshape(b, s) Y = Abs(c) }", {}),
    ],
)  # fmt: skip
def test_reshapes_cancel(text: str, weights: dict[str, np.ndarray]) -> None:
    leaves(build(text, **weights), ["Exp", "Abs"], N=4, M=5)


def test_axes_as_attributes_at_opset_11() -> None:
    text = "g (float[2, 3] X) => (float[2, 1, 1, 3] Y) { a = Unsqueeze<axes = [1]>(X) Y = Unsqueeze<axes = [1]>(a) }"
    after = leaves(build(text, 11), ["Unsqueeze"])
    assert list(after.graph.node[0].attribute[0].ints) == [1, 2]
    text = "g (float[2, 3] X) => (float[2, 3] Y) { a = Unsqueeze<axes = [1]>(X) b = Squeeze<axes = [1]>(a) Y = Exp(b) }"
    leaves(build(text, 11), ["Exp"])


def test_a_middle_read_elsewhere_stays_for_its_reader() -> None:
    text = "g (float[N, 6] X) => (float[M, 3] Y, float[P, 2] Z) { a = Reshape(X, s) Y = Reshape(a, t) Z = Exp(a) }"
    after = leaves(build(text, s=ints(-1, 2), t=ints(-1, 3)), ["Reshape", "Reshape", "Exp"], N=4)
    assert {node.input[0] for node in after.graph.node if node.op_type == "Reshape"} == {"X"}


@pytest.mark.parametrize(
    "text, weights",
    [
        # The 0 copies a dim that X has in another place, and the -1 stands for another unknown one.
        ("g (float[1, N, M] X) => (float[N, Q, 3] Y) { a = Squeeze(X, s) Y = Reshape(a, t) }",
         {"s": ints(0), "t": ints(0, -1, 3)}),
        # Something stands between them.
        ("g (float[1, N, M] X) => (float[N, 1, M] Y) { a = Squeeze(X, s) b = Exp(a) Y = Unsqueeze(b, t) }",
         {"s": ints(0), "t": ints(1)}),
        # Some dimensions come, others go: it takes both.
        ("g (float[1, N, M] X) => (float[N, 1, M] Y) { a = Unsqueeze(X, s) Y = Squeeze(a, t) }",
         {"s": ints(2), "t": ints(0)}),
    ],
)  # fmt: skip
def test_reshapes_stay(text: str, weights: dict[str, np.ndarray]) -> None:
    refuses(build(text, **weights))


# -- slices and gathers -------------------------------------------------------------------------------------------

END = 2**63 - 1


@pytest.mark.parametrize(
    "first, second",
    [
        (("s0", "e2", "a1"), ("s0", "e2", "a2")),  # another axis
        (("s1", "e5", "a1"), ("s1", "e3", "a1")),  # the same axis
        (("s1", "e3", "a1"), ("s1", "e5", "a1")),  # longer than what is there
        (("s1", "em1", "a1"), ("s1", "end", "a1")),  # all but the last, then all but the first
        (("sm3", "em1", "a1"), ("sm1", "end", "a1")),  # negative bounds of a known length
        (("s1", "e5", "am2"), ("s1", "e3", "a1")),  # a negative axis
        (("s5", "e2", "a1"), ("s0", "e2", "a2")),  # an empty slice
    ],
)
def test_slice_of_slice(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    text = (
        "g (float[N, 6, 7] X) => (float[N, P, Q] Y)"
        f" {{ a = Slice(X, {', '.join(first)}) Y = Slice(a, {', '.join(second)}) }}"
    )
    names = {"s0": 0, "s1": 1, "s5": 5, "sm3": -3, "sm1": -1, "e2": 2, "e3": 3, "e5": 5, "em1": -1, "end": END,
             "a1": 1, "a2": 2, "am2": -2}  # fmt: skip
    weights = {name: ints(number) for name, number in names.items() if name in (*first, *second)}
    leaves(build(text, **weights), ["Slice"], N=2)


def test_slice_of_slice_by_attributes() -> None:
    text = (
        "g (float[N, 6, 7] X) => (float[N, 2, 3] Y) { a = Slice<starts = [1], ends = [3], axes = [1]>(X)"
        " Y = Slice<starts = [2], ends = [5], axes = [2]>(a) }"
    )
    leaves(build(text, 9), ["Slice"], N=2)


def test_slices_with_steps_on_other_axes() -> None:
    text = "g (float[N, 6, 7] X) => (float[N, P, Q] Y) { a = Slice(X, s, e, a1, two) Y = Slice(a, s, e, a2) }"
    proto = build(text, s=ints(0), e=ints(END), a1=ints(1), a2=ints(2), two=ints(2))
    leaves(proto, ["Slice"], N=2)


def test_one_slice_under_several_goes_into_each() -> None:
    text = (
        "g (float[N, 6, 7] X) => (float[N, P, Q] Y, float[N, P, R] Z)"
        " { a = Slice(X, s, e, a1, two) Y = Slice(a, s, e, a2) Z = Slice(a, one, e, a2) }"
    )
    leaves(build(text, s=ints(0), e=ints(END), a1=ints(1), a2=ints(2), two=ints(2), one=ints(1)), ["Slice"] * 2, N=2)


@pytest.mark.parametrize(
    "text",
    [
        # A step on the same axis.
        "g (float[N, 6] X) => (float[N, P] Y) { a = Slice(X, s, e, a1, two) Y = Slice(a, s, e, a1, two) }",
        # Bounds from the end of an unknown length.
        "g (float[6, M] X) => (float[6, P] Y) { a = Slice(X, s, e, a1) Y = Slice(a, m, e, a1) }",
        # The middle is read by another operator too.
        "g (float[N, 6] X) => (float[N, P] Y, float[N, Q] Z)"
        " { a = Slice(X, s, e, a1) Y = Slice(a, s, e, a0) Z = Abs(a) }",
        # The middle is an output.
        "g (float[N, 6] X) => (float[N, P] Y, float[N, Q] A) { A = Slice(X, s, e, a1) Y = Slice(A, s, e, a0) }",
    ],
)
def test_slices_stay(text: str) -> None:
    weights = {"s": ints(1), "e": ints(5), "a0": ints(0), "a1": ints(1), "two": ints(2), "m": ints(-2)}
    proto = build(text)
    read = {name for node in proto.graph.node for name in node.input}
    refuses(build(text, **{name: array for name, array in weights.items() if name in read}))


@pytest.mark.parametrize("index, picked", [(0, "Neg"), (1, "Abs"), (-1, "Abs"), (-2, "Neg")])
def test_gather_from_a_stack(index: int, picked: str) -> None:
    text = (
        "g (float[N, 4] X) => (float[N, 4] Y) { a = Neg(X) b = Abs(X) c = Unsqueeze(a, s) d = Unsqueeze(b, s)"
        " e = Concat<axis = 0>(c, d) f = Gather(e, i) Y = Exp(f) }"
    )
    leaves(build(text, s=ints(0), i=np.int64(index)), [picked, "Exp"], N=2)


def test_gather_of_a_vector_of_indices_keeps_the_dim() -> None:
    text = "g (float[N, 4] X) => (float[2, N, 4] Y) { a = Unsqueeze(X, s) Y = Gather(a, i) }"
    refuses(build(text, s=ints(0), i=ints(0, 0)))


# -- concats ------------------------------------------------------------------------------------------------------


def test_concat_of_concat() -> None:
    text = (
        "g (float[N, 2] X, float[N, 3] Z) => (float[N, 10] Y)"
        " { a = Concat<axis = 1>(X, Z) b = Concat<axis = -1>(Z, X) Y = Concat<axis = 1>(a, b) }"
    )
    after = leaves(build(text), ["Concat"], N=2)
    assert list(after.graph.node[0].input) == ["X", "Z", "Z", "X"]


def test_concat_of_split() -> None:
    text = (
        "g (float[N, 6] X) => (float[N, 6] Y, float[N, 3] Z)"
        " { p, q = Split<axis = -1>(X) a = Concat<axis = 1>(p, q) Y = Exp(a) Z = Exp(p) }"
    )
    leaves(build(text, 13), ["Split", "Exp", "Exp"], N=2)


@pytest.mark.parametrize(
    "text",
    [
        "{ p, q = Split<axis = 1>(X) a = Concat<axis = 1>(q, p) Y = Exp(a) }",  # out of order
        "{ p, q = Split<axis = 1>(X) a = Concat<axis = 0>(p, q) Y = Exp(a) }",  # another axis
        "{ p, q, r = Split<axis = 1>(X) a = Concat<axis = 1>(p, q) Y = Exp(a) }",  # not all
        "{ a = Concat<axis = 0>(X, X) Y = Concat<axis = 1>(a, a) }",  # another axis
    ],
)
def test_concats_stay(text: str) -> None:
    refuses(build("g (float[N, 6] X) => (float[P, Q] Y) " + text, 13))


# -- Expand -------------------------------------------------------------------------------------------------------


def test_elementwise_work_is_done_before_expanding() -> None:
    proto = build(
        """g (int64[1, 4] X, float[A, 4] Z) => (float[A, 4] Y) {
            shape = Shape(Z) a = Expand(X, shape) b = Cast<to = 1>(a) c = Sub(b, half) Y = Sub(two, c) }""",
        17, half=np.float32(0.5), two=floats(2),
    )  # fmt: skip
    after, log = apply_rules(proto, expand.RULES)
    assert op_types(after) == ["Shape", "Cast", "Sub", "Sub", "Expand"]
    assert len(log) == 3
    assert_equal(proto, after, rtol=EXACT, atol=EXACT, A=3)


@pytest.mark.parametrize(
    "text",
    [
        "(float[A, B] Y, float[A, B] a) { a = Expand(X, shape) Y = Neg(a) }",  # a result
        "(float[A, B] Y) { a = Expand(X, shape) Y = Mul(a, row) }",  # an operand of several numbers
        "(float[1, A, B] Y) { a = Expand(X, shape) Y = Mul(a, cube) }",  # an operand with more dims
        "(float[A, B] Y) { a = Expand(X, shape) b = Expand(X, shape) c = Neg(a) Y = Add(b, c) }",  # they may be one
    ],
)
def test_expand_stays(text: str) -> None:
    weights = {"row": floats(1, 2, 3, 4), "cube": np.ones((1, 1, 1), np.float32)}
    proto = build("g (float[1, 4] X, int64[2] shape) => " + text, 17, **weights)
    after, log = apply_rules(proto, expand.RULES)
    assert log == []
    assert op_types(after) == op_types(proto)

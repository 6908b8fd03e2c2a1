"""Reductions beside reshapes, transposes and other reductions, and Einsum written as what it is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.algebra_checks import EXACT, ROUNDING, build, constants, ints, leaves, refuses

IO = "g (float[N, 3, 4] X) => "


@pytest.mark.parametrize(
    "text, opset, weights",
    [
        ("(float[N, 3] Y) { a = ReduceMean<axes = [2]>(X) Y = Squeeze(a, s) }", 17, {"s": ints(-1)}),
        ("(float[N, 3] Y) { a = ReduceMean<axes = [-1]>(X) Y = Flatten(a) }", 17, {}),
        ("(float[N, 3] Y) { a = ReduceMax<axes = [-1]>(X) Y = Reshape(a, s) }", 17, {"s": ints(0, 3)}),
        ("(float[N, 3] Y) { a = ReduceSum(X, s) Y = Squeeze(a, s) }", 17, {"s": ints(2)}),
        ("(float[N, 1, 4] Y) { a = ReduceL2<axes = [1], keepdims = 0>(X) Y = Unsqueeze(a, s) }", 17, {"s": ints(1)}),
        ("(float[N, 1, 4] Y) { a = ReduceMin<keepdims = 0>(X, s) Y = Unsqueeze(a, s) }", 18, {"s": ints(1)}),
        ("(float[N] Y) { a = ReduceSum<axes = [1, 2]>(X) Y = Squeeze<axes = [1, 2]>(a) }", 11, {}),
        ("(int64[N, 3] Y) { a = ArgMax<axis = -1>(X) Y = Squeeze(a, s) }", 17, {"s": ints(2)}),
        ("(int64[N, 1, 4] Y) { a = ArgMin<axis = 1, keepdims = 0>(X) Y = Unsqueeze(a, s) }", 17, {"s": ints(1)}),
    ],
)
def test_reduction_beside_a_reshape(text: str, opset: int, weights: dict[str, np.ndarray]) -> None:
    proto = build(IO + text, opset, **weights)
    leaves(proto, [proto.graph.node[0].op_type], EXACT, N=2)


@pytest.mark.parametrize(
    "text, weights",
    [
        ("(float[3, 1] Y) { a = ReduceMean<axes = [0, 2]>(X) Y = Squeeze(a, s) }", {"s": ints(0)}),  # only one of two
        ("(float[N, 3, 1, 1] Y) { a = ReduceMean<axes = [2]>(X) Y = Unsqueeze(a, s) }", {"s": ints(2)}),
        ("(float[N, 3] Y, float[N, 3, 1] A) { A = ReduceMean<axes = [2]>(X) Y = Squeeze(A, s) }", {"s": ints(2)}),
        ("(float[N, 3] Y) { a = ReduceMean<axes = [2]>(X) Y = Squeeze(a) }", {}),  # N may be 1
    ],
)
def test_reduction_beside_a_reshape_stays(text: str, weights: dict[str, np.ndarray]) -> None:
    refuses(build(IO + text, **weights))


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("keep", [0, 1])
def test_reduction_of_reduction(kind: str, keep: int) -> None:
    shape = "N, 1, 1" if keep else "N"
    text = (
        f"(float[{shape}] Y) {{ a = {kind}<axes = [2], keepdims = {keep}>(X)"
        f" Y = {kind}<axes = [1], keepdims = {keep}>(a) }}"
    )
    leaves(build(IO + text), [kind], ROUNDING, N=2)


def test_sum_of_sum_with_axes_as_input() -> None:
    text = "(float[4] Y) { a = ReduceSum<keepdims = 0>(X, s) Y = ReduceSum<keepdims = 0>(a, s) }"
    after = leaves(build(IO + text, s=ints(0)), ["ReduceSum"], ROUNDING, N=2)
    assert list(constants(after).values()) == [[0, 1]]


def test_mean_of_mean_of_known_dims() -> None:
    text = "g (float[2, 3, 4] X) => (float[2, 1, 1] Y) { a = ReduceMean<axes = [2]>(X) Y = ReduceMean<axes = [1]>(a) }"
    leaves(build(text), ["ReduceMean"], ROUNDING)


@pytest.mark.parametrize(
    "text",
    [
        "(float[N, 1, 1] Y) { a = ReduceMean<axes = [2]>(X) Y = ReduceMean<axes = [1]>(a) }",  # unknown dims
        "(float[N, 1, 1] Y) { a = ReduceMax<axes = [2]>(X) Y = ReduceMin<axes = [1]>(a) }",  # another kind
        "(float[N] Y) { a = ReduceMax<axes = [2]>(X) Y = ReduceMax<axes = [1, 2], keepdims = 0>(a) }",
        "(float[N, 1] Y) { a = ReduceMax<axes = [2], keepdims = 0>(X) Y = ReduceMax<axes = [1]>(a) }",  # one keeps
    ],
)
def test_reduction_of_reduction_stays(text: str) -> None:
    refuses(build(IO + text))


@pytest.mark.parametrize(
    "text, opset, weights, expected",
    [
        ("g (float[N, 1, 4] X) => (float[N, 1, 4] Y) { a = Exp(X) b = ReduceMean<axes = [1]>(a) Y = Abs(b) }", 17, {},
         ["Exp", "Abs"]),
        ("g (float[N, 1, 4] X) => (float[N, 4] Y) { Y = ReduceSum<keepdims = 0>(X, s) }", 17, {"s": ints(1)},
         ["Squeeze"]),
        ("g (float[N, 1, 4] X) => (float[N, 4] Y) { Y = ReduceMax<axes = [1], keepdims = 0>(X) }", 11, {},
         ["Squeeze"]),
        ("g (float[N, 4] X) => (float[N, 4] Y)"
         " { a = Exp(X) b = ReduceSum<noop_with_empty_axes = 1>(a) Y = Abs(b) }", 17, {}, ["Exp", "Abs"]),
    ],
)  # fmt: skip
def test_reduction_of_one_element(text: str, opset: int, weights: dict[str, np.ndarray], expected: list[str]) -> None:
    leaves(build(text, opset, **weights), expected, EXACT, N=2)


def test_norm_of_one_element_stays() -> None:
    refuses(build("g (float[N, 1, 4] X) => (float[N, 1, 4] Y) { Y = ReduceL2<axes = [1]>(X) }"))


@pytest.mark.parametrize(
    "text, opset",
    [
        ("(float[N, C] Y) { a = Transpose<perm = [0, 3, 1, 2]>(X) Y = ReduceMean<axes = [2, 3], keepdims = 0>(a) }", 9),
        ("(float[N, H] Y) { a = Transpose<perm = [0, 3, 1, 2]>(X) Y = ReduceMax<axes = [1, 3], keepdims = 0>(a) }", 11),
        ("(float[1, 1, 1, C] Y) { a = Transpose<perm = [2, 1, 0, 3]>(X) Y = ReduceMax<axes = [0, 1, 2]>(a) }", 17),
    ],
)  # fmt: skip
def test_reduction_of_transpose(text: str, opset: int) -> None:
    proto = build("g (float[N, H, W, C] X) => " + text, opset)
    leaves(proto, [proto.graph.node[1].op_type], ROUNDING, N=2, H=3, W=4, C=5)


@pytest.mark.parametrize(
    "text",
    [
        "(float[N, C, 1, 1] Y) { a = Transpose<perm = [0, 3, 1, 2]>(X) Y = ReduceMean<axes = [2, 3]>(a) }",
        "(float[C, N] Y) { a = Transpose<perm = [3, 0, 1, 2]>(X) Y = ReduceMean<axes = [2, 3], keepdims = 0>(a) }",
    ],
)
def test_reduction_of_transpose_stays(text: str) -> None:
    refuses(build("g (float[N, H, W, C] X) => " + text))


# -- Einsum -------------------------------------------------------------------------------------------------------


def tensor(dims: str | None) -> str:
    """The type of a float tensor in ONNX text; a scalar has no brackets."""
    return "float" if dims is None else f"float[{dims}]"


@pytest.mark.parametrize(
    "equation, left, right, result, expected",
    [
        ("ij,jk->ik", "I, J", "J, K", "I, K", ["MatMul"]),
        ("ij, jk", "I, J", "J, K", "I, K", ["MatMul"]),
        ("bij,bjk->bik", "B, I, J", "B, J, K", "B, I, K", ["MatMul"]),
        ("bij,jk->bik", "B, I, J", "J, K", "B, I, K", ["MatMul"]),
        ("ij,jk->ki", "I, J", "J, K", "K, I", ["Transpose", "Transpose", "MatMul"]),
        ("ij,j->i", "I, J", "J", "I", ["MatMul"]),
        ("i,i->", "I", "I", None, ["MatMul"]),
        ("bij,j->bi", "B, I, J", "J", "B, I", ["MatMul"]),
        ("ij,ij->ij", "I, J", "I, J", "I, J", ["Mul"]),
        ("ij,j->ij", "I, J", "J", "I, J", ["Mul"]),
        ("ij,i->ij", "I, J", "I", "I, J", ["Unsqueeze", "Mul"]),
        ("i,j->ij", "I", "J", "I, J", ["Unsqueeze", "Mul"]),
    ],
)
def test_einsum_of_two(equation: str, left: str, right: str, result: str | None, expected: list[str]) -> None:
    text = (
        f'g (float[{left}] X, float[{right}] Z) => ({tensor(result)} Y) {{ Y = Einsum<equation = "{equation}">(X, Z) }}'
    )
    sizes = {"B": 2, "H": 3, "I": 4, "J": 5, "K": 6, "D": 7}
    leaves(build(text), expected, ROUNDING, **sizes)


def test_einsum_of_transposed_operands() -> None:
    """Each Transpose that the MatMul needs merges with the one that is there already."""
    text = """g (float[B, I, H, D] X, float[B, J, H, D] Z) => (float[B, H, I, J] Y) {
        q = Transpose<perm = [0, 2, 1, 3]>(X)
        k = Transpose<perm = [0, 2, 1, 3]>(Z)
        Y = Einsum<equation = "bhid,bhjd->bhij">(q, k) }"""
    expected = ["Transpose", "Transpose", "MatMul"]
    leaves(build(text), expected, ROUNDING, B=2, H=3, I=4, J=5, D=7)


@pytest.mark.parametrize(
    "equation, source, result, expected",
    [
        ("ij->ji", "I, J", "J, I", ["Transpose"]),
        ("ijk->ik", "I, J, K", "I, K", ["ReduceSum"]),
        ("ijk->ki", "I, J, K", "K, I", ["ReduceSum", "Transpose"]),
        ("ij->", "I, J", None, ["ReduceSum"]),
    ],
)
@pytest.mark.parametrize("opset", [12, 17])
def test_einsum_of_one(equation: str, source: str, result: str | None, expected: list[str], opset: int) -> None:
    text = f'g (float[{source}] X) => ({tensor(result)} Y) {{ Y = Einsum<equation = "{equation}">(X) }}'
    leaves(build(text, opset), expected, ROUNDING, I=4, J=5, K=6)


@pytest.mark.parametrize(
    "equation, left, right, result",
    [
        ("...ij,...jk->...ik", "B, I, J", "B, J, K", "B, I, K"),
        ("ij,kl->ik", "I, J", "K, L", "I, K"),  # sums of one operand alone
        ("ijk,jkl->il", "I, J, K", "J, K, L", "I, L"),  # two summed letters
        ("bij,bj->bi", "B, I, J", "B, J", "B, I"),  # a matrix and a vector for each b
        ("ij,jk->ik", "I, 1", "J, K", "I, K"),  # the 1 is stretched
        ("bij,bjk->ibk", "B, I, J", "B, J, K", "I, B, K"),  # the common letter not in front
        ("bhid,bhjd->bhij", "B, H, I, D", "B, H, J, D", "B, H, I, J"),  # a Transpose beside the MatMul
        ("bihd,bjhd->bhij", "B, I, H, D", "B, J, H, D", "B, H, I, J"),  # one of each operand
    ],
)
def test_einsum_stays(equation: str, left: str, right: str, result: str) -> None:
    refuses(
        build(
            f"g (float[{left}] X, float[{right}] Z) => ({tensor(result)} Y)"
            f' {{ Y = Einsum<equation = "{equation}">(X, Z) }}'
        )
    )


def test_diagonal_stays() -> None:
    refuses(build('g (float[3, 3] X) => (float[3] Y) { Y = Einsum<equation = "ii->i">(X) }'))

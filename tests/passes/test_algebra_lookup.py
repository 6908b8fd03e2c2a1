"""Lookups by constant indices, and dims of 1 that a broadcast brings by itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.algebra_checks import build, constants, floats, ints, leaves, refuses

EVERY_PAIR = np.stack(np.mgrid[0:2, 0:4], axis=-1)  # [2, 4, 2]: the places of a matrix of 2 x 4, row by row


@pytest.mark.parametrize(
    "indices, expected",
    [(ints(0, 1, 2, 3), []), (ints(0, -3, 2, -1), []), (ints(0, 1, 2, 3).reshape(2, 2), ["Reshape"])],
)
def test_a_gather_of_everything(indices: np.ndarray, expected: list[str]) -> None:
    shape = ", ".join(str(size) for size in indices.shape)
    text = f"g (float[3, 4] X) => (float[3, {shape}] Y) {{ a = Neg(X) b = Gather <axis = 1> (a, i) Y = Exp(b) }}"
    leaves(build(text, i=indices), ["Neg", *expected, "Exp"])


@pytest.mark.parametrize(
    "indices",
    [ints(0, 1, 2), ints(0, 1, 3, 2), ints(0, 1, 2, 2), np.int64(1)],
    ids=["not all", "not in order", "one twice", "a number"],
)
def test_a_gather_of_something_else_stays(indices: np.ndarray) -> None:
    shape = "".join(f", {size}" for size in indices.shape)
    text = f"g (float[3, 4] X) => (float[3{shape}] Y) {{ a = Neg(X) b = Gather <axis = 1> (a, i) Y = Exp(b) }}"
    refuses(build(text, i=indices))


def test_a_gather_along_an_axis_of_unknown_length_stays() -> None:
    refuses(build("g (float[3, N] X) => (float[3, 2] Y) { a = Gather <axis = 1> (X, i) Y = Exp(a) }", i=ints(0, 1)))


def test_a_gather_by_given_indices_stays() -> None:
    refuses(build("g (float[3, 2] X, int64[2] i) => (float[3, 2] Y) { a = Gather <axis = 1> (X, i) Y = Exp(a) }"))


def test_a_gathernd_of_everything() -> None:
    text = "g (float[2, 4] X) => (float[2, 4] Y) { a = Neg(X) b = GatherND(a, i) Y = Exp(b) }"
    leaves(build(text, i=EVERY_PAIR), ["Neg", "Exp"])
    text = "g (float[2, 4, 3] X) => (float[8, 3] Y) { a = Neg(X) b = GatherND(a, i) Y = Exp(b) }"
    leaves(build(text, i=EVERY_PAIR.reshape(8, 2)), ["Neg", "Reshape", "Exp"])


@pytest.mark.parametrize(
    "attribute, indices",
    [("", EVERY_PAIR[:, ::-1]), ("<batch_dims = 1>", np.broadcast_to(np.arange(4)[:, None], (2, 4, 1)))],
    ids=["turned round", "batches"],
)
def test_another_gathernd_stays(attribute: str, indices: np.ndarray) -> None:
    text = f"g (float[2, 4] X) => (float[2, 4] Y) {{ a = Neg(X) b = GatherND {attribute} (a, i) Y = Exp(b) }}"
    refuses(build(text, i=np.ascontiguousarray(indices)))


PAIRS = np.array([[4, 0, 1], [2, 2, 3]])  # [2, 3]


@pytest.mark.parametrize(
    "perm, axes, shape",
    [
        ("2, 0, 1", (0,), "1, 4, 2, 3"),
        ("2, 0, 1", (1, 4), "4, 1, 2, 3, 1"),
        ("1, 2, 0", (-1,), "3, 4, 2, 1"),
    ],
)
def test_an_unsqueeze_behind_a_turned_lookup(perm: str, axes: tuple[int, ...], shape: str) -> None:
    """As in T5: relative positions look up a bias, whose heads come to the front, and then a batch of 1."""
    text = f"""g (float[5, 4] X) => (float[{shape}] Y) {{
        a = Gather <axis = 0> (X, i) b = Transpose <perm = [{perm}]> (a) c = Unsqueeze(b, u) Y = Exp(c) }}"""
    leaves(build(text, i=PAIRS, u=ints(*axes)), ["Gather", "Transpose", "Exp"])


def test_an_unsqueeze_behind_a_turned_lookup_along_the_last_axis() -> None:
    """The table's other axis stands in front of the indices and keeps its place."""
    text = """g (float[4, 5] X) => (float[2, 1, 4, 3] Y) {
        a = Gather <axis = 1> (X, i) b = Transpose <perm = [1, 0, 2]> (a) c = Unsqueeze(b, u) Y = Exp(c) }"""
    leaves(build(text, i=PAIRS, u=ints(1)), ["Gather", "Transpose", "Exp"])


@pytest.mark.parametrize("axis, shape", [(1, "4, 1, 2, 3"), (2, "4, 2, 1, 3"), (3, "4, 2, 3, 1")])
def test_an_unsqueeze_among_the_indices(axis: int, shape: str) -> None:
    text = f"g (float[4, 5] X) => (float[{shape}] Y) {{ a = Gather <axis = 1> (X, i) b = Unsqueeze(a, u) Y = Exp(b) }}"
    leaves(build(text, i=PAIRS, u=ints(axis)), ["Gather", "Exp"])


def test_an_unsqueeze_in_front_of_the_indices_stays() -> None:
    text = "g (float[4, 5] X) => (float[1, 4, 2, 3] Y) { a = Gather <axis = 1> (X, i) b = Unsqueeze(a, u) Y = Exp(b) }"
    refuses(build(text, i=PAIRS, u=ints(0)))


def test_an_unsqueeze_of_a_lookup_with_other_readers_stays() -> None:
    text = """g (float[4, 5] X) => (float[4, 1, 2, 3] Y, float[4, 2, 3] Z) {
        a = Gather <axis = 1> (X, i) b = Unsqueeze(a, u) Y = Exp(b) Z = Abs(a) }"""
    refuses(build(text, i=PAIRS, u=ints(1)))


def test_an_unsqueeze_of_indices_with_other_readers_stays() -> None:
    """They would be in the file twice; these few bytes are made twice, seventy are not."""
    text = """g (float[4, 5] X, float[5] T) => (float[4, 1, 70] Y, float[70] Z) {
        a = Gather <axis = 1> (X, i) b = Unsqueeze(a, u) Y = Exp(b) c = Gather(T, i) Z = Exp(c) }"""
    refuses(build(text, i=np.arange(70) % 5, u=ints(1)))


def test_an_unsqueeze_of_given_indices_stays() -> None:
    refuses(
        build(
            "g (float[4, 5] X, int64[3] i) => (float[4, 1, 3] Y) { a = Gather<axis = 1>(X, i) Y = Unsqueeze(a, u) }",
            u=ints(1),
        )
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a = Unsqueeze(X, u) Y = Add(a, Z)", ["Add"]),
        ("a = Reshape(X, s) Y = Sub(Z, a)", ["Sub"]),
        ("a = Unsqueeze(X, u) b = Less(Z, k) Y = Where(b, a, k)", ["Less", "Where"]),
    ],
)
def test_dims_of_1_that_a_broadcast_brings(text: str, expected: list[str]) -> None:
    proto = build(
        f"g (float[4] X, float[1, 3, 4] Z) => (float[1, 3, 4] Y) {{ {text} }}",
        u=ints(0, 1), s=ints(1, 1, 4), k=floats(0.5),
    )  # fmt: skip
    leaves(proto, expected)


@pytest.mark.parametrize(
    "text",
    [
        "a = Unsqueeze(X, u) Y = Add(a, k)",
        "a = Unsqueeze(X, u) Y = Add(a, a)",
        "a = Unsqueeze(X, v) Y = Add(a, Z)",
        "a = Unsqueeze(X, u) b = Neg(a) c = Add(a, Z) Y = Mul(b, c)",
    ],
    ids=["nothing else has the dim", "both operands", "behind", "another reader"],
)
def test_dims_of_1_that_the_result_needs_stay(text: str) -> None:
    proto = build(
        f"g (float[4, 4] X, float[1, 4, 1] Z) => (float[p, q, r] Y) {{ {text} }}", u=ints(0), v=ints(2), k=floats(0.5)
    )
    refuses(proto)


def test_the_indices_are_those_of_before() -> None:
    text = "g (float[4, 5] X) => (float[4, 2, 1, 3] Y) { a = Gather <axis = 1> (X, i) b = Unsqueeze(a, u) Y = Exp(b) }"
    after = leaves(build(text, i=PAIRS, u=ints(2)), ["Gather", "Exp"])
    assert list(constants(after).values()) == [PAIRS.reshape(-1).tolist()]

"""What is done to every piece of a Split is done before it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.passes.batching import pieces
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support


def batched(body: str, outputs: str, **initializers: np.ndarray) -> list[str]:
    """The operators after the pass over x[4, 6] and z[4, 6]; the models are equal."""
    proto = support.model(
        f"g (float[4, 6] x, float[4, 6] z) => ({outputs}) {{ {body} }}",
        18,
        quarter=np.array([1, 1, 1, 1]),
        **initializers,
    )
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), (Pass("batch", 2, run=pieces.batch_pieces),))
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    support.assert_equal(proto, result, rtol=0, atol=0)
    return support.op_types(result)


PARTS = "a, b, c, d = Split <axis = 0> (x, quarter)"
ROWS = "float[1, 6] p, float[1, 6] q, float[1, 6] r, float[1, 6] s"


def test_one_operator_before_the_split() -> None:
    body = f"{PARTS} p = Relu (a) q = Relu (b) r = Relu (c) s = Relu (d)"
    assert batched(body, ROWS) == ["Relu", "Split"]


@pytest.mark.fires("batch-pieces")
def test_a_chain_with_constants_on_either_side() -> None:
    body = f"{PARTS} " + " ".join(
        f"k{n} = Sub (v, {n}) l{n} = Mul (k{n}, two) {m} = Tanh (l{n})" for n, m in zip("abcd", "pqrs", strict=True)
    )
    constants = {"v": np.arange(6, dtype=np.float32), "two": np.array([[2]], np.float32)}
    assert batched(body, ROWS, **constants) == ["Sub", "Mul", "Tanh", "Split"]


def test_pieces_of_two_tensors_meet_place_by_place() -> None:
    body = f"{PARTS} e, f, g, h = Split <axis = 0> (z, quarter) " + " ".join(
        f"{out} = Div ({one}, {other})" for out, one, other in zip("pqrs", "abcd", "efgh", strict=True)
    )
    assert batched(body, ROWS) == ["Div", "Split"]


def test_pieces_in_another_order_stay() -> None:
    body = f"{PARTS} e, f, g, h = Split <axis = 0> (z, quarter) " + " ".join(
        f"{out} = Add ({one}, {other})" for out, one, other in zip("pqrs", "abcd", "feh", strict=False)
    )
    assert batched(body, "float[1, 6] p, float[1, 6] q, float[1, 6] r").count("Add") == 3


def test_gates_of_every_row_are_cut_once() -> None:
    body = f"{PARTS} " + " ".join(
        f"i{n}, j{n} = Split <axis = 1> ({n}, half) t{n} = Tanh (i{n}) u{n} = Sigmoid (j{n}) {m} = Mul (t{n}, u{n})"
        for n, m in zip("abcd", "pqrs", strict=True)
    )
    outputs = ROWS.replace("6]", "3]")
    assert batched(body, outputs, half=np.array([3, 3])) == ["Split", "Tanh", "Sigmoid", "Mul", "Split"]


def test_a_constant_that_differs_from_piece_to_piece_stays() -> None:
    body = f"{PARTS} p = Add (a, v) q = Add (b, w) r = Add (c, v) s = Add (d, w)"
    constants = {"v": np.array([1], np.float32), "w": np.array([2], np.float32)}
    assert batched(body, ROWS, **constants).count("Add") == 4


def test_two_pieces_would_be_no_fewer_nodes() -> None:
    body = "a, b = Split <axis = 1> (x, half) p = Relu (a) q = Relu (b)"
    assert batched(body, "float[4, 3] p, float[4, 3] q", half=np.array([3, 3])) == ["Split", "Relu", "Relu"]


def test_other_readers_keep_the_split() -> None:
    body = f"{PARTS} p = Relu (a) q = Relu (b) r = Relu (c) m = Relu (d) s = Add (m, d)"
    assert batched(body, ROWS) == ["Split", "Relu", "Split", "Add"]


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["Relu", "Neg", "Sigmoid", "Abs", "Exp"]), min_size=4, max_size=4),
    same=st.booleans(),
)
def test_only_operators_of_one_kind_are_batched(kinds: list[str], same: bool) -> None:
    chosen = [kinds[0]] * 4 if same else kinds
    body = f"{PARTS} " + " ".join(
        f"{out} = {kind} ({one})" for out, kind, one in zip("pqrs", chosen, "abcd", strict=True)
    )
    assert (len(batched(body, ROWS)) == 2) == (len(set(chosen)) == 1)

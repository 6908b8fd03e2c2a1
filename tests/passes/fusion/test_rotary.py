"""Rotary positions that are spelled out become RotaryEmbedding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fusion import rotary
from tests import support
from tests.passes.fusion.attending import fused, kinds
from tests.passes.refusing import refusal, refuses

SLICES = "a = Slice (x, zero, four, last) b = Slice (x, four, end, last)"
SPLIT = "a, b = Split <axis = -1, num_outputs = 2> (x)"
TURNED = "n = Neg (b) r = Concat <axis = -1> (n, a) l = Mul (x, c) m = Mul (r, s) y = Add (l, m)"
HALVES = """ac = Mul (a, c) bs = Mul (b, s) u = Sub (ac, bs) bc = Mul (c, b) sa = Mul (s, a) w = Add (bc, sa)
    y = Concat <axis = 3> (u, w)"""
ANGLES = """u = Unsqueeze (f, one) cat = Concat <axis = -1> (f, f) c3 = Cos (cat) s3 = Sin (cat)
    c = Unsqueeze (c3, one) s = Unsqueeze (s3, one)"""
POINTS = {"zero": np.array([0]), "four": np.array([4]), "end": np.array([2**63 - 1]), "last": np.array([3]),
          "one": np.array([1])}  # fmt: skip


def proto(
    body: str,
    inputs: str = "float[2, 4, 3, 8] x, float[2, 3, 4] f",
    opset: int = 23,
    result: str = "float[2, 4, 3, 8]",
    **constants: np.ndarray,
) -> onnx.ModelProto:
    """Two samples, four heads, three places, eight elements; `f` are the angles."""
    text = f"g ({inputs}) => ({result} y) {{ {body} }}"
    return support.model(text, opset, 10, **{**POINTS, **constants})


@pytest.mark.parametrize("cut", [SLICES, SPLIT])
def test_halves_that_change_places(cut: str) -> None:
    assert kinds(fused(proto(f"{ANGLES} {cut} {TURNED}")))[-1] == "RotaryEmbedding"


@pytest.mark.fires("rotary-embedding-of-halves")
@pytest.mark.parametrize("cut", [SLICES, SPLIT])
def test_halves_that_are_turned_apart(cut: str) -> None:
    body = f"c3 = Cos (f) s3 = Sin (f) c = Unsqueeze (c3, one) s = Unsqueeze (s3, one) {cut} {HALVES}"
    assert kinds(fused(proto(body))) == ["Cos", "Sin", "RotaryEmbedding"]


@pytest.mark.fires("rotary-embedding-of-neighbors")
def test_neighbors_that_are_turned_apart() -> None:
    body = f"""c3 = Cos (f) s3 = Sin (f) c = Unsqueeze (c3, one) s = Unsqueeze (s3, one)
        a = Slice (x, zero, end, last, two) b = Slice (x, one, end, last, two) {HALVES}"""
    body = body.replace(
        "y = Concat <axis = 3> (u, w)",
        """u1 = Unsqueeze (u, five) w1 = Unsqueeze (w, five)
        z = Concat <axis = 4> (u1, w1) y = Reshape (z, whole)""",
    )
    result = fused(proto(body, two=np.array([2]), five=np.array([4]), whole=np.array([2, 4, 3, 8])))
    assert kinds(result) == ["Cos", "Sin", "RotaryEmbedding"]


def tables(different: bool) -> dict[str, np.ndarray]:
    """Tables of one sample, whose halves are equal unless they are asked to be different."""
    angles = np.linspace(0, 3, 12, dtype=np.float32).reshape(1, 1, 3, 4)
    both = np.concatenate([angles, angles + (1 if different else 0)], axis=-1)
    return {"c": np.cos(both), "s": np.sin(both)}


@pytest.mark.fires("rotary-embedding")
def test_constant_tables() -> None:
    result = fused(proto(f"{SLICES} {TURNED}", "float[2, 4, 3, 8] x", **tables(different=False)))
    assert kinds(result) == ["RotaryEmbedding"]


def test_tables_with_different_halves_stay() -> None:
    result = fused(proto(f"{SLICES} {TURNED}", "float[2, 4, 3, 8] x", **tables(different=True)))
    assert "RotaryEmbedding" not in kinds(result)


def test_tables_of_which_nothing_is_known_stay() -> None:
    inputs = "float[2, 4, 3, 8] x, float[2, 1, 3, 8] c, float[2, 1, 3, 8] s"
    assert "RotaryEmbedding" not in kinds(fused(proto(f"{SLICES} {TURNED}", inputs)))


def test_the_wrong_half_negated_is_another_rotation() -> None:
    turned = TURNED.replace("Neg (b)", "Neg (a)").replace("(n, a)", "(b, n)")
    assert "RotaryEmbedding" not in kinds(fused(proto(f"{ANGLES} {SLICES} {turned}")))


def test_unequal_parts_are_no_halves() -> None:
    result = fused(proto(f"{ANGLES} {SLICES} {TURNED}", five=np.array([5])))
    assert "RotaryEmbedding" in kinds(result)
    text = f"{ANGLES} a = Slice (x, zero, three, last) b = Slice (x, three, end, last) {TURNED}"
    assert "RotaryEmbedding" not in kinds(fused(proto(text, three=np.array([3]))))


def test_before_opset_23_there_is_no_such_operator() -> None:
    assert "RotaryEmbedding" not in kinds(fused(proto(f"{ANGLES} {SLICES} {TURNED}", opset=22)))


def test_an_angle_for_all_samples_is_repeated() -> None:
    result = fused(proto(f"{ANGLES} {SPLIT} {TURNED}", "float[2, 4, 3, 8] x, float[1, 3, 4] f"))
    assert kinds(result)[-1] == "RotaryEmbedding"
    assert kinds(result).count("Expand") == 2


# -- what each condition refuses --------------------------------------------------------------------------------------

WHOLE = f"{ANGLES} {SLICES} {TURNED}"
APART = f"c3 = Cos (f) s3 = Sin (f) c = Unsqueeze (c3, one) s = Unsqueeze (s3, one) {SLICES} {HALVES}"
INPUTS = "float[2, 4, 3, 8] x, float[2, 3, 4] f"
X = "float[2, 4, 3, 8] x"
NEIGHBORS = (APART.replace(SLICES, "a = Slice (x, zero, end, last, two) b = Slice (x, one, end, last, two)")
             .replace("y = Concat <axis = 3> (u, w)", "u1 = Unsqueeze (u, five) w1 = Unsqueeze (w, five) "
                      "z = Concat <axis = 4> (u1, w1) y = Reshape (z, whole)"))  # fmt: skip


def one_angle(*shape: int) -> dict[str, np.ndarray]:
    """Tables of this shape with equal halves."""
    angles = np.linspace(0, 3, int(np.prod(shape)) // 2, dtype=np.float32).reshape(*shape[:-1], shape[-1] // 2)
    both = np.concatenate([angles, angles], axis=-1)
    return {"c": np.cos(both), "s": np.sin(both)}


def constant(inputs: str, *shape: int) -> onnx.ModelProto:
    """Halves that change places, with constant tables of this shape."""
    return proto(f"{SLICES} {TURNED}", inputs, result=inputs.removesuffix(" x"), **one_angle(*shape))


REFUSALS = [
    refusal("rotary-embedding", "what is turned is not what is multiplied with the cosine",
            proto(WHOLE.replace("Mul (x, c)", "Mul (z, c)"), INPUTS + ", float[2, 4, 3, 8] z")),
    refusal("rotary-embedding", "heads, places and elements are not on axes of their own",
            proto(f"{SLICES} {TURNED}", "float[4, 3, 8] x, float[4, 3, 8] c, float[4, 3, 8] s",
                  result="float[4, 3, 8]", last=np.array([2]))),
    refusal("rotary-embedding", "only float and float16 have the operator in runtimes",
            proto(WHOLE, INPUTS.replace("float", "double"), result="double[2, 4, 3, 8]")),
    refusal("rotary-embedding", "the table is joined otherwise",
            proto(WHOLE.replace("(f, f)", "(p, p, f)").replace("u = Unsqueeze (f, one)", ""),
                  INPUTS + ", float[2, 3, 2] p")),
    refusal("rotary-embedding", "the halves of the table are not equal",
            proto(WHOLE.replace("(f, f)", "(f, g)"), INPUTS + ", float[2, 3, 4] g")),
    refusal("rotary-embedding", "the halves of the table are not equal",
            proto(f"{SLICES} {TURNED}", X, **tables(different=True))),
    refusal("rotary-embedding", "the number of samples or places is not known",
            constant("float[N, 4, 3, 8] x", 1, 1, 3, 8)),
    refusal("rotary-embedding", "the table is of one number",
            proto(f"c = ConstantOfShape (as) s = ConstantOfShape (as) {SLICES} {TURNED}", X,
                  **{"as": np.array([1, 1, 3, 8])})),
    refusal("rotary-embedding", "the table has another shape", constant(X, 1, 1, 1, 8)),
    refusal("rotary-embedding", "it differs from head to head", constant(X, 1, 4, 3, 8)),
    refusal("rotary-embedding", "it differs from head to head", constant("float[2, 2, 3, 8] x", 1, 2, 3, 8)),
    refusal("rotary-embedding", "it differs from head to head", constant("float[2, 2, 3, 8] x", 2, 3, 8)),
    refusal("rotary-embedding", "the table has another shape", proto(WHOLE, X + ", float[2, 1, 4] f")),
    refusal("rotary-embedding", "the table is not of as many samples",
            proto(WHOLE, "float[N, 4, 3, 8] x, float[1, 3, 4] f", result="float[N, 4, 3, 8]")),
    refusal("rotary-embedding-of-neighbors", "the Reshape does more than join neighbors",
            proto(NEIGHBORS, result="float[2, 3, 4, 8]", two=np.array([2]), five=np.array([4]),
                  whole=np.array([2, 3, 4, 8]))),
    refusal("rotary-embedding-of-halves", "they are not of products", proto(APART.replace("ac = Mul", "ac = Add"))),
    refusal("rotary-embedding-of-halves", "the sum is of other products",
            proto(APART.replace("Mul (s, a)", "Mul (s, b)"))),
    refusal("rotary-embedding-of-halves", "they are not of the two parts of one tensor",
            proto(APART.replace(SLICES, ""), "float[2, 4, 3, 4] a, float[2, 4, 3, 4] b, float[2, 3, 4] f")),
    refusal("rotary-embedding-of-halves", "the table differs from head to head",
            proto(f"{SLICES} {HALVES}", f"{X}, float[2, 4, 3, 4] c, float[2, 4, 3, 4] s")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "graph"), REFUSALS)
def test_it_says_which_condition_refuses(rule: str, reason: str, graph: onnx.ModelProto) -> None:
    refuses(rule, reason, graph)


def test_a_large_table_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "LARGEST", 23)  # elements; the table has 24
    refuses("rotary-embedding", "the table is large", constant(X, 1, 1, 3, 8))

"""Rotary positions that are spelled out become RotaryEmbedding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.passes.fusion.attending import fused, kinds

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
    body: str, inputs: str = "float[2, 4, 3, 8] x, float[2, 3, 4] f", opset: int = 23, **constants: np.ndarray
) -> onnx.ModelProto:
    """Two samples, four heads, three places, eight elements; `f` are the angles."""
    text = f"g ({inputs}) => (float[2, 4, 3, 8] y) {{ {body} }}"
    return support.model(text, opset, 10, **POINTS, **constants)


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

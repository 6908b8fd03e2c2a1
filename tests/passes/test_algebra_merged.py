"""Leading axes that are merged for a Transpose of the others."""

from __future__ import annotations

import numpy as np

from graphopt.passes.algebra import merged, reshape
from tests import support


def after(
    first: list[int], last: list[int], perm: str, source: str = "2, 4, 3, 5", result: str = "2, 4, 5, 3"
) -> list[str]:
    """The operators after the rule; the models are equal, bit for bit."""
    proto = support.model(
        f"""g (float[{source}] x) => (float[{result}] y) {{
            a = Reshape (x, first) b = Transpose <perm = {perm}> (a) y = Reshape (b, last) }}""",
        first=np.array(first), last=np.array(last),
    )  # fmt: skip
    found, _ = support.apply_rules(proto, merged.RULES)
    support.assert_equal(proto, found, rtol=0, atol=0, n=2)
    return support.op_types(found)


def test_merged_for_a_transpose_and_parted_again() -> None:
    assert after([8, 3, 5], [2, 4, 5, 3], "[0, 2, 1]") == ["Transpose"]


def test_of_any_batch() -> None:
    assert after([-1, 3, 5], [-1, 4, 5, 3], "[0, 2, 1]", "n, 4, 3, 5", "n, 4, 5, 3") == ["Transpose"]


def test_parted_in_other_lengths() -> None:
    assert after([8, 3, 5], [4, 2, 5, 3], "[0, 2, 1]", result="4, 2, 5, 3") == ["Reshape", "Transpose"]


def test_a_first_axis_that_moves_stays() -> None:
    assert after([8, 3, 5], [3, 2, 4, 5], "[1, 0, 2]", result="3, 2, 4, 5") == ["Reshape", "Transpose", "Reshape"]


def test_other_axes_merged_stay() -> None:
    assert after([2, 12, 5], [2, 5, 4, 3], "[0, 2, 1]", result="2, 5, 4, 3") == ["Reshape", "Transpose", "Reshape"]


def pushed(body: str, inputs: str, result: str, **constants: np.ndarray) -> list[str]:
    """The operators after the rules; equal up to the rounding of a product."""
    proto = support.model(f"g ({inputs}) => ({result}) {{ {body} }}", **constants)
    found, _ = support.apply_rules(proto, (*merged.RULES, *reshape.RULES))
    support.assert_equal(proto, found)
    return support.op_types(found)


MERGED = "a = Reshape (x, one) b = Reshape (y, other)"
PAIR = "float[2, 4, 3, 5] x, float[2, 4, 5, 6] y"
SIZES = {"one": np.array([8, 3, 5]), "other": np.array([8, 5, 6]), "back": np.array([2, 4, 3, 6])}


def test_a_product_of_merged_axes_merges_later() -> None:
    assert pushed(f"{MERGED} z = MatMul (a, b)", PAIR, "float[8, 3, 6] z", **SIZES) == ["MatMul", "Reshape"]


def test_scores_of_merged_heads_are_never_merged() -> None:
    body = f"{MERGED} s = MatMul (a, b) p = Softmax <axis = 2> (s) z = Reshape (p, back)"
    assert pushed(body, PAIR, "float[2, 4, 3, 6] z", **SIZES) == ["MatMul", "Softmax"]


def test_an_operand_that_is_transposed_behind_its_reshape() -> None:
    body = "a = Reshape (x, one) b = Reshape (y, other) c = Transpose <perm = [0, 2, 1]> (b) z = MatMul (a, c)"
    inputs = PAIR.replace("5, 6", "6, 5")
    sizes = {**SIZES, "other": np.array([8, 6, 5])}
    assert pushed(body, inputs, "float[8, 3, 6] z", **sizes) == ["Transpose", "MatMul", "Reshape"]


def test_axes_merged_from_others_stay() -> None:
    sizes = {**SIZES, "one": np.array([8, 3, 5])}
    body = f"{MERGED} z = MatMul (a, b)"
    inputs = PAIR.replace("float[2, 4, 3, 5]", "float[4, 2, 3, 5]")
    assert pushed(body, inputs, "float[8, 3, 6] z", **sizes) == ["Reshape", "Reshape", "MatMul"]


def test_a_softmax_over_merged_axes_stays() -> None:
    body = "a = Reshape (x, flat) p = Softmax (a) z = Reshape (p, back)"
    sizes = {"flat": np.array([8, 15]), "back": np.array([2, 4, 15])}
    assert pushed(body, "float[2, 4, 3, 5] x", "float[2, 4, 15] z", **sizes) == ["Reshape", "Softmax", "Reshape"]

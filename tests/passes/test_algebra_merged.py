"""Leading axes that are merged for a Transpose of the others."""

from __future__ import annotations

import numpy as np

from graphopt.passes.algebra import merged
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

"""Slices that are put together again."""

from __future__ import annotations

import numpy as np

from graphopt.passes.algebra import slicing
from tests import support


def _joined(cuts: str, count: int, size: str = "6", shape: str = "6") -> list[str]:
    pieces = ", ".join(f"p{place}" for place in range(count))
    proto = support.model(
        f"g (float[2, {size}] x) => (float[2, {shape}] y) {{ {cuts} y = Concat <axis = 1> ({pieces}) }}",
        **{f"n{number}": np.array([number]) for number in (0, 1, 2, 4, 6, 99)},
    )
    result, _ = support.apply_rules(proto, slicing.RULES)
    support.assert_equal(proto, result, rtol=0, atol=0, m=6)
    return support.op_types(result)


def test_slices_put_together_again() -> None:
    assert _joined("p0 = Slice (x, n0, n2, n1) p1 = Slice (x, n2, n4, n1) p2 = Slice (x, n4, n99, n1)", 3) == [
        "Identity"
    ]
    assert _joined("p0 = Slice (x, n1, n2, n1) p1 = Slice (x, n2, n4, n1)", 2, shape="3") == ["Slice"]


def test_slices_with_a_gap_or_of_unknown_length_stay() -> None:
    gap = "p0 = Slice (x, n0, n1, n1) p1 = Slice (x, n2, n4, n1)"
    assert _joined(gap, 2, shape="3") == ["Slice", "Slice", "Concat"]
    unknown = "p0 = Slice (x, n0, n2, n1) p1 = Slice (x, n2, n99, n1)"
    assert _joined(unknown, 2, size="m") == ["Slice", "Slice", "Concat"]

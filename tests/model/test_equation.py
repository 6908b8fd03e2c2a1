"""Dims of what an Einsum gives, by its equation and not by what a file declares."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.model.equation import labels_of
from graphopt.model.facts import Facts
from graphopt.model.load import load
from tests import support


@pytest.mark.parametrize(
    ("equation", "left", "right", "result"),
    [
        ("...ij,...jk->...ik", "3,1,2,4", "1,5,4,6", "3,5,2,6"),  # ONNX's inference has 3,1,2,6
        ("...ij,...jk", "5,2,4", "3,1,4,6", "3,5,2,6"),
        ("i...,...j->ij...", "2,3,1", "4,5", "2,5,3,4"),
        ("bij,bjk->bik", "n,2,4", "n,4,6", "n,2,6"),
        ("ij,jk->ik", "1,4", "4,n", "1,n"),
        ("ii->i", "3,3", None, "3"),
        ("ij->", "3,4", None, ""),
    ],
)
def test_dims_of_an_einsum(equation: str, left: str, right: str | None, result: str) -> None:
    inputs = f"float[{left}] x" + ("" if right is None else f", float[{right}] z")
    names = "x" if right is None else "x, z"
    declared = ",".join("1" * len(result.split(","))) if result else ""
    text = f'g ({inputs}) => (float[{declared}] y) {{ y = Einsum<equation = "{equation}">({names}) }}'
    model = load(support.model(text, 18))
    shape = Facts(model).shape(model.graph.outputs[0])
    assert shape is not None and ",".join(map(str, shape)) == result


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="'ij' has other dims than an operand of rank 3"):
        labels_of("ij->i", [3])
    with pytest.raises(ValueError, match="rank 1"):
        labels_of("i...j->i", [1])


def test_a_program_has_the_dims_that_its_einsum_gives_whatever_the_file_declares() -> None:
    """It wrote behind the memory of the output that the file declares."""
    text = """g (float[3,1,2,4] x, float[1,5,4,6] z) => (float[3,1,2,6] y)
    { y = Einsum<equation = "...ij,...jk->...ik">(x, z) }"""
    program = graphopt.compile(support.model(text, 18), threads=1)
    draw = np.random.default_rng(0)
    x, z = (draw.uniform(1, 2, shape).astype(np.float32) for shape in ((3, 1, 2, 4), (1, 5, 4, 6)))
    (found,) = program.run(None, {"x": x, "z": z})
    np.testing.assert_allclose(found, np.einsum("...ij,...jk->...ik", x, z), rtol=1e-5)

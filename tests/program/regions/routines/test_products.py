"""Products of matrices and by equations, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import held

SHAPES = [
    ((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,)), ((5,), (2, 5, 3)), ((4, 5), (5, 1)),
    ((2, 4, 5), (5, 1)), ((2, 4, 5), (2, 5, 1)), ((3, 1, 4, 5), (2, 5, 33)), ((70, 9), (9, 37)), ((1, 5), (5, 7)),
    ((2, 3, 0), (0, 4)),
]  # fmt: skip


def drawn(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng([seed, *shape])
    if kind[0] in "iu":
        return generator.integers(0, 9, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i4"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_products(left: tuple[int, ...], right: tuple[int, ...], kind: str) -> None:
    a, b = drawn(left, kind), drawn(right, kind, 1)
    wide = kind if kind[0] in "iu" else "f8"
    wanted = np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(kind)
    tolerance = {"f2": 1e-2, "f4": 1e-5, "f8": 1e-12}.get(kind, 0.0)
    held("MatMul", [a, b], [wanted], tolerance=tolerance, known=(1,) if len(left) > 2 else ())


@given(
    st.sampled_from(["f2", "f4", "f8", "i4"]), st.tuples(*[st.integers(1, 40)] * 3), st.integers(0, 1),
    st.integers(0, 1), st.sampled_from([None, "rows", "columns", "all", "one"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_general_products(
    kind: str, sizes: tuple[int, int, int], left: int, right: int, added: str | None, scaled: bool
) -> None:
    rows, depth, columns = sizes
    a, b = drawn((rows, depth), kind), drawn((depth, columns), kind, 1)
    dims = {"rows": (rows, 1), "columns": (columns,), "all": (rows, columns), "one": ()}
    c = None if added is None else drawn(dims[added], kind, 2)
    alpha, beta = (0.5, 2.0) if scaled and kind[0] == "f" else (1.0, 1.0)
    wide = "i8" if kind[0] == "i" else "f8"
    wanted = alpha * (a.astype(wide) @ b.astype(wide)) + (0 if c is None else beta * c.astype(wide))
    inputs = [a.T.copy() if left else a, b.T.copy() if right else b, *([] if c is None else [c])]
    held(
        "Gemm", inputs, [wanted.astype(kind)], alpha=alpha, beta=beta, transA=left, transB=right,
        tolerance={"f2": 2e-2, "f4": 1e-4, "f8": 1e-12}.get(kind, 0.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("ii->i", [(4, 4)]), ("ii", [(4, 4)]), ("ij->", [(3, 4)]), ("ba", [(3, 4)]),
        ("...ij,...jk", [(2, 3, 4), (4, 5)]), ("b...i,b...j->...ij", [(2, 3, 4), (2, 3, 5)]),
        ("a,b,c->cab", [(2,), (3,), (4,)]), (",ij->ji", [(), (3, 4)]), ("iji,j->i", [(3, 4, 3), (4,)]),
        ("...", [(2, 3)]), ("i...->...", [(4, 2, 3)]), ("bij, bjk -> b", [(2, 3, 4), (1, 4, 5)]),
        ("ij,ij->", [(3, 4)] * 2), ("ijk,kjl->il", [(3, 4, 5), (5, 4, 6)]),
        ("bijc,bkc->kbji", [(2, 3, 4, 5), (2, 6, 5)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["f4", "f8", "i8"])
def test_equations(equation: str, shapes: list[tuple[int, ...]], kind: str) -> None:
    inputs = [drawn(shape, kind, seed) for seed, shape in enumerate(shapes)]
    tolerance = {"f4": 1e-4, "f8": 1e-12}.get(kind, 0.0)
    held("Einsum", inputs, [np.asarray(np.einsum(equation, *inputs))], equation=equation, tolerance=tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_determinants(shape: tuple[int, ...], kind: str) -> None:
    x = drawn(shape, kind)
    held("Det", [x], [np.asarray(np.linalg.det(x.astype("f8"))).astype(kind)], tolerance=1e-4)


def test_a_singular_matrix_has_determinant_zero() -> None:
    held("Det", [np.array([[0.0, 0.0], [0.0, 3.0]])], [np.array(0.0)])

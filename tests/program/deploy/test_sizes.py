"""Programs of models with free dims: one for every size, with constants and threads in common."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

TEXT = """g (float[batch,8] x, float[batch,3] m) => (float[batch,3] y) {
    h = MatMul(x, w) r = Relu(h) s = MatMul(r, v) y = Mul(s, m)
}"""


def program(**options: object) -> tuple[graphopt.Compiled, dict[str, np.ndarray]]:
    generator = np.random.default_rng(0)
    weights = {"w": generator.random((8, 32), np.float32), "v": generator.random((32, 3), np.float32)}
    return graphopt.compile(support.model(TEXT, 18, **weights), **options), weights  # type: ignore[arg-type]


def feeds(batch: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(batch)
    return {"x": generator.random((batch, 8), np.float32), "m": generator.random((batch, 3), np.float32)}


def test_a_program_is_made_for_each_size_and_kept() -> None:
    made, weights = program()
    assert [(one.name, one.shape) for one in made.get_inputs()] == [("x", ["batch", 8]), ("m", ["batch", 3])]
    assert [one.shape for one in made.get_outputs()] == [["batch", 3]]
    assert made.sizes == () and made.fallback == () and "0 sizes so far" in repr(made)
    for batch in (1, 5, 1, 9, 5):
        given = feeds(batch)
        wanted = (np.maximum(given["x"] @ weights["w"], 0) @ weights["v"]) * given["m"]
        np.testing.assert_allclose(made.run(None, given)[0], wanted, rtol=1e-5)
        np.testing.assert_array_equal(made(**given)["y"], made.run(["y"], given)[0])
    assert [one.get_inputs()[0].shape for one in made.sizes] == [[1, 8], [5, 8], [9, 8]]
    assert all(one.verification.passed for one in made.sizes)


def test_equal_constants_lie_in_one_place() -> None:
    made, _ = program()
    made(**feeds(30)), made(**feeds(60))
    first, second = (one.program.weights for one in made.sizes)
    assert first.ctypes.data == second.ctypes.data
    assert second.size < 2 * first.size


def test_programs_of_all_sizes_run_on_the_threads_of_the_first() -> None:
    text = "g (float[batch,256] x) => (float[batch,256] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, w) }"
    weights = np.random.default_rng(0).random((256, 256), np.float32) / 100
    made = graphopt.compile(support.model(text, 18, w=weights), threads=2)
    made(x=np.ones((256, 256), np.float32)), made(x=np.ones((512, 256), np.float32))
    first, second = (one.program for one in made.sizes)
    assert first.is_shared and second.is_shared
    assert first._pool == second._pool


def test_feeds_are_used_for_their_own_size() -> None:
    made, _ = program(feeds=[feeds(4), feeds(6)])
    made(**feeds(4)), made(**feeds(5))
    assert ["given" in one.verification.draws for one in made.sizes] == [True, False]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"x": np.zeros((2, 8), np.float32)}, "input 'm' is missing; the program has 'x', 'm'"),
        (feeds(2) | {"m": np.zeros((3, 3), np.float32)}, "'batch' is 2 in input 'x' and 3 in input 'm'"),
        (
            feeds(2) | {"x": np.zeros((2, 9), np.float32)},
            r"input 'x' has the dims \[2, 9\]; expected are \['batch', 8\]",
        ),
        (feeds(2) | {"x": np.zeros(2, np.float32)}, r"input 'x' has the dims \[2\]; expected are \['batch', 8\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(given: dict[str, np.ndarray], sentence: str) -> None:
    made, _ = program()
    with pytest.raises(graphopt.GraphoptError, match=sentence):
        made.run(None, given)
    assert made.sizes == ()


def test_one_bundle_cannot_have_all_sizes(tmp_path: object) -> None:
    made, _ = program()
    with pytest.raises(graphopt.GraphoptError, match=r"the dims of 'x' are not all numbers: give 'batch' a value"):
        made.save(f"{tmp_path}/bundle")

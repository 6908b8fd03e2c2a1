"""One program for a range of sizes: from Python and through the C interface."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import BundleError, OptionError
from models import families
from tests import support
from tests.kernels.interface import BAD_ARGUMENT, OK, Library, call, tensor

TEXT = """g (float[batch,8] x, float[batch,3] m) => (float[batch,3] y) {
    h = MatMul(x, w) r = Relu(h) s = MatMul(r, v) y = Mul(s, m)
}"""
_random = np.random.default_rng(0)
WEIGHTS = {"w": _random.random((8, 32), np.float32), "v": _random.random((32, 3), np.float32)}


def model() -> onnx.ModelProto:
    return support.model(TEXT, 18, **WEIGHTS)


def feeds(batch: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(batch)
    return {"x": generator.random((batch, 8), np.float32), "m": generator.random((batch, 3), np.float32)}


def wanted(given: dict[str, np.ndarray]) -> np.ndarray:
    found: np.ndarray = (np.maximum(given["x"] @ WEIGHTS["w"], 0) @ WEIGHTS["v"]) * given["m"]
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_one_program_runs_every_size(threads: int) -> None:
    made = graphopt.compile(model(), dims={"batch": (1, 40)}, threads=threads)
    assert [one.shape for one in made.get_inputs()] == [["batch", 8], ["batch", 3]]
    assert [one.shape for one in made.get_outputs()] == [["batch", 3]]
    assert {"batch": 1} in made.verification.sizes and {"batch": 40} in made.verification.sizes
    for batch in (*range(1, 41), 1):
        given = feeds(batch)
        np.testing.assert_allclose(made.run(None, given)[0], wanted(given), rtol=1e-5)
    assert len(made.sizes) == 1


def test_workers_share_a_program_of_every_size() -> None:
    weights = {"w": _random.random((64, 512), np.float32), "v": _random.random((512, 64), np.float32)}
    text = "g (float[batch,64] x) => (float[batch,64] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
    made = graphopt.compile(support.model(text, 18, **weights), dims={"batch": (1, 300)}, threads=2)
    assert made.linked.listing.ticketed is not None
    for batch in (1, 2, 33, 128, 300, 1):
        x = _random.random((batch, 64), np.float32)
        wanted = np.maximum(x @ weights["w"], 0) @ weights["v"]
        np.testing.assert_allclose(made.run(None, {"x": x})[0], wanted, rtol=2 * (64 + 512) * 2.0**-24)


def test_a_triangle_of_any_size_beside_a_mask_of_each_sample() -> None:
    text = """g (float[batch,seq] x) => (float[batch,1,seq,seq] y) {
        n = Shape<start=1, end=2>(x) s = Squeeze(n) places = Range(zero, s, one)
        columns = Unsqueeze(places, first) rows = Unsqueeze(places, last) before = LessOrEqual(columns, rows)
        wide = Unsqueeze(x, middle) given = Greater(wide, least) both = And(before, given) y = Cast<to=1>(both)
    }"""
    numbers = {"zero": 0, "one": 1, "first": [0, 1, 2], "last": [0, 1, 3], "middle": [1, 2]}
    constants = {name: np.array(one, np.int64) for name, one in numbers.items()}
    constants["least"] = np.array(0, np.float32)
    made = graphopt.compile(support.model(text, 18, **constants), dims={"batch": (1, 3), "seq": (1, 30)}, threads=1)
    for batch, seq in ((1, 1), (2, 7), (3, 30), (1, 30)):
        x = _random.standard_normal((batch, seq)).astype(np.float32)
        wanted = np.tril(np.ones((seq, seq))) * (x > 0)[:, None, None]
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], wanted)


def test_memory_is_that_of_the_greatest_size() -> None:
    made, alone = (graphopt.compile(model(), dims={"batch": size}, threads=1) for size in ((1, 40), 40))
    assert made.linked.listing.arena_bytes == alone.linked.listing.arena_bytes


def test_sizes_outside_are_refused_by_a_sentence() -> None:
    made = graphopt.compile(model(), dims={"batch": (2, 40)}, threads=1)
    for batch in (1, 41):
        with pytest.raises(BundleError, match=f"'batch' cannot be {batch}; the program is made for 2 to 40"):
            made(**feeds(batch))
    with pytest.raises(BundleError, match=r"'m' has the shape \[5, 3\]; expected is \[4, 3\], as batch is 4"):
        made(x=feeds(4)["x"], m=feeds(5)["m"])
    with pytest.raises(BundleError, match="'x' has the shape"):
        made(x=np.ones(8, np.float32), m=feeds(4)["m"])


def test_a_prepared_call_keeps_its_size() -> None:
    made = graphopt.compile(model(), dims={"batch": (1, 9)}, threads=1)
    calls = {batch: made.program.bind(feeds(batch)) for batch in (3, 9, 1)}
    for _ in range(2):
        for batch, bound in calls.items():
            bound()
            np.testing.assert_allclose(bound.outputs[0], wanted(feeds(batch)), rtol=1e-5)


@pytest.mark.parametrize(
    ("dims", "sentence"),
    [
        ({"batch": (3, 2)}, "the range of 'batch' is a least size and a greatest one, such as (1, 512), not (3, 2)"),
        ({"batch": (0, 0)}, "the range of 'batch' is a least size"),
        ({"batch": "1..x"}, "'batch=1..x' is no range of sizes"),
        ({"rows": (1, 2)}, "there is no free dim 'rows'"),
    ],
)
def test_a_range_that_is_none_is_refused(dims: dict[str, tuple[int, int]], sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        graphopt.compile(model(), dims=dims)  # type: ignore[arg-type]


def test_a_dim_has_multiples_as_its_sizes() -> None:
    text = """g (float[s,2] x) => (float[t,4,2] y, float[t] z)
    { y = Reshape(x, shape) z = ReduceSum<keepdims = 0>(y, axes) }"""
    small = support.model(text, 18, shape=np.array([-1, 4, 2]), axes=np.array([1, 2]))
    x = np.random.default_rng(0).random((16, 2), np.float32)
    made = graphopt.compile(small, dims={"blocks": (1, 5), "s": "4*blocks"}, feeds={"x": x}, threads=1)
    assert made.verification.passed and {"blocks": 4} in made.verification.sizes
    for rows in (4, 8, 20):
        given = np.random.default_rng(rows).random((rows, 2), np.float32)
        np.testing.assert_array_equal(made(x=given)["y"], given.reshape(-1, 4, 2))
    with pytest.raises(BundleError, match=re.escape("input 'x' has the shape [7, 2]; expected is [4, 2]")):
        made(x=np.zeros((7, 2), np.float32))
    with pytest.raises(BundleError, match="'blocks' cannot be 6; the program is made for 1 to 5"):
        made(x=np.zeros((24, 2), np.float32))


def test_every_free_dim_needs_a_size_or_a_range() -> None:
    encoder = families.build("masked_encoder", 0)
    with pytest.raises(OptionError, match="'seq' has neither a size nor a range"):
        graphopt.compile(encoder, dims={"batch": (1, 2)})
    with pytest.raises(OptionError, match="a memory budget of the arena is kept for one size"):
        graphopt.compile(model(), dims={"batch": (1, 2)}, memory_budget=1000)


def test_feeds_count_for_their_own_size() -> None:
    made = graphopt.compile(model(), dims={"batch": (1, 50)}, feeds=[feeds(29)], threads=1)
    assert {"batch": 29} in made.verification.sizes
    with pytest.raises(OptionError, match="a feed has 51 for 'batch'; its range is 1 to 50"):
        graphopt.compile(model(), dims={"batch": (1, 50)}, feeds=[feeds(51)])


def test_an_encoder_of_any_batch_and_length() -> None:
    """Attention, masks, a table of positions, the first row of every sample; compared at a dozen sizes."""
    made = graphopt.compile(families.build("masked_encoder", 0), dims={"batch": (1, 3), "seq": (1, 40)}, threads=1)
    assert made.verification.passed and {"batch": 1, "seq": 1} in made.verification.sizes
    hidden, pooled = made.run(
        None, {"input_ids": np.ones((2, 17), np.int64), "attention_mask": np.ones((2, 17), np.int64)}
    )
    assert hidden.shape == (2, 17, 96) and pooled.shape == (2, 96)


@pytest.mark.parametrize("masked", [True, False])
def test_a_table_of_distances_is_a_corner_of_the_largest(masked: bool) -> None:
    """As relative positions have it: the table of every length is folded, and a part of that of the greatest."""
    bias = """
        n = Shape(x) one = Slice(n, zero, first) length = Squeeze(one) places = Range(none, length, step)
        down = Unsqueeze(places, first) across = Unsqueeze(places, zero) apart = Sub(down, across)
        near = Clip(apart, low, high) row = Add(near, high) bias = Gather(table, row)
    """
    rest = (
        "b4 = Unsqueeze(bias, two) q = Unsqueeze(x, two) y = Attention(q, q, q, b4)" if masked else "y = Add(x, bias)"
    )
    shapes = ("float[s,8] x", "float[1,1,s,8] y") if masked else ("float[s,s] x", "float[s,s] y")
    constants = {name: np.array(value) for name, value in (
        ("zero", [0]), ("first", [1]), ("two", [0, 1]), ("none", 0), ("step", 1), ("low", -3), ("high", 3),
    )}  # fmt: skip
    table = np.arange(7, dtype=np.float32) ** 2
    text = f"g ({shapes[0]}) => ({shapes[1]}) {{ {bias} {rest} }}"
    made = graphopt.compile(support.model(text, 23, table=table, **constants), dims={"s": (1, 30)}, threads=1)
    assert made.verification.passed and {"s": 7} in made.verification.sizes


def test_a_fixed_batch_is_freed() -> None:
    text = (
        "g (float[1,3,9,9] x) => (float[1,4] y) { c = Conv(x, k) r = Relu(c) p = GlobalAveragePool(r) y = Flatten(p) }"
    )
    kernel = np.random.default_rng(0).random((4, 3, 3, 3), np.float32)
    made = graphopt.compile(support.model(text, 18, k=kernel), dims={"batch": (1, 5)}, threads=1)
    x = np.random.default_rng(1).random((4, 3, 9, 9), np.float32)
    together = made(x=x)["y"]
    np.testing.assert_array_equal(together, np.concatenate([made(x=one[None])["y"] for one in x]))


def test_the_c_interface_sets_sizes_and_refuses_others() -> None:
    made = graphopt.compile(model(), dims={"batch": (2, 8)}, threads=1)
    library = Library(made.linked.listing, made.linked.weights.tobytes())
    set_dim = library._function("set_dim", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)  # type: ignore[arg-type]
    program, dims = library.made(), (ctypes.c_int64 * 2)()
    for batch in (8, 3, 2):  # the greatest at first
        given, y = feeds(batch), np.zeros((batch, 3), np.float32)
        assert batch == 8 or set_dim(program, b"batch", batch) == OK
        call(library, program, given, y=y)
        np.testing.assert_allclose(y, wanted(given), rtol=1e-5)
        assert library.dims(program, 0, dims) == OK and list(dims) == [batch, 3]
    for name, size, sentence in (
        (b"batch", 1, "'batch' cannot be 1; the program is made for 2 to 8."),
        (b"batch", 9, "'batch' cannot be 9"),
        (b"rows", 2, "there is no free dim 'rows'; the program has 'batch'."),
        (None, 2, "no name of a dim is given"),
    ):
        assert set_dim(program, name, size) == BAD_ARGUMENT
        assert sentence in library.error(program).decode()
    assert set_dim(None, b"batch", 2) == BAD_ARGUMENT
    call(library, program, feeds(2), y=np.zeros((2, 3), np.float32))  # what was refused has changed nothing
    wrong = [tensor(name, array) for name, array in feeds(3).items()]
    said = library.refusal(program, wrong, [tensor("y", np.zeros((2, 3), np.float32))])
    assert "has dim 0 of 3; its shape is [batch, 8], for the sizes that model_set_dim sets" in said
    library.destroy(program)

"""Inputs whose contents declared dims decide: known for the program, and asked of every call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import BundleError
from graphopt.program.contents import decided_contents, with_contents
from tests import support
from tests.kernels.interface import Library, call, tensor

PADDED = """g (float[3,4] x, int64[2] size) => (float[%s] y) {
    d = Shape(x) m = Max(d, size) a = Sub(m, d) l = Div(a, two) r = Sub(a, l) p = Concat<axis=0>(l, r)
    w = Pad(x, p) e = Shape(w) o = Sub(e, size) b = Div(o, two) f = Add(b, size) y = Slice(w, b, f)
}"""
TWO = np.array([2], np.int64)


def _padded(dims: str) -> ir.Model:
    return ir.from_proto(support.model(PADDED % dims, two=TWO))


@pytest.mark.parametrize("dims", ["5,2", "3,4", "1,9"])
def test_a_shape_that_comes_out_is_known(dims: str) -> None:
    wanted = dict(enumerate(map(int, dims.split(","))))
    assert decided_contents(_padded(dims)) == {"size": wanted}


def test_only_what_comes_out_is_known() -> None:
    text = """g (float[2,3] x, int64[3] size) => (float[2,3,5] y) {
        n, c, k = Split<num_outputs=3>(size) d = Shape(x) t = Concat<axis=0>(d, k) u = Unsqueeze(x, two)
        e = Expand(u, t) f = Cast<to=1>(c) y = Mul(e, f)
    }"""
    model = ir.from_proto(support.model(text, 18, two=TWO))
    assert decided_contents(model) == {"size": {2: 5}}
    assert [value.name for value in with_contents(model, {"size": {2: 5}}).graph.inputs] == ["x", "size"]
    program = graphopt.compile(model)
    assert not program.fallback
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for factor in (7, -1):
        y = program(x=x, size=np.array([9, factor, 5]))["y"]
        np.testing.assert_array_equal(y, np.repeat(x[..., None], 5, axis=2) * factor)


@pytest.mark.parametrize(
    ("model", "feeds"),
    [
        (_padded("m,n"), ()),  # nothing is declared
        (_padded("5,2"), ({"size": np.array([6, 3])},)),  # the caller gives others
        (ir.from_proto(support.model("g (float[6] x, int64[2] s) => (float[2,3] y) { y = Reshape(x, s) }")), ()),
        (ir.from_proto(support.model("g (float[6] x, float[2] s) => (float[n] y) { y = Tile(x, i) }",
                                     i=np.array([2]))), ()),
    ],
)  # fmt: skip
def test_nothing_is_known_where_nothing_is_said_or_all_dims_are_known(model: ir.Model, feeds: tuple) -> None:
    assert decided_contents(model, feeds) == {}


def test_a_dim_that_contradicts_another_decides_nothing() -> None:
    text = """g (float[3,4] x, int64[1] n) => (float[6,4] y, float[5,4] z) {
        t = Concat<axis=0>(n, one) y = Tile(x, t) q = Add(n, one) u = Concat<axis=0>(q, one) z = Tile(x, u)
    }"""
    assert decided_contents(ir.from_proto(support.model(text, one=np.array([1])))) == {}


def test_a_call_with_other_contents_is_refused(tmp_path: Path) -> None:
    program = graphopt.compile(_padded("5,2"))
    assert not program.fallback and program.verification.feeds > 1
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    wanted = np.pad(x, ((1, 1), (0, 0)))[:, 1:3]
    np.testing.assert_array_equal(program(x=x, size=np.array([5, 2]))["y"], wanted)
    sentence = "input 'size' holds 3 at place 1; the program is compiled for 2 there."
    with pytest.raises(BundleError, match=sentence):
        program(x=x, size=np.array([5, 3]))
    program.save(tmp_path / "bundle")
    assert graphopt.run(tmp_path / "bundle", random=True)["y"].shape == (5, 2)
    assert "int64 [2], with [0] = 5, [1] = 2" in (tmp_path / "bundle" / "model.h").read_text().replace("i64", "int64")


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_the_c_interface_refuses_it_too(kind: str) -> None:
    text = PADDED.replace("int64[2] size", f"{kind}[2] given").replace("{", "{ size = Cast<to=7>(given)", 1)
    program = graphopt.compile(ir.from_proto(support.model(text % "5,2", two=TWO)), threads=1)
    library = Library(program.linked.listing, program.linked.weights.tobytes())
    model, x, y = library.made(), np.ones((3, 4), np.float32), np.zeros((5, 2), np.float32)
    right, wrong = (np.array(size, kind) for size in ([5, 2], [5, -4]))
    sentence = "input 'given' holds -4 at place 1; the program is compiled for 2 there."
    assert library.refusal(model, [tensor("x", x), tensor("given", wrong)], [tensor("y", y)]) == sentence
    call(library, model, {"x": x, "given": right}, y=y)
    assert y.sum() == 6
    library.destroy(model)

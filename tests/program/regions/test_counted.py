"""Values of which data decides how many elements they have, beside ONNX's evaluator: given out, read, and refused."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.errors import BundleError, NotLowered
from graphopt.flows.asked import optimized
from graphopt.program.deploy import runtime
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.emulation import Emulated
from graphopt.program.regions.lower import lower
from kernels.dtype import DType
from kernels.routine.grammar import Put, Routine, statements
from kernels.target import aarch64, host
from kernels.tensor.expression import Number
from tests import support
from tests.kernels.arm import emulator, needs_arm
from tests.kernels.interface import BAD_ARGUMENT, OK, Library, call

KEPT = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]), "all": np.array([-1]),
    "half": np.array([0.5], np.float32), "weights": np.arange(15, dtype=np.float32).reshape(5, 3),
    "most": np.array([2]), "overlap": np.array([0.4], np.float32),
}  # fmt: skip
FOUND = "i = NonZero(x) t = Transpose(i) v = GatherND(x, t) r = Gather<axis=0>(i, zero) k = Squeeze(r, zero)"
GRAPHS = {
    "places": f"""(float[4,5] x) => (int64[2,n] i, int64[n,2] t, float[n] v, int64[n] s, int64[1,n] p, int64[1,n] q) {{
        {FOUND} s = Add(k, k) p, q = Split<axis=0, num_outputs=2>(i) }}""",
    "computed": f"""(float[4,5] x) => (float[n] a, float[2,n] b, float[n,5] c, float[n,3] d, float[n,1] e) {{
        {FOUND} f = Mul(v, v) a = Relu(f) g = Cast<to=1>(i) b = Add(g, half) h = Gather<axis=0>(x, k)
        c = Softmax(h) l = MatMul(h, weights) d = Add(l, half) e = ReduceMax(h, one) }}""",
    "joined": f"""(float[4,5] x) => (int64[4,n] a, int64[2,w] b, int64[d] c, int64[w] e, int64[2,f] g,
                                     float[n,1,1] h) {{
        {FOUND} j = Add(i, one) a = Concat<axis=0>(i, j) b = Concat<axis=1>(i, j) c = Reshape(t, all)
        e = Reshape(i, all) o = Concat<axis=0>(two, all) g = Reshape(t, o) u = Concat<axis=0>(all, one, one)
        h = Reshape(v, u) }}""",
    "counted": f"""(float[4,5] x) => (int64[2] a, int64 b, float[1] c, float[2] d, int64[1] e, float[2,n] f,
                                      float[2,n] g, int64[1] h, int64[n] j, float[3,n] z) {{
        {FOUND} a = Shape(i) b = Size(i) c = ReduceSum(v, zero) w = Cast<to=1>(i) d = ReduceSum<keepdims=0>(w, one)
        e = ReduceProd(a) f = Expand(half, a) g = ConstantOfShape(a) h = Shape<start=1>(i)
        o = Squeeze(h, zero) j = Range(nothing, o, single) p = Cast<to=1>(j) q = Unsqueeze(p, zero)
        z = MatMul(weight, q) }}""",
    "first": f"""(float[4,5] x) => (int64[2,l] a, float[l] b, int64[l] c) {{
        {FOUND} a = Slice(i, zero, three, one) h = Shape(v) l = Min(h, three) b, c = TopK(v, l) }}""",
    "cut": f"""(float[4,5] x) => (int64[2,l] a, int64[2,k] b, int64[2,j] c, float[m,5] d, float[h,g] e, float[w] f) {{
        {FOUND} a = Slice(i, one, three, one) b = Slice(i, zero, all, one) c = Slice(i, all, least, one, all)
        q = Shape(v) n = Min(q, two) d = Slice(x, one, n) o = Size(k) p = Div(o, second) w = Unsqueeze(p, zero)
        u = Concat<axis=0>(n, w) e = Slice(x, ends, u) f = Slice(v, w, q) }}""",
    "chosen": f"""(float[4,5] x) => (float[q,5] a, float[4,p] b, float[o] c, int64[1,s] d, float[z] e) {{
        {FOUND} f = ReduceSum<keepdims=0>(x, one) g = Greater(f, half) a = Compress<axis=0>(x, g)
        h = ReduceMax<keepdims=0>(x, zero) j = Greater(h, half) b = Compress<axis=1>(x, j)
        w = Greater(v, half) d = NonZero(w) e = Compress(v, w) y = Greater(x, half) u = Reshape(y, all)
        c = Compress(x, u) }}""",
    "named": f"""(float[4,5] x) => (float[1] a, float[2,1] b, float[n,5] c, float[4,5] d, float[4,5] e) {{
        {FOUND} a = Gather(v, all) f = Cast<to=1>(i) b = Gather<axis=1>(f, all) g = Gather<axis=0>(x, k)
        h = Neg(v) o, q = TopK(v, one) p = Gather<axis=0>(g, q) c = Add(g, p) d = ScatterND(x, t, h)
        u = Unsqueeze(k, one) w = Cast<to=1>(u) e = ScatterElements<axis=0>(x, u, w) }}""",
    "scattered": f"""(float[4,5] x) => (float[n] a, float[n,5] b, float[5,n] c) {{
        {FOUND} w = Greater(v, half) m = NonZero(w) s = Squeeze(m, zero) u = Gather<axis=0>(v, s) h = Neg(v)
        q = Shape(v) o = Sub(s, q) a = ScatterElements<axis=0>(h, o, u) f = Gather<axis=0>(x, k)
        g = Gather<axis=0>(f, s) j = Neg(g) d = Shape(g) e = Unsqueeze(s, one) l = Expand(e, d)
        b = ScatterElements<axis=0>(f, l, j) p = Transpose(f) z = Transpose(j) y = Transpose(l)
        c = ScatterElements<axis=1>(p, y, z) }}""",
    "masked": f"""(float[4,5] x) => (float[n] a, float[n,5] b, float[4,5] c) {{
        {FOUND} w = Greater(v, half) m = NonZero(w) s = Transpose(m) j = Cast<to=7>(w) q = ReduceSum(j) h = Neg(half)
        l = Expand(h, q) a = ScatterND(v, s, l) f = Gather<axis=0>(x, k) e = Concat<axis=0>(q, five) d = Expand(h, e)
        b = ScatterND(f, s, d) g = Greater(x, half) u = Reshape(g, all) o = Cast<to=6>(u) z = ReduceSum<keepdims=0>(o)
        p = Cast<to=7>(z) y = Unsqueeze(p, zero) aa = NonZero(g) t0 = Transpose(aa) i0 = Expand(h, y)
        c = ScatterND(x, t0, i0) }}""",
    "tuples": f"""(float[4,5] x) => (int64[p,2] a, float[p] b, int64[o] c, float[p,5] d) {{
        {FOUND} w = Greater(v, half) m = NonZero(w) s = Transpose(m) a = GatherND(t, s) b = GatherND(v, s)
        e = Sub(s, s) j = Concat<axis=1>(s, e) u = GatherND(t, j) y = Greater(u, nothing) z = Compress(u, y)
        c = Neg(z) f = Gather<axis=0>(x, k) d = GatherND(f, s) }}""",
    "again": f"""(float[4,5] x) => (int64[p] a, int64[p] b, int64[n] c, int64[2,p] d, float[n] e, float[n] f) {{
        {FOUND} a, b, c, g = Unique(k) d = Unique<axis=1>(i) e = CumSum(v, nothing) f = CumSum<exclusive=1>(v, nothing)
        }}""",
    "images": f"""(float[4,5] x) => (float[n,2] a, float[n,4,3,3] b, int64[w,3] c) {{
        {FOUND} f = Unsqueeze(x, front) s = Expand(f, large) g = Gather<axis=0>(s, k)
        h = Conv<pads=[1,1,1,1]>(g, filters) j = Relu(h) p = GlobalAveragePool(j) o = Flatten(p) l = Gemm(o, last)
        a = Softmax(l) e = Gather<axis=0>(x, k) q = Slice(e, zero, four, one) u = Sub(k, k)
        b = RoiAlign<output_height=3, output_width=3, sampling_ratio=1>(s, q, u)
        y = Unsqueeze(q, zero) z = Unsqueeze(v, both) c = NonMaxSuppression(y, z, most, overlap) }}""",
    "different": """(float[4,5] x) => (float[n] a, int64[n] b, int64[20] c, int64[n] d, float[4,p] e, float[n] f) {
        a, b, c, d = Unique(x) e = Unique<axis=1>(x) g = Cast<to=1>(d) f = Div(a, g) }""",
    "boxes": """(float[4,5] x) => (int64[n,3] a, float[n,4] b) {
        c = Slice(x, zero, three, zero) d = Slice(c, zero, four, one) e = Unsqueeze(d, zero)
        f = Slice(c, four, five, one) g = Reshape(f, scores) a = NonMaxSuppression(e, g, most, overlap)
        h = Gather<axis=1>(a, two) j = Squeeze(h, one) b = Gather<axis=0>(d, j) }""",
}  # fmt: skip
MORE = {
    "four": np.array([4]),
    "five": np.array([5]),
    "scores": np.array([1, 1, 3]),
    "both": np.array([0, 1]),
    "nothing": np.array(0),
    "single": np.array(1),
    "second": np.array(2),
    "least": np.array([-(2**63)]),
    "ends": np.array([-3, 1]),
    "weight": np.array([[1.0], [-1], [2]], np.float32),
    "front": np.array([1, 2]),
    "large": np.array([4, 4, 5, 5]),
    "filters": np.linspace(-1, 1, 108, dtype=np.float32).reshape(3, 4, 3, 3),
    "last": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
}


def _model(text: str) -> onnx.ModelProto:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return support.model(f"g {text}", 18, **{name: array for name, array in (KEPT | MORE).items() if name in words})


@cache
def _compiled(text: str) -> tuple[Compiled, ReferenceEvaluator]:
    model = _model(text)
    program = graphopt.compile(model)
    assert not program.fallback
    return program, ReferenceEvaluator(model)


def _assert_right(text: str, x: np.ndarray) -> None:
    program, reference = _compiled(text)
    for one, other in zip(program.run(None, {"x": x}), reference.run(None, {"x": x}), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)  # sums of f32, and probabilities of them


@pytest.mark.parametrize("name", GRAPHS)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=12, deadline=None)
def test_what_is_found_is_what_onnx_finds(name: str, seed: int, share: float) -> None:
    generator = np.random.default_rng(seed)
    x = np.abs(generator.standard_normal((4, 5))).round(1).astype(np.float32)
    x[generator.random((4, 5)) >= share] = 0
    few = not x.any() and name in (
        "first",
        "boxes",
        "named",
        "images",
    )  # of fewer than there are the evaluator takes none
    _assert_right(GRAPHS[name], np.ones_like(x) if few else x)


STEPS = (
    "{b} = Add({a}, {a})", "{b} = Transpose({a})", "{b} = Concat<axis=0>({a}, {a})", "{b} = Concat<axis=1>({a}, {a})",
    "{b} = Concat<axis=1>({a}, {a}, {a})", "w{b} = Reshape({a}, all) {b} = Unsqueeze(w{b}, zero)",
    "w{b} = Shape({a}) {b} = Expand(half, w{b})", "{b} = ReduceSum({a}, zero)", "{b} = ReduceMax({a}, one)",
    "w{b} = NonZero({a}) {b} = Cast<to=1>(w{b})", "{b} = Softmax<axis=0>({a})",
)  # fmt: skip


@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_readers_of_readers(steps: list[str], seed: int) -> None:
    lines = ["n = NonZero(x) v0 = Cast<to=1>(n)"]
    lines += [step.format(a=f"v{at}", b=f"v{at + 1}") for at, step in enumerate(steps)]
    text = f"(float[2,3] x) => (float[a,b] y) {{ {' '.join(lines)} y = Identity(v{len(steps)}) }}"
    model = _model(text)
    x = np.random.default_rng(seed).integers(0, 2, (2, 3)).astype(np.float32)
    x[0, 0] = 1
    try:
        lower(optimized(ir.from_proto(model)), host())
    except NotLowered as error:
        assert "does not read the count" in str(error)
        return
    _assert_right(text, x)


@pytest.mark.parametrize(
    ("body", "reader"),
    [
        ("y = Softmax<axis=1>(f)", "Softmax"),
        ("c = CumSum<reverse=1>(f, one) y = Relu(c)", "CumSum"),
        ("t = Transpose(f) y = MatMul(f, t)", "Gemm"),
        ("y = ScatterND(f, t0, k)", "ScatterND"),
        ("o = Unsqueeze(i, two) y = GatherND<batch_dims=1>(f, o)", "GatherND"),
        ("u = Add(v, w) y = Relu(u)", "Add"),
        ("a = Unique(f) y = Unsqueeze(a, zero)", "Unique"),
        ("a, b = Split<axis=1, num_outputs=2>(f) y = Relu(a)", "Split"),
    ],
)
def test_who_needs_to_know_the_count_is_refused(body: str, reader: str) -> None:
    text = f"""(float[4,5] x) => (float[a] y) {{ i = NonZero(x) f = Cast<to=1>(i) t0 = Transpose(i) k = GatherND(x, t0)
        n = Neg(x) z = Unique(n) v = Slice(k, zero, three, zero) w = Slice(z, zero, three, zero) {body} }}"""
    sentence = f"{reader} .* does not read the count of '.*', of which data decides the dims"
    with pytest.raises(NotLowered, match=sentence):
        lower(optimized(ir.from_proto(_model(text))), host())


@pytest.mark.parametrize("found", [0, 1, 3, 5])
@pytest.mark.parametrize("flat", [True, False])
def test_what_was_found_is_filled_up_to_what_is_known(found: int, flat: bool) -> None:
    """Detections as YOLO's exporter pads them: 5 rows of 3, of which the first ones were found."""
    tail = {
        True: """g = Reshape(k, all) p = Mul(left, three) q = Concat<axis = 0>(zero, p) r = Pad(g, q)
                 y = Reshape(r, dims)""",
        False: "q = Concat<axis = 0>(zero, zero, left, zero) y = Pad(k, q, filler)",
    }[flat]
    text = f"""g (float[5] s, float[5,3] x) => (float[5,3] y) {{
        i = NonZero(s) t = Transpose(i) k = GatherND(x, t) n = Shape<start = 0, end = 1>(k) left = Sub(five, n) {tail}
    }}"""
    kept = {"all": [-1], "three": [3], "zero": [0], "dims": [5, 3], "five": [5]}
    filler = np.float32(0 if flat else 7)
    model = support.model(text, 18, filler=filler, **{name: np.array(one) for name, one in kept.items()})
    program = graphopt.compile(model, threads=1)
    assert program.fallback == ()
    x = np.random.default_rng(found).standard_normal((5, 3)).astype(np.float32)
    s = np.roll(np.array([1] * found + [0] * (5 - found), np.float32), 1)
    wanted = np.concatenate([x[s != 0], np.full((5 - found, 3), filler)])
    np.testing.assert_array_equal(program.run(None, {"s": s, "x": x})[0], wanted)


@pytest.mark.parametrize("order", ["w, a", "a, w"])
@pytest.mark.parametrize("first", [True, False])
def test_what_a_run_cuts_lies_beside_what_is_known(order: str, first: bool) -> None:
    """A part has room for all columns, of which a run takes as many as the other operand has."""
    text = f"""g (float[2,8] a, float[2,8] b, bool c) => (float[4,8] y) {{
        q = Concat<axis = 1>(a, b) s = Where(c, none, eight) e = Where(c, eight, sixteen)
        w = Slice(q, s, e, columns) y = Concat<axis = 0>({order})
    }}"""
    kept = {"none": [0], "eight": [8], "sixteen": [16], "columns": [1]}
    model = support.model(text, 18, **{name: np.array(one) for name, one in kept.items()})
    program = graphopt.compile(model, threads=1)
    feed = {name: np.random.default_rng(at).standard_normal((2, 8)).astype(np.float32) for at, name in enumerate("ab")}
    part = feed["a" if first else "b"]
    wanted = np.concatenate([part, feed["a"]] if order == "w, a" else [feed["a"], part])
    assert program.fallback == ()
    np.testing.assert_array_equal(program.run(None, {**feed, "c": np.array(first)})[0], wanted)


def test_dims_that_no_count_decides_are_not_numbers() -> None:
    text = """(float[4,5] x, int64[3] end) => (float[a,b,c] y) {
        i = NonZero(x) f = Cast<to=1>(i) c = ReduceSum<keepdims=0>(f) d = Add(x, c)
        s = Expand(d, end) y = Relu(s) }"""
    with pytest.raises(NotLowered, match=r"the dims of '.' are not all numbers"):
        lower(optimized(ir.from_proto(_model(text))), host())


def test_an_operator_without_counts_is_left_to_onnx_runtime() -> None:
    proto = support.model(
        "g (float[2,8] x) => (float[1,n] y) { a = Relu(x) b = Exp(a) i = NonZero(b) f = Cast<to=1>(i) "
        "c = CumSum<reverse=1>(f, o) s = Slice(c, z, o, z) y = Neg(s) }", z=np.array([0]), o=np.array([1]),
    )  # fmt: skip
    program = graphopt.compile(proto)
    assert "CumSum 'c'" in program.fallback
    x = np.zeros((2, 8), np.float32)
    np.testing.assert_array_equal(program(x=x)["y"], -np.cumsum(np.repeat([1.0, 0.0], 8))[None, ::-1])


def test_declared_dims_stay_those_of_the_program() -> None:
    program = graphopt.compile(_model("(float[4] x) => (int64[1,2] y) { y = NonZero(x) }"),
                               feeds={"x": np.array([0, 1, 1, 0], np.float32)})  # fmt: skip
    assert program.get_outputs()[0].shape == [1, 2]
    assert program(x=np.ones(4, np.float32))["y"].tolist() == [[0, 1]]


def test_dims_are_as_each_call_finds_them(tmp_path: Path) -> None:
    program = graphopt.compile(_model("(float[4,5] x) => (int64[2,n] y, float[4,5] z) { y = NonZero(x) z = Relu(x) }"))
    assert [one.shape for one in program.get_outputs()] == [[2, None], [4, 5]]
    program.save(tmp_path / "bundle")
    bundle = runtime.load(tmp_path / "bundle")
    x = np.eye(4, 5, dtype=np.float32)
    bound = bundle.bind({"x": x})
    bound()
    assert bound.outputs[0].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    x[1:] = 0
    bound()
    assert bound.outputs[0].tolist() == [[0], [0]] and bundle(x=x)["y"].tolist() == [[0], [0]]
    assert graphopt.run(tmp_path / "bundle", {"x": x})["y"].shape == (2, 1)
    assert '"y" i64 [2, at most 20]' in (tmp_path / "bundle" / "model.h").read_text()
    graphopt.certify(tmp_path / "bundle")


def test_c_asks_for_the_dims() -> None:
    program = graphopt.compile(_model("(float[4,5] x) => (int64[2,n] y, float[4,5] z) { y = NonZero(x) z = Relu(x) }"))
    library = Library(program.linked.listing, program.linked.weights.tobytes())
    model, x = library.made(), np.zeros((4, 5), np.float32)
    x[2, 3] = x[3, 1] = 1
    y, z, dims = np.zeros((2, 20), np.int64), np.zeros((4, 5), np.float32), (ctypes.c_int64 * 2)()
    call(library, model, {"x": x}, y=y, z=z)
    assert library.dims(model, 0, dims) == OK and list(dims) == [2, 2]
    assert y.reshape(-1)[:4].tolist() == [2, 3, 3, 1]
    assert library.dims(model, 1, dims) == OK and list(dims) == [4, 5]
    assert library.dims(model, 2, dims) == library.dims(model, 0, None) == library.dims(None, 0, dims) == BAD_ARGUMENT
    library.destroy(model)


@needs_arm
def test_an_emulated_program_finds_its_dims_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = emulator()
    assert found is not None, "it is installed"
    monkeypatch.setenv("PATH", f"{Path(found).parent}:{os.environ['PATH']}")
    model = ir.from_proto(_model(GRAPHS["joined"]))
    target = aarch64()
    made = graphopt.compile(model, target="aarch64")
    program = Emulated(made.linked.listing, made.linked.weights, target)
    x = np.eye(4, 5, dtype=np.float32)
    assert [one.shape for one in program.run(None, {"x": x})][:2] == [(4, 4), (2, 8)]


def test_a_call_of_the_wrong_dims_is_refused_as_ever() -> None:
    program, _ = _compiled(GRAPHS["places"])
    with pytest.raises(BundleError, match="expected is \\[4, 5\\]"):
        program(x=np.zeros((4, 4), np.float32))


def _fills(text: str) -> bool:
    """Whether the routine of a Compress stores zeros."""
    lowered = lower(optimized(ir.from_proto(support.model(text, 20, **KEPT))), host())
    made = [problem for _, problem in lowered.problems.values() if isinstance(problem, Routine)]
    (routine,) = [one for one in made if one.outputs[0].dtype is DType.F32]
    puts = [one for one in statements(routine.shared.body) if isinstance(one, Put)]
    return any(isinstance(one.value, Number) and one.value.value == 0 for one in puts)


def test_zeros_follow_only_where_somebody_reads_them() -> None:
    """A program's output ends where its count says; a node reads as many as there can be."""
    body = "y = Compress<axis = 0>(x, c)"
    assert not _fills(f"g (float[4,5] x, bool[4] c) => (float[n,5] y) {{ {body} }}")
    assert _fills(f"g (float[4,5] x, bool[4] c) => (float[3,5] y) {{ {body} }}")
    assert _fills(f"g (float[4,5] x, bool[4] c) => (float[n,5] z) {{ {body} z = Softmax(y) }}")

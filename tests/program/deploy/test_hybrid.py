"""Models with operators that have no kernel: those run in ONNX Runtime, the rest in kernels, and the whole is right."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
import models
from graphopt.cli import run_line
from graphopt.cli.flags import in_flags
from graphopt.errors import BundleError, NotLowered
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.program.deploy import hybrid
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.folding import fold_constants, reads_only_constants
from graphopt.program.deploy.hybrid import Hybrid
from graphopt.program.regions.lower import has_lowering, lower
from kernels.target import host
from tests import support

pytestmark = pytest.mark.usefixtures("some_lack_kernels")
TOLERANCE = 1e-5  # relative and absolute: a few roundings of float32 products of 8 to 16 terms
W, V, U = (
    np.random.default_rng(seed).standard_normal(dims).astype(np.float32)
    for seed, dims in enumerate(((8, 16), (16, 8), (8, 4)))
)


def _agrees(proto: onnx.ModelProto) -> Compiled:
    """The compiled model, after it gave what ONNX Runtime gives on feeds that compiling did not see."""
    compiled = graphopt.compile(proto)
    feeds = support.feeds(proto, {}, seed=7)
    expected = support.session(proto).run(None, feeds)
    found = compiled.run(None, feeds)
    assert len(found) == len(expected)
    for wanted, got in zip(expected, found, strict=True):
        assert wanted.dtype == got.dtype and wanted.shape == got.shape
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    return compiled


def _sides(compiled: Compiled) -> list[bool]:
    """For each part in order: whether kernels compute it."""
    assert isinstance(compiled.made, Hybrid)
    return [part.native for part in compiled.made.parts]


def test_in_the_middle() -> None:
    compiled = _agrees(support.model(
        """g (float[3,8] x) => (float[3,4] y) {
            p = MatMul(x, w) q = Gelu(p) c = LpNormalization(q) r = MatMul(c, v)
            s = Tanh(r) y = MatMul(s, u)
        }""",
        20, w=W, v=V, u=U,
    ))  # fmt: skip
    assert _sides(compiled) == [True, False, True]
    assert compiled.fallback == ("LpNormalization 'c'",)


def test_at_the_start_and_at_the_end() -> None:
    text = """g (float[3,8] x) => (float[3,8] y) {
        c = LpNormalization(x) p = MatMul(c, w) q = Relu(p) y = MatMul(q, v)
    }"""
    assert _sides(_agrees(support.model(text, 20, w=W, v=V))) == [False, True]
    text = """g (float[3,8] x) => (float[3,8] y) {
        p = MatMul(x, w) q = Relu(p) r = MatMul(q, v) y = LpNormalization(r)
    }"""
    assert _sides(_agrees(support.model(text, 20, w=W, v=V))) == [True, False]


def test_values_read_on_both_sides_and_given_to_the_caller() -> None:
    compiled = _agrees(support.model(
        """g (float[3,8] x, float[3,8] x2) => (float[3,8] y, float[3,8] r, float[3,8] x2same) {
            p = MatMul(x, w) q = Relu(p) r = MatMul(q, v) c = LpNormalization(r)
            t = Mul(c, r) z = MatMul(t, w) z1 = Tanh(z) z2 = MatMul(z1, v) d = LpNormalization(z2) e = Add(d, r)
            f = Add(e, x) h = Softmax(f) y = Add(h, x2) x2same = Identity(x2)
        }""",
        20, w=W, v=V,
    ))  # fmt: skip
    assert _sides(compiled) == [True, False, True, False, True]
    assert compiled.fallback == ("LpNormalization 'c'", "LpNormalization 'd'")


def test_integers_cross() -> None:
    compiled = _agrees(support.model(
        """g (float[3,8] x) => (float[3,8] y, int64[3,8] j) {
            lengths = Constant<value_ints = [1, 2, 3, 3, 2, 1, 1, 3]>() two = Constant<value_int = 2>()
            p = MatMul(x, w) q = Relu(p) r = MatMul(q, v) i = Cast<to = 7>(r)
            t = ReverseSequence(i, lengths) j = Mul(t, two) m = Cast<to = 1>(j) s = Softmax(r) y = Add(s, m)
        }""",
        20, w=W, v=V,
    ))  # fmt: skip
    assert compiled.fallback == ("ReverseSequence 't'",) and _sides(compiled) == [True, False, True]


def test_texts_that_nothing_computes_are_those_of_onnx_runtime() -> None:
    proto = support.model(
        """g (float[3,8] x) => (float[3,8] y, string[2,2] names) {
            c = LpNormalization(x) y = Softmax(c) names = Constant<value = string[2,2] {"", "deux", "drei", "né"}>()
        }""",
        20,
    )  # fmt: skip
    compiled, feeds = graphopt.compile(proto), support.feeds(proto, {}, seed=7)
    assert _sides(compiled) == [False, True]
    expected, found = support.session(proto).run(["names"], feeds)[0], compiled.run(["names"], feeds)[0]
    assert found.dtype == expected.dtype == object and found.tolist() == expected.tolist()


def test_dims_known_only_when_it_runs() -> None:
    """What follows a Slice along an axis that the caller gives has no fixed size and stays with it."""
    compiled = _agrees(support.model(
        """g (float[3,8] x, int64[1] e, int64[1] a) => (float[m,n] y, float[3,8] r) {
            p = MatMul(x, w) q = Relu(p) r = MatMul(q, v) s = Relu(r) z = Slice(s, o, e, a) y = Mul(z, z)
        }""",
        20, w=W, v=V, o=np.array([0]),
    ))  # fmt: skip
    assert compiled.fallback == ("Slice 'z'", "Mul 'y'")
    with pytest.raises(BundleError, match="Slice 'z' has no kernel yet"):
        _ = compiled.linked


def test_a_refusal_inside_lowering_falls_back_too() -> None:
    """This Pad has kernels, but not for this mode; the nodes around it keep theirs."""
    compiled = _agrees(support.model(
        """g (float[1,4,6,6] x) => (float[1,4,8,8] y) {
            pads = Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>()
            p = Relu(x) q = Softmax(p) r = Pad<mode = "wrap">(q, pads) s = Softmax(r) y = Exp(s)
        }""",
        20,
    ))  # fmt: skip
    assert compiled.fallback == ("Pad 'r'",) and _sides(compiled) == [True, False, True]


def test_little_work_between_two_parts_stays_with_them() -> None:
    compiled = _agrees(support.model(
        """g (float[3,8] x) => (float[3,8] y) {
            p = MatMul(x, w) q = Relu(p) r = MatMul(q, v) c = LpNormalization(r)
            t = Tanh(c) y = LpNormalization(t)
        }""",
        20, w=W, v=V,
    ))  # fmt: skip
    assert _sides(compiled) == [True, False]
    assert compiled.fallback == ("LpNormalization 'c'", "Tanh 't'", "LpNormalization 'y'")


def test_attention_over_rows_that_data_chooses_behind_others() -> None:
    """It is no Attention with a cache: data may append nothing, which ONNX Runtime refuses beside a cache."""
    compiled = _agrees(support.model(
        """g (float[1,2,3,8] q, float[1,2,4,8] old, float[1,2,5,8] new, float[5] weight) => (float[1,2,3,8] y) {
            zero = Constant<value: tensor = float {0.}>() chosen = Greater(weight, zero) at = NonZero(chosen)
            axes = Constant<value = int64[1] {0}>() rows = Squeeze(at, axes) some = Gather<axis = 2>(new, rows)
            keys = Concat<axis = 2>(old, some) turned = Transpose<perm = [0, 1, 3, 2]>(keys)
            scores = MatMul(q, turned) shares = Softmax(scores) y = MatMul(shares, keys)
        }""",
        17,
    ))  # fmt: skip
    assert any("Attention" in one for one in compiled.fallback)


def test_a_subgraph_reads_what_kernels_gave() -> None:
    compiled = _agrees(support.model(
        """g (float[3,8] x, bool flag) => (float[3,8] y) {
            p = MatMul(x, w) q = Relu(p) r = MatMul(q, v)
            c = If(flag) <
                then_branch = one () => (float[3,8] a) { a = Neg(r) },
                else_branch = two () => (float[8] b) { k = ReduceMax<keepdims = 0>(r, zero) b = Add(k, one) }
            >
            s = Softmax(r) e = Exp(s) y = Add(c, e)
        }""",
        20, w=W, v=V, zero=np.array([0]), one=np.ones(1, np.float32),
    ))  # fmt: skip
    assert compiled.fallback == ("If 'c'", "Add 'y'") and _sides(compiled) == [True, False]


def test_calls_that_do_not_fit_are_refused_by_name() -> None:
    compiled = _agrees(support.model(
        """g (float[3,8] x) => (float[3,8] y) {
            c = LpNormalization(x) s = Softmax(c) y = Exp(s)
        }""",
        20,
    ))  # fmt: skip
    x = np.zeros((3, 8), np.float32)
    np.testing.assert_array_equal(compiled(x=x)["y"], compiled.run(["y"], {"x": x})[0])
    with pytest.raises(BundleError, match="input 'x' is missing"):
        compiled.run(None, {})
    with pytest.raises(BundleError, match="there is no input 'z'"):
        compiled.run(None, {"x": x, "z": x})
    with pytest.raises(BundleError, match="float64; expected is float32"):
        compiled.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(BundleError, match=r"the shape \[8, 3\]; expected is \[3, 8\]"):
        compiled.run(None, {"x": x.T})
    with pytest.raises(BundleError, match="there is no output 'z'"):
        compiled.run(["z"], {"x": x})


def test_a_bundle_is_refused_with_the_operators_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = support.model(
        """g (float[3,8] x) => (float[3,8] y, float[3,8] t) {
            s = Softmax(x) e = Exp(s)
            y = LpNormalization(e) t = Hardmax(e)
        }""",
        20,
    )  # fmt: skip
    with pytest.raises(
        BundleError, match=r"LpNormalization 'y', Hardmax 't' have no kernel yet.*in Python, graphopt.compile"
    ):
        graphopt.compile(proto).save(tmp_path / "bundle")
    onnx.save(proto, tmp_path / "model.onnx")
    assert run_line(["compile", str(tmp_path / "model.onnx"), str(tmp_path / "bundle")]) == 1
    assert "error: LpNormalization 'y', Hardmax 't' have no kernel yet" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(("network", "kind"), [("lstm_bi_op", "LSTM"), ("squeezenet1_1", "MaxPool")])
def test_networks_whose_operators_lose_their_kernels(network: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_hybrid` on networks that are lowered as a whole otherwise; the outputs are those of the whole program."""
    monkeypatch.setattr(hybrid, "has_lowering", lambda node: node.op_type != kind and has_lowering(node))
    model = load(models.load(network))
    made, whole = hybrid.make_hybrid(model, host(), "m"), graphopt.compile(model)
    assert whole.fallback == () and any(one.startswith(f"{kind} ") for one in made.fallback)
    assert {one.native for one in made.parts} == {True, False}
    feeds = support.feeds(ir.to_proto(model), {}, seed=3)
    for wanted, got in zip(whole.run(None, feeds), made.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)  # sums of up to 4608 products, 26 layers


def test_what_a_template_refuses_names_the_node() -> None:
    proto = support.model("g (int64[2,8] x) => (int64[2,1] y) { y = ReduceMean(x, a) }", 20, a=np.array([1]))
    with pytest.raises(NotLowered, match="ReduceMean 'y' has no kernel: mean of i64") as refusal:
        lower(ir.from_proto(proto), host())
    assert [node.op_type for node in refusal.value.nodes] == ["ReduceMean"]


def test_nothing_lowered_is_refused_with_the_operators_names() -> None:
    proto = support.model(
        "g (float[3,8] x, int64[3] e) => (float[l,m,n] y, float[3,8] z) { y = Expand(x, e) z = LpNormalization(x) }",
        20,
    )  # fmt: skip
    said = r"Expand 'y', LpNormalization 'z' have no kernel yet \(the dims of 'y' are not all numbers\), and nothing is"
    with pytest.raises(graphopt.GraphoptError, match=said):
        graphopt.compile(proto)
    proto = support.model("g (float[n,8] x) => (int64[2,m] y) { r = Relu(x) y = NonZero(r) }", 20)
    with pytest.raises(
        graphopt.GraphoptError, match=r"the dims of 'x' are not all numbers: give 'n' a value, dims=\{'n': 1\}"
    ):
        graphopt.compile(proto).save("nowhere")


LEARNED = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
g (float[%s,2] x) => (%s) {
    r = Relu(x)
    l, s = ai.onnx.ml.LinearClassifier<%s, coefficients = [0.5, 1.0, -1.0, 0.25],
        intercepts = [0.0, 0.1], multi_class = 1>(r)
    %s
}"""


@pytest.mark.parametrize(
    ("outputs", "labels", "more", "said"),
    [
        ("string[2] l, float[2,2] s", 'classlabels_strings = ["a", "b"]', "", "'l' holds texts"),
        (
            "int64[2] l, seq(map(int64, float)) m", "classlabels_ints = [0, 1]",
            "m = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(s)",
            "'m' is no tensor but maps; converters leave them out with zipmap=False",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_why_there_is_no_kernel(outputs: str, labels: str, more: str, said: str) -> None:
    made = graphopt.compile(onnx.parser.parse_model(LEARNED % ("2", outputs, labels, more)))
    with pytest.raises(BundleError, match=rf"has no kernel yet \({said}\), so this model is no program"):
        made.save("nowhere")


def test_an_input_without_names_for_its_dims_asks_for_a_shape() -> None:
    proto = onnx.parser.parse_model(LEARNED % ("?", "int64[?] l, float[?,2] s", "classlabels_ints = [0, 1]", ""))
    said = r"the dims of 'x' are not all numbers: give 'x' a shape, shapes=\{'x': \[1, 2\]\} for example"
    with pytest.raises(graphopt.GraphoptError, match=said):
        graphopt.compile(proto).save("nowhere")
    assert in_flags("give it a shape, shapes={'x': [1, 2]} for") == "give it a shape, --shape x=1x2 for"


def test_all_open_dims_are_asked_for_at_once() -> None:
    proto = support.model("g (float[b,seq] x, float[?,seq] z) => (float y) { a = Add(x, z) y = Mul(a, a) }")
    said = "give 'b', 'seq' a value each, dims={'b': 1, 'seq': 1}, and 'z' a shape, shapes={'z': [1, 1]} for example"
    with pytest.raises(graphopt.GraphoptError, match=re.escape(said)):
        graphopt.compile(proto).save("nowhere")
    options = "--dim b=1 --dim seq=1, and 'z' a shape, --shape z=1x1 for example"
    assert in_flags(said) == f"give 'b', 'seq' a value each, {options}"
    with pytest.raises(graphopt.GraphoptError, match=re.escape("dims={'b': 1, 'seq': 1, 'z:0': 1} for example")):
        graphopt.memory(proto)


def test_arguments_are_options_as_a_shell_takes_them() -> None:
    assert in_flags("dims={'n': (1, 64)} or dims={'all': 'past + 1'}") == "--dim n=1..64 or --dim 'all=past + 1'"
    assert in_flags("dims={'n': [3, 5], 'x:0': 'N'}") == "--dim n=3,5 --dim x:0=N"
    assert in_flags("shapes={'it's': [1]} for example") == "shapes={'it's': [1]} for example"


def test_parts_in_onnxruntime_read_constants_that_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is read as it is and transposed, as language models have it; the passes let it be."""
    given: list[ir.Model] = []
    session = hybrid._session

    def seen(model: ir.Model, outputs: tuple[str, ...], refusal: str) -> object:
        given.append(model)
        return session(model, outputs, refusal)

    monkeypatch.setattr(hybrid, "_session", seen)
    table = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    compiled = _agrees(support.model(
        """g (int64[3] i, float[3,16] x) => (float[3,200] y) {
            row = Gather(table, i) a = Add(row, x) b = LpNormalization(a) t = Transpose(table) h = Cast<to = 11>(t)
            k = Cast<to = 11>(b) s = MatMul(k, h) y0 = LpNormalization(s) y = Cast<to = 1>(y0)
        }""",
        20, table=table,
    ))  # fmt: skip
    assert {one.partition(" ")[0] for one in compiled.fallback} >= {"LpNormalization"}
    assert not any(one.startswith("Transpose") for one in compiled.fallback)
    for part in given:
        facts = Facts(part)
        assert not [node.op_type for node in part.graph if reads_only_constants(facts, node)]


def test_constants_that_are_folded_and_those_that_stay() -> None:
    table = np.arange(80, dtype=np.int8).reshape(5, 16)
    model = load(support.model(
        """g (float[3,8] x, int64[3] i) => (float[3,4] y, float[3,16] row, float[4,8] z, float[3,8] r) {
            wt = Transpose(v) h = Cast<to = 10>(wt) back = Cast<to = 1>(h) p = MatMul(x, back)
            t = DequantizeLinear(table, scale) row = Gather(t, i) z = Transpose(u)
            r = RandomNormalLike(w) big = Expand(one, size) y1 = ReduceMax<keepdims = 0>(big) y = Add(p, y1)
        }""",
        20, v=U.T.copy(), u=U, w=np.zeros((3, 8), np.float32), table=table, scale=np.float32(0.25),
        one=np.ones(1, np.float32), size=np.array([1 << 20]),
    ))  # fmt: skip
    folded = fold_constants(model, whole=False)
    assert [node.op_type for node in folded.graph] == [
        "MatMul", "Gather", "RandomNormalLike", "Expand", "ReduceMax", "Add",
    ]  # fmt: skip
    assert folded.graph.outputs[2].const_value is not None and folded.graph.outputs[2].name == "z"
    assert fold_constants(folded, whole=False) is folded


def test_what_nothing_can_compute_stays() -> None:
    """The indices lie outside the table: the model fails when it runs, and not before."""
    model = load(support.model(
        "g (float[3] x) => (float[3] y) { t = Gather(table, far) y = Add(x, t) }",
        20, table=np.ones(5, np.float32), far=np.array([9, 9, 9]),
    ))  # fmt: skip
    assert fold_constants(model, whole=False) is model


def test_weights_of_integer_arithmetic_stay_quantized() -> None:
    """ONNX Runtime computes a product of two dequantized operands in integers."""
    model = load(support.model(
        """g (float[3,8] x) => (float[3,16] y, float[3,16] z) {
            q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) w = DequantizeLinear(wq, s) v = DequantizeLinear(vq, s)
            y = MatMul(d, w) z = MatMul(x, v)
        }""",
        20, s=np.float32(0.1), wq=np.ones((8, 16), np.uint8), vq=np.ones((8, 16), np.uint8),
    ))  # fmt: skip
    names = [node.outputs[0].name for node in fold_constants(model, whole=False).graph]
    assert "w" in names and "v" not in names


def test_a_quantized_language_model_keeps_its_products() -> None:
    """What is looked up in the table of words, stored in 8 bits, is dequantized in each call; the other tables once."""
    compiled = graphopt.compile(models.load("bert_small_dynquant"))
    assert compiled.fallback == ()
    assert compiled.max_abs < 1e-5  # of hidden states about 1 after four layers


def test_a_part_is_of_an_older_opset_where_onnx_runtime_lacks_the_newest() -> None:
    """RandomNormalLike, whose version of opset 22 it has not; the copy of the model was lifted to 23."""
    text = """g (float[2,4] x, int64[1] n) => (float[2,3] y, float[k] z) {
        y = MatMul(x, w) room = ConstantOfShape(n) drawn = RandomNormalLike(room) z = Mul(drawn, nought)
    }"""
    proto = support.model(text, 15, w=np.ones((4, 3), np.float32), nought=np.array(0, np.float32))
    made = graphopt.compile(proto, threads=1)
    assert any("RandomNormalLike" in one for one in made.fallback)
    y, z = made.run(None, {"x": np.ones((2, 4), np.float32), "n": np.array([5])})
    np.testing.assert_array_equal(y, np.full((2, 3), 4, np.float32))
    np.testing.assert_array_equal(z, np.zeros(5, np.float32))

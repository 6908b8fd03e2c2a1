"""MatMul, Add, Transpose and numbers become Gemm; products of constants merge; numbers travel to weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.weights import RULES
from tests.support import apply_rules, assert_equal, model, op_types

RTOL, ATOL = 2e-5, 2e-5  # sums of a few products of float32, in another order


def numbers(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(dtype)


def becomes(proto: onnx.ModelProto, *kept: str, **dims: int) -> onnx.ModelProto:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == list(kept)
    assert_equal(proto, result, rtol=RTOL, atol=ATOL, **dims)
    return result


def stays(proto: onnx.ModelProto) -> None:
    result, log = apply_rules(proto, RULES)
    assert not log
    assert op_types(result) == op_types(proto)


TWO = "agraph (float[M,4] a, float[4,5] b, {}) => (float[M,5] y) {{ c = MatMul(a, b)  y = Add({}) }}"


@pytest.mark.parametrize("addend", ["float[M,5] d", "float[5] d", "float[1,5] d", "float[1] d", "float d"])
@pytest.mark.parametrize("order", ["c, d", "d, c"])
def test_a_matrix_product_and_a_sum_are_a_gemm(addend: str, order: str) -> None:
    becomes(model(TWO.format(addend, order)), "Gemm", M=3)


@pytest.mark.parametrize("addend", ["float[1,M,5] d", "float[L,5] d"])
def test_a_sum_that_may_widen_stays(addend: str) -> None:
    text = TWO.format(addend, "c, d").replace("[M,5] y", "[A,M,5] y" if "1,M" in addend else "[L,5] y")
    stays(model(text))


def test_integers_stay_a_matmul() -> None:
    stays(model(TWO.format("float[5] d", "c, d").replace("float", "int32")))


def test_products_of_more_dims_stay_a_matmul() -> None:
    stays(model(TWO.format("float[5] d", "c, d").replace("[M,", "[L,M,")))


def test_a_product_read_twice_stays() -> None:
    stays(
        model(
            TWO.format("float[5] d", "c, d")
            .replace("{ c", "{ c")
            .replace("y = Add(c, d)", "e = Add(c, d)  y = Mul(e, c)")
        )
    )


def test_a_gemm_without_addend_takes_one() -> None:
    text = """agraph (float[3,4] a, float[4,5] b, float[5] d) => (float[3,5] y) {
        c = Gemm <beta = 3.0> (a, b)  y = Add(c, d) }"""
    becomes(model(text), "Gemm")


def test_a_dequantized_operand_keeps_its_matmul() -> None:
    text = """agraph (float[3,4] a, float[5] d) => (float[3,5] y) {
        w = DequantizeLinear(q, s)  c = MatMul(a, w)  y = Add(c, d) }"""
    stays(model(text, q=np.ones((4, 5), np.int8), s=numbers()))


TURNED = {
    "left of gemm": ("t = Transpose <perm = [1,0]> (p)  y = Gemm(t, q, d)", ["Gemm"]),
    "right of gemm, no perm": ("t = Transpose(q)  y = Gemm(p, t, d)", ["Gemm"]),
    "turned back": ("t = Transpose(p)  y = Gemm <transA = 1> (t, q, d)", ["Gemm"]),
    "matmul": ("t = Transpose(p)  u = Transpose(q)  y = MatMul(t, u)", ["Gemm"]),
    "matmul, add": ("t = Transpose(p)  c = MatMul(t, q)  y = Add(c, d)", ["Gemm"]),
    "one transpose for two": (
        "t = Transpose(p)  c = Gemm(t, q, d)  e = Gemm(t, p, d)  y = Mul(c, e)", ["Gemm", "Gemm", "Mul"],
    ),
    "of a gemm": ("c = Gemm <alpha = 0.5, transB = 1> (p, q, v)  y = Transpose(c)", ["Gemm"]),
    "of a matmul": ("c = MatMul(p, q)  y = Transpose <perm = [1,0]> (c)", ["Gemm"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNED)
def test_transposes_become_flags_of_gemm(name: str) -> None:
    body, kept = TURNED[name]
    proto = model(f"agraph (float[4,4] p, float[4,4] q, float[4,4] d) => (float[4,4] y) {{ {body} }}", v=numbers(4))
    becomes(proto, *kept)


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose(p)  c = Gemm(t, q, d)  y = Add(c, t)",
        "c = Gemm(p, q, d)  y = Transpose(c)",
        "c = Gemm(p, q)  y = Transpose <perm = [0,1]> (c)",
    ],
)
def test_transposes_that_must_stay(body: str) -> None:
    stays(model(f"agraph (float[4,4] p, float[4,4] q, float[4,4] d) => (float[4,4] y) {{ {body} }}"))


def test_before_opset_11_a_gemm_needs_three_operands() -> None:
    stays(
        model(
            "agraph (float[4,4] p, float[4,4] q) => (float[4,4] y) { t = Transpose(p)  y = MatMul(t, q) }",
            opset=10,
        )
    )


@pytest.mark.parametrize("operator", ["Mul(c, s)", "Mul(s, c)", "Div(c, s)"])
def test_a_number_becomes_alpha_and_beta(operator: str) -> None:
    text = f"""agraph (float[4,4] p, float[4,4] q, float[4,4] d) => (float[4,4] y) {{
        c = Gemm <beta = 0.5> (p, q, d)  y = {operator} }}"""
    becomes(model(text, s=np.float32(0.25).reshape(1)), "Gemm")
    stays(model(text, s=numbers(4)))


CHAINS = {
    "matmul": ("c = MatMul(x, a)  y = MatMul(c, b)", ["MatMul"]),
    "from the left": ("c = MatMul(a, x)  y = MatMul(b, c)", ["MatMul"]),
    "gemm": ("c = Gemm <transB = 1, alpha = 0.5> (x, a, v)  y = Gemm <beta = 2.0> (c, b, w)", ["Gemm"]),
    "gemm behind matmul": ("c = MatMul(x, a)  y = Gemm(c, b, w)", ["Gemm"]),
    "with a sum between": ("c = MatMul(x, a)  d = Add(c, v)  y = MatMul(d, b)", ["Gemm"]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_products_with_two_constants_merge(name: str) -> None:
    body, kept = CHAINS[name]
    weights = {
        "a": numbers(4, 4),
        "b": numbers(4, 4, seed=1),
        "v": numbers(4, seed=2),
        "w": numbers(1, 4, seed=3),
    }
    becomes(model(f"agraph (float[4,4] x) => (float[4,4] y) {{ {body} }}", **weights), *kept)


def test_products_of_three_dims_merge_with_their_sums() -> None:
    text = """agraph (float[N,S,4] x) => (float[N,S,5] y) {
        c = MatMul(x, a)  d = Add(c, v)  e = MatMul(d, b)  y = Add(e, w) }"""
    weights = {"a": numbers(4, 4), "b": numbers(4, 5, seed=1), "v": numbers(4), "w": numbers(5)}
    becomes(model(text, **weights), "MatMul", "Add")


def test_a_bottleneck_stays_two_products() -> None:
    text = "agraph (float[N,8] x) => (float[N,8] y) { c = MatMul(x, a)  y = MatMul(c, b) }"
    stays(model(text, a=numbers(8, 2), b=numbers(2, 8)))


ATTENTION = """agraph (float[N,6,8] x) => (float[N,2,6,6] y) {{
    q = MatMul(x, wq)  qb = Add(q, b)  qr = Reshape(qb, split)  qt = Transpose <perm = [0,2,1,3]> (qr)
    k = MatMul(x, wk)  kb = Add(k, {bias})  kr = Reshape(kb, split)  kt = Transpose <perm = [0,2,3,1]> (kr)
    {scores} }}"""
SCORES = {
    "division of the scores": "s = MatMul(qt, kt)  y = Div(s, root)",
    "product with the scores": "s = MatMul(qt, kt)  y = Mul(half, s)",
    "division of the queries": "d = Div(qt, root)  y = MatMul(d, kt)",
    "both by the fourth root": "d = Mul(qt, half)  e = Mul(kt, half)  y = MatMul(d, e)",
}
HEADS = {
    "wq": numbers(8, 8), "wk": numbers(8, 8, seed=1), "b": numbers(8), "split": np.array([0, 0, 2, 4]),
    "root": np.float32(2).reshape(()), "half": np.float32(0.5).reshape(()),
}  # fmt: skip
HEADS_KEPT = ["MatMul", "Add", "Reshape", "Transpose"] * 2 + ["MatMul"]


@pytest.mark.parametrize("name", SCORES)
def test_the_scale_of_attention_travels_into_the_weights(name: str) -> None:
    result, _ = apply_rules(model(ATTENTION.format(bias="b", scores=SCORES[name]), **HEADS), RULES)
    assert sorted(op_types(result)) == sorted(HEADS_KEPT)
    assert_equal(model(ATTENTION.format(bias="b", scores=SCORES[name]), **HEADS), result, rtol=RTOL, atol=1e-3, N=2)


def test_a_number_does_not_pass_what_others_read() -> None:
    text = """agraph (float[N,6,8] x) => (float[N,8,6] y, float[N,8,6] z) {
        c = MatMul(x, w)  z = Transpose <perm = [0,2,1]> (c)  y = Mul(z, half) }"""
    stays(model(text, w=numbers(8, 8), half=HEADS["half"]))


@pytest.mark.parametrize(
    "number, kept", [(0.5, ["MatMul", "Relu", "Flatten"]), (-0.5, ["MatMul", "Relu", "Flatten", "Mul"])]
)
def test_only_a_positive_number_passes_relu(number: float, kept: list[str]) -> None:
    text = "agraph (float[3,4] x) => (float[3,4] y) { c = MatMul(x, w)  r = Relu(c)  f = Flatten(r)  y = Mul(f, n) }"
    becomes(model(text, w=numbers(4, 4), n=np.float32(number).reshape(())), *kept)


def test_a_number_travels_down_to_weights() -> None:
    text = "agraph (float[2,3,4] x) => (float[6,5] y) { c = Mul(x, n)  d = Reshape(c, s)  y = Gemm(d, w, b) }"
    weights = {"w": numbers(4, 5), "b": numbers(5), "n": np.float32(0.3).reshape(()), "s": np.array([-1, 4])}
    becomes(model(text, **weights), "Reshape", "Gemm")


def test_two_numbers_of_a_product_become_one() -> None:
    text = "agraph (float[2,4] p, float[4,8] q) => (float[2,8] y) { c = Mul(p, n)  d = Mul(n, q)  y = MatMul(c, d) }"
    becomes(model(text, n=np.float32(0.3).reshape(())), "Mul", "MatMul")
    short = text.replace("float[", "float16[")
    becomes(model(short, n=np.float16(0.3).reshape(())), "Mul", "Mul", "MatMul")


@pytest.mark.fires("transpose-of-gemm")
def test_numbers_merge_with_a_constant_factor_on_the_way() -> None:
    text = """agraph (float[2,4] p, float[4,2] q) => (float[2,2] y) {
        c = Div(p, k)  s = MatMul(c, q)  t = Transpose(s)  y = Mul(t, n) }"""
    becomes(model(text, n=np.float32(0.3).reshape(()), k=numbers(4)), "Div", "Gemm")


def test_the_half_of_an_activation_travels_into_the_weights_below() -> None:
    text = """agraph (float[2,3,4] x) => (float[2,3,5] y) {
        h = Mul(x, n)  t = Sigmoid(x)  m = Mul(h, t)  y = MatMul(m, w) }"""
    becomes(model(text, n=np.float32(0.5).reshape(()), w=numbers(4, 5)), "Sigmoid", "Mul", "MatMul")


@pytest.mark.parametrize("order", ["h = Mul(x, n)  y0 = Mul(h, s)", "h = Mul(x, s)  y0 = Mul(h, n)"])
@pytest.mark.parametrize("inner", ["Erf", "Tanh"])
def test_the_half_of_a_gelu_stays_where_runtimes_look_for_it(order: str, inner: str) -> None:
    text = f"""agraph (float[2,3,4] x) => (float[2,3,5] y) {{
        t = {inner}(x)  s = Add(t, one)  {order}  y = MatMul(y0, w) }}"""
    one = np.float32(1).reshape(())
    becomes(model(text, n=one / 2, one=one, w=numbers(4, 5)), inner, "Add", "Mul", "Mul", "MatMul")


def test_what_several_products_read_folds_into_all_of_them() -> None:
    text = """agraph (float[N,3,4] x) => (float[N,3,4] y) {
        s = Mul(x, g)  a = Add(s, b)
        q = MatMul(a, wq)  qb = Add(q, b)  k = MatMul(a, wk)  kb = Add(b, k)  y = Mul(qb, kb) }"""
    weights = {
        "g": numbers(4),
        "b": numbers(4, seed=1),
        "wq": numbers(4, 4, seed=2),
        "wk": numbers(4, 4, seed=3),
    }
    becomes(model(text, **weights), "MatMul", "Add", "MatMul", "Add", "Mul")


def test_what_something_else_reads_too_stays() -> None:
    text = """agraph (float[N,3,4] x) => (float[N,3,4] y) {
        s = Mul(x, g)  q = MatMul(s, wq)  k = MatMul(s, wk)  d = Add(q, k)  y = Add(d, s) }"""
    stays(model(text, g=numbers(4), wq=numbers(4, 4), wk=numbers(4, 4)))


def test_constants_inside_a_function_fold_inside_it() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        agraph (float[2,2] x) => (float[2,2] y) { y = own.f(x) }
        <domain: "own", opset_import: ["" : 17]> f (x) => (y) {
            w = Constant <value = float[2,2] {1, 2, 3, 4}> ()  k = Constant <value_floats = [2.0, 3.0]> ()
            c = Gemm(x, w)  d = Mul(c, k)  y = Add(d, k) }""")
    result, log = apply_rules(proto, RULES)
    assert {rewrite.rule for rewrite in log} == {"affine-after-layer"}
    assert [node.op_type for node in result.functions[0].node if node.op_type != "Constant"] == ["Gemm"]
    assert_equal(proto, result, rtol=RTOL, atol=ATOL)


def test_a_layer_in_a_branch_takes_weights_of_the_outer_graph() -> None:
    text = """agraph (float[2,2] x, bool b) => (float[2,2] y) {
        y = If (b) <
            then_branch = t () => (float[2,2] p) { c = MatMul(x, w)  p = Mul(c, k) },
            else_branch = e () => (float[2,2] q) { q = Identity(x) }> }"""
    proto = model(text, w=numbers(2, 2), k=numbers(2))
    result, log = apply_rules(proto, RULES)
    assert [rewrite.rule for rewrite in log] == ["affine-after-layer"]
    assert_equal(proto, result, rtol=RTOL, atol=ATOL)


def test_half_precision_products_become_a_gemm() -> None:
    proto = model(TWO.format("float16[5] d", "c, d").replace("float[", "float16["))
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == ["Gemm"]
    assert_equal(proto, result, rtol=4e-3, atol=4e-3, M=3)  # ONNX Runtime rounds the product once less

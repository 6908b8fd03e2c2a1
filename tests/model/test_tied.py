"""Dims that are known from others, as they meet in an operator; formulas that a caller writes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.flows.inspect import inspect_model
from graphopt.model.dims import symbol
from graphopt.model.facts import Facts
from graphopt.model.settling import settle
from graphopt.model.tied import Ties
from tests.support import session


def ties_of(proto: onnx.ModelProto) -> Ties:
    model = ir.from_proto(proto)
    return Ties(model.graph, Facts(model))


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]>\n{text}')


CHAIN = parsed(
    """
g (float[1, 4, 1, a] scores, float[1, 4, b, 8] values, float[c, 8] more) => (float[p, q, r, s] y) {
    x = MatMul(scores, values)
    z = Concat<axis = 0>(more, more)
    w = Add(values, more)
    y = MatMul(x, w_t)
    w_t = Transpose<perm = [0, 1, 3, 2]>(w)
}
""".replace("    y = MatMul(x, w_t)\n    w_t", "    w_t").replace("(w)\n", "(w)\n    y = MatMul(x, w_t)\n")
)


def test_dims_that_meet_are_equal() -> None:
    assert ties_of(CHAIN).following(["a"]) == {"b": symbol("a"), "c": symbol("b")}
    assert ties_of(CHAIN).following(["c"]) == {"b": symbol("c"), "a": symbol("b")}
    assert ties_of(CHAIN).following(["a"], certainly=True) == {"b": symbol("a")}  # where c is 1, it broadcasts
    assert ties_of(CHAIN).leading(["c", "a", "b"]) == ["c", "a"]


def test_a_longer_one_is_equal_but_for_a_step() -> None:
    model = parsed("""
    g (float[a, 8] past, float[1, 8] row, float[b, 8] scale) => (float[p, 8] y) {
        all = Concat<axis = 0>(past, row)
        y = Mul(all, scale)
    }
    """)
    assert ties_of(model).following(["a"]) == {"b": symbol("a") + 1}
    assert ties_of(model).following(["b"]) == {"a": symbol("b") - 1}
    made = graphopt.compile(model, dims={"a": (1, 6)}, threads=1)
    for rows in (1, 4, 6):
        past, scale = np.ones((rows, 8), np.float32), np.full((rows + 1, 8), 3, np.float32)
        np.testing.assert_array_equal(made(past=past, row=past[:1], scale=scale)["y"], scale)


def test_dims_that_may_be_one_are_not_tied_to_a_number() -> None:
    model = parsed("g (float[a, 8] x, float[8] y) => (float[a, 8] z) { z = Add(x, y) }")
    assert ties_of(model).following() == {}


def test_weights_decide_channels_and_features() -> None:
    model = parsed("""
    g (float[n, c, h, w] x, float[t, n, f] rows, float[n, k, h, w] more) => (float[p, q, r, s] y, float[i, j, l, m] z) {
        weights = Constant<value = float[4, 3, 1, 1] {1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.}>()
        y_x = Conv(x, weights)
        y = Concat<axis = 1>(y_x, more)
        input = Constant<value = float[1, 4, 2] {1., 1., 1., 1., 1., 1., 1., 1.}>()
        hidden = Constant<value = float[1, 4, 1] {1., 1., 1., 1.}>()
        z = LSTM<hidden_size = 1>(rows, input, hidden)
    }
    """)
    assert ties_of(model).following() == {"c": 3, "f": 2}
    work = ir.from_proto(model)
    settle(work)
    assert [list(map(str, one.shape or ())) for one in work.graph.inputs] == [
        ["n", "3", "h", "w"], ["t", "n", "2"], ["n", "k", "h", "w"],
    ]  # fmt: skip


def decoder(cached_rows: str = "total") -> onnx.ModelProto:
    """One layer as decoders are written for ONNX Runtime: 4 heads of queries share 2 of keys and values."""
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (int64[batch, row] ids, int64[batch, total] mask, float[batch, 2, past, size] k, float[batch, 2, past, size] v)
        => (float[batch, row, 32] y, float[batch, 2, {cached_rows}, size] k_all,
            float[batch, 2, {cached_rows}, size] v_all)
    {{
        x = Gather(table, ids)
        gamma = Constant<value = float[8] {{1., 1., 1., 1., 1., 1., 1., 1.}}>()
        x_n, x_m, x_i, x_s = com.microsoft.SkipSimplifiedLayerNormalization(x, x, gamma)
        q = MatMul(x_n, w_q)
        k_n = MatMul(x_n, w_k)
        v_n = MatMul(x_n, w_v)
        axis = Constant<value = int64[1] {{1}}>()
        one = Constant<value = int64[1] {{1}}>()
        count = ReduceSum<keepdims = 0>(mask, axis)
        behind = Sub(count, one)
        lengths = Cast<to = 6>(behind)
        dims = Shape(mask)
        at = Constant<value = int64 {{1}}>()
        width = Gather(dims, at)
        total_i = Cast<to = 6>(width)
        y, k_all, v_all = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>
            (q, k_n, v_n, k, v, lengths, total_i)
    }}
    """)
    drawn = np.random.default_rng(0)
    for name, shape in {"table": (20, 8), "w_q": (8, 32), "w_k": (8, 16), "w_v": (8, 16)}.items():
        array = drawn.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_heads_decide_the_sizes_of_caches() -> None:
    total, past, row = map(symbol, ("total", "past", "row"))
    assert ties_of(decoder()).following() == {"size": 8}
    assert ties_of(decoder()).following(["past", "row"]) == {"size": 8, "total": past + row}
    assert ties_of(decoder()).following(["total", "row"])["past"] == total - row
    assert ties_of(decoder()).leading(["batch", "row", "total", "past", "size"]) == ["batch", "row", "past"]
    # A cache that stays as long as it is has room for more than the mask says.
    assert ties_of(decoder("past")).following(["past", "row"]) == {"size": 8}


def test_what_a_decoder_costs_is_counted_with_dims_that_fit() -> None:
    found = inspect_model(ir.from_proto(decoder()), "decoder", 0, {"past": 9})
    assert found.assumed == {"batch": 1, "row": 1, "total": 10, "past": 9, "size": 8}
    counted = {line.op_type: line for line in found.operators}
    assert counted["com.microsoft.GroupQueryAttention"].flops == 4 * 10 * (4 * 8 + 5)
    assert not any(line.unknown for line in found.operators)
    assert inspect_model(ir.from_proto(decoder()), "decoder", 0, {"total": 10}).assumed["past"] == 9


def test_a_decoder_compiles_with_what_a_caller_has_to_say() -> None:
    model = decoder()
    with pytest.raises(OptionError, match=r"give 'batch', 'row', 'past' a value each"):
        graphopt.memory(model)
    drawn = np.random.default_rng(1)
    for dims in ({"batch": 1, "row": 2, "past": 3}, {"batch": 1, "row": (1, 4), "past": (0, 8)},
                 {"batch": 1, "row": 2, "past": "row + 1"}):  # fmt: skip
        made = graphopt.compile(model, dims=dims, threads=1)
        assert not made.fallback
        feed = {"ids": drawn.integers(0, 20, (1, 2)), "mask": np.ones((1, 5), np.int64)}
        feed |= {name: drawn.standard_normal((1, 2, 3, 8)).astype(np.float32) for name in ("k", "v")}
        for array, expected in zip(made.run(None, feed), session(model).run(None, feed), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)  # sums of eight products


LOOKUP = parsed("""
g (int64[1, m] mask, float[1, n] x) => (float[1, k] y) {
    wide = Cast<to = 1>(mask)
    total = ReduceSum<keepdims = 1>(wide)
    y = Mul(x, total)
}
""")


def test_formulas_of_a_caller() -> None:
    made = graphopt.compile(LOOKUP, dims={"n": "1..8", "m": "2*n + 1"}, threads=1)
    for size in (1, 5, 8):
        x = np.arange(size, dtype=np.float32)[None]
        found = made(mask=np.ones((1, 2 * size + 1), np.int64), x=x)["y"]
        np.testing.assert_array_equal(found, x * (2 * size + 1))
    with pytest.raises(OptionError, match=r"'m' has neither a size nor a range; .* a formula of those that have one"):
        graphopt.compile(LOOKUP, dims={"n": (1, 8)})
    with pytest.raises(OptionError, match="'m' would be -1 at the least sizes"):
        graphopt.compile(LOOKUP, dims={"n": (1, 8), "m": "n - 2"})


def test_names_that_are_formulas() -> None:
    model = ir.from_proto(LOOKUP)
    model.graph.inputs[0].shape = ir.Shape([1, "n + 2"])
    made = graphopt.compile(ir.to_proto(model), dims={"n": (1, 8)}, threads=1)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(made(mask=np.ones((1, 5), np.int64), x=x)["y"], 5 * x)

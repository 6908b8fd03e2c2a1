"""Wrong pairs about integers and tables: values beyond 0 and 1, rows that few ids reach."""

from __future__ import annotations

import numpy as np

from tests.check.pairs.pair import Wrong, ramp, weights


def _with_row(table: np.ndarray, row: int) -> np.ndarray:
    other = table.copy()
    other[row] += 1
    return other


TABLE = weights(1, 3000, 4)
SHORT = weights(2, 50, 4)
BYTES = np.arange(256, dtype=np.float32)
DENSE = weights(3, 256, 256)
DENSE_OTHER = DENSE.copy()
DENSE_OTHER[7, 9] = 1.0
DENSE[7, 9] = 1.005

INTEGERS = (
    Wrong("Abs of integers dropped", "small integers", "g (int64[n] x) => (int64[n] y) { y = Abs(x) }",
          (("Abs", "Identity"),), {"x": [-3, 2]}),
    Wrong("maximum with zero dropped", "small integers",
          "g (int32[n] x) => (int32[n] y) <int32 zero = {0}> { y = Max(x, zero) }",
          (("Max(x, zero)", "Identity(x)"),), {"x": [-3, 2]}),
    Wrong("the sign of Mod", "small integers",
          "g (int64[n] x) => (int64[n] y) <int64 three = {3}> { y = Mod <fmod = 0> (x, three) }",
          (("fmod = 0", "fmod = 1"),), {"x": [-7, 7]}),
    Wrong("int64 through int32", "small integers",
          "g (int64[n] x) => (int64[n] y) <int64 one = {1}> { c = Identity(x) y = Add(c, one) }",
          (("c = Identity(x)", "a = Cast <to = 6> (x) c = Cast <to = 7> (a)"),), {"x": [(1 << 40) + 1]}),
    Wrong("a product that overflows, divided again", "small integers",
          "g (int32[n] x) => (int32[n] y) <int32 three = {3}> { p = Mul(x, three) y = Div(p, three) }",
          (("y = Div(p, three)", "y = Identity(x)"),), {"x": [1 << 30]}),
    Wrong("k of TopK held at two", "small integers",
          """g (float[8] x, int64[1] k) => (float[m] y) <int64[1] two = {2}> { h = Identity(k)
            y, i = TopK <axis = 0> (x, h) }""",
          (("Identity(k)", "Min(k, two)"),), {"x": ramp(8), "k": [5]}),
    Wrong("lengths of reversed sequences dropped", "small integers",
          """g (float[6,b] x, int64[b] lengths) => (float[6,b] y) {
            y = ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths) }""",
          (("ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths)", "Identity(x)"),),
          {"x": ramp(6, 1), "lengths": [3]}),
    Wrong("a bound of one moved to two", "small integers",
          "g (int64[n] x) => (bool[n] y) <int64 bound = {1}> { y = Greater(x, bound) }",
          (("bound = {1}", "bound = {2}"),), {"x": [0, 2]}),
    Wrong("Sign of integers dropped", "small integers",
          "g (int64[n] x) => (int64[n] y) { y = Sign(x) }", (("Sign", "Identity"),), {"x": [5]}),
    Wrong("a square dropped", "small integers",
          "g (int32[n] x) => (int32[n] y) { y = Mul(x, x) }", (("Mul(x, x)", "Identity(x)"),), {"x": [3]}),
    Wrong("a negative class of OneHot", "small integers",
          """g (int64[n] x) => (float[n,m] y) <int64 depth = {4}, float[2] values = {0.0, 1.0}, int64 zero = {0}> {
            i = Identity(x) y = OneHot(i, depth, values) }""",
          (("Identity(x)", "Max(x, zero)"),), {"x": [-1]}),
    Wrong("a byte that wraps", "small integers",
          "g (uint8[n] x) => (int32[n] y) { s = Add(x, x) y = Cast <to = 6> (s) }",
          (("s = Add(x, x) y = Cast <to = 6> (s)", "c = Cast <to = 6> (x) y = Add(c, c)"),), {"x": [200]}),
    Wrong("a pad token that is not masked", "small integers",
          """g (int64[n] ids, float[n] x) => (float[n] y) <int64 pad = {50}, float zero = {0.0}> {
            p = Equal(ids, pad) y = Where(p, zero, x) }""",
          (("Where(p, zero, x)", "Identity(x)"),), {"ids": [50], "x": [1.0]}),
    Wrong("one row of 3,000", "tables",
          "g (int64[n] ids) => (float[n,4] y) { y = Gather(table, ids) }", (), {"ids": [2000]},
          {"table": TABLE}, {"table": _with_row(TABLE, 2000)}),
    Wrong("rows beyond the second, behind a Cast", "tables",
          """g (int32[n] ids) => (float[n,4] y) <int64 one = {1}> {
            c = Cast <to = 7> (ids) i = Identity(c) y = Gather(table, i) }""",
          (("Identity(c)", "Min(c, one)"),), {"ids": [5]}, {"table": SHORT}),
    Wrong("a row behind a Reshape", "tables",
          """g (int64[b,l] ids) => (float[m,4] y) <int64[1] flat = {-1}> {
            f = Reshape(ids, flat) y = Gather(table, f) }""",
          (), {"ids": [[7]]}, {"table": SHORT}, {"table": _with_row(SHORT, 7)}),
    Wrong("a row reached through OneHot", "tables",
          """g (int64[n] ids) => (float[n,4] y) <int64 depth = {50}, float[2] values = {0.0, 1.0}> {
            o = OneHot(ids, depth, values) y = MatMul(o, table) }""",
          (), {"ids": [40]}, {"table": SHORT}, {"table": _with_row(SHORT, 40)}),
    Wrong("one entry of a table of bytes", "tables",
          """g (uint8[n] x) => (float[n] y) { i = Cast <to = 6> (x) y = Gather(table, i) }""",
          (), {"x": [200]}, {"table": BYTES}, {"table": _with_row(BYTES, 200)}),
    Wrong("one weight of 65,536, half a per cent off", "tables",
          "g (float[n,256] x) => (float[n,256] y) { y = MatMul(x, w) }",
          (), {"x": np.eye(256, dtype=np.float32)[7:8]}, {"w": DENSE}, {"w": DENSE_OTHER}),
    Wrong("a row behind an offset", "tables",
          """g (int64[n] ids) => (float[n,4] y) <int64 offset = {2}> {
            i = Add(ids, offset) y = Gather(table, i) }""",
          (), {"ids": [30]}, {"table": SHORT}, {"table": _with_row(SHORT, 32)}),
    Wrong("a row for negative ids", "tables",
          "g (int64[n] ids) => (float[n,4] y) <int64 last = {49}> { i = Identity(ids) y = Gather(table, i) }",
          (("i = Identity(ids)", "i = Abs(ids)"),), {"ids": [-1]}, {"table": SHORT}),
)  # fmt: skip

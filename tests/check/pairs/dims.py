"""Wrong pairs about dims: two that are often equal, and lengths or batches beyond the usual ones."""

from __future__ import annotations

from tests.check.pairs.pair import Wrong, ramp

DIMS = (
    Wrong(
        "height taken for width in a reshape", "equal dims",
        """g (float[n,3,h,w] x) => (float[r,c] y) <int64[1] side = {2}, int64[1] rest = {-1}> {
            s = Shape(x) d = Gather(s, side) t = Concat <axis = 0> (d, rest) y = Reshape(x, t) }""",
        (("side = {2}", "side = {3}"),), {"x": ramp(1, 3, 2, 4)},
    ),
    Wrong(
        "positions counted on the other sequence", "equal dims",
        """g (float[p,4] a, float[q,4] b) => (int64[m] y, float[1,1] z) <int64 zero = {0}, int64 one = {1}> {
            s = Shape(a) t = Shape(b) n = Gather(s, zero) y = Range(zero, n, one)
            u = ReduceSum(a) v = ReduceSum(b) z = Add(u, v) }""",
        (("Gather(s,", "Gather(t,"),), {"a": ramp(2, 4), "b": ramp(3, 4)},
    ),
    Wrong(
        "ceil_mode dropped", "equal dims",
        """g (float[n,1,h,w] x) => (float[n,1,i,j] y) {
            y = MaxPool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (x) }""",
        ((", ceil_mode = 1", ""),), {"x": ramp(1, 1, 5, 5)},
    ),
    Wrong(
        "a mask made square of the query's length", "equal dims",
        """g (float[q,4] a, float[k,4] b) => (float[q,m] y)
        <int64[1] first = {0}, float one = {1.0}> {
            s = Shape(a) t = Shape(b) rows = Gather(s, first) columns = Gather(t, first)
            d = Concat <axis = 0> (rows, columns) e = Expand(one, d) y = Trilu <upper = 0> (e) }""",
        (("Concat <axis = 0> (rows, columns)", "Concat <axis = 0> (rows, rows)"),),
        {"a": ramp(2, 4), "b": ramp(5, 4)},
    ),
    Wrong(
        "SAME_UPPER written for even sides", "equal dims",
        """g (float[n,1,h,w] x) => (float[n,1,i,j] y) {
            y = AveragePool <kernel_shape = [3,3], strides = [2,2], auto_pad = "SAME_UPPER"> (x) }""",
        (('auto_pad = "SAME_UPPER"', "pads = [0,0,1,1]"),), {"x": ramp(1, 1, 5, 5)},
    ),
    Wrong(
        "half a side rounded down", "equal dims",
        """g (float[n,1,h,w] x) => (float[n,1,i,w] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
            s = Shape(x) h = Gather(s, two) p = Add(h, one) half = Div(p, two) y = Slice(x, zero, half, two) }""",
        (("Add(h, one)", "Add(h, zero)"),), {"x": ramp(1, 1, 5, 2)},
    ),
    Wrong(
        "a mean over the other length", "equal dims",
        """g (float[p,4] a, float[q,4] b) => (float[4] y, float[4] z) <int64[1] axis = {0}> {
            s = Shape(a) t = Shape(b) n = Gather(s, axis) f = Cast <to = 1> (n)
            sum = ReduceSum <keepdims = 0> (a, axis) y = Div(sum, f) z = ReduceSum <keepdims = 0> (b, axis) }""",
        (("Gather(s, axis)", "Gather(t, axis)"),), {"a": ramp(2, 4), "b": ramp(5, 4)},
    ),
    Wrong(
        "sides exchanged in a resize", "equal dims",
        """g (float[1,1,h,w] x, float[1,1,i,j] like) => (float[1,1,p,q] y)
        <int64[1] two = {2}, int64[1] three = {3}, int64[2] ones = {1,1}> {
            s = Shape(like) a = Gather(s, two) b = Gather(s, three) d = Concat <axis = 0> (ones, a, b)
            y = Resize <mode = "nearest"> (x, , , d) }""",
        (("(ones, a, b)", "(ones, b, a)"),), {"x": ramp(1, 1, 2, 2), "like": ramp(1, 1, 2, 4)},
    ),
    Wrong(
        "a length cut at five", "few lengths",
        """g (float[b,l] x) => (float[b,m] y)
        <int64[1] zero = {0}, int64[1] far = {1000000}, int64[1] one = {1}> {
            s = Slice(x, zero, far, one) y = Relu(s) }""",
        (("far = {1000000}", "far = {5}"),), {"x": ramp(1, 9)},
    ),
    Wrong(
        "a window of eight dropped", "few lengths",
        """g (float[b,l] x) => (float[b,m] y)
        <int64[1] begin = {-8}, int64[1] far = {1000000}, int64[1] one = {1}> {
            s = Slice(x, begin, far, one) y = Neg(s) }""",
        (("begin = {-8}", "begin = {0}"),), {"x": ramp(1, 12)},
    ),
    Wrong(
        "a batch cut at four", "few lengths",
        """g (float[b,3] x) => (float[m,3] y)
        <int64[1] zero = {0}, int64[1] far = {1000000}> {
            s = Slice(x, zero, far) y = Relu(s) }""",
        (("far = {1000000}", "far = {4}"),), {"x": ramp(6, 3)},
    ),
    Wrong(
        "a squeeze of every dim of one", "few lengths",
        "g (float[b,1,4] x) => (y) <int64[1] axes = {1}> { y = Squeeze(x, axes) }",
        (("Squeeze(x, axes)", "Squeeze(x)"),), {"x": ramp(1, 1, 4)},
    ),
    Wrong(
        "the second of a sequence for its last", "few lengths",
        "g (seq(float[n]) x) => (float[n] y) <int64 place = {-1}> { y = SequenceAt(x, place) }",
        (("place = {-1}", "place = {1}"),), {"x": [[1.0], [2.0], [3.0]]},
    ),
    Wrong(
        "positions not held at 31", "few lengths",
        """g (float[l] x) => (float[l] y) <int64 zero = {0}, int64 one = {1}, int64 most = {31}> {
            n = Size(x) r = Range(zero, n, one) p = Min(r, most) f = Cast <to = 1> (p) y = Add(x, f) }""",
        (("Min(r, most)", "Identity(r)"),), {"x": ramp(40)},
    ),
    Wrong(
        "the fifth position for the last", "few lengths",
        """g (float[b,l] x) => (float[b] y) <int64 one = {1}, int64 most = {4}> {
            s = Shape <start = 1, end = 2> (x) l = Sub(s, one) z = Squeeze(l) i = Identity(z)
            y = Gather <axis = 1> (x, i) }""",
        (("Identity(z)", "Min(z, most)"),), {"x": ramp(1, 7)},
    ),
    Wrong(
        "a mean that counts at least two", "few lengths",
        """g (float[b,l] x) => (float[1,l] y) <int64[1] axis = {0}, int64[1] least = {1}> {
            s = Shape <start = 0, end = 1> (x) m = Max(s, least) f = Cast <to = 1> (m)
            sum = ReduceSum(x, axis) y = Div(sum, f) }""",
        (("least = {1}", "least = {2}"),), {"x": ramp(1, 3) + 1},
    ),
    Wrong(
        "chunks of sixteen for chunks of any length", "few lengths",
        """g (float[b,l] x) => (float[b,1] y)
        <int64[1] zero = {0}, int64[1] far = {1000000}, int64[1] one = {1}> {
            s = Slice(x, zero, far, one) y = ReduceMax <axes = [1]> (s) }""",
        (("far = {1000000}", "far = {16}"),), {"x": ramp(1, 20)},
    ),
)  # fmt: skip

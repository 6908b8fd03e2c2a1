"""Tensor programs of every form, and nests that primitives have changed, whose loops and code are recorded."""

from __future__ import annotations

from collections.abc import Callable

from kernels.dtype import DType
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Expression,
    Number,
    Position,
    Reduce,
    ReduceOp,
    Select,
    Unary,
    Variable,
)
from kernels.tensor.nest import Loop, Nest, nest_of, walk
from kernels.tensor.program import Program, Stage
from kernels.tensor.schedule import fuse, merge, parallel, reorder, split, tile, unroll, vectorize
from kernels.tensor.staging import compute_at, inline, split_accumulator
from tests.kernels.tensor.programs import chain, column_sums, layer_norm, softmax, transpose

F32 = DType.F32


def _pointwise(
    shape: tuple[int, ...], value: Callable[[Buffer, tuple[Variable, ...]], Expression], dtype: DType = F32,
    strides: tuple[int, ...] = (), offset: int = 0,
) -> Program:  # fmt: skip
    """y[i, j, ...] of one buffer x."""
    axes = tuple(Variable(f"i{dim}", size) for dim, size in enumerate(shape))
    x = Buffer("x", dtype, shape, strides, offset)
    made = value(x, axes)
    y = Buffer("y", made.dtype, shape)
    return Program("points", (x,), (y,), (Stage(y, axes, made),))


def _folded(op: ReduceOp, shape: tuple[int, ...], over: tuple[int, ...], dtype: DType = F32) -> Program:
    """y = x reduced over some of its dims."""
    axes = tuple(Variable(f"i{dim}", size) for dim, size in enumerate(shape))
    kept = tuple(axis for dim, axis in enumerate(axes) if dim not in over)
    x, y = Buffer("x", dtype, shape), Buffer("y", dtype, tuple(axis.extent for axis in kept))
    return Program("fold", (x,), (y,), (Stage(y, kept, Reduce(op, tuple(axes[dim] for dim in over), x[axes])),))


def _padded(x: Buffer, axes: tuple[Variable, ...]) -> Expression:
    """The element before, and 3 at the border."""
    i, j = axes
    inside = Compare("ge", Position(j + 0), Number(1, DType.I64))
    return Select(inside, x[i, j - 1], Number(3, x.dtype))


def _window(x: Buffer, axes: tuple[Variable, ...]) -> Expression:
    """Zero outside of the middle, which a question of two sides tells."""
    i, j = axes
    low = Compare("gt", Position(j + 0), Number(2, DType.I64))
    high = Compare("le", Position(j + 0), Number(j.extent - 4, DType.I64))
    return Select(Binary("and", low, high), x[i, j - 2] + x[i, j + 3], Number(0, x.dtype))


def _outside(x: Buffer, axes: tuple[Variable, ...]) -> Expression:
    i, j = axes
    first = Compare("lt", Position(i + 0), Number(1, DType.I64))
    second = Compare("lt", Position(j + 0), Number(2, DType.I64))
    return Select(Unary("not", Binary("or", first, second)), x[i - 1, j - 2], Number(1, x.dtype))


def _product(rows: int, columns: int, depth: int) -> Program:
    i, j, k = Variable("i", rows), Variable("j", columns), Variable("k", depth)
    a, b, c = Buffer("a", F32, (rows, depth)), Buffer("b", F32, (depth, columns)), Buffer("c", F32, (rows, columns))
    return Program("product", (a, b), (c,), (Stage(c, (i, j), Reduce("sum", (k,), a[i, k] * b[k, j])),))


def _sliding(size: int, taps: int) -> Program:
    i, k = Variable("i", size), Variable("k", taps)
    x, w, y = Buffer("x", F32, (size + taps - 1,)), Buffer("w", F32, (taps,)), Buffer("y", F32, (size,))
    return Program("sliding", (x, w), (y,), (Stage(y, (i,), Reduce("sum", (k,), x[i + k] * w[k])),))


def _joined(first: int, second: int) -> Program:
    """Two parts written into one buffer, and one more made of it."""
    i, j, k = Variable("i", first), Variable("j", second), Variable("k", first + second)
    a, b = Buffer("a", F32, (first,)), Buffer("b", F32, (second,))
    t, y = Buffer("t", F32, (first + second,)), Buffer("y", F32, (first + second,))
    stages = (Stage(t, (i,), a[i] * 2.0), Stage(t, (j,), Unary("exp", b[j]), (j + first,)), Stage(y, (k,), t[k] + 1.0))
    return Program("joined", (a, b), (y,), stages)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "softmax": lambda: softmax(7, 100),
    "softmax of halves": lambda: softmax(7, 33, DType.F16),
    "wide softmax": lambda: softmax(3, 5000),
    "layer normalization": lambda: layer_norm(40, 300),
    "column sums": lambda: column_sums(90, 70),
    "many column sums": lambda: column_sums(2000, 700),
    "transpose": lambda: transpose(50, 60),
    "large transpose": lambda: transpose(1000, 900),
    "transpose of bytes": lambda: transpose(33, 65, DType.U8),
    "transpose of doubles": lambda: transpose(17, 3, DType.F64),
    "chain": lambda: chain(300, 400),
    "a copy": lambda: _pointwise((1000,), lambda x, i: x[i]),
    "a short one": lambda: _pointwise((3,), lambda x, i: Unary("exp", x[i])),
    "of one": lambda: _pointwise((1, 1), lambda x, i: -x[i]),
    "of none": lambda: _pointwise((0, 5), lambda x, i: -x[i]),
    "large and dear": lambda: _pointwise((700, 900), lambda x, i: Unary("erf", x[i])),
    "with gaps": lambda: _pointwise((7, 20), lambda x, i: x[i] * 2.0, F32, (23, 1), 2),
    "every third": lambda: _pointwise((7, 20), lambda x, i: x[i] + 1.0, F32, (60, 3)),
    "backwards": lambda: _pointwise((9, 40), lambda x, i: x[i[0], i[1] * -1 + 39]),
    "rows backwards": lambda: _pointwise((9, 40), lambda x, i: x[i[0] * -1 + 8, i[1]]),
    "one row for all": lambda: _pointwise((9, 40), lambda x, i: x[0, i[1]]),
    "one column for all": lambda: _pointwise((9, 40), lambda x, i: x[i[0], 3]),
    "positions": lambda: _pointwise((9, 40), lambda x, i: Position(i[0] * 40 + i[1])),
    "padded": lambda: _pointwise((9, 40), _padded),
    "padded bytes": lambda: _pointwise((9, 40), _padded, DType.I8),
    "inside of a window": lambda: _pointwise((9, 40), _window),
    "outside of a corner": lambda: _pointwise((9, 40), _outside),
    "bytes to floats": lambda: _pointwise((9, 40), lambda x, i: Cast(F32, x[i]) * 0.5, DType.U8),
    "bools": lambda: _pointwise((9, 40), lambda x, i: Compare("lt", x[i], Number(0.5))),
    "halves": lambda: _pointwise((9, 40), lambda x, i: Unary("tanh", x[i]), DType.BF16),
    "largest of rows": lambda: _folded("max", (20, 130), (1,)),
    "smallest of all": lambda: _folded("min", (20, 130), (0, 1), DType.I32),
    "product of columns": lambda: _folded("prod", (20, 130), (0,), DType.F64),
    "sum of planes": lambda: _folded("sum", (4, 30, 50), (0, 2)),
    "sum of the middle": lambda: _folded("sum", (4, 30, 50), (1,)),
    "sum of bytes": lambda: _folded("sum", (4, 70), (1,), DType.U8),
    "sum of nothing": lambda: _folded("sum", (4, 0), (1,)),
    "long sum": lambda: _folded("sum", (100_000,), (0,)),
    "short sums": lambda: _folded("sum", (5000, 3), (1,)),
    "matrix product": lambda: _product(20, 50, 30),
    "sliding sums": lambda: _sliding(100, 5),
    "joined": lambda: _joined(40, 25),
}


NESTS: dict[str, Callable[[], Nest]] = {
    "split": lambda: split(_chained(), "i", 5),
    "split in two": lambda: split(split(_chained(), "j", 16), "i", 4),
    "vectorized": lambda: vectorize(_chained(), "j"),
    "vectors of a rest": lambda: vectorize(split(_chained(), "j", 24), "j.inner"),
    "fused": lambda: fuse(_pairs(), "i0", "i1"),
    "fused and vectorized": lambda: vectorize(fuse(_pairs(), "i0", "i1"), "i0*i1"),
    "unrolled": lambda: unroll(split(_pairs(), "i1", 4), "i1.inner"),
    "tiled": lambda: tile(_pairs(), "i0", "i1", 4, 8),
    "turned": lambda: reorder(_pairs(), ["i1", "i0"]),
    "in blocks": lambda: parallel(_pairs(), "i0", 5),
    "in blocks of two loops": lambda: parallel(parallel(_pairs(), "i0", 2), "i1"),
    "inlined": lambda: inline(_chained(), "t"),
    "merged": lambda: merge(_chained(), "i", "i.y"),
    "merged twice": lambda: merge(merge(_chained(), "i", "i.y"), "j", "j.y"),
    "computed at": lambda: compute_at(_chained(), "t", "i.y"),
    "computed inside": lambda: compute_at(_chained(), "t", "j.y"),
    "sums side by side": lambda: vectorize(_sums(), "j"),
    "a sum in lanes": lambda: vectorize(_total(), "i0", reassociate=True),
    "several sums": lambda: split_accumulator(split(_total(), "i0", 8), "i0.inner", reassociate=True),
    "a product of columns": lambda: vectorize(_matrix(), "j"),
    "a product in blocks": lambda: parallel(vectorize(_matrix(), "j"), "i"),
}


def _rows_of(names: tuple[str, ...], nest: Nest) -> Nest:
    assert [node.name for node in walk(nest.body) if isinstance(node, Loop)] == list(names)
    return nest


def _chained() -> Nest:
    return _rows_of(("i", "j", "i.y", "j.y"), nest_of(chain(12, 40)))


def _sums() -> Nest:
    return _rows_of(("j", "k"), nest_of(column_sums(30, 50)))


def _matrix() -> Nest:
    return _rows_of(("i", "j", "k"), nest_of(_product(12, 40, 16)))


def _pairs() -> Nest:
    return nest_of(_pointwise((12, 20), lambda x, i: x[i] * 2.0))


def _total() -> Nest:
    return nest_of(_folded("sum", (50,), (0,)))

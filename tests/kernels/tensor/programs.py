"""Programs that several tests use: softmax, layer normalisation, sums, transposes, chains."""

from __future__ import annotations

from kernels.dtype import DType
from kernels.tensor.expression import Buffer, Reduce, Unary, Variable
from kernels.tensor.program import Program, Stage


def softmax(rows: int, columns: int, dtype: DType = DType.F32) -> Program:
    i, j, k = Variable("i", rows), Variable("j", columns), Variable("k", columns)
    x, y = Buffer("x", dtype, (rows, columns)), Buffer("y", dtype, (rows, columns))
    m, e, s = Buffer("m", dtype, (rows,)), Buffer("e", dtype, (rows, columns)), Buffer("s", dtype, (rows,))
    stages = (
        Stage(m, (i,), Reduce("max", (k,), x[i, k])),
        Stage(e, (i, j), Unary("exp", x[i, j] - m[i])),
        Stage(s, (i,), Reduce("sum", (k,), e[i, k])),
        Stage(y, (i, j), e[i, j] / s[i]),
    )
    return Program("softmax", (x,), (y,), stages)


def layer_norm(rows: int, columns: int) -> Program:
    i, j, k = Variable("i", rows), Variable("j", columns), Variable("k", columns)
    x, y = Buffer("x", DType.F32, (rows, columns)), Buffer("y", DType.F32, (rows, columns))
    scale, bias = Buffer("scale", DType.F32, (columns,)), Buffer("bias", DType.F32, (columns,))
    total, squares = Buffer("total", DType.F32, (rows,)), Buffer("squares", DType.F32, (rows,))
    mean, inverse = Buffer("mean", DType.F32, (rows,)), Buffer("inverse", DType.F32, (rows,))
    centred = x[i, k] - mean[i]
    stages = (
        Stage(total, (i,), Reduce("sum", (k,), x[i, k])),
        Stage(mean, (i,), total[i] * (1.0 / columns)),
        Stage(squares, (i,), Reduce("sum", (k,), centred * centred)),
        Stage(inverse, (i,), Unary("rsqrt", squares[i] * (1.0 / columns) + 1e-5)),
        Stage(y, (i, j), (x[i, j] - mean[i]) * inverse[i] * scale[j] + bias[j]),
    )
    return Program("layer_norm", (x, scale, bias), (y,), stages)


def column_sums(rows: int, columns: int) -> Program:
    j, k = Variable("j", columns), Variable("k", rows)
    x, y = Buffer("x", DType.F32, (rows, columns)), Buffer("y", DType.F32, (columns,))
    return Program("column_sums", (x,), (y,), (Stage(y, (j,), Reduce("sum", (k,), x[k, j])),))


def transpose(rows: int, columns: int, dtype: DType = DType.F32) -> Program:
    i, j = Variable("i", columns), Variable("j", rows)
    x, y = Buffer("x", dtype, (rows, columns)), Buffer("y", dtype, (columns, rows))
    return Program("transpose", (x,), (y,), (Stage(y, (i, j), x[j, i]),))


def chain(rows: int, columns: int) -> Program:
    """t = x * scale[j] + bias[j]; y = abs(t) + x."""
    i, j = Variable("i", rows), Variable("j", columns)
    x, y, t = (Buffer(name, DType.F32, (rows, columns)) for name in ("x", "y", "t"))
    scale, bias = Buffer("scale", DType.F32, (columns,)), Buffer("bias", DType.F32, (columns,))
    stages = (
        Stage(t, (i, j), x[i, j] * scale[j] + bias[j]),
        Stage(y, (i, j), Unary("abs", t[i, j]) + x[i, j]),
    )
    return Program("chain", (x, scale, bias), (y,), stages)

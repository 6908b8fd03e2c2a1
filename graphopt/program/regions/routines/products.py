"""Matrix products of f64 and integers, sums of products by an equation, and determinants.

What is of f32 or of 16-bit floats has templates, which are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graphopt.model.equation import read_equation
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held, pieces
from graphopt.program.regions.routines.sums import summed
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, dot, eq, gt, integer, minimum, ne, number, pick, quotient
from kernels.tensor.expression import Expression, Unary, dense_strides

ROWS, COLUMNS = 4, 16  # of a tile of sums
STRETCH = 16  # tiles of rows that share a copy of the columns


def matmul(node: Defined) -> None:
    """Products of every pair of matrices that broadcasting gives; a vector is one row or one column."""
    left, right = node.shape(0), node.shape(1)
    left = left if len(left) > 1 else (1, *left)
    right = right if len(right) > 1 else (*right, 1)
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise node.refuse(f"has operands of {list(left)} and {list(right)}, which do not fit one another") from None
    with node.stage() as w:
        a, b, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        plain = number(1, held(a.dtype))
        _products(node, w, a, b, y, batch, (left[-2], left[-1], right[-1]), (left[:-2], right[:-2]), plain)


def _products(
    node: Defined,
    w: Stage,
    a: Grid,
    b: Grid,
    y: Grid,
    batch: Sequence[int],
    sizes: tuple[int, int, int],
    leads: tuple[Sequence[int], Sequence[int]],
    scale: Expression,
) -> None:
    """Tiles of sums; the columns of a tile are copied together, since their rows may lie on few lines of the cache."""
    rows, depth, columns = sizes
    kind = held(y.dtype)
    sums, panel = w.scratch(kind, (ROWS, COLUMNS)), w.scratch(kind, (max(depth, 1), COLUMNS))
    with pieces(node, w, batch, (columns, COLUMNS), (rows, ROWS * STRETCH)) as (lead, (block, chunk)):
        starts = [
            w.local(DType.I64, dot(_shown(lead, dims), dense_strides((*dims, *matrix))[: len(dims)]))
            for dims, matrix in zip((*leads, batch), ((rows, depth), (depth, columns), (rows, columns)), strict=True)
        ]
        column = w.local(DType.I64, block * COLUMNS)
        wide = w.local(DType.I64, minimum(columns - column, COLUMNS))
        with w.loop(depth) as k:
            with w.loop(wide) as c:
                panel[k, c] = as_type(b.at(starts[1] + k * columns + column + c), kind)
            with w.loop(COLUMNS, wide) as c:
                panel[k, c] = number(0, kind)
        tiles = quotient(integer(rows + ROWS - 1), ROWS)
        with w.loop(minimum(chunk * STRETCH + STRETCH, tiles), chunk * STRETCH) as tile:
            with w.loops(ROWS, COLUMNS) as (r, c):
                sums[r, c] = number(0, kind)
            lines = [w.local(DType.I64, minimum(tile * ROWS + one, rows - 1)) for one in range(ROWS)]
            with w.loop(depth) as k:
                for number_of, line in enumerate(lines):
                    one = w.local(kind, as_type(a.at(starts[0] + line * depth + k), kind))
                    with w.loop(COLUMNS) as c:
                        sums[number_of, c] = sums[number_of, c] + one * panel[k, c]
            with w.loops(minimum(rows - tile * ROWS, ROWS), wide) as (r, c):
                place = starts[2] + (tile * ROWS + r) * columns + column + c
                y.put(place, as_type(sums[r, c] * scale, y.dtype))


def _shown(at: Sequence[Expression], dims: Sequence[int]) -> list[Expression]:
    """The indices of an operand's leading dims; those of one element are broadcast."""
    behind = at[len(at) - len(dims) :]
    return [integer(0) if size == 1 else one for one, size in zip(behind, dims, strict=True)]


def gemm(node: Defined) -> None:
    """alpha A B + beta C, of matrices that may lie transposed."""
    turned = [bool(node.integer(name, 0)) for name in ("transA", "transB")]
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    with node.stage() as w:
        a, b, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        added = w.reads(node.input(2)) if node.has(2) else None
        depth, kind = a.shape[0 if turned[0] else 1], held(a.dtype)
        with w.shared(*y.shape) as (row, column):

            def term(k: Expression) -> Expression:
                left = a[k, row] if turned[0] else a[row, k]
                right = b[column, k] if turned[1] else b[k, column]
                return as_type(left, kind) * as_type(right, kind)

            total = summed(w, kind, depth, term)
            real = kind if kind.is_float else DType.F64
            if alpha != 1.0 or (added is not None and beta != 1.0):
                total = as_type(total, real) * alpha
            if added is not None:
                other = as_type(added[_shown((row, column), added.shape)], total.dtype)
                total = total + (other if total.dtype is kind and beta == 1.0 else other * beta)
            y[row, column] = as_type(total, y.dtype)


def einsum(node: Defined) -> None:
    """Each element of the result is the sum, over all labels it lacks, of the product of the operands' elements."""
    shapes = [node.shape(at) for at in range(len(node.node.inputs))]
    terms, result, sizes = read_equation(node.text("equation", ""), shapes)
    free, bound = list(dict.fromkeys(result)), [label for label in sizes if label not in result]
    kind = held(node.output_dtype(0))
    with node.stage() as w:
        operands = [w.reads(node.input(at)) for at in range(len(terms))]
        y = w.writes(node.output(0))
        with w.shared(*(sizes[label] for label in free)) as chosen:
            at: dict[str, Expression] = dict(zip(free, chosen, strict=True))
            bases = [_place(w, one.shape, term, at) for one, term in zip(operands, terms, strict=True)]
            total = w.local(kind, number(0, kind))
            with w.loops(*(sizes[label] for label in bound)) as inner:
                found: Expression | None = None
                for one, term, base in zip(operands, terms, bases, strict=True):
                    place = base + _flat(one.shape, term, dict(zip(bound, inner, strict=True)))
                    value = as_type(one.at(place), kind)
                    found = value if found is None else found * value
                assert found is not None, "an equation has an operand"
                w.set(total, total + found)
            y[[at[label] for label in result]] = as_type(total, y.dtype)


def _place(w: Stage, shape: Sequence[int], term: Sequence[str], at: dict[str, Expression]) -> Expression:
    return w.local(DType.I64, _flat(shape, term, at))


def _flat(shape: Sequence[int], term: Sequence[str], at: dict[str, Expression]) -> Expression:
    """The place of an element by the indices of labels, of those that are given; dims of one element are broadcast."""
    steps = dense_strides(tuple(shape))
    known = [
        (at[label], step) for label, size, step in zip(term, shape, steps, strict=True) if label in at and size > 1
    ]
    return dot([one for one, _ in known], [step for _, step in known])


def determinant(node: Defined) -> None:
    """By elimination with the largest element of each column as pivot."""
    *batch, size, _ = node.shape(0)
    kind = held(node.dtype(0))
    with node.stage() as w:
        x, y, m = w.reads(node.input(0)), w.writes(node.output(0)), w.scratch(kind, (size, size))
        with w.shared(prod(batch)) as (matrix,):
            with w.loop(size * size) as at:
                m.put(at, as_type(x.at(matrix * (size * size) + at), kind))
            found = w.local(kind, number(1, kind))
            with w.loop(size) as k:
                pivot = w.local(DType.I64, k)
                with w.loop(size, k + 1) as row:
                    w.set(pivot, pick(gt(Unary("abs", m[row, k]), Unary("abs", m[pivot, k])), row, pivot))
                with w.when(ne(pivot, k)):
                    w.set(found, -found)
                    with w.loop(size) as column:
                        kept = w.local(kind, m[k, column])
                        m[k, column] = m[pivot, column]
                        m[pivot, column] = kept
                head = w.local(kind, m[k, k])
                w.set(found, found * head)
                with w.loop(size, k + 1) as row:
                    factor = w.local(kind, pick(eq(head, 0), number(0, kind), m[row, k] / head))
                    with w.loop(size, k) as column:
                        m[row, column] = m[row, column] - factor * m[k, column]
            y.put(matrix, as_type(found, y.dtype))


DEFINITIONS: dict[str, Definition] = {"MatMul": matmul, "Gemm": gemm, "Einsum": einsum, "Det": determinant}

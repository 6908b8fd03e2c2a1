"""Programs and schedules for property tests: drawn by hypothesis, small, and exact in every order of computation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeGuard

import numpy as np
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.tensor import scalars
from kernels.tensor.expression import Binary, Buffer, Compare, Number, Position, Reduce, Select, Variable
from kernels.tensor.nest import Allocate, Loop, Nest, Node, loop_names, read, walk
from kernels.tensor.program import Program, Stage
from kernels.tensor.schedule import (
    IllegalSchedule,
    fuse,
    merge,
    parallel,
    reorder,
    split,
    tile,
    unroll,
    vectorize,
)
from kernels.tensor.staging import compute_at, inline, split_accumulator
from kernels.tensor.storage import Array


def whole_numbers(program: Program, seed: int = 0) -> dict[str, Array]:
    """Inputs of whole numbers below 5 in magnitude: every sum and product is exact, so that order cannot matter."""
    random = np.random.default_rng(seed)
    found = {}
    for buffer in program.inputs:
        values = random.integers(-4, 5, buffer.shape)
        kind = scalars.compute_type(buffer.dtype)
        found[buffer.name] = np.asarray(scalars.narrow(values.astype(kind), buffer.dtype))
    return found


@st.composite
def programs(draw: st.DrawFn, dtypes: Sequence[DType], widest: int = 9) -> Program:
    """Up to four stages over two axes: elementwise, padded, transposed and shifted reads, row and column reductions."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, widest))
    dtype = draw(st.sampled_from(dtypes))
    pitch = columns + draw(st.integers(0, 3))
    x = Buffer("x", dtype, (rows, columns), (pitch, 1), draw(st.integers(0, 2)))
    full = [x]
    lines: list[Buffer] = []
    stages: list[Stage] = []
    for number in range(draw(st.integers(1, 4))):
        i, j, k = Variable("i", rows), Variable("j", columns), Variable("k", columns)
        source = draw(st.sampled_from(full))
        kind = draw(st.sampled_from(("point", "point", "row", "pad", "backwards")))
        if kind == "row":
            made = Buffer(f"t{number}", dtype, (rows,))
            stages.append(Stage(made, (i,), Reduce(draw(st.sampled_from(("sum", "max", "min"))), (k,), source[i, k])))
            lines.append(made)
            continue
        made = Buffer(f"t{number}", dtype, (rows, columns))
        value = source[i, j] * Number(2, dtype) + draw(st.sampled_from(full))[i, j]
        if kind == "pad":
            first = Compare("ge", Position(j + 0), Number(1, DType.I64))
            value = Binary("add", Select(first, source[i, j - 1], Number(3, dtype)), value)
        if kind == "backwards":
            value = value - source[i * -1 + (rows - 1), j]
        if lines:
            value = value - draw(st.sampled_from(lines))[i]
        stages.append(Stage(made, (i, j), value))
        full.append(made)
    outputs = (stages[-1].buffer, *(s.buffer for s in stages[:-1] if draw(st.booleans())))
    return Program("drawn", (x,), outputs, tuple(stages))


def _one_step(draw: st.DrawFn, nest: Nest, reassociate: bool) -> Nest:
    """One primitive on loops that it is likely to accept."""
    loops = sorted(loop_names(nest.body))
    temporaries = [node.buffer.name for node in nest.body if isinstance(node, Allocate)]
    nested = [(node.name, node.body[0].name) for node in walk(nest.body) if _holds_one_loop(node)]
    bodies = [nest.body, *(node.body for node in walk(nest.body) if isinstance(node, Loop))]
    followed = [
        (a.name, b.name) for body in bodies for a, b in pairwise([node for node in body if isinstance(node, Loop)])
    ]
    outermost = [node.name for node in nest.body if isinstance(node, Loop)]
    steps = ["split", "vectorize", "unroll", "parallel", "accumulator"]
    steps += ["reorder", "tile", "fuse"] * bool(nested) + ["merge"] * bool(followed)
    steps += ["at", "inline"] * bool(temporaries)
    one = draw(st.sampled_from(loops))
    match draw(st.sampled_from(steps)):
        case "split":
            return split(nest, one, draw(st.integers(1, 4)))
        case "reorder":
            return reorder(nest, draw(st.sampled_from(nested))[::-1], reassociate=reassociate)
        case "tile":
            return tile(nest, *draw(st.sampled_from(nested)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        case "fuse":
            return fuse(nest, *draw(st.sampled_from(nested)))
        case "merge":
            return merge(nest, *draw(st.sampled_from(followed)))
        case "vectorize":
            return vectorize(nest, one, reassociate=reassociate)
        case "unroll":
            return unroll(nest, one)
        case "parallel":
            return parallel(nest, draw(st.sampled_from(outermost)), draw(st.integers(1, 4)))
        case "at":
            name = draw(st.sampled_from(temporaries))
            around = [node.name for node in walk(nest.body) if isinstance(node, Loop) and name in read(node.body)]
            return compute_at(nest, name, draw(st.sampled_from(around or loops)))
        case "inline":
            return inline(nest, draw(st.sampled_from(temporaries)))
    return split_accumulator(nest, one, reassociate=reassociate)


def _holds_one_loop(node: Node) -> TypeGuard[Loop]:
    return isinstance(node, Loop) and len(node.body) == 1 and isinstance(node.body[0], Loop)


@st.composite
def schedules(draw: st.DrawFn, nest: Nest, longest: int = 12, *, reassociate: bool = True) -> Nest:
    """The nest after some primitives, of which the refused ones are left out."""
    for _ in range(draw(st.integers(1, longest))):
        try:
            nest = _one_step(draw, nest, reassociate)
        except IllegalSchedule:
            continue
    return nest

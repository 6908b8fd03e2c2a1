"""Schedule primitives: shown before and after, refused with a reason, and never changing a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.tensor.expression import Buffer, Compare, Index, Number, Position, Reduce, Select, Variable, index
from kernels.tensor.interpret import interpret
from kernels.tensor.interpret_nest import interpret_nest
from kernels.tensor.nest import Loop, Nest, Store, nest_of
from kernels.tensor.program import Program, Stage, stage
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
from kernels.tensor.show import show_nest, show_program
from kernels.tensor.staging import compute_at, inline, split_accumulator
from tests.kernels.tensor.drawn import programs, schedules, whole_numbers
from tests.kernels.tensor.golden_text import assert_golden
from tests.kernels.tensor.programs import chain, column_sums, layer_norm, softmax, transpose


def _same_exactly(nest: Nest) -> None:
    inputs = whole_numbers(nest.program)
    expected, found = interpret(nest.program, inputs), interpret_nest(nest, inputs)
    for name, array in expected.items():
        assert (array == found[name]).all(), f"{name} differs after\n{show_nest(nest)}"


def _sums(rows: int, columns: int) -> Program:
    i, k = Variable("i", rows), Variable("k", columns)
    x, y = Buffer("x", DType.F32, (rows, columns)), Buffer("y", DType.F32, (rows,))
    return Program("sums", (x,), (y,), (Stage(y, (i,), Reduce("sum", (k,), x[i, k])),))


def test_softmax_step_by_step() -> None:
    nest = nest_of(softmax(3, 21))
    texts = [show_program(nest.program), show_nest(nest)]
    for step in (
        lambda n: compute_at(n, "s", "i.y"),
        lambda n: compute_at(n, "e", "i.y"),
        lambda n: compute_at(n, "m", "i.y"),
        lambda n: split(n, "k", 8),
        lambda n: split_accumulator(n, "k.inner", reassociate=True),
        lambda n: vectorize(n, "k.inner"),
        lambda n: vectorize(n, "k.tail", reassociate=True),
        lambda n: parallel(n, "i.y"),
    ):
        nest = step(nest)
        texts.append(show_nest(nest))
    assert_golden("softmax", "\n".join(texts))
    x = np.random.default_rng(0).normal(size=(3, 21)).astype(np.float32)
    # Only the order of 21 additions differs: 21 roundings of 2^-24 at most.
    np.testing.assert_allclose(
        interpret_nest(nest, {"x": x})["y"], interpret(nest.program, {"x": x})["y"], rtol=21 * 2**-24
    )


def test_layer_norm_in_one_loop() -> None:
    nest = nest_of(layer_norm(4, 12))
    nest = inline(nest, "inverse")
    for name in ("squares", "mean", "total"):
        nest = compute_at(nest, name, "i.y")
    assert_golden("layer_norm", show_nest(nest))
    inputs = {b.name: np.random.default_rng(1).normal(size=b.shape).astype(np.float32) for b in nest.program.inputs}
    assert (interpret_nest(nest, inputs)["y"] == interpret(nest.program, inputs)["y"]).all()


def test_transpose_in_tiles() -> None:
    nest = tile(nest_of(transpose(7, 10)), "i", "j", 4, 3)
    assert_golden("transpose", show_nest(nest))
    _same_exactly(nest)


def test_elementwise_loops_become_one() -> None:
    nest = fuse(inline(nest_of(_add(4, 6)), "t"), "i.y", "j.y")
    assert_golden("fused", show_nest(nest))
    _same_exactly(nest)


def _add(rows: int, columns: int) -> Program:
    i, j = Variable("i", rows), Variable("j", columns)
    x, t, y = (Buffer(name, DType.F32, (rows, columns)) for name in "xty")
    return Program("add", (x,), (y,), (Stage(t, (i, j), x[i, j] * 2), Stage(y, (i, j), t[i, j] + x[i, j])))


def test_column_sums_vectorized_outside_the_reduction() -> None:
    nest = parallel(vectorize(split(nest_of(column_sums(5, 20)), "j", 8), "j.inner"), "j.outer")
    nest = vectorize(nest, "j.tail")
    assert_golden("column_sums", show_nest(nest))
    _same_exactly(nest)


def test_merged_loops_compute_both() -> None:
    i, j = Variable("i", 4), Variable("j", 4)
    x, y, z = (Buffer(name, DType.F32, (4,)) for name in "xyz")
    program = Program("two", (x,), (y, z), (Stage(y, (i,), x[i] + 1), Stage(z, (j,), y[j] * 2)))
    nest = merge(nest_of(program), "i", "j")
    assert "for j" not in show_nest(nest)
    _same_exactly(nest)
    with pytest.raises(IllegalSchedule, match="that another iteration of the other touches"):
        reversed_ = Program("two", (x,), (y, z), (Stage(y, (i,), x[i] + 1), Stage(z, (j,), y[j * -1 + 3] * 2)))
        merge(nest_of(reversed_), "i", "j")


def _both(size: int) -> Program:
    """y = x + 1 and z = 2 x."""
    i, j = Variable("i", size), Variable("j", size)
    x, y, z = (Buffer(name, DType.F32, (size,)) for name in "xyz")
    return Program("both", (x,), (y, z), (Stage(y, (i,), x[i] + 1), Stage(z, (j,), x[j] * 2)))


def _guarded(size: int) -> Program:
    """t = 2 x; y[j] = t[j + 1], and 0 at the end."""
    i, j = Variable("i", size), Variable("j", size)
    x, t, y = (Buffer(name, DType.F32, (size,)) for name in "xty")
    inside = Compare("lt", Position(index(j)), Number(size - 1, DType.I64))
    return Program(
        "guarded", (x,), (y,), (Stage(t, (i,), x[i] * 2), Stage(y, (j,), Select(inside, t[j + 1], Number(0.0))))
    )


def _of_one() -> Program:
    """t[0] = 2 x[u], where u is 0 only; y = t."""
    u, j = Variable("u", 1), Variable("j", 1)
    x, t, y = (Buffer(name, DType.F32, (1,)) for name in "xty")
    return Program("one", (x,), (y,), (stage(t, (u,), x[u] * 2, Index(())), Stage(y, (j,), t[j] + 1)))


Step = Callable[[Nest], Nest]


@pytest.mark.parametrize(
    ("program", "step", "reason"),
    [
        (_sums(4, 8), lambda n: split(n, "z", 2), "there is no loop 'z'; the nest has i, k"),
        (
            _sums(4, 8),
            lambda n: split(n, "k", 9),
            "loop 'k' of 8 iterations is not split by 9: the factor is from 1 to 8",
        ),
        (
            _sums(4, 8),
            lambda n: parallel(n, "k"),
            "loop 'k' stands inside loop 'i', which is not parallel around it alone",
        ),
        (
            _sums(4, 8),
            lambda n: vectorize(n, "k"),
            "iterations of 'k' touch the same elements of 'y.acc': allow the sum",
        ),
        (_sums(4, 8), lambda n: reorder(n, ("k", "i")), "loop 'i' holds more than the next of k, i"),
        (
            _sums(4, 8),
            lambda n: reorder(split(n, "k", 4), ("k.inner", "k.outer")),
            "'y.acc' is touched by several iterations of k.outer, k.inner, whose order would change: allow",
        ),
        (_sums(4, 8), lambda n: split_accumulator(n, "k"), "'y.acc' would be rounded otherwise"),
        (_sums(4, 100), lambda n: unroll(n, "k"), "loop 'k' has 100 iterations, more than 64: split it first"),
        (transpose(4, 8), lambda n: fuse(n, "i", "j"), "loops 'i' and 'j' are not fused: 'x' steps by 1 and 8"),
        (softmax(4, 8), lambda n: inline(n, "m"), "'m' is not computed by one expression"),
        (softmax(4, 8), lambda n: inline(n, "y"), "'y' is no temporary of the whole nest"),
        (softmax(4, 8), lambda n: compute_at(n, "e", "i.y"), "'e' is read outside of loop 'i.y'"),
        (softmax(4, 8), lambda n: compute_at(n, "s", "i.e"), "'s' is read not in loop 'i.e'"),
        (softmax(4, 8), lambda n: parallel(n, "i.y"), "blocks of 'i.y' would share the temporary 'e'"),
        (chain(4, 8), lambda n: inline(split(n, "i", 2), "t"), "'t' is not written at plain loop variables"),
        (chain(4, 8), lambda n: split(vectorize(n, "j"), "j", 2), "split: loop 'j' is vectorized already"),
        (_sums(4, 8), lambda n: parallel(n, "i", 0), "a block of 0 iterations: at least 1 is needed"),
        (_sums(4, 8), lambda n: reorder(n, ("i", "i")), "reorder: a loop is named twice"),
        (softmax(4, 8), lambda n: reorder(n, ("i.e", "i.y")), "the loops i.e, i.y are not nested in one another"),
        (_both(4), lambda n: merge(n, "j", "i"), "loop 'i' does not stand after loop 'j' in the same body"),
        (
            column_sums(4, 8),
            lambda n: split_accumulator(vectorize(n, "j"), "k", reassociate=True),
            "split_accumulator: loop 'k' stands inside the vectorized loop 'j'",
        ),
        (
            chain(4, 8),
            lambda n: compute_at(fuse(n, "i.y", "j.y"), "t", "i.y*j.y"),
            "compute_at: 't' is accessed through its flat positions: do it before fuse",
        ),
        (chain(4, 8), lambda n: inline(fuse(n, "i.y", "j.y"), "t"), "inline: 't' is read through its flat positions"),
        (_guarded(4), lambda n: compute_at(n, "t", "j"), "loop 'j' reads outside of 't' under a condition"),
        (_of_one(), lambda n: inline(n, "t"), "inline: 't' depends on loops that its indices do not have"),
    ],
)
def test_illegal_uses_say_why(program: Program, step: Step, reason: str) -> None:
    with pytest.raises(IllegalSchedule) as refusal:
        step(nest_of(program))
    assert reason in str(refusal.value)


def test_blocks_do_not_wait_for_each_other() -> None:
    i, j = Variable("i", 4), Variable("j", 4)
    x, y, z = (Buffer(name, DType.F32, (4,)) for name in "xyz")
    program = Program("two", (x,), (y, z), (Stage(y, (i,), x[i] + 1), Stage(z, (j,), y[j] * 2)))
    with pytest.raises(IllegalSchedule, match="blocks do not wait for each other"):
        parallel(nest_of(program), "i")


def test_the_interpreter_notices_a_loop_that_depends_on_its_order() -> None:
    """The oracle says no: a running sum, marked parallel by hand, is found out."""
    i = Variable("i", 4)
    x, y = Buffer("x", DType.F32, (4,)), Buffer("y", DType.F32, (4,))
    program = Program("copy", (x,), (y,), (Stage(y, (i,), x[i] + 0),))
    last = Variable("l", 4)
    store = Store(y, (Variable("i", 4) * 0,), x[last])
    wrong = Nest(program, (*nest_of(program).body, Loop(last, (store,), "parallel")))
    right = replace(wrong, body=(*wrong.body[:1], Loop(last, (store,))))
    values = {"x": np.arange(4, dtype=np.float32)}
    assert interpret_nest(right, values)["y"][0] == 3
    assert interpret_nest(wrong, values)["y"][0] == 0
    with pytest.raises(IllegalSchedule, match=r"iterations of 'l' touch the same elements of 'y'$"):
        parallel(right, "l")


def test_stages_of_one_output_have_loops_of_their_own() -> None:
    k = Variable("k", 2)
    x, y = Buffer("x", DType.F32, (8,)), Buffer("y", DType.F32, (8,))
    program = Program("four", (x,), (y,), tuple(stage(y, (k,), x[k * 4 + n] * (n + 1), k * 4 + n) for n in range(4)))
    nest = nest_of(program)
    assert [node.name for node in nest.body if isinstance(node, Loop)] == ["k", "k.y", "k.y2", "k.y3"]
    _same_exactly(nest)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_sequence_of_legal_primitives_computes_the_same(data: st.DataObject) -> None:
    program = data.draw(programs((DType.F32, DType.I32)))
    _same_exactly(data.draw(schedules(nest_of(program))))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_without_leave_to_reassociate_every_rounding_stays(data: st.DataObject) -> None:
    """Numbers whose sums round: the results are the same to the last bit, or a primitive has changed an order."""
    program = data.draw(programs((DType.F32,)))
    nest = data.draw(schedules(nest_of(program), reassociate=False))
    random = np.random.default_rng(0)
    inputs = {
        b.name: (random.normal(size=b.shape) * 10.0 ** random.integers(-4, 5, b.shape)).astype(np.float32)
        for b in program.inputs
    }
    expected, found = interpret(program, inputs), interpret_nest(nest, inputs)
    for name, array in expected.items():
        assert (array == found[name]).all(), f"{name} differs after\n{show_nest(nest)}"


def test_a_stencil_keeps_what_an_iteration_needs() -> None:
    i, j, k = Variable("i", 9), Variable("j", 4), Variable("k", 3)
    x, t = Buffer("x", DType.F32, (9,)), Buffer("t", DType.F32, (9,))
    y, z = Buffer("y", DType.F32, (4, 3)), Buffer("z", DType.F32, (4, 3))
    squares = Stage(t, (i,), x[i] * x[i])
    sliding = Program("sliding", (x,), (y,), (squares, Stage(y, (j, k), t[j * 2 + k] + t[j * 2])))
    nest = compute_at(nest_of(sliding), "t", "j")
    assert "allocate t: f32[3]" in show_nest(nest) and "t[i] = x[i + 2*j] * x[i + 2*j]" in show_nest(nest)
    _same_exactly(nest)
    fixed = Program("fixed", (x,), (z,), (squares, Stage(z, (j, k), t[k + 5] + x[j])))
    nest = compute_at(nest_of(fixed), "t", "j")
    assert "t[i] = x[i + 5] * x[i + 5]" in show_nest(nest)
    _same_exactly(nest)

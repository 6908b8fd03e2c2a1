"""Schedules without search: right for any program, and of the form that makes them fast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import Target, aarch64, host, x86_64_v3, x86_64_v4
from kernels.tensor import scalars, storage
from kernels.tensor.default import scheduled
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
    gelu,
)
from kernels.tensor.interpret import interpret
from kernels.tensor.interpret_nest import interpret_nest
from kernels.tensor.lower import lower
from kernels.tensor.program import Program, Stage, stage
from kernels.tensor.show import show_nest
from tests.kernels.targets import HERE
from tests.kernels.tensor.drawn import programs, whole_numbers
from tests.kernels.tensor.golden_text import assert_golden
from tests.kernels.tensor.programs import chain, column_sums, layer_norm, softmax, transpose
from tests.kernels.tensor.test_lower import DTYPES, run

# What this machine runs: its own instruction set, and the lower level of it with 16 registers of 32 bytes.


def _same_exactly(program: Program, target: Target = HERE[0]) -> None:
    inputs = whole_numbers(program)
    nest = scheduled(program, target)
    found = run(lower(nest, target), program, inputs)
    for name, array in interpret(program, inputs).items():
        np.testing.assert_array_equal(found[name], array, err_msg=show_nest(nest))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_program(data: st.DataObject) -> None:
    _same_exactly(data.draw(programs(DTYPES, 70)), data.draw(st.sampled_from(HERE)))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.sampled_from((1, 2, 3, 5, 16, 17, 33)), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(DTYPES),
    st.sampled_from(HERE),
)
def test_any_transposition(shape: list[int], random: np.random.Generator, dtype: DType, target: Target) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[arg-type]
    axes = tuple(Variable(f"i{dim}", size) for dim, size in enumerate(shape))
    x, y = Buffer("x", dtype, tuple(shape)), Buffer("y", dtype, tuple(shape[dim] for dim in order))
    _same_exactly(Program("turn", (x,), (y,), (Stage(y, tuple(axes[dim] for dim in order), x[axes]),)), target)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.sampled_from((1, 2, 5, 16, 33, 70)), min_size=1, max_size=3),
    st.sampled_from(("sum", "max", "min", "prod")),
    st.sampled_from(DTYPES),
    st.data(),
)
def test_any_reduction(shape: list[int], op: str, dtype: DType, data: st.DataObject) -> None:
    axes = tuple(Variable(f"i{dim}", size) for dim, size in enumerate(shape))
    reduced = data.draw(st.sets(st.sampled_from(axes), min_size=1))
    kept = tuple(axis for axis in axes if axis not in reduced)
    x, y = Buffer("x", dtype, tuple(shape)), Buffer("y", dtype, tuple(axis.extent for axis in kept))
    over = tuple(axis for axis in axes if axis in reduced)
    # A product of many numbers is not exact in floats: of ones and minus ones it is.
    value = x[axes] if op != "prod" else Cast(dtype, Compare("gt", x[axes], Number(0, dtype))) * Number(2, dtype) - 1
    _same_exactly(
        Program("fold", (x,), (y,), (Stage(y, kept, Reduce(op, over, value)),)), data.draw(st.sampled_from(HERE))
    )  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from((1, 2, 7, 16, 48, 128)), min_size=1, max_size=3), st.sampled_from(DTYPES), st.data())
def test_any_normalisation(shape: list[int], dtype: DType, data: st.DataObject) -> None:
    """Two reductions over any axes, the second of what the first gives, and a value for every element."""
    axes = tuple(Variable(f"i{dim}", size) for dim, size in enumerate(shape))
    reduced = data.draw(st.sets(st.sampled_from(axes), min_size=1))
    kept, over = (tuple(axis for axis in axes if (axis in reduced) == inside) for inside in (False, True))
    x, y = Buffer("x", dtype, tuple(shape)), Buffer("y", dtype, tuple(shape))
    low, e = Buffer("low", dtype, tuple(axis.extent for axis in kept)), Buffer("e", dtype, tuple(shape))
    high = Buffer("high", dtype, low.shape)
    stages = (
        Stage(low, kept, Reduce("min", over, x[axes])),
        Stage(e, axes, (x[axes] - low[kept]) * x[axes] + x[axes] * 2 - low[kept]),
        Stage(high, kept, Reduce("max", over, e[axes])),
        Stage(y, axes, e[axes] * 2 - high[kept]),
    )
    _same_exactly(Program("normal", (x,), (y,), stages), data.draw(st.sampled_from(HERE)))


@pytest.mark.parametrize("target", [x86_64_v3(), x86_64_v4(), aarch64()], ids=lambda target: target.cpu)
@pytest.mark.parametrize("make", [lambda: softmax(9, 150), lambda: layer_norm(6, 96), lambda: column_sums(9, 70)])
def test_schedules_for_other_targets_compute_the_same(make: Callable[[], Program], target) -> None:  # type: ignore[no-untyped-def]
    program = make()
    random = np.random.default_rng(0)
    inputs = {b.name: random.normal(size=b.shape).astype(np.float32) for b in program.inputs}
    found = interpret_nest(scheduled(program, target), inputs)["y"]
    # The order of at most 150 additions differs.
    np.testing.assert_allclose(found, interpret(program, inputs)["y"], rtol=150 * 2**-24, atol=150 * 2**-24)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("softmax", softmax(30, 500)),
        ("layer_norm", layer_norm(8, 768)),
        ("column_sums", column_sums(50, 300)),
        ("transpose", transpose(70, 100)),
        ("chain", chain(8, 96)),
    ],
)
def test_the_form_of_the_families(name: str, program: Program) -> None:
    assert_golden(f"default_{name}", show_nest(scheduled(program, x86_64_v4())))


@pytest.mark.parametrize("columns", [1, 2, 7, 16, 37, 100, 1000])
def test_softmax_and_layer_norm_within_rounding(columns: int) -> None:
    random = np.random.default_rng(0)
    for program in (softmax(5, columns), layer_norm(5, columns)):
        inputs = {b.name: random.normal(size=b.shape).astype(np.float32) for b in program.inputs}
        found = run(lower(scheduled(program, host()), host()), program, inputs)["y"]
        # Sums of `columns` terms in another order, and functions within 2 units.
        bound = (columns + 20) * 2**-24
        np.testing.assert_allclose(found, interpret(program, inputs)["y"], rtol=bound, atol=4 * bound)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_an_activation_in_every_float_type(dtype: DType) -> None:
    i, j = Variable("i", 13), Variable("j", 50)
    x, y = Buffer("x", dtype, (13, 50)), Buffer("y", dtype, (13, 50))
    program = Program("gelu", (x,), (y,), (Stage(y, (i, j), gelu(x[i, j])),))
    values = np.random.default_rng(0).normal(size=(13, 50)).astype(np.float32)
    inputs = {"x": np.asarray(scalars.narrow(values, dtype))}
    found = run(lower(scheduled(program, host()), host()), program, inputs)["y"]
    wide, expected = (scalars.widen(a, dtype) for a in (found, interpret(program, inputs)["y"]))
    # x/2 + x/2 erf(...) cancels below zero: there the units of erf (below 4 of 2^-24) count beside x/2, here up to 2.
    # The narrow types may differ by one unit where the exact value lies near the middle of two.
    unit = {DType.F32: 2**-22, DType.F16: 2**-10, DType.BF16: 2**-7}[dtype]
    np.testing.assert_allclose(wide, expected, rtol=unit, atol=8 * 2**-24)


def test_broadcast_padding_and_concatenation_in_one_kernel() -> None:
    i, j, k = Variable("i", 6), Variable("j", 20), Variable("k", 11)
    x, row, y = Buffer("x", DType.I32, (6, 18)), Buffer("row", DType.I32, (18,)), Buffer("y", DType.I32, (6, 31))
    inside = Binary(
        "and",
        Compare("ge", Position(j + 0), Number(1, DType.I64)),
        Compare("lt", Position(j + 0), Number(19, DType.I64)),
    )
    padded = Select(inside, x[i, j - 1] + row[j - 1], Number(-7, DType.I32))
    turned = x[i * -1 + 5, k + 3]
    program = Program("pieces", (x, row), (y,), (stage(y, (i, j), padded, i, j), stage(y, (i, k), turned, i, k + 20)))
    _same_exactly(program)


def test_several_outputs_share_their_loop() -> None:
    i, k = Variable("i", 40), Variable("k", 30)
    x, low, high = Buffer("x", DType.F32, (40, 30)), Buffer("low", DType.F32, (40,)), Buffer("high", DType.F32, (40,))
    total, y = Buffer("total", DType.F32, (40,)), Buffer("y", DType.F32, (40, 30))
    program = Program(
        "statistics",
        (x,),
        (low, high, y),
        (
            Stage(low, (i,), Reduce("min", (k,), x[i, k])),
            Stage(high, (i,), Reduce("max", (k,), x[i, k])),
            Stage(total, (i,), Reduce("sum", (k,), x[i, k])),
            Stage(y, (i, k), x[i, k] * 2 - total[i] + low[i] - high[i]),
        ),
    )
    nest = scheduled(program, host())
    assert len(nest.body) == 1, show_nest(nest)
    _same_exactly(program)


def test_a_softmax_over_the_channels_works_in_bands() -> None:
    n, c, k, s = Variable("n", 2), Variable("c", 5), Variable("k", 5), Variable("s", 192)
    x, e, y = (Buffer(name, DType.F32, (2, 5, 192)) for name in "xey")
    m, t = Buffer("m", DType.F32, (2, 192)), Buffer("t", DType.F32, (2, 192))
    stages = (
        Stage(m, (n, s), Reduce("max", (k,), x[n, k, s])),
        Stage(e, (n, c, s), Unary("exp", x[n, c, s] - m[n, s])),
        Stage(t, (n, s), Reduce("sum", (k,), e[n, k, s])),
        Stage(y, (n, c, s), e[n, c, s] / t[n, s]),
    )
    program = Program("channels", (x,), (y,), stages)
    assert_golden("default_channels", show_nest(scheduled(program, x86_64_v4())))
    values = np.random.default_rng(0).normal(size=(2, 5, 192)).astype(np.float32)
    found = run(lower(scheduled(program, host()), host()), program, {"x": values})["y"]
    # Five terms in order; exp within one unit of 2^-24, the division rounded once.
    np.testing.assert_allclose(found, interpret(program, {"x": values})["y"], rtol=8 * 2**-24)


@pytest.mark.parametrize("target", HERE, ids=lambda target: target.cpu)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I64, DType.U8])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("width", [1, 2, 15, 32, 33, 75])
def test_elements_that_alternate(dtype: DType, count: int, width: int, target: Target) -> None:
    """Upsampling, depth to space, channels moved last: y[count * i + q] from whole vectors."""
    a, i, q = Variable("a", 3), Variable("i", width), Variable("q", count)
    x, z = Buffer("x", dtype, (3, width)), Buffer("z", dtype, (count, 3, width))
    y = Buffer("y", dtype, (3, width * count), (width * count + 1, 1), 2)
    value = x[a, i] + z[q, a, i] * 2
    _same_exactly(Program("woven", (x, z), (y,), (stage(y, (a, i, q), value, a, i * count + q),)), target)


def test_a_lone_sum_is_one_block() -> None:
    k = Variable("k", 5000)
    x, y = Buffer("x", DType.F32, (5000,)), Buffer("y", DType.F32, ())
    program = Program("sum", (x,), (y,), (Stage(y, (), Reduce("sum", (k,), x[k])),))
    assert lower(scheduled(program, host()), host()).blocks == 1
    _same_exactly(program)


def test_large_work_has_many_blocks_of_equal_size() -> None:
    i, j = Variable("i", 1000), Variable("j", 1000)
    x, y = Buffer("x", DType.F32, (1000, 1000)), Buffer("y", DType.F32, (1000, 1000))
    program = Program("exp", (x,), (y,), (Stage(y, (i, j), Unary("exp", x[i, j])),))
    kernel = lower(scheduled(program, host()), host())
    assert 50 <= kernel.blocks <= 500
    assert kernel.operand("x").elements == storage.extent(x)

"""Elementwise chains against the reference interpreter, between guard pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.compile import assembly
from kernels.run import Executable
from kernels.target import Target, host
from kernels.templates.elementwise import (
    Elementwise,
    ElementwiseCandidate,
    InvalidElementwise,
    Output,
    build,
    candidates,
)
from kernels.templates.streams import inputs_of
from kernels.tensor import scalars, storage
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Expression,
    Index,
    Number,
    Position,
    Select,
    Unary,
    Variable,
    gelu,
    index,
    relu,
)
from kernels.tensor.interpret import evaluate
from tests.kernels.flushing import answer, flushed
from tests.kernels.guard import OutsideAccess, run_guarded
from tests.kernels.machine_code import spills
from tests.kernels.targets import HERE, NAMED

# The functions state up to 6 ULP, and a fused multiply-add rounds once where the oracle rounds twice.
F32 = {"rtol": 2e-6, "atol": 1e-6}


def check(problem: Elementwise, arrays: dict[str, storage.Array], target: Target, vectors: int = 0) -> None:
    """All outputs of the kernel equal the interpreter's; what belongs to no element keeps its bytes."""
    candidate = candidates(problem, target)[vectors]
    kernel = build(problem, candidate, target)
    buffers = {buffer.name: buffer for buffer in inputs_of(problem.values)}
    stored = {name: storage.store(buffers[name], array) for name, array in arrays.items()}
    before = {
        output.buffer.name: storage.store(output.buffer, np.zeros(output.buffer.shape, output.buffer.dtype.numpy))
        for output in problem.outputs
    }
    found = run_guarded(kernel, {**stored, **before})
    for output in problem.outputs:
        want = before[output.buffer.name].copy()
        places = storage.view(output.buffer, want)
        expected = evaluate(output.value, arrays, problem.axes)
        without = {name: flushed(array, buffers[name].dtype) for name, array in arrays.items()}
        of_flushed = evaluate(output.value, without, problem.axes)
        grid = np.meshgrid(*(np.arange(axis.extent) for axis in problem.axes), indexing="ij")
        at = dict(zip(problem.axes, grid, strict=True))
        if expected.size:
            where = tuple(one.at(at) + np.zeros(expected.shape, np.int64) for one in output.indices)
            computed = storage.view(output.buffer, found[output.buffer.name])[where]
            places[where] = answer(computed, expected, of_flushed, output.buffer.dtype)
        assert_close(found[output.buffer.name], want, output.buffer.dtype)


def assert_close(found: storage.Array, want: storage.Array, dtype: DType) -> None:
    if dtype in (DType.F16, DType.BF16):  # one step of the type, where f32 differs by an ULP at a rounding edge
        a, b = (scalars.widen(one, dtype) for one in (found, want))
        np.testing.assert_allclose(a, b, rtol=2**-7 if dtype is DType.BF16 else 2**-10, atol=1e-6)
    elif dtype.is_float:
        np.testing.assert_allclose(found, want, **F32)
    else:
        np.testing.assert_array_equal(found, want)


def values(shape: Sequence[int], dtype: DType, seed: int, special: bool = False) -> storage.Array:
    generator = np.random.default_rng(seed)
    if dtype.is_float:
        wide = generator.normal(size=shape) * 2
        if special and wide.size:
            chosen = generator.random(shape) < 0.2
            wide = np.where(chosen, generator.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-41], size=shape), wide)
        return scalars.narrow(wide.astype(scalars.compute_type(dtype)), dtype)
    if dtype is DType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    limits = np.iinfo(dtype.numpy)
    return generator.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)


@st.composite
def strided(draw: st.DrawFn, name: str, dtype: DType, shape: tuple[int, ...]) -> Buffer:
    """A buffer of a shape: dense, transposed, padded or with an offset that no vector is aligned to."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), draw(st.sampled_from((1, 1, 1, 2)))
    for dim in order:
        strides[dim] = step
        step = step * max(shape[dim], 1) + draw(st.sampled_from((0, 0, 3)))
    if draw(st.booleans()):
        return Buffer(name, dtype, shape, (), draw(st.sampled_from((0, 1))))
    return Buffer(name, dtype, shape, tuple(strides), draw(st.sampled_from((0, 1, 5))))


@st.composite
def chains(draw: st.DrawFn) -> tuple[Elementwise, dict[str, storage.Array]]:
    """tanh(a * b + c) - like chains with broadcast operands."""
    rank = draw(st.integers(0, 4))
    sizes = st.sampled_from((0, 1, 2, 3, 7, 16, 17, 33, 70)) if rank < 3 else st.sampled_from((1, 2, 3, 5, 19))
    axes = tuple(Variable(f"i{dim}", draw(sizes)) for dim in range(rank))
    shape = tuple(axis.extent for axis in axes)
    dtype = draw(st.sampled_from((DType.F32, DType.F32, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U16)))
    arrays, loads = {}, []
    for position, name in enumerate("abc"):
        kept = [position == 0 or draw(st.booleans()) for _ in axes]
        buffer = draw(strided(name, dtype, tuple(size if keep else 1 for size, keep in zip(shape, kept, strict=True))))
        loads.append(buffer[tuple(axis if keep else 0 for axis, keep in zip(axes, kept, strict=True))])
        arrays[name] = values(buffer.shape, dtype, draw(st.integers(0, 99)), special=True)
    a, b, c = loads
    value: Expression = a * b + c
    if dtype.is_float:
        value = Select(Compare("lt", value, b), Unary("tanh", value), relu(a) - value * Number(0.5, dtype))
    else:
        value = Binary("max", value, Binary("and", a, c))
    outputs = [Output(draw(strided("y", dtype, shape)), value)]
    if draw(st.booleans()):
        outputs.append(Output(draw(strided("z", DType.BOOL, shape)), Compare("ge", a, c)))
    return Elementwise(axes, tuple(outputs)), arrays


@settings(max_examples=15, deadline=None)
@given(chains(), st.sampled_from(HERE), st.integers(0, 2))
def test_chains_of_any_shape_equal_the_interpreter(
    case: tuple[Elementwise, dict[str, storage.Array]], target: Target, vectors: int
) -> None:
    check(*case, target, vectors)


def dense(*extents: int) -> tuple[tuple[Variable, ...], Buffer, Buffer]:
    axes = tuple(Variable(name, size) for name, size in zip("ijkl", extents, strict=False))
    return axes, Buffer("x", DType.F32, extents), Buffer("y", DType.F32, extents)


def test_a_long_row_is_cut_into_blocks_and_the_last_one_takes_the_rest() -> None:
    axes, x, y = dense(3, 40_001)
    problem = Elementwise(axes, (Output(y, gelu(x[axes]) + x[axes]),))
    kernel = build(problem, candidates(problem, host())[0], host())
    assert kernel.blocks == 14  # dense, hence one row of 120,003 elements: 64 KiB of traffic are 8,192 elements
    check(problem, {"x": values((3, 40_001), DType.F32, 1)}, host())


def test_rows_with_a_bias_per_row_are_put_together_into_blocks() -> None:
    axes, x, y = dense(300, 50)
    bias = Buffer("bias", DType.F32, (300,))
    problem = Elementwise(axes, (Output(y, relu(x[axes] + bias[axes[0]])),))
    kernel = build(problem, candidates(problem, host())[0], host())
    assert 1 < kernel.blocks < 300
    check(problem, {"x": values((300, 50), DType.F32, 1), "bias": values((300,), DType.F32, 2)}, host())


def test_a_guarded_load_reads_nothing_outside_its_buffer() -> None:
    # y[i] = x[i - 5] where 5 <= i < 25, else -1: a padded copy
    (i,) = axes = (Variable("i", 37),)
    x, y = Buffer("x", DType.F32, (20,)), Buffer("y", DType.F32, (37,))
    at = Position(index(i))
    inside = Binary("and", Compare("ge", at, Number(5, DType.I64)), Compare("lt", at, Number(25, DType.I64)))
    problem = Elementwise(axes, (Output(y, Select(inside, x[i - 5], Number(-1.0))),))
    check(problem, {"x": values((20,), DType.F32, 3)}, host())


def test_a_guarded_load_with_steps_reads_nothing_outside_its_buffer() -> None:
    (i,) = axes = (Variable("i", 37),)
    x, y = Buffer("x", DType.F32, (20,)), Buffer("y", DType.F32, (37,))
    few = Compare("lt", Position(i * 2), Number(20, DType.I64))
    problem = Elementwise(axes, (Output(y, Select(few, x[i * 2], x[0])),))
    check(problem, {"x": values((20,), DType.F32, 3)}, host())


def test_an_output_may_go_to_a_part_of_its_buffer() -> None:
    # The second half of a concatenation; the first half keeps its bytes.
    (i, j) = axes = (Variable("i", 5), Variable("j", 18))
    x, y = Buffer("x", DType.F32, (5, 18)), Buffer("y", DType.F32, (5, 40))
    problem = Elementwise(axes, (Output(y, x[i, j] * 2.0, (index(i), j + 22)),))
    check(problem, {"x": values((5, 18), DType.F32, 4)}, host())


def test_a_chain_of_three_hundred_operations_is_one_kernel() -> None:
    axes, x, y = dense(100)
    value: Expression = x[axes]
    for step in range(300):
        value = value * 0.99 + 0.01 if step % 2 else Binary("min", value, value + value)
    problem = Elementwise(axes, (Output(y, value),))
    kernel = build(problem, candidates(problem, host())[0], host())
    given = want = np.abs(values((100,), DType.F32, 5))
    for step in range(300):
        want = want * np.float32(0.99) + np.float32(0.01) if step % 2 else np.minimum(want, want + want)
    np.testing.assert_allclose(run_guarded(kernel, {"x": given})["y"], want, rtol=1e-4)  # 300 roundings


def test_shared_parts_are_computed_once() -> None:
    # Forty doublings written as a tree would be 2^40 additions.
    axes, x, y = dense(host().lanes())
    value: Expression = x[axes]
    for _ in range(40):
        value = value + value
    kernel = build(Elementwise(axes, (Output(y, value),)), ElementwiseCandidate(1, 1), host())
    assert kernel.module.text().count("fadd") == 40


@pytest.mark.parametrize("kind", [DType.F16, DType.BF16, DType.I8, DType.I64, DType.BOOL, DType.F64])
def test_casts_between_widths(kind: DType) -> None:
    axes, x, _ = dense(67)
    back = Buffer("back", DType.F32, (67,))
    narrow = Cast(kind, x[axes])
    problem = Elementwise(axes, (Output(Buffer("y", kind, (67,)), narrow), Output(back, Cast(DType.F32, narrow))))
    check(problem, {"x": values((67,), DType.F32, 6, special=True)}, host())


@pytest.mark.parametrize("target", NAMED)
def test_every_target_compiles_without_spilling(target: Target) -> None:
    axes, x, y = dense(64, 700)
    scale = Buffer("scale", DType.F32, (700,))
    problem = Elementwise(axes, (Output(y, gelu(x[axes] * scale[axes[1]])),))
    kernel = build(problem, candidates(problem, target)[0], target)
    # Of 16 registers some constants find none, and are kept on the stack before the loop.
    assert spills(assembly(kernel.module.text(), target)) <= (4 if target.vector_registers < 32 else 0)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize("target", NAMED)
def test_no_function_calls_a_library(target: Target, dtype: DType) -> None:
    # LLVM turns what a processor lacks into calls: of libm for exp, of its own runtime to move a single bfloat.
    (i,) = axes = (Variable("i", 100),)
    a, b = (Buffer(name, dtype, (100,) if name == "a" else (1,))[i if name == "a" else 0] for name in "ab")
    names = ("exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "rsqrt", "floor", "round", "sign")
    values = [Unary(name, a * b) for name in names] + [Binary("pow", a, b), gelu(a)]
    outputs = tuple(Output(Buffer(f"y{n}", dtype, (100,)), value) for n, value in enumerate(values))
    kernel = build(Elementwise(axes, outputs), ElementwiseCandidate(1, 100), target)
    called = set(re.findall(r"^\s(?:callq?|bl)\s+(\S+)", assembly(kernel.module.text(), target), re.MULTILINE))
    assert {name for name in called if "_large_" not in name} == set()


def test_no_elements_mean_no_blocks() -> None:
    axes, x, y = dense(4, 0, 3)
    problem = Elementwise(axes, (Output(y, x[axes] + 1.0),))
    assert build(problem, candidates(problem, host())[0], host()).blocks == 0


def test_a_buffer_is_not_read_and_written() -> None:
    axes, x, _ = dense(4)
    with pytest.raises(InvalidElementwise, match="'x' is read and written: give the output a name of its own"):
        Elementwise(axes, (Output(x, x[axes] + 1.0),))


def test_an_output_has_its_values_type() -> None:
    axes, x, _ = dense(4)
    with pytest.raises(InvalidElementwise, match="'y' is i32 and its value f32: cast it"):
        Elementwise(axes, (Output(Buffer("y", DType.I32, (4,)), x[axes]),))


def test_in_place_results_are_right() -> None:
    # Input and output share their bytes: every step reads its elements before it writes them.
    axes, x, y = dense(1000)
    problem = Elementwise(axes, (Output(y, gelu(x[axes])),))
    kernel = build(problem, candidates(problem, host())[0], host())
    given = values((1000,), DType.F32, 7)
    shared = given.copy()
    Executable([kernel])({"x": shared, "y": shared})
    np.testing.assert_allclose(shared, evaluate(gelu(x[axes]), {"x": given}, axes), **F32)


def test_the_guard_notices_a_read_past_the_end() -> None:
    axes, x, y = dense(64)
    problem = Elementwise(axes, (Output(y, x[axes]),))
    kernel = build(problem, candidates(problem, host())[0], host())
    short = tuple(type(one)(one.name, one.role, one.dtype, 63) if one.name == "x" else one for one in kernel.operands)
    wrong = Kernel(kernel.name, kernel.module, short, kernel.blocks)
    with pytest.raises(OutsideAccess, match="ended with SIGSEGV"):
        run_guarded(wrong, {"x": np.zeros(63, np.float32)})


def test_indices_as_values() -> None:
    (i, j) = axes = (Variable("i", 3), Variable("j", 41))
    y = Buffer("y", DType.I64, (3, 41))
    problem = Elementwise(axes, (Output(y, Position(Index(((i, 100), (j, 2)), 7))),))
    check(problem, {}, host())

"""Machine code against the interpreter: any program, any schedule, every element type."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.compile import compile_object
from kernels.run import Executable, aligned
from kernels.target import aarch64, host, x86_64_v3, x86_64_v4
from kernels.tensor import storage
from kernels.tensor.default import scheduled
from kernels.tensor.expression import Binary, Buffer, Compare, Number, Position, Reduce, Select, Variable
from kernels.tensor.interpret import interpret
from kernels.tensor.lower import lower
from kernels.tensor.nest import Nest, nest_of
from kernels.tensor.program import Program, Stage
from kernels.tensor.schedule import parallel, split, unroll, vectorize
from kernels.tensor.show import show_nest
from kernels.tensor.staging import compute_at, split_accumulator
from kernels.tensor.storage import Array
from tests.kernels.tensor.drawn import programs, schedules, whole_numbers
from tests.kernels.tensor.programs import column_sums, layer_norm, softmax, transpose

DTYPES = (
    DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.U64,
)  # fmt: skip


def run(kernel: Kernel, program: Program, inputs: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a kernel. Bytes around the elements of an output must stay as they were."""
    arrays = {buffer.name: storage.store(buffer, inputs[buffer.name]) for buffer in program.inputs}
    for buffer in program.outputs:
        arrays[buffer.name] = aligned(storage.extent(buffer) + 64, buffer.dtype.numpy)
        arrays[buffer.name].view(np.uint8)[...] = 0x5A
    Executable([kernel])(arrays)
    found = {}
    for buffer in program.outputs:
        after = arrays[buffer.name]
        found[buffer.name] = storage.view(buffer, after).copy()
        storage.view(buffer, after).view(np.uint8 if buffer.dtype is DType.BOOL else buffer.dtype.numpy)[...] = 0
        touched = np.ones(after.shape, np.bool_)
        storage.view(Buffer("touched", DType.BOOL, buffer.shape, buffer.strides, buffer.offset), touched)[...] = False
        outside = after[touched]
        assert (outside.view(np.uint8) == 0x5A).all(), f"'{buffer.name}' is written outside of its elements"
    return found


def same_exactly(nest: Nest) -> None:
    inputs = whole_numbers(nest.program)
    expected, found = interpret(nest.program, inputs), run(lower(nest, host()), nest.program, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=show_nest(nest))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_schedule_of_any_program(data: st.DataObject) -> None:
    program = data.draw(programs(DTYPES, 40))
    same_exactly(data.draw(schedules(nest_of(program), 6)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extent", [1, 3, 16, 37, 150])
def test_row_sums_in_lanes(dtype: DType, extent: int) -> None:
    i, k = Variable("i", 3), Variable("k", extent)
    x, y = Buffer("x", dtype, (3, extent), (extent + 2, 1), 1), Buffer("y", dtype, (3,), (2,))
    nest = nest_of(Program("sums", (x,), (y,), (Stage(y, (i,), Reduce("sum", (k,), x[i, k])),)))
    if extent > 32:
        nest = split_accumulator(split(nest, "k", 32), "k.inner", reassociate=True)
        nest = vectorize(nest, "k.inner")
        nest = vectorize(nest, "k.tail", reassociate=True)
    else:
        nest = vectorize(nest, "k", reassociate=True)
    same_exactly(parallel(nest, "i"))


def test_strided_and_backward_lanes() -> None:
    i, j = Variable("i", 4), Variable("j", 21)
    x, y = Buffer("x", DType.F32, (21, 4), (5, 1)), Buffer("y", DType.F32, (4, 21), (1, 4))
    program = Program("turned", (x,), (y,), (Stage(y, (i, j), x[j * -1 + 20, i] + 1),))
    same_exactly(vectorize(nest_of(program), "j"))


@pytest.mark.parametrize("step", [1, 2, -1])
def test_nothing_outside_of_a_buffer_is_read(step: int) -> None:
    """The input fills a page whose neighbours may not be touched: a stray read would end this process."""
    i = Variable("i", 1030)
    x, y = Buffer("x", DType.F32, (1024,)), Buffer("y", DType.F32, (1030,))
    place = i * step + (1026 if step < 0 else -3)
    low, high = Number(0, DType.I64), Number(1024, DType.I64)
    inside = Binary("and", Compare("ge", Position(place), low), Compare("lt", Position(place), high))
    program = Program("pad", (x,), (y,), (Stage(y, (i,), Select(inside, x[place], Number(7.0))),))
    values = np.arange(1024, dtype=np.float32)
    expected = interpret(program, {"x": values})["y"]
    pages = _page_between_walls()
    pages[:] = values
    for nest in (nest_of(program), vectorize(split(nest_of(program), "i", 64), "i.inner"), scheduled(program, host())):
        found = aligned(1030)
        Executable([lower(nest, host())])({"x": pages, "y": found})
        np.testing.assert_array_equal(found, expected)


def _page_between_walls() -> Array:
    """1024 floats; reading before or after them is a fault."""
    assert mmap.PAGESIZE == 4096, "the test is written for pages of 4096 bytes"
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for page in (0, 2):
        assert protect(whole.ctypes.data + page * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    return whole[mmap.PAGESIZE : 2 * mmap.PAGESIZE].view(np.float32)


def test_positions_are_numbers_of_the_lanes() -> None:
    i, j = Variable("i", 3), Variable("j", 10)
    y = Buffer("y", DType.I64, (3, 10))
    nest = nest_of(Program("iota", (), (y,), (Stage(y, (i, j), Position(i * 10 + j * -2 + 5)),)))
    same_exactly(nest)
    same_exactly(unroll(vectorize(nest, "j"), "i"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extent", [1, 5, 17, 33, 35, 47])
def test_the_last_lanes_write_their_own_bytes_only(dtype: DType, extent: int) -> None:
    i = Variable("i", extent)
    x, y = Buffer("x", dtype, (extent,)), Buffer("y", dtype, (extent,))
    nest = nest_of(Program("double", (x,), (y,), (Stage(y, (i,), x[i] * 2),)))
    same_exactly(vectorize(nest, "i"))
    if extent > 1:
        same_exactly(vectorize(vectorize(split(nest, "i", extent - 1), "i.inner"), "i.tail"))


def test_outer_loop_in_lanes() -> None:
    same_exactly(vectorize(nest_of(column_sums(9, 21)), "j"))


def test_nothing_to_do() -> None:
    i, k = Variable("i", 0), Variable("k", 3)
    x, y = Buffer("x", DType.F32, (0, 3)), Buffer("y", DType.F32, (0,))
    program = Program("none", (x,), (y,), (Stage(y, (i,), Reduce("sum", (k,), x[i, k])),))
    same_exactly(nest_of(program))
    same_exactly(parallel(nest_of(program), "i"))


def test_softmax_and_layer_norm_within_rounding() -> None:
    random = np.random.default_rng(0)
    for program, moved in (
        (softmax(5, 45), ("s", "e", "m")),
        (layer_norm(5, 45), ("inverse", "squares", "mean", "total")),
    ):
        nest = nest_of(program)
        for name in moved:
            nest = compute_at(nest, name, "i.y")
        inputs = {b.name: random.normal(size=b.shape).astype(np.float32) for b in program.inputs}
        kernel = lower(parallel(nest, "i.y"), host())
        assert kernel.blocks == 5
        # Sums run in the same order; products may be fused with sums, and exp is within one unit: 45 * 2^-24 at most.
        np.testing.assert_allclose(
            run(kernel, program, inputs)["y"], interpret(program, inputs)["y"], rtol=45 * 2**-24, atol=45 * 2**-24
        )


@pytest.mark.parametrize("target", [x86_64_v3(), x86_64_v4(), aarch64()], ids=lambda target: target.cpu)
def test_other_targets_accept_the_code(target) -> None:  # type: ignore[no-untyped-def]
    nest = vectorize(split(nest_of(transpose(7, 10, DType.F16)), "j", 3), "j.inner")
    assert len(compile_object(lower(nest, target).module.text(), target)) > 500

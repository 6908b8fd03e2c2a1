"""Expressions as instructions: every operation of every type against the interpreter, sharing, fusion, guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm.emission import EmissionError, emit, emit_all
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.run import Executable
from kernels.target import Target, host, x86_64_v3
from kernels.templates.axes import Axis
from kernels.templates.streams import Stream, lanes_for
from kernels.tensor.check import check_types
from kernels.tensor.expression import (
    Binary,
    BinaryOp,
    Buffer,
    Cast,
    Compare,
    CompareOp,
    Expression,
    Index,
    InvalidExpression,
    Load,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    UnaryOp,
    Variable,
    gelu,
    index,
)
from kernels.tensor.interpret import evaluate
from kernels.tensor.scalars import narrow, widen
from tests.kernels.flushing import answer, flushed
from tests.kernels.targets import HERE

SIZE = 128
I = Variable("i", SIZE)  # noqa: E741
# Functions of f32 are within 6 ULP; results of f16 and bf16 may round the other way.
RTOL = {DType.F64: 1e-15, DType.F32: 1e-6, DType.F16: 2**-10, DType.BF16: 2**-7}


def operations(dtype: DType) -> list[Expression]:
    """Every operation that a type has, on buffers a and b."""
    a, b = (Buffer(name, dtype, (SIZE,))[I] for name in "ab")
    every: list[Expression] = [Unary(op, a) for op in get_args(UnaryOp)]
    every += [Binary(op, a, b) for op in get_args(BinaryOp)]
    every += [Compare(op, a, b) for op in get_args(CompareOp)]
    every += [Cast(kind, a) for kind in DType]
    if not dtype.is_short:
        every.append(Select(Compare("lt", a, b), a, b))
    return [one for one in every if _is_valid(one)]


def _is_valid(value: Expression) -> bool:
    try:
        check_types(value)
    except InvalidExpression:
        return False
    return True


def operands(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    if dtype is DType.BOOL:
        return generator.integers(0, 2, SIZE).astype(bool), generator.integers(0, 2, SIZE).astype(bool)
    if dtype.is_float:
        a, b = generator.normal(size=(2, SIZE)) * 3
        a[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e10, -1e10]
        b[3:9] = [0, 1, 2, np.nan, 0, np.inf]
        held = np.float64 if dtype is DType.F64 else np.float32
        with np.errstate(over="ignore"):
            a, b = narrow(a.astype(held), dtype), narrow(b.astype(held), dtype)
        return (np.maximum(a, 1), np.maximum(b, 1)) if dtype is DType.E8M0 else (a, b)  # 2**-127 is subnormal
    limits = np.iinfo(dtype.numpy)
    a, b = generator.integers(limits.min, limits.max, (2, SIZE), dtype.numpy, endpoint=True)
    b[::2] = generator.integers(max(-5, limits.min), 9, SIZE // 2)
    a[::3] = generator.integers(max(-3, limits.min), 3, len(a[::3]))
    a[0], b[0] = limits.min, -1 if limits.min < 0 else limits.max  # the quotient that overflows
    return a, b


def run(values: Sequence[Expression], arrays: dict[str, np.ndarray], target: Target) -> list[np.ndarray]:
    buffers = {node.buffer.name: node.buffer for value in values for node in _walk(value) if isinstance(node, Load)}
    outputs = [f"y{position}" for position in range(len(values))]
    module, lanes = Module(target), lanes_for(values, target)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        stores = [Buffer(name, one.dtype, (SIZE,))[I] for name, one in zip(outputs, values, strict=True)]

        def one(where: Value, _: tuple[Value, ...]) -> None:
            leaves = stream.at(where, 2, lanes)
            for value, store in zip(emit_all(f, values, lanes, leaves), stores, strict=True):
                leaves.store(value, store)

        stream = Stream(f, pointers, {}, Axis((I,)), lanes).prepare(values, stores)
        f.loop(0, SIZE, 2 * lanes, one)

    made = {name: np.zeros(SIZE, one.dtype.numpy) for name, one in zip(outputs, values, strict=True)}
    given = tuple(Operand(name, "input", buffer.dtype, SIZE) for name, buffer in buffers.items())
    taken = tuple(Operand(name, "output", one.dtype, SIZE) for name, one in zip(outputs, values, strict=True))
    Executable([write_kernel(module, "emitted", (*given, *taken), 1, body)])({**arrays, **made})
    return list(made.values())


def _walk(value: Expression) -> list[Expression]:
    return [value, *(node for operand in value.operands for node in _walk(operand))]


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("dtype", DType)
def test_every_operation_of_every_type(dtype: DType, target: Target) -> None:
    values = operations(dtype)
    given = dict(zip("ab", operands(dtype), strict=True))
    without = {name: flushed(array, dtype) for name, array in given.items()}
    for value, found in zip(values, run(values, given, target), strict=True):
        want = answer(found, evaluate(value, given, (I,)), evaluate(value, without, (I,)), value.dtype)
        name = f"{getattr(value, 'op', None) or getattr(value, 'kind', 'select')} of {dtype.value}"
        if value.dtype.is_float:
            wide = (widen(one, value.dtype).astype(np.float64) for one in (found, want))
            np.testing.assert_allclose(*wide, rtol=RTOL.get(value.dtype, 0), atol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(found, want, err_msg=name)


def text_of(values: Sequence[Expression]) -> str:
    module = Module(x86_64_v3())

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        emit_all(f, values, 8, Stream(f, pointers, {}, Axis((I,)), 8).at(f.integer(0), 1, 8))

    write_kernel(module, "emitted", [Operand(name, "input", DType.F32, SIZE) for name in "ab"], 1, body)
    return module.text().split("\ndeclare")[0]


def test_equal_parts_are_written_once() -> None:
    a, b = (Buffer(name, DType.F32, (SIZE,))[I] for name in "ab")
    text = text_of([Unary("sqrt", a + b) - b, Unary("sqrt", a + b) * 2.0])
    assert text.count("fadd") == 1 and text.count("call <8 x float> @llvm.sqrt") == 1
    assert text.count("load <8 x float>") == 2


def test_a_product_in_a_sum_is_fused_unless_it_is_used_twice() -> None:
    a, b = (Buffer(name, DType.F32, (SIZE,))[I] for name in "ab")
    fused = text_of([a * b + 1.0, 2.0 - a * a])
    assert fused.count("@llvm.fma") == 2 and "fmul" not in fused
    product = a * b
    kept = text_of([product + 1.0, product])
    assert kept.count("fmul") == 1 and "@llvm.fma" not in kept


def test_gelu_as_it_is_written_is_one_function() -> None:
    a = Buffer("a", DType.F32, (SIZE,))[I]
    written = a * 0.5 * (Unary("erf", a * 0.7071067811865476) + 1.0)  # this form is left as it is
    assert text_of([gelu(a)]).count("fmul") == 3 and text_of([written]).count("fmul") == 5
    array = np.linspace(-8, 8, SIZE).astype(np.float32)
    for found in run([gelu(a), written], {"a": array}, host()):
        np.testing.assert_allclose(found, evaluate(gelu(a), {"a": array}, (I,)), atol=1e-6)


def test_zeros_of_both_signs_are_different_numbers() -> None:
    a = Buffer("a", DType.F32, (SIZE,))[I]
    values = [Binary("div", a, Number(0.0)), Binary("div", a, Number(-0.0))]
    up, down = run(values, {"a": np.ones(SIZE, np.float32)}, host())
    assert (up == np.inf).all() and (down == -np.inf).all()


def test_a_reduction_is_refused() -> None:
    a = Buffer("a", DType.F32, (SIZE,))[I]
    with pytest.raises(EmissionError, match="a reduction is no elementwise value: give it to a template that reduces"):
        text_of([Reduce("sum", (I,), a)])


class PlainLeaves:
    """Leaves that cannot read under a condition."""

    def load(self, load: Load) -> Value:
        raise AssertionError("not read")

    def position(self, index: Index) -> Value:
        return Value(("zeroinitializer",), "<8 x i64>")


def test_a_load_that_needs_a_condition_is_refused_where_none_can_be_kept() -> None:
    beyond = Buffer("a", DType.F32, (SIZE,))[I + 4]
    inside = Compare("lt", Position(index(I)), Number(SIZE - 4, DType.I64))
    module = Module(x86_64_v3())
    f = Function(module, "f", ())
    with pytest.raises(EmissionError, match="a load of 'a' lies inside its buffer only under a condition"):
        emit(f, Select(inside, beyond, Number(0.0)), 8, PlainLeaves())


def test_guards_of_nested_selections_and_of_shared_loads() -> None:
    # x[i + 4] is read on two paths; either condition alone keeps it inside.
    x = Buffer("x", DType.F32, (SIZE,))
    beyond, at = x[I + 4], Position(index(I))
    first, second = (Compare("lt", at, Number(limit, DType.I64)) for limit in (SIZE - 4, SIZE - 20))
    value = Select(first, beyond, Number(-1.0)) + Select(second, gelu(beyond), x[I])
    array = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    (found,) = run([value], {"x": array}, host())
    np.testing.assert_allclose(found, evaluate(value, {"x": array}, (I,)), rtol=1e-6, atol=1e-6)

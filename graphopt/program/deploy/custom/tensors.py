"""The tensors of a custom operator's run, as LLVM: what it is given, which sizes follow, where its outputs go."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.program.deploy.custom.calls import (
    NULL,
    ROW_BYTES,
    SIZE_BYTES,
    called,
    fault,
    must,
    operands_of,
    own,
)
from graphopt.program.deploy.custom.interface import FAIL
from kernels.emit.refusal import is_null
from kernels.emit.running import TENSOR
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

MOST_DIMS = 64  # more than any tensor has


def write_tensors(module: Module) -> None:
    """Add the functions."""
    _write_gather(module)
    _write_prepare(module)
    _write_choose(module)
    _write_allot(module)
    _write_room(module)
    _write_hand(module)
    _write_drop(module)


def _write_gather(module: Module) -> None:
    """gather(api, op, context, inputs) -> status: what a run is given."""
    given = (Parameter("api"), Parameter("op"), Parameter("context"), Parameter("inputs"))
    f = Function(module, "gather", given, result="ptr")
    api, operator, context, inputs = (f.parameter(one.name) for one in given)
    value = f.value("ptr", "alloca ptr, align 8")
    rank, kind = f.value("ptr", "alloca i64, align 8"), f.value("ptr", "alloca i32, align 4")

    def read(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(own(f, operator, "inputs"), f.mul(number, ROW_BYTES), "i8")
        tensor = f.at(inputs, f.mul(number, TENSOR), "i8")
        f.store(f.load("ptr", row), tensor)
        must(f, api, "KernelContext_GetInput", context, number, value)
        held = f.load("ptr", value)
        must(f, api, "GetTensorElementTypeAndShapeDataReference", held, kind, f.at(tensor, 16, "i8"), rank)
        f.store(f.load("i32", kind), f.at(tensor, 8, "i8"))
        f.store(f.convert("trunc", "i32", f.load("i64", rank)), f.at(tensor, 12, "i8"))
        must(f, api, "GetTensorMutableData", held, f.at(tensor, 24, "i8"))

    f.loop(f.integer(0), own(f, operator, "input_count", "i64"), 1, read)
    f.give(NULL)
    f.finish()


def _write_prepare(module: Module) -> None:
    """prepare(op, outputs, dims): what is known of outputs; dims that follow from sizes have room of their own."""
    given = (Parameter("op"), Parameter("outputs"), Parameter("dims"))
    f = Function(module, "prepare", given)
    operator, outputs, room = (f.parameter(one.name) for one in given)
    fixed = f.compare("eq", own(f, operator, "size_count", "i64"), f.integer(0))

    def one(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(own(f, operator, "outputs"), f.mul(number, ROW_BYTES), "i8")
        tensor = f.at(outputs, f.mul(number, TENSOR), "i8")
        f.store(f.load("ptr", row), tensor)
        f.store(f.load("i64", f.at(row, 8, "i8")), f.at(tensor, 8, "i8"))  # type and rank
        own_dims = f.at(room, f.mul(number, 8 * MOST_DIMS), "i8")
        f.store(f.select(fixed, f.load("ptr", f.at(row, 16, "i8")), own_dims), f.at(tensor, 16, "i8"))
        f.store(NULL, f.at(tensor, 24, "i8"))

    f.loop(f.integer(0), own(f, operator, "output_count", "i64"), 1, one)
    f.finish()


def _write_choose(module: Module) -> None:
    """choose(api, op, model, inputs) -> status: the sizes of a run, as its inputs have them."""
    given = (Parameter("api"), Parameter("op"), Parameter("model"), Parameter("inputs"))
    f = Function(module, "choose", given, result="ptr")
    api, operator, model, inputs = (f.parameter(one.name) for one in given)

    def one(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(own(f, operator, "sizes"), f.mul(number, SIZE_BYTES), "i8")
        name, place, axis = (f.load(kind, f.at(row, 8 * n, "i8")) for n, kind in enumerate(("ptr", "i64", "i64")))
        tensor = f.at(inputs, f.mul(place, TENSOR), "i8")
        rank = f.convert("zext", "i64", f.load("i32", f.at(tensor, 12, "i8")))

        def choose() -> None:
            size = f.load("i64", f.at(f.load("ptr", f.at(tensor, 16, "i8")), axis, "i64"))
            code = f.value("i32", f"call i32 {own(f, operator, 'set_dim').text}({operands_of(model, name, size)})")
            bad, good = f.fresh("bad"), f.fresh("good")
            f.line(f"br i1 {f.compare('ne', code, f.number('i32', 0)).text}, label %{bad}, label %{good}")
            f.label(bad)
            f.give(called(f, "refused", api, operator, code, model))
            f.label(good)

        f.when(f.compare("slt", axis, rank), choose)  # else the run says what is wrong

    f.loop(f.integer(0), own(f, operator, "size_count", "i64"), 1, one)
    f.give(NULL)
    f.finish()


def _write_allot(module: Module) -> None:
    """allot(api, op, context, model, outputs) -> status: memory for outputs whose dims are known before the run."""
    given = (Parameter("api"), Parameter("op"), Parameter("context"), Parameter("model"), Parameter("outputs"))
    f = Function(module, "allot", given, result="ptr")
    api, operator, context, model, outputs = (f.parameter(one.name) for one in given)
    value = f.value("ptr", "alloca ptr, align 8")
    follow = f.compare("ne", own(f, operator, "size_count", "i64"), f.integer(0))

    def one(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(own(f, operator, "outputs"), f.mul(number, ROW_BYTES), "i8")
        tensor = f.at(outputs, f.mul(number, TENSOR), "i8")
        dims = f.load("ptr", f.at(tensor, 16, "i8"))

        def fill() -> None:
            found = own(f, operator, "dims")
            code = f.value("i32", f"call i32 {found.text}({operands_of(model, number, dims)})")
            fault(f, f.compare("ne", code, f.number("i32", 0)), FAIL, "the program is not made for sizes like these.")

        f.when(follow, fill)

        def take() -> None:
            rank = f.convert("zext", "i64", f.load("i32", f.at(tensor, 12, "i8")))
            must(f, api, "KernelContext_GetOutput", context, number, dims, rank, value)
            must(f, api, "GetTensorMutableData", f.load("ptr", value), f.at(tensor, 24, "i8"))

        f.when(f.compare("eq", f.load("i64", f.at(row, 24, "i8")), f.integer(0)), take)

    f.loop(f.integer(0), own(f, operator, "output_count", "i64"), 1, one)
    f.give(NULL)
    f.finish()


def _each_counted(f: Function, body: Callable[[Value, Value, Value], None]) -> None:
    """body(number, row, tensor) for each output of which a run finds the dims."""

    def look(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(own(f, f.parameter("op"), "outputs"), f.mul(number, ROW_BYTES), "i8")
        tensor = f.at(f.parameter("outputs"), f.mul(number, TENSOR), "i8")
        counted = f.compare("ne", f.load("i64", f.at(row, 24, "i8")), f.integer(0))
        f.when(counted, lambda: body(number, row, tensor))

    f.loop(f.integer(0), own(f, f.parameter("op"), "output_count", "i64"), 1, look)


def _write_room(module: Module) -> None:
    """room(api, op, outputs) -> status: memory for the most that those outputs may be."""
    f = Function(module, "room", (Parameter("api"), Parameter("op"), Parameter("outputs")), result="ptr")

    def reserve(_: Value, row: Value, tensor: Value) -> None:
        memory = f.value("ptr", f"call ptr @malloc(i64 {f.load('i64', f.at(row, 24, 'i8')).text})")
        f.store(memory, f.at(tensor, 24, "i8"))
        fault(f, is_null(f, memory), FAIL, "there is no memory for an output of a custom operator.")

    _each_counted(f, reserve)
    f.give(NULL)
    f.finish()


def _write_hand(module: Module) -> None:
    """hand(api, op, context, model, outputs) -> status: those outputs under the dims that the run has found."""
    given = (Parameter("api"), Parameter("op"), Parameter("context"), Parameter("model"), Parameter("outputs"))
    f = Function(module, "hand", given, result="ptr")
    api, operator, context, model = (f.parameter(one.name) for one in given[:4])
    value, place = f.value("ptr", "alloca ptr, align 8"), f.value("ptr", "alloca ptr, align 8")
    dims = f.value("ptr", f"alloca [{MOST_DIMS} x i64], align 8")

    def copy(number: Value, row: Value, tensor: Value) -> None:
        found = own(f, operator, "dims")
        f.value("i32", f"call i32 {found.text}({operands_of(model, number, dims)})")
        rank = f.convert("zext", "i64", f.load("i32", f.at(row, 12, "i8")))
        must(f, api, "KernelContext_GetOutput", context, number, dims, rank, value)
        must(f, api, "GetTensorMutableData", f.load("ptr", value), place)

        def size(axis: Value, carried: tuple[Value, ...]) -> list[Value]:
            return [f.mul(carried[0], f.load("i64", f.at(dims, axis, "i64")))]

        (total,) = f.loop(f.integer(0), rank, 1, size, [f.load("i64", f.at(row, 32, "i8"))])
        source = f.load("ptr", f.at(tensor, 24, "i8"))
        f.line(f"call void @llvm.memcpy.p0.p0.i64({operands_of(f.load('ptr', place), source, total)}, i1 false)")

    _each_counted(f, copy)
    f.give(NULL)
    f.finish()


def _write_drop(module: Module) -> None:
    """drop(op, outputs): the memory that room has given."""
    f = Function(module, "drop", (Parameter("op"), Parameter("outputs")))

    def free(_: Value, __: Value, tensor: Value) -> None:
        f.line(f"call void @free(ptr {f.load('ptr', f.at(tensor, 24, 'i8')).text})")

    _each_counted(f, free)
    f.finish()

"""The control word: kernels run under their own on every thread; the caller's is back after every kind of return."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.emit.layout import BUSY
from kernels.emit.refusal import BAD_ARGUMENT, MODEL_BUSY, OK
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.listing import Argument, Claim, Listing, Place, Run, Ticketed, Wait
from kernels.llvm import control_word
from kernels.llvm.compile import assembly, compile_object
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.load import Loaded
from kernels.llvm.module import Module
from kernels.run import Executable, aligned
from kernels.target import aarch64, host
from tests.kernels.interface import Library, call, tensor

ON_X86 = host().architecture.name == "x86_64"
OURS = control_word.MXCSR if ON_X86 else control_word.FPCR
UPWARDS = 0x5F80 if ON_X86 else 1 << 22  # another caller's: it rounds up, and keeps subnormal numbers


def _read(f: Function) -> Value:
    """The thread's word as an i64, without the marks of exceptions that have happened."""
    if f.module.target.architecture.name != "x86_64":
        f.module.declare("llvm.aarch64.get.fpcr", "i64", [])
        return f.value("i64", "call i64 @llvm.aarch64.get.fpcr()")  # its marks are in another register
    f.module.declare("llvm.x86.sse.stmxcsr", "void", ["ptr"])
    place = f.value("ptr", "alloca i32, align 4")
    f.line(f"call void @llvm.x86.sse.stmxcsr(ptr {place.text})")
    return f.binary("and", f.convert("zext", "i64", f.load("i32", place)), f.integer(~0x3F))


def noting(blocks: int) -> Kernel:
    """A kernel whose blocks write down the word that they run under, and x + 0 of a subnormal x."""
    module = Module(host())

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        f.store(_read(f), f.at(pointers["words"], block, "i64"))
        x = f.load("float", pointers["x"])
        f.store(f.add(x, x), f.at(pointers["twice"], block))

    operands = (
        Operand("x", "input", DType.F32, 1), Operand("words", "output", DType.I64, blocks),
        Operand("twice", "output", DType.F32, blocks),
    )  # fmt: skip
    return write_kernel(module, "noting", operands, blocks, body)


class Caller:
    """This thread's word."""

    def __init__(self) -> None:
        module = Module(host())
        f = Function(module, "word", (), exported=True, result="i64")
        f.give(_read(f))
        f.finish()
        f = Function(module, "set_word", (Parameter("word", "i64"),), exported=True)
        if host().architecture.name == "x86_64":
            module.declare("llvm.x86.sse.ldmxcsr", "void", ["ptr"])
            place = f.value("ptr", "alloca i32, align 4")
            f.store(f.convert("trunc", "i32", f.parameter("word")), place)
            f.line(f"call void @llvm.x86.sse.ldmxcsr(ptr {place.text})")
        else:
            module.declare("llvm.aarch64.set.fpcr", "void", ["i64"])
            f.line("call void @llvm.aarch64.set.fpcr(i64 %word)")
        f.finish()
        self._loaded = Loaded(compile_object(module.text(), host()), host())
        self.read: Callable[[], int] = ctypes.CFUNCTYPE(ctypes.c_int64)(self._loaded.address("word"))
        self.set: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._loaded.address("set_word"))


@pytest.fixture
def caller() -> Iterator[Caller]:
    """A caller with an unusual word."""
    found = Caller()
    before = found.read()
    found.set(UPWARDS)
    yield found
    found.set(before)


def arrays(blocks: int) -> dict[str, np.ndarray]:
    x, words, twice = aligned(1), aligned(blocks, np.int64), aligned(blocks)
    x[:], twice[:] = 1e-40, np.nan
    return {"x": x, "words": words, "twice": twice}


def test_one_kernel_by_itself(caller: Caller) -> None:
    kernel, held = noting(3), arrays(3)
    Executable([kernel])(held)
    assert caller.read() == UPWARDS
    assert held["words"].tolist() == [OURS] * 3 and held["twice"].tolist() == [0.0] * 3


@pytest.mark.parametrize("threads", [1, 3])
def test_every_thread_of_a_pool(caller: Caller, threads: int) -> None:
    blocks = 200
    given = Argument("x", DType.F32, (1,))
    made = Argument("words", DType.I64, (blocks,)), Argument("twice", DType.F32, (blocks,))
    run = Run("noting", (Place("input", 0, 0), Place("output", 0, 0), Place("output", 0, 1)))
    shared = Ticketed((Claim(0), Wait(0)), (run,), 0)
    library, held = Library(Listing("noted", (given,), made, (noting(blocks),), (run,), 0, 0, shared)), arrays(blocks)
    model = library.made(threads=threads)
    for _ in range(20):
        held["words"][:] = 0
        call(library, model, {"x": held["x"]}, words=held["words"], twice=held["twice"])
        assert caller.read() == UPWARDS
        assert (held["words"] == OURS).all() and (held["twice"] == 0).all()
    library.destroy(model)


def program() -> Library:
    """The noting kernel as a program."""
    given = Argument("x", DType.F32, (1,))
    made = Argument("words", DType.I64, (2,)), Argument("twice", DType.F32, (2,))
    run = Run("noting", (Place("input", 0, 0), Place("output", 0, 0), Place("output", 0, 1)))
    return Library(Listing("noted", (given,), made, (noting(2),), (run,), 0, 0))


def test_every_kind_of_return_of_a_program(caller: Caller) -> None:
    library, held = program(), arrays(2)
    model = library.made()
    address = model.value or 0
    inputs = (type(tensor("x", held["x"])) * 1)(tensor("x", held["x"]))
    outputs = (type(inputs[0]) * 2)(tensor("words", held["words"]), tensor("twice", held["twice"]))
    unknown = (type(inputs[0]) * 1)(tensor("z", held["x"]))
    raw = (
        (ctypes.c_void_p * 1)(held["x"].ctypes.data),
        (ctypes.c_void_p * 2)(held["words"].ctypes.data, held["twice"].ctypes.data),
    )
    busy = ctypes.c_int32.from_address(address + BUSY)
    calls: list[tuple[Callable[[], int], int]] = [
        (lambda: library.run(model, inputs, 1, outputs, 2), OK),
        (lambda: library.run_raw(model, *raw), OK),
        (lambda: library.run(model, unknown, 1, outputs, 2), BAD_ARGUMENT),
        (lambda: library.run(model, inputs, 1, outputs, 1), BAD_ARGUMENT),
        (lambda: library.run(model, None, 1, outputs, 2), BAD_ARGUMENT),
        (lambda: library.run(None, inputs, 1, outputs, 2), BAD_ARGUMENT),
    ]
    for run, code in calls:
        held["words"][:] = 0
        assert run() == code
        assert caller.read() == UPWARDS and busy.value == 0
        assert held["words"].tolist() == ([OURS] * 2 if code == OK else [0, 0])
    busy.value = 1
    held["words"][:] = 0
    for run in (calls[0][0], calls[1][0]):
        assert run() == MODEL_BUSY
        assert caller.read() == UPWARDS and held["words"].tolist() == [0, 0]
    library.after_fork(model)
    assert calls[0][0]() == OK and busy.value == 0
    library.destroy(model)


def test_a_call_from_within_a_call_finds_the_model_busy() -> None:
    """The kernel calls the program that it is part of; the address of the model is its input."""
    module = Module(host())

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        model = f.load("ptr", pointers["x"])
        module.declare("inner_run_raw", "i32", ["ptr", "ptr", "ptr"])
        module.declare("inner_run", "i32", ["ptr", "ptr", "i64", "ptr", "i64"])
        codes = (
            f.value("i32", f"call i32 @inner_run_raw(ptr {model.text}, ptr null, ptr null)"),
            f.value("i32", f"call i32 @inner_run(ptr {model.text}, ptr null, i64 0, ptr null, i64 0)"),
        )
        for number, code in enumerate(codes):
            f.store(code, f.at(pointers["codes"], number, "i32"))

    operands = (Operand("x", "input", DType.I64, 1), Operand("codes", "output", DType.I32, 2))
    run = Run("calls", (Place("input"), Place("output")))
    given, made = Argument("x", DType.I64, (1,)), Argument("codes", DType.I32, (2,))
    library = Library(
        Listing("inner", (given,), (made,), (write_kernel(module, "calls", operands, 1, body),), (run,), 0, 0)
    )
    model, codes = library.made(), np.zeros(2, np.int32)
    x = np.array([model.value], np.int64)
    for _ in range(2):
        codes[:] = 0
        raw = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(codes.ctypes.data)
        assert library.run_raw(model, *raw) == OK
        assert codes.tolist() == [MODEL_BUSY, MODEL_BUSY]
    library.destroy(model)


def test_arm_sets_its_register_and_sets_the_callers_again() -> None:
    module = Module(aarch64())
    f = Function(module, "region", (), exported=True)
    control_word.leave(f, control_word.enter(f))
    f.finish()
    text = assembly(module.text(), aarch64()).lower()
    assert text.count("mrs") == 1 and text.count("msr") == 2 and text.count("fpcr") == 3

"""Calls of ONNX Runtime's functions and of a program's, as LLVM, and the record that tells an operator what it is."""

from __future__ import annotations

from graphopt.program.deploy.custom.interface import ENTRIES, OPERATOR_BYTES, POINTER
from kernels.emit.refusal import return_when, text
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

NULL = Value(("null",), "ptr")
PROGRAM, WORKERS = "program", "threads"  # attributes of a node: the program's digest, and how many threads run it
PATH_BYTES = 4096

# What stands behind OrtCustomOp in an operator's record: names and tables of the program, and its functions.
OWN = (
    "name", "digest", "file", "weights_bytes", "inputs", "outputs", "input_count", "output_count", "create", "check",
    "run", "dims", "error", "destroy", "set_dim", "sizes", "size_count",
)  # fmt: skip
AT = {name: OPERATOR_BYTES + POINTER * place for place, name in enumerate(OWN)}
FUNCTIONS = ("create_with", "check", "run", "dims", "error", "destroy")
# A row of the table of free dims: the name, and the input and its axis that have it.
SIZE, SIZE_BYTES = "{ ptr, i64, i64 }", 24
# A row of the tables of inputs and outputs: the name, the type's number, rank, dims; the bytes of an output whose dims
# a run finds, or 0, and of an element.
ROW, ROW_BYTES = "{ ptr, i32, i32, ptr, i64, i64 }", 40


def entry(f: Function, api: Value, name: str) -> str:
    """A function of the API, as the operand of a call."""
    return f.load("ptr", f.at(api, ENTRIES[name], "ptr")).text


def operands_of(*operands: Value) -> str:
    """Operands as a call has them."""
    return ", ".join(f"{one.type} {one.text}" for one in operands)


def asked(f: Function, api: Value, name: str, *operands: Value) -> Value:
    """The status that a function of the API gives."""
    return f.value("ptr", f"call ptr {entry(f, api, name)}({operands_of(*operands)})")


def must(f: Function, api: Value, name: str, *operands: Value) -> None:
    """Call a function of the API; this function gives its status, where it is one of a fault."""
    status = asked(f, api, name, *operands)
    return_when(f, f.compare("ne", status, NULL), status)


def fault(f: Function, condition: Value, code: int, sentence: str) -> None:
    """Where a condition holds, the function gives a status; `api` is a parameter of it."""
    bad, good = f.fresh("bad"), f.fresh("good")
    f.line(f"br i1 {condition.text}, label %{bad}, label %{good}")
    f.label(bad)
    f.give(asked(f, f.parameter("api"), "CreateStatus", f.number("i32", code), text(f.module, sentence)))
    f.label(good)


def called(f: Function, name: str, *operands: Value, result: str = "ptr") -> Value:
    """What a function of this module gives."""
    found = f.call(name, *operands, result=result)
    assert found is not None, "it gives a result"
    return found


def own(f: Function, operator: Value, name: str, kind: str = "ptr") -> Value:
    """A field of an operator's record, by its name in `OWN`."""
    return f.load(kind, f.at(operator, AT[name], "i8"))


def write_lock(module: Module) -> None:
    """lock(word), until nobody else has it; unlock is a store. It is held where something is created only."""
    f = Function(module, "lock", (Parameter("word"),))
    f.line("br label %again")
    f.label("again")
    before = f.value("i32", f"atomicrmw xchg ptr {f.parameter('word').text}, i32 1 acquire, align 4")
    taken = f.compare("ne", before, f.number("i32", 0))
    f.line(f"br i1 {taken.text}, label %wait, label %ours")
    f.label("wait")
    f.value("i32", "call i32 @sched_yield()")
    f.line("br label %again")
    f.label("ours")
    f.finish()


def unlock(f: Function, word: Value) -> None:
    """Let others have it."""
    f.line(f"store atomic i32 0, ptr {word.text} release, align 4")

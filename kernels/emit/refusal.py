"""How the generated functions refuse: an error code, and a sentence in the model's record."""

from __future__ import annotations

import hashlib

from kernels.emit.layout import ERROR, ERROR_BYTES, LIVE, READY
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module

OK, BAD_ARGUMENT, BAD_WEIGHTS, BAD_PROCESSOR, NO_MEMORY, MODEL_BUSY = range(6)
CODES = (
    ("OK", OK, "done"),
    ("BAD_ARGUMENT", BAD_ARGUMENT, "an argument is missing or does not fit"),
    ("BAD_WEIGHTS", BAD_WEIGHTS, "the weights file cannot be read, or is not this program's"),
    ("BAD_PROCESSOR", BAD_PROCESSOR, "the processor lacks a feature that the code needs"),
    ("NO_MEMORY", NO_MEMORY, "there is not enough memory"),
    ("MODEL_BUSY", MODEL_BUSY, "another call of this model has not ended; create a model for each thread"),
)
NO_MODEL = "there is no model: it was destroyed, no place for it was given, or there is no memory."


def text(module: Module, content: str) -> Value:
    """A constant C string; equal ones are stored once."""
    data = content.encode() + b"\0"
    name = "text." + hashlib.sha256(data).hexdigest()[:16]
    body = "".join(f"\\{byte:02X}" for byte in data)
    return Value((module.variable(name, f'private constant [{len(data)} x i8] c"{body}", align 1'),), "ptr")


def say(f: Function, record: Value, sentence: str, *values: Value) -> None:
    """Set the model's error text: a format of printf, and its values."""
    f.module.declare("snprintf", "i32", ["ptr", "i64", "ptr", "..."])
    given = "".join(f", {value.type} {value.text}" for value in values)
    where = f.at(record, ERROR, "i8")
    wording = text(f.module, sentence)
    f.value(
        "i32",
        f"call i32 (ptr, i64, ptr, ...) @snprintf(ptr {where.text}, i64 {ERROR_BYTES}, ptr {wording.text}{given})",
    )


def refuse_when(f: Function, condition: Value, code: int, record: Value, sentence: str, *values: Value) -> None:
    """Return an error code and leave a sentence where a condition holds."""
    bad, good = f.fresh("bad"), f.fresh("good")
    f.line(f"br i1 {condition.text}, label %{bad}, label %{good}")
    f.label(bad)
    say(f, record, sentence, *values)
    f.line(f"ret i32 {code}")
    f.label(good)


def return_when(f: Function, condition: Value, result: Value) -> None:
    """Return a value where a condition holds."""
    bad, good = f.fresh("stop"), f.fresh("go")
    f.line(f"br i1 {condition.text}, label %{bad}, label %{good}")
    f.label(bad)
    f.give(result)
    f.label(good)


def failed(f: Function, code: Value) -> None:
    """Pass on another function's error code."""
    return_when(f, f.compare("ne", code, f.number("i32", OK)), code)


def is_null(f: Function, pointer: Value) -> Value:
    """Whether a pointer is null."""
    return f.compare("eq", pointer, Value(("null",), "ptr"))


def is_model(f: Function, record: Value, least: int = LIVE, *, negated: bool = False) -> Value:
    """Whether a pointer is that of a model, as far as can be told; from `LIVE + 1` on, of one that can run.

    Not where it is null, and hardly where the model was destroyed.
    """

    def look() -> list[Value]:
        return [f.sub(f.load("i64", f.at(record, READY, "i8")), least)]

    (beyond,) = f.when(is_null(f, record), lambda: [f.integer(-1)], look)
    return f.compare("ugt" if negated else "ule", beyond, f.integer(LIVE + 1 - least))


def within(f: Function, record: Value, offset: int) -> Value:
    """The address of what lies so many bytes behind the start of a record."""
    return f.at(record, offset, "i8")


def called(f: Function, name: str, *operands: Value, result: str = "i32") -> Value:
    """What a function of the module gives, a code where nothing else is said."""
    found = f.call(name, *operands, result=result)
    assert found is not None, "it gives a result"
    return found

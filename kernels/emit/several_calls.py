"""The calls of a library with several programs, as LLVM: they find the program and hand on what they are given.

What a call needs of the library is a `FrontParts` (kernels/emit/several.py).
"""

from __future__ import annotations

from typing import Protocol

from kernels.emit import layout as at
from kernels.emit.layout import LIVE
from kernels.emit.refusal import BAD_ARGUMENT, MODEL_BUSY, OK, is_model, refuse_when, return_when, say
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

LEVEL, POINT = 8, 16  # in the record: the level, and the point of the next P_run_raw, or their number for none
ORDER = Value(("@several.order",), "ptr")  # for each level the order in which models of its points are made
_NULL = Value(("null",), "ptr")


class FrontParts(Protocol):
    """What is known of a library, and how its record and its table are read."""

    @property
    def module(self) -> Module:
        """Where functions are written."""
        ...

    @property
    def points(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The sizes of each point."""
        ...

    def function(self, name: str, result: str, *given: Parameter) -> Function:
        """A function of the interface."""
        ...

    def entry(self, f: Function, record: Value, point: Value, function: str) -> Value:
        """A function of the listing for a point, at the model's level."""
        ...

    def model(self, f: Function, record: Value, point: Value) -> Value:
        """The model of a point."""
        ...

    def take_sizes(self, f: Function, record: Value, point: Value) -> None:
        """Make a point the one that P_run_raw runs."""
        ...

    def listed(self) -> str:
        """The points, for people; inside a format of printf."""
        ...


def write_calls(front: FrontParts) -> None:
    """Add the functions of calls."""
    _write_run(front)
    _write_raw(front)
    _write_delegates(front)


def _write_run(front: FrontParts) -> None:
    given = (
        Parameter("inputs"),
        Parameter("input_count", "i64"),
        Parameter("outputs"),
        Parameter("output_count", "i64"),
    )
    f = front.function("run", "i32", Parameter("model"), *given)
    record = f.parameter("model")
    return_when(f, is_model(f, record, LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
    enter(f, record)
    f.give(left(f, record, _called(f, "find", record, *(f.parameter(one.name) for one in given))))
    f.finish()
    f = Function(front.module, "find", (Parameter("record"), *given), result="i32")
    record = f.parameter("record")
    tensors = ", ".join(f"{one.type} {f.parameter(one.name).text}" for one in given)
    last, bad = f.load("i64", f.at(record, POINT, "i8")), f.number("i32", BAD_ARGUMENT)
    first = f.select(f.compare("ult", last, f.integer(len(front.points))), last, f.integer(0))

    def attempt(turn: Value, _: tuple[Value, ...]) -> None:
        other = f.select(f.compare("sle", turn, first), f.sub(turn, 1), turn)
        point = f.select(f.compare("eq", turn, f.integer(0)), first, other)
        run, model = front.entry(f, record, point, "run"), front.model(f, record, point)
        code = f.value("i32", f"call i32 {run.text}(ptr {model.text}, {tensors})")

        def done() -> None:
            front.take_sizes(f, record, point)
            f.line(f"ret i32 {code.text}")
            f.label(f.fresh("never"))

        f.when(f.compare("ne", code, bad), done)

    f.loop(f.integer(0), f.integer(len(front.points)), 1, attempt)
    error, model = front.entry(f, record, first, "error"), front.model(f, record, first)
    said = f.value("ptr", f"call ptr {error.text}(ptr {model.text})")
    sizes = f" The program is made for {front.listed()}." if len(front.points) > 1 else ""
    say(f, record, f"%s{sizes}", said)
    f.give(bad)
    f.finish()


def _write_raw(front: FrontParts) -> None:
    f = front.function("run_raw", "i32", Parameter("model"), Parameter("inputs"), Parameter("outputs"))
    record = f.parameter("model")
    return_when(f, is_model(f, record, LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
    enter(f, record)
    given = [f.parameter(name) for name in ("inputs", "outputs")]
    f.give(left(f, record, _called(f, "raw", record, *given)))
    f.finish()
    f = Function(front.module, "raw", (Parameter("record"), Parameter("inputs"), Parameter("outputs")), result="i32")
    record, inputs, outputs = (f.parameter(name) for name in ("record", "inputs", "outputs"))
    point = f.load("i64", f.at(record, POINT, "i8"))
    sentence = f"the program is not made for the sizes that were set, but for {front.listed()}."
    refuse_when(f, f.compare("uge", point, f.integer(len(front.points))), BAD_ARGUMENT, record, sentence)
    run, model = front.entry(f, record, point, "run_raw"), front.model(f, record, point)
    f.give(f.value("i32", f"call i32 {run.text}(ptr {model.text}, ptr {inputs.text}, ptr {outputs.text})"))
    f.finish()


def _write_delegates(front: FrontParts) -> None:
    """Functions that ask the model of the last point, of the first, or of all."""
    f = front.function("dims", "i32", Parameter("model"), Parameter("output", "i64"), Parameter("dims"))
    record, output, dims = (f.parameter(one.name) for one in f.parameters)
    return_when(f, is_model(f, record, LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
    point = f.load("i64", f.at(record, POINT, "i8"))
    return_when(f, f.compare("uge", point, f.integer(len(front.points))), f.number("i32", BAD_ARGUMENT))
    entry, model = front.entry(f, record, point, "dims"), front.model(f, record, point)
    f.give(f.value("i32", f"call i32 {entry.text}(ptr {model.text}, i64 {output.text}, ptr {dims.text})"))
    f.finish()

    f = front.function("check", "i32", Parameter("model"))
    record = f.parameter("model")
    return_when(f, is_model(f, record, LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
    entry, model = front.entry(f, record, f.integer(0), "check"), front.model(f, record, f.integer(0))
    code = f.value("i32", f"call i32 {entry.text}(ptr {model.text})")

    def tell() -> None:
        error = front.entry(f, record, f.integer(0), "error")
        say(f, record, "%s", f.value("ptr", f"call ptr {error.text}(ptr {model.text})"))

    f.when(f.compare("ne", code, f.number("i32", OK)), tell)
    f.give(code)
    f.finish()

    f = front.function("pool", "ptr", Parameter("model"))
    record = f.parameter("model")
    return_when(f, is_model(f, record, LIVE + 1, negated=True), _NULL)
    row = f.mul(f.load("i64", f.at(record, LEVEL, "i8")), len(front.points))
    point = f.load("i64", f.at(ORDER, row, "i64"))
    entry, model = front.entry(f, record, point, "pool"), front.model(f, record, point)
    f.give(f.value("ptr", f"call ptr {entry.text}(ptr {model.text})"))
    f.finish()

    f = front.function("profile", "void", Parameter("model"), Parameter("stamps"), Parameter("room", "i64"))
    record, stamps, room = (f.parameter(one.name) for one in f.parameters)
    _to_all(front, f, record, "profile", f", ptr {stamps.text}, i64 {room.text}")
    f.finish()

    f = front.function("after_fork", "void", Parameter("model"))
    record = f.parameter("model")
    f.when(is_model(f, record), lambda: _leave(f, record))
    _to_all(front, f, record, "after_fork", "")
    f.finish()


def _to_all(front: FrontParts, f: Function, record: Value, function: str, given: str) -> None:
    """Call a function of every model that there is; each of them takes null for none."""

    def every() -> None:
        def one(point: Value, _: tuple[Value, ...]) -> None:
            entry, model = front.entry(f, record, point, function), front.model(f, record, point)
            f.line(f"call void {entry.text}(ptr {model.text}{given})")

        f.loop(f.integer(0), f.integer(len(front.points)), 1, one)

    f.when(is_model(f, record), every)


def _called(f: Function, name: str, *operands: Value) -> Value:
    found = f.call(name, *operands, result="i32")
    assert found is not None, "it gives a result"
    return found


def enter(f: Function, record: Value) -> None:
    """Take the model for this call, or return MODEL_BUSY: its points share an arena."""
    busy = f.at(record, at.BUSY, "i8")
    before = f.value("i32", f"atomicrmw xchg ptr {busy.text}, i32 1 acquire, align 4")
    return_when(f, f.compare("ne", before, f.number("i32", 0)), f.number("i32", MODEL_BUSY))


def _leave(f: Function, record: Value) -> None:
    f.line(f"store atomic i32 0, ptr {f.at(record, at.BUSY, 'i8').text} release, align 4")


def left(f: Function, record: Value, code: Value) -> Value:
    """Give the model back; the code is handed on."""
    _leave(f, record)
    return code

"""Running a model, as LLVM: the caller's tensors are checked and put into the tables, then every block of every run.

    int P_run(P_model *model, const P_tensor *inputs, size_t input_count, const P_tensor *outputs, size_t output_count)
    int P_run_raw(P_model *model, const void *const *inputs, void *const *outputs)    unchecked, in declared order
    int P_dims(const P_model *model, size_t output, int64_t *dims)    of an output, as the last run found them
    void P_after_fork(P_model *model)    in a child process: no call runs any more

Nothing is allocated, and nobody waits but the workers of one model for one another (kernels/emit/sharing.py): a call of
a model that runs already returns MODEL_BUSY, which one atomic exchange finds out. It leaves no sentence, as the record
belongs to the call that runs. Kernels run under a control word of their own (kernels/llvm/control_word.py); the
caller's is back when a call returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernels.emit import layout as at
from kernels.emit.alone import write_alone
from kernels.emit.layout import MemoryLayout
from kernels.emit.places import by_argument, write_places
from kernels.emit.refusal import (
    BAD_ARGUMENT,
    MODEL_BUSY,
    OK,
    called,
    failed,
    is_model,
    is_null,
    refuse_when,
    return_when,
    say,
    text,
)
from kernels.emit.sharing import write_sharing
from kernels.emit.sizes import free_places, shape_of
from kernels.emit.stamping import write_profile
from kernels.emit.types import code_of
from kernels.emit.units import begin_units, end_units
from kernels.listing import Argument, FetchRows, Listing
from kernels.llvm import control_word
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import write_clock

TENSOR = 32  # bytes of P_tensor: name at 0, dtype at 8, rank at 12, dims at 16, data at 24
_SPEC = 56  # name, dtype and rank, dims, element bytes, bytes, shape as text, type as text
_NULL = Value(("null",), "ptr")


def write_running(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """Add the functions."""
    module.declare("strcmp", "i32", ["ptr", "ptr"])
    for kernel in listing.kernels:
        module.declare(listing.symbol(kernel.name), "void", ["ptr", "i64", "ptr"])
    fetches = listing.ticketed is not None and bool(listing.ticketed.fetches)
    if listing.ticketed is None:
        write_clock(module)
    write_alone(module, listing, layout, kernels_only=fetches)
    write_profile(module, listing)
    if listing.ticketed is not None:
        write_sharing(module, listing, layout, listing.ticketed)
    _write_compute(module, listing, layout)
    _write_raw(module, listing)
    _write_dims(module, listing, layout)
    _write_find(module)
    _write_blame(module)
    _write_check(module, layout.sizes + 8 * listing.size_count if listing.sizes else None)
    _write_checked(module, listing)
    _write_run(module, listing)
    _write_after_fork(module, listing)


def _write_compute(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """compute(model, inputs, outputs): the tables of operands, then all runs under the kernels' control word."""
    f = Function(module, "compute", (Parameter("model"), Parameter("inputs"), Parameter("outputs")))
    record, word = f.parameter("model"), control_word.enter(f)
    fetches = listing.ticketed.fetches if listing.ticketed is not None else ()
    indexed = {
        one.indices.argument for one in fetches if isinstance(one, FetchRows) and one.indices.space == "input"
    }  # fmt: skip
    operands = by_argument(listing.runs)
    for space, arguments in (("input", listing.inputs), ("output", listing.outputs)):
        for number in range(len(arguments)):
            start = f.load("ptr", f.at(f.parameter(f"{space}s"), number, "ptr"))
            write_places(f, listing.runs, layout, space, number, start, among=operands.get((space, number), ()))
            if space == "input" and number in indexed:
                f.store(start, f.at(record, at.ARGUMENTS + 8 * number, "i8"))
    for number, offset in enumerate(_dims_offsets(listing, layout), len(listing.outputs)):
        start = f.at(record, offset, "i8")
        write_places(f, listing.runs, layout, "output", number, start, among=operands.get(("output", number), ()))

    def alone() -> None:
        begin_units(f, listing)
        f.call("alone", record, f.load("ptr", f.at(record, at.SCRATCH, "i8")))
        end_units(f, listing)

    if listing.ticketed is None:
        alone()
    elif listing.ticketed.fetches:
        f.call("share", f.at(record, at.SHARED, "i8"))
    else:
        several = f.compare("sgt", f.load("i64", f.at(record, at.SHARED + at.WORKERS, "i8")), f.integer(1))
        f.when(several, lambda: _call(f, "share", f.at(record, at.SHARED, "i8")), alone)
    control_word.leave(f, word)
    f.finish()


def _dims_offsets(listing: Listing, layout: MemoryLayout) -> list[int]:
    """Where in the record the dims of each output with counted axes are."""
    return list(itertools.accumulate((one.bytes for one in listing.dims), initial=layout.dims))[:-1]


def _write_dims(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    given = (Parameter("model"), Parameter("output", "i64"), Parameter("dims"))
    f = Function(module, f"{listing.name}_dims", given, exported=True, result="i32")
    record, output, dims = (f.parameter(one.name) for one in given)
    unknown = f.compare("uge", output, f.integer(len(listing.outputs)))
    missing = f.binary("or", is_model(f, record, at.LIVE + 1, negated=True), is_null(f, dims))
    return_when(f, f.binary("or", unknown, missing), f.number("i32", BAD_ARGUMENT))
    offsets, places = iter(_dims_offsets(listing, layout)), free_places(listing)
    following = layout.sizes + 8 * listing.size_count
    for number, one in enumerate(listing.outputs):
        start = next(offsets) if one.counted else None

        def give(one: Argument = one, start: int | None = start) -> None:
            for axis, size in enumerate(one.shape):
                place = places.get((one, axis))
                where = start + 8 * axis if start is not None else None if place is None else following + 8 * place
                found = f.integer(size) if where is None else f.load("i64", f.at(record, where, "i8"))
                f.store(found, f.at(dims, axis, "i64"))

        f.when(f.compare("eq", output, f.integer(number)), give)
    f.give(f.number("i32", OK))
    f.finish()


def _call(f: Function, name: str, operand: Value) -> None:
    f.call(name, operand)


def _enter(f: Function, record: Value) -> None:
    """Take the model for this call, or return MODEL_BUSY."""
    busy = f.at(record, at.BUSY, "i8")
    before = f.value("i32", f"atomicrmw xchg ptr {busy.text}, i32 1 acquire, align 4")
    return_when(f, f.compare("ne", before, f.number("i32", 0)), f.number("i32", MODEL_BUSY))


def _leave(f: Function, record: Value) -> None:
    busy = f.at(record, at.BUSY, "i8")
    f.line(f"store atomic i32 0, ptr {busy.text} release, align 4")


def _write_raw(module: Module, listing: Listing) -> None:
    given = (Parameter("model"), Parameter("inputs"), Parameter("outputs"))
    f = Function(module, f"{listing.name}_run_raw", given, exported=True, result="i32")
    record = f.parameter("model")
    return_when(f, is_model(f, record, at.LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
    _enter(f, record)
    f.call("compute", record, f.parameter("inputs"), f.parameter("outputs"))
    code = _ended(f, listing, record)
    _leave(f, record)
    f.give(code)
    f.finish()


def _ended(f: Function, listing: Listing, record: Value) -> Value:
    """The code of a call that has computed."""
    if listing.ticketed is None or not listing.ticketed.fetches:
        return f.number("i32", OK)
    return called(f, "fetch_end", record)


def _write_after_fork(module: Module, listing: Listing) -> None:
    f = Function(module, f"{listing.name}_after_fork", (Parameter("model"),), exported=True)
    record = f.parameter("model")
    f.when(is_model(f, record), lambda: _leave(f, record))
    f.finish()


def _write_find(module: Module) -> None:
    """find(name, tensors, count, stride) -> ptr: the one with this name, or null; each starts with its name."""
    given = (Parameter("name"), Parameter("tensors"), Parameter("count", "i64"), Parameter("stride", "i64"))
    f = Function(module, "find", given, result="ptr")

    def look(number: Value, _: tuple[Value, ...]) -> None:
        tensor = f.at(f.parameter("tensors"), f.mul(number, f.parameter("stride")), "i8")
        other = f.load("ptr", tensor)

        def compare() -> None:
            order = f.value("i32", f"call i32 @strcmp(ptr {f.parameter('name').text}, ptr {other.text})")
            return_when(f, f.compare("eq", order, f.number("i32", 0)), tensor)

        f.when(f.compare("ne", other, _NULL), compare)

    f.loop(0, f.parameter("count"), 1, look)
    f.give(_NULL)
    f.finish()


_CHECKED = (
    Parameter("record"), Parameter("specs"), Parameter("count", "i64"), Parameter("tensors"),
    Parameter("given", "i64"), Parameter("word"), Parameter("names"),
)  # fmt: skip


def _write_blame(module: Module) -> None:
    """blame(...) -> code: says why the names given are not those expected. Off the usual path."""
    f = Function(module, "blame", _CHECKED, result="i32")
    record, specs, tensors, word = (f.parameter(name) for name in ("record", "specs", "tensors", "word"))
    count, given, names = f.parameter("count"), f.parameter("given"), f.parameter("names")
    code = f.number("i32", BAD_ARGUMENT)

    def unknown(number: Value, _: tuple[Value, ...]) -> None:
        name = f.load("ptr", f.at(tensors, f.mul(number, TENSOR), "i8"))
        refuse_when(f, is_null(f, name), BAD_ARGUMENT, record, "%s number %lld has no name.", word, number)
        spec = _found(f, name, specs, count, _SPEC)
        sentence = "there is no %s '%s'; the program has %s."
        refuse_when(f, is_null(f, spec), BAD_ARGUMENT, record, sentence, word, name, names)

    def absent(number: Value, _: tuple[Value, ...]) -> None:
        name = f.load("ptr", f.at(specs, f.mul(number, _SPEC), "i8"))
        tensor = _found(f, name, tensors, given, TENSOR)
        sentence = "%s '%s' is missing; the program has %s."
        refuse_when(f, is_null(f, tensor), BAD_ARGUMENT, record, sentence, word, name, names)

    f.loop(0, given, 1, unknown)
    f.loop(0, count, 1, absent)
    say(f, record, "%lld %ss are given, one of them twice; the program has %s.", given, word, names)
    f.give(code)
    f.finish()


def _found(f: Function, name: Value, tensors: Value, count: Value, stride: int) -> Value:
    found = f.call("find", name, tensors, count, f.integer(stride), result="ptr")
    assert found is not None, "it gives a result"
    return found


def _write_check(module: Module, following: int | None) -> None:
    """check(..., slots) -> code: every tensor by its name; where its data starts goes into the slots.

    `following`: where the dims that follow from sizes start in the record; None: all are numbers.
    """
    f = Function(module, "check", (*_CHECKED, Parameter("slots")), result="i32")
    record, tensors, given, word = (f.parameter(name) for name in ("record", "tensors", "given", "word"))
    missing = f.binary("and", is_null(f, tensors), f.compare("ne", given, f.integer(0)))
    refuse_when(f, missing, BAD_ARGUMENT, record, "no %ss are given.", word)
    same = f.compare("eq", given, f.parameter("count"))

    def blame() -> None:
        code = f.call("blame", *(f.parameter(one.name) for one in _CHECKED), result="i32")
        assert code is not None, "it gives a result"
        return_when(f, f.compare("ne", code, f.number("i32", OK)), code)

    f.when(same, lambda: None, blame)

    def one(number: Value, _: tuple[Value, ...]) -> None:
        spec = f.at(f.parameter("specs"), f.mul(number, _SPEC), "i8")
        name = f.load("ptr", spec)
        ahead = f.at(tensors, f.mul(number, TENSOR), "i8")  # most callers keep the declared order
        (tensor,) = f.when(
            f.compare("ne", _found(f, name, ahead, f.integer(1), TENSOR), _NULL),
            lambda: [ahead],
            lambda: [_found(f, name, tensors, given, TENSOR)],
        )
        f.when(is_null(f, tensor), blame)
        _check_one(f, spec, tensor, name, word, record, following)
        data = f.load("ptr", f.at(tensor, 24, "i8"))
        f.store(data, f.at(f.parameter("slots"), number, "ptr"))

    f.loop(0, f.parameter("count"), 1, one)
    f.give(f.number("i32", OK))
    f.finish()


def _check_one(
    f: Function, spec: Value, tensor: Value, name: Value, word: Value, record: Value, following: int | None
) -> None:
    """Type, rank, dims and data of a tensor that was found."""

    def wrong(condition: Value, sentence: str, *values: Value) -> None:
        refuse_when(f, condition, BAD_ARGUMENT, record, f"%s '%s' {sentence}", word, name, *values)

    shape, kind = f.load("ptr", f.at(spec, 40, "i8")), f.load("ptr", f.at(spec, 48, "i8"))
    dtype, rank = f.load("i32", f.at(tensor, 8, "i8")), f.load("i32", f.at(tensor, 12, "i8"))
    expected = f.load("i32", f.at(spec, 8, "i8"))
    wrong(f.compare("ne", dtype, expected), "has elements of type %d; expected are %d, %s.", dtype, expected, kind)
    expected = f.load("i32", f.at(spec, 12, "i8"))
    wrong(f.compare("ne", rank, expected), "has %d dims; expected are %d: its shape is %s.", rank, expected, shape)
    dims, known = f.load("ptr", f.at(tensor, 16, "i8")), f.load("ptr", f.at(spec, 16, "i8"))
    some = f.compare("ne", rank, f.number("i32", 0))
    wrong(f.binary("and", some, is_null(f, dims)), "has no dims; its shape is %s.", shape)

    def dim(number: Value, _: tuple[Value, ...]) -> None:
        found, right = (f.load("i64", f.at(one, number, "i64")) for one in (dims, known))
        if following is not None:
            right = _following(f, right, f.at(record, following, "i8"))
        wrong(f.compare("ne", found, right), "has dim %lld of %lld; its shape is %s.", number, found, shape)

    f.loop(0, f.convert("zext", "i64", rank), 1, dim)
    data = f.load("ptr", f.at(tensor, 24, "i8"))
    size, element = f.load("i64", f.at(spec, 32, "i8")), f.load("i64", f.at(spec, 24, "i8"))
    wrong(f.binary("and", is_null(f, data), f.compare("ne", size, f.integer(0))), "has no data.")
    rest = f.binary("and", f.convert("ptrtoint", "i64", data), f.sub(element, 1))
    sentence = "starts at %p; its elements must start at multiples of %lld bytes."
    wrong(f.compare("ne", rest, f.integer(0)), sentence, data, element)


def _following(f: Function, dim: Value, known: Value) -> Value:
    """A dim of the table of what is expected, which may be one of those that follow from sizes."""
    free = f.compare("slt", dim, f.integer(0))
    (found,) = f.when(free, lambda: [f.load("i64", f.at(known, f.sub(f.integer(-1), dim), "i64"))], lambda: [dim])
    return found


_GIVEN = (
    Parameter("model"), Parameter("inputs"), Parameter("input_count", "i64"), Parameter("outputs"),
    Parameter("output_count", "i64"),
)  # fmt: skip


def _write_run(module: Module, listing: Listing) -> None:
    f = Function(module, f"{listing.name}_run", _GIVEN, exported=True, result="i32")
    record = f.parameter("model")
    stranger = is_model(f, record, at.LIVE + 1, negated=True)
    return_when(f, stranger, f.number("i32", BAD_ARGUMENT))  # the text says why it could not be created
    _enter(f, record)
    code = f.call("checked", *(f.parameter(one.name) for one in _GIVEN), result="i32")
    assert code is not None, "it gives a result"
    _leave(f, record)
    f.give(code)
    f.finish()


def _write_checked(module: Module, listing: Listing) -> None:
    """checked(...) -> code: the body of P_run, for a model that this call has taken."""
    f = Function(module, "checked", _GIVEN, result="i32")
    record = f.parameter("model")
    slots = [f.at(record, at.ARGUMENTS + 8 * skipped, "i8") for skipped in (0, len(listing.inputs))]
    for word, arguments, slot in (("input", listing.inputs, slots[0]), ("output", listing.outputs, slots[1])):
        names = ", ".join(f"'{one.name}'" for one in arguments) or "none"
        code = f.call(
            "check", record, _specs(module, listing, word, arguments), f.integer(len(arguments)),
            f.parameter(f"{word}s"), f.parameter(f"{word}_count"), text(module, word), text(module, names), slot,
            result="i32",
        )  # fmt: skip
        assert code is not None, "it gives a result"
        failed(f, code)
    for number, one in enumerate(listing.inputs):
        _check_held(f, one, f.load("ptr", f.at(slots[0], number, "ptr")), record)
    for number, one in enumerate(listing.outputs):
        if one.cache >= 0:
            past = f.load("ptr", f.at(slots[0], one.cache, "ptr"))
            other = f.compare("ne", past, f.load("ptr", f.at(slots[1], number, "ptr")))
            pair = (text(module, one.name), text(module, listing.inputs[one.cache].name))
            refuse_when(f, other, BAD_ARGUMENT, record, "output '%s' lies in the memory of input '%s'.", *pair)
    f.call("compute", record, *slots)
    f.give(_ended(f, listing, record))
    f.finish()


def _check_held(f: Function, given: Argument, data: Value, record: Value) -> None:
    """The integers that an input has to hold."""
    kind = f"i{8 * given.dtype.bytes}"
    for place, number in given.held:
        found = f.load(kind, f.at(data, place, kind))
        wide = found if kind == "i64" else f.convert("sext", "i64", found)
        sentence = "input '%s' holds %lld at place %lld; the program is compiled for %lld there."
        wrong = f.compare("ne", wide, f.integer(number))
        name = text(f.module, given.name)
        refuse_when(f, wrong, BAD_ARGUMENT, record, sentence, name, wide, f.integer(place), f.integer(number))


def _specs(module: Module, listing: Listing, word: str, arguments: Sequence[Argument]) -> Value:
    """A constant table of what is expected; -1 - n for the dim number n of those that follow from sizes."""
    rows, places = [], free_places(listing)
    for number, one in enumerate(arguments):
        dims = "null"
        if one.shape:
            fixed = [-1 - places[one, axis] if (one, axis) in places else dim for axis, dim in enumerate(one.shape)]
            dims = module.constant(f"dims.{word}{number}", "i64", [str(dim) for dim in fixed], align=8)
        shape, kind = text(module, shape_of(listing, one)), text(module, one.dtype.value)
        rows.append(
            f"{_ROW} {{ ptr {text(module, one.name).text}, i32 {code_of(one.dtype)}, i32 {len(one.shape)}, ptr {dims}, "
            f"i64 {one.dtype.bytes}, i64 {one.bytes}, ptr {shape.text}, ptr {kind.text} }}"
        )
    body = f"internal constant [{len(rows)} x {_ROW}] [{', '.join(rows)}], align 8"
    return Value((module.variable(f"{word}s", body),), "ptr")


_ROW = "{ ptr, i32, i32, ptr, i64, i64, ptr, ptr }"

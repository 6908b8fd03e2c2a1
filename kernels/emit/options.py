"""What a model is created with, P_options, as LLVM: a record that says how large it is, so that it can grow.

A caller's record has the size that its header gave it. Fields that it lacks count as zeros, and zeros stand for what is
usual; fields beyond those known here have to be zeros, so that nothing that a newer caller asks for is passed over.
"""

from __future__ import annotations

from kernels.emit.refusal import BAD_ARGUMENT, OK, is_null, refuse_when
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

# Offsets, in bytes.
BYTES, WEIGHTS_PATH, WEIGHTS, WEIGHTS_BYTES, SHARED_POOL, MEMORY_LIMIT, SIZES, SIZE_COUNT = range(0, 64, 8)
THREADS, PINNED, READ, CONTEXTS = range(64, 80, 4)
FIRST_BYTES = 80  # of the record of ABI 1: no caller has a smaller one
KNOWN_BYTES = 80  # of the record that is known here
LENDER = 80  # behind it, of our own: a model whose arena, scratch and weights this one uses too; null: it has its own
_ALL_BYTES = 88


def write_options(module: Module) -> None:
    """Add options_of(record, given, known) -> code: a caller's record as one of the size that is known here."""
    given = (Parameter("record"), Parameter("given"), Parameter("known"))
    f = Function(module, "options_of", given, result="i32")
    record, options, known = (f.parameter(one.name) for one in given)
    refuse_when(f, is_null(f, options), BAD_ARGUMENT, record, "no options are given.")
    size = f.load("i64", options)
    refuse_when(
        f, f.compare("ult", size, f.integer(FIRST_BYTES)), BAD_ARGUMENT, record,
        "the options say that they have %lld bytes; set 'bytes' to sizeof of their type.", size,
    )  # fmt: skip

    def word(place: Value, _: tuple[Value, ...]) -> None:
        f.store(f.load("i8", f.at(options, place, "i8")), f.at(known, place, "i8"))

    f.loop(f.integer(0), f.minimum(size, f.integer(KNOWN_BYTES)), 1, word)

    def beyond(place: Value, _: tuple[Value, ...]) -> None:
        found = f.compare("ne", f.load("i8", f.at(options, place, "i8")), f.number("i8", 0))
        sentence = "byte %lld of the options is set, which this library does not know: its header is older."
        refuse_when(f, found, BAD_ARGUMENT, record, sentence, place)

    f.loop(f.integer(KNOWN_BYTES), size, 1, beyond)
    contexts = f.load("i32", f.at(known, CONTEXTS, "i8"))
    refuse_when(
        f, f.compare("ugt", contexts, f.number("i32", 1)), BAD_ARGUMENT, record,
        "%d contexts are asked for; a model has one: create a model for each, whose mapped weights they share.",
        contexts,
    )  # fmt: skip
    f.give(f.number("i32", OK))
    f.finish()


def fresh_options(f: Function) -> Value:
    """Options on the stack, all zeros but for their size."""
    place = f.value("ptr", f"alloca [{_ALL_BYTES} x i8], align 8")
    f.line(f"store [{_ALL_BYTES} x i8] zeroinitializer, ptr {place.text}, align 8")
    f.store(f.integer(KNOWN_BYTES), place)
    return place


def option(f: Function, options: Value, kind: str, offset: int) -> Value:
    """A field."""
    return f.load(kind, f.at(options, offset, "i8"))


def purse(f: Function, record: Value, options: Value) -> Value:
    """The model that counts what is taken: the lender, where there is one."""
    lender = option(f, options, "ptr", LENDER)
    return f.select(is_null(f, lender), record, lender)

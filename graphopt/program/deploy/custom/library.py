"""The library of custom operators, as LLVM: what ONNX Runtime calls, on top of the C interface of programs.

    OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base)

adds a domain with one operator for each program. An operator's kernel has *contexts*, models of its program: one from
the beginning, and another whenever a run finds all of them in other runs, up to `MOST_CONTEXTS`. They share the
weights of the first. Nothing but a new context is allocated while a kernel runs, and outputs of which a run finds the
dims. Every refusal is an OrtStatus with the sentence of the program.

The weights lie beside the library, wherever both are: the library asks where it was loaded from when it is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphopt.program.deploy.custom.calls import (
    FUNCTIONS,
    NULL,
    PATH_BYTES,
    ROW,
    ROW_BYTES,
    SIZE,
    asked,
    called,
    must,
    own,
    unlock,
    write_lock,
)
from graphopt.program.deploy.custom.interface import API_VERSION, ENTRIES, FAIL, GET_API, GET_VERSION_STRING, OPERATOR
from graphopt.program.deploy.custom.kernel import write_kernel
from kernels import pool
from kernels.emit.refusal import is_null, return_when, text
from kernels.emit.types import code_of
from kernels.listing import Argument, Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

REGISTER = "RegisterCustomOps"


def domain_of(name: str) -> str:
    """The domain of a library's operators: a session has none of them twice."""
    return f"graphopt.{name}"


@dataclass(frozen=True, slots=True)
class Operator:
    """A program as an operator: the name of its listing, a digest that its node names too, its file of weights."""

    listing: Listing
    digest: str
    file: str
    weights_bytes: int  # as they are stored; -1 where a model does not lend them to another one
    sizes: tuple[tuple[str, int, int], ...] = ()  # the free dims: a name, and the input and its axis that have it


def write_operators(module: Module, name: str, operators: Sequence[Operator]) -> None:
    """Add RegisterCustomOps of a library and all that it needs; the programs' interfaces are in other modules."""
    for needed, result, given in (
        ("calloc", "ptr", ["i64", "i64"]), ("malloc", "ptr", ["i64"]), ("free", "void", ["ptr"]),
        ("snprintf", "i32", ["ptr", "i64", "ptr", "..."]), ("strcmp", "i32", ["ptr", "ptr"]),
        ("strrchr", "ptr", ["ptr", "i32"]), ("dladdr", "i32", ["ptr", "ptr"]), ("realpath", "ptr", ["ptr", "ptr"]),
        ("sched_yield", "i32", []), ("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"]),
    ):  # fmt: skip
        module.declare(needed, result, given)
    module.variable("threads_of_all", f"internal global [{pool.STATE_BYTES} x i8] zeroinitializer, align 64")
    module.variable("folder", f"internal global [{PATH_BYTES} x i8] zeroinitializer, align 1")
    module.variable("domain", "internal global ptr null, align 8")
    module.variable("release", "internal global ptr null, align 8")
    module.variable("registering", "internal global i32 0, align 4")
    _write_answers(module)
    write_lock(module)
    write_kernel(module)
    for number, one in enumerate(operators):
        _write_operator(module, number, one)
    _write_find_folder(module)
    _write_register(module, domain_of(name), len(operators))
    _write_leave(module)


def _write_operator(module: Module, number: int, operator: Operator) -> None:
    """operator<number>: OrtCustomOp with what belongs to the program behind it."""
    listing = operator.listing
    functions = (*FUNCTIONS, "set_dim") if operator.sizes else FUNCTIONS
    for name in functions:
        module.declare(f"{listing.name}_{name}", "i32", ["..."])
    tables = {
        word: _table(module, f"{word}s{number}", arguments)
        for word, arguments in (("input", listing.inputs), ("output", listing.outputs))
    }
    callbacks = [f"ptr @{name}" if module.has(name) else "ptr null" for name in OPERATOR]
    own = (
        f"ptr {text(module, listing.name).text}", f"ptr {text(module, operator.digest).text}",
        f"ptr {text(module, operator.file).text}", f"i64 {operator.weights_bytes}", f"ptr {tables['input']}",
        f"ptr {tables['output']}", f"i64 {len(listing.inputs)}", f"i64 {len(listing.outputs)}",
        *(f"ptr @{listing.name}_{name}" for name in functions),
        *(() if operator.sizes else ("ptr null",)), f"ptr {_sizes(module, number, operator)}",
        f"i64 {len(operator.sizes)}",
    )  # fmt: skip
    fields = [f"i64 {API_VERSION}", *callbacks, *own]
    kinds = ", ".join(field.split()[0] for field in fields)
    module.variable(f"operator{number}", f"internal constant {{ {kinds} }} {{ {', '.join(fields)} }}, align 8")


def _sizes(module: Module, number: int, operator: Operator) -> str:
    """A row for each free dim: where a run finds its size."""
    rows = [
        f"{SIZE} {{ ptr {text(module, name).text}, i64 {place}, i64 {axis} }}" for name, place, axis in operator.sizes
    ]
    return module.variable(f"sizes{number}", f"internal constant [{len(rows)} x {SIZE}] [{', '.join(rows)}], align 8")


def _table(module: Module, name: str, arguments: Sequence[Argument]) -> str:
    rows = []
    for number, one in enumerate(arguments):
        dims = (
            module.constant(f"{name}.{number}", "i64", [str(dim) for dim in one.shape], align=8)
            if one.shape
            else ("null")
        )
        rows.append(
            f"{ROW} {{ ptr {text(module, one.name).text}, i32 {code_of(one.dtype)}, i32 {len(one.shape)}, ptr {dims}, "
            f"i64 {max(one.bytes, 1) if one.counted else 0}, i64 {one.dtype.bytes} }}"
        )
    return module.variable(name, f"internal constant [{len(rows)} x {ROW}] [{', '.join(rows)}], align 8")


def _write_answers(module: Module) -> None:
    """The functions of OrtCustomOp that only say what an operator is."""
    operator, index = Parameter("op"), Parameter("index", "i64")

    def answer(name: str, result: str, given: Sequence[Parameter], value: Callable[[Function], Value]) -> None:
        f = Function(module, name, given, exported=True, result=result)
        f.give(value(f))
        f.finish()

    answer("GetName", "ptr", (operator,), lambda f: own(f, f.parameter("op"), "name"))
    answer("GetExecutionProviderType", "ptr", (operator,), lambda f: text(module, "CPUExecutionProvider"))
    for word in ("Input", "Output"):

        def count(f: Function, word: str = word) -> Value:
            return own(f, f.parameter("op"), f"{word.lower()}_count", "i64")

        def kind(f: Function, word: str = word) -> Value:
            rows = own(f, f.parameter("op"), f"{word.lower()}s")
            return f.load("i32", f.at(f.at(rows, f.mul(f.parameter("index"), ROW_BYTES), "i8"), 8, "i8"))

        answer(f"Get{word}TypeCount", "i64", (operator,), count)
        answer(f"Get{word}Type", "i32", (operator, index), kind)
        answer(f"Get{word}Characteristic", "i32", (operator, index), lambda f: f.number("i32", 0))  # it is required
    answer("GetInputMemoryType", "i32", (operator, index), lambda f: f.number("i32", 0))  # OrtMemTypeDefault
    for name in ("GetStartVersion", "GetEndVersion"):
        answer(name, "i32", (operator,), lambda f: f.number("i32", 1))


def _write_find_folder(module: Module) -> None:
    """find_folder(): where this library lies, its links followed; the current folder where the system does not say."""
    f = Function(module, "find_folder", ())
    known = f.value("ptr", "alloca [4 x ptr], align 8")  # Dl_info; the file's name is the first
    f.store(text(module, "."), known)
    f.value("i32", f"call i32 @dladdr(ptr @{REGISTER}, ptr {known.text})")
    folder = Value(("@folder",), "ptr")
    # Its first version, to which a name without a version is bound, wants to be given the memory.
    whole = f.value("ptr", f"call ptr @realpath(ptr {f.load('ptr', known).text}, ptr {folder.text})")
    slash = f.value("ptr", f"call ptr @strrchr(ptr {folder.text}, i32 {ord('/')})")
    known_where = f.binary("and", f.compare("ne", whole, NULL), f.compare("ne", slash, NULL))

    def here() -> None:
        f.store(f.number("i16", ord(".")), folder, align=1)  # little endian: "." and the end

    f.when(known_where, lambda: f.store(f.number("i8", 0), slash), here)
    f.finish()


def _write_register(module: Module, domain_name: str, count: int) -> None:
    """RegisterCustomOps(options, base) -> status: one domain for the life of the library, added to every session."""
    f = Function(module, "make_domain", (Parameter("api"),), result="ptr")
    api, domain = f.parameter("api"), Value(("@domain",), "ptr")
    return_when(f, f.compare("ne", f.load("ptr", domain), NULL), NULL)
    f.call("find_folder")
    place = f.value("ptr", "alloca ptr, align 8")
    must(f, api, "CreateCustomOpDomain", text(module, domain_name), place)
    for number in range(count):
        must(f, api, "CustomOpDomain_Add", f.load("ptr", place), Value((f"@operator{number}",), "ptr"))
    f.store(f.load("ptr", f.at(api, ENTRIES["ReleaseCustomOpDomain"], "ptr")), Value(("@release",), "ptr"))
    f.store(f.load("ptr", place), domain)
    f.give(NULL)
    f.finish()

    f = Function(module, REGISTER, (Parameter("options"), Parameter("base")), exported=True, result="ptr")
    base = f.parameter("base")

    def version(number: int) -> Value:
        entry = f.load("ptr", f.at(base, GET_API, "ptr"))
        return f.value("ptr", f"call ptr {entry.text}(i32 {number})")

    api = version(API_VERSION)
    f.line(f"br i1 {is_null(f, api).text}, label %old, label %new")
    f.label("old")
    sentence = f.value("ptr", "alloca [256 x i8], align 8")
    entry = f.load("ptr", f.at(base, GET_VERSION_STRING, "ptr"))
    found = f.value("ptr", f"call ptr {entry.text}()")
    wording = text(module, f"these custom operators need ONNX Runtime 1.{API_VERSION} or a later one; this is %s.")
    f.value(
        "i32", f"call i32 (ptr, i64, ptr, ...) @snprintf(ptr {sentence.text}, i64 256, ptr {wording.text}, "
        f"ptr {found.text})",
    )  # fmt: skip
    f.give(asked(f, version(1), "CreateStatus", f.number("i32", FAIL), sentence))
    f.label("new")
    word = Value(("@registering",), "ptr")
    f.call("lock", word)
    status = called(f, "make_domain", api)
    unlock(f, word)
    return_when(f, f.compare("ne", status, NULL), status)
    f.give(asked(f, api, "AddCustomOpDomain", f.parameter("options"), f.load("ptr", Value(("@domain",), "ptr"))))
    f.finish()


def _write_leave(module: Module) -> None:
    """The domain goes with the library."""
    f = Function(module, "leave", (), exported=True)
    domain, release = (f.load("ptr", Value((f"@{name}",), "ptr")) for name in ("domain", "release"))
    f.when(f.compare("ne", domain, NULL), lambda: f.line(f"call void {release.text}(ptr {domain.text})"))
    f.finish()
    module.variable(
        "llvm.global_dtors",
        "appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @leave, ptr null }]",
    )

"""A custom operator's kernel, as LLVM: its contexts, a run, and what ONNX Runtime is told of faults."""

from __future__ import annotations

from graphopt.program.deploy.custom.calls import (
    NULL,
    PATH_BYTES,
    PROGRAM,
    WORKERS,
    asked,
    called,
    fault,
    must,
    operands_of,
    own,
    unlock,
)
from graphopt.program.deploy.custom.interface import FAIL, INVALID_ARGUMENT
from graphopt.program.deploy.custom.tensors import MOST_DIMS, write_tensors
from kernels.emit import layout
from kernels.emit.options import READ, SHARED_POOL, THREADS, WEIGHTS, WEIGHTS_BYTES, WEIGHTS_PATH, fresh_options
from kernels.emit.refusal import BAD_ARGUMENT, is_null, return_when, text
from kernels.emit.running import TENSOR
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

MOST_CONTEXTS = 64  # runs of one kernel at a time; a further one waits for its turn
# A kernel's record: its operator, the API, a lock, how many threads, how many contexts, then a flag and a model each.
_OPERATOR, _API, _LOCK, _THREADS, _COUNT, _CONTEXTS = 0, 8, 16, 20, 24, 32
_KERNEL_BYTES = _CONTEXTS + 16 * MOST_CONTEXTS


def write_kernel(module: Module) -> None:
    """Add CreateKernelV2, KernelComputeV2 and KernelDestroy."""
    _write_status(module)
    _write_add_context(module)
    _write_create(module)
    _write_take(module)
    write_tensors(module)
    _write_run(module)
    _write_compute(module)
    _write_destroy(module)


def _write_status(module: Module) -> None:
    """refused(api, operator, code, model) -> status: the sentence of a model, which may be null."""
    given = (Parameter("api"), Parameter("op"), Parameter("code", "i32"), Parameter("model"))
    f = Function(module, "refused", given, result="ptr")
    api, operator, code, model = (f.parameter(one.name) for one in given)
    sentence = f.value("ptr", f"call ptr {own(f, operator, 'error').text}(ptr {model.text})")
    bad = f.compare("eq", code, f.number("i32", BAD_ARGUMENT))
    kind = f.select(bad, f.number("i32", INVALID_ARGUMENT), f.number("i32", FAIL))
    f.give(asked(f, api, "CreateStatus", kind, sentence))
    f.finish()


def _write_add_context(module: Module) -> None:
    """add_context(kernel) -> status: one more model, not free yet. The caller holds the kernel's lock."""
    f = Function(module, "add_context", (Parameter("kernel"),), result="ptr")
    kernel = f.parameter("kernel")
    api, operator = (f.load("ptr", f.at(kernel, place, "i8")) for place in (_API, _OPERATOR))
    count = f.load("i64", f.at(kernel, _COUNT, "i8"))
    options = fresh_options(f)
    path = f.value("ptr", f"alloca [{2 * PATH_BYTES} x i8], align 8")
    f.store(Value(("@threads_of_all",), "ptr"), f.at(options, SHARED_POOL, "i8"))
    f.store(f.load("i32", f.at(kernel, _THREADS, "i8")), f.at(options, THREADS, "i8"))

    def from_file() -> None:
        wording, file = text(module, "%s/%s"), own(f, operator, "file")
        f.value(
            "i32", f"call i32 (ptr, i64, ptr, ...) @snprintf(ptr {path.text}, i64 {2 * PATH_BYTES}, "
            f"ptr {wording.text}, ptr @folder, ptr {file.text})",
        )  # fmt: skip
        f.store(path, f.at(options, WEIGHTS_PATH, "i8"))
        only = f.compare("eq", count, f.integer(0))  # as fast as they can be, like a session's own
        f.store(f.convert("zext", "i32", only), f.at(options, READ, "i8"))

    def from_first() -> None:
        first = f.load("ptr", f.at(kernel, _CONTEXTS + 8, "i8"))
        f.store(f.load("ptr", f.at(first, layout.WEIGHTS, "i8")), f.at(options, WEIGHTS, "i8"))
        f.store(own(f, operator, "weights_bytes", "i64"), f.at(options, WEIGHTS_BYTES, "i8"))

    lent = f.compare("sge", own(f, operator, "weights_bytes", "i64"), f.integer(0))
    f.when(f.binary("and", lent, f.compare("ne", count, f.integer(0))), from_first, from_file)
    model_at = f.value("ptr", "alloca ptr, align 8")
    create = own(f, operator, "create")
    made = f.value("i32", f"call i32 {create.text}(ptr {model_at.text}, ptr {options.text})")
    model = f.load("ptr", model_at)
    first = f.binary("and", f.compare("eq", made, f.number("i32", 0)), f.compare("eq", count, f.integer(0)))
    check = own(f, operator, "check")
    (code,) = f.when(first, lambda: [f.value("i32", f"call i32 {check.text}(ptr {model.text})")], lambda: [made])

    f.line(f"br i1 {f.compare('ne', code, f.number('i32', 0)).text}, label %failed, label %made")
    f.label("failed")
    status = called(f, "refused", api, operator, code, model)
    f.line(f"call void {own(f, operator, 'destroy').text}(ptr {model.text})")
    f.give(status)
    f.label("made")
    slot = f.at(f.at(kernel, _CONTEXTS, "i8"), f.mul(count, 16), "i8")
    f.store(f.integer(1), slot)
    f.store(model, f.at(slot, 8, "i8"))
    following = f.add(count, 1)
    f.line(f"store atomic i64 {following.text}, ptr {f.at(kernel, _COUNT, 'i8').text} release, align 8")
    f.give(NULL)
    f.finish()


def _write_create(module: Module) -> None:
    """CreateKernelV2(op, api, info, kernel) -> status: the node names this program, and a first model is there."""
    given = (Parameter("op"), Parameter("api"), Parameter("info"), Parameter("kernel"))
    f = Function(module, "CreateKernelV2", given, exported=True, result="ptr")
    operator, api, info, out = (f.parameter(one.name) for one in given)
    f.store(NULL, out)
    named = f.value("ptr", "alloca [128 x i8], align 8")
    size, threads = f.value("ptr", "alloca i64, align 8"), f.value("ptr", "alloca i64, align 8")
    f.store(f.integer(128), size)
    must(f, api, "KernelInfoGetAttribute_string", info, text(module, PROGRAM), named, size)
    must(f, api, "KernelInfoGetAttribute_int64", info, text(module, WORKERS), threads)
    order = f.value("i32", f"call i32 @strcmp(ptr {named.text}, ptr {own(f, operator, 'digest').text})")
    other = f.compare("ne", order, f.number("i32", 0))

    fault(f, other, INVALID_ARGUMENT, "the library of custom operators was compiled with another ONNX file.")
    record = f.value("ptr", f"call ptr @calloc(i64 1, i64 {_KERNEL_BYTES})")
    fault(f, is_null(f, record), FAIL, "there is no memory for the kernel of a custom operator.")
    f.store(operator, f.at(record, _OPERATOR, "i8"))
    f.store(api, f.at(record, _API, "i8"))
    asked = f.load("i64", threads)
    wrong = f.compare("ugt", asked, f.integer(1 << 16))  # the program says what is wrong with a negative number
    f.store(f.select(wrong, f.number("i32", -1), f.convert("trunc", "i32", asked)), f.at(record, _THREADS, "i8"))
    status = called(f, "add_context", record)
    lost = f.compare("ne", status, NULL)
    f.when(lost, lambda: f.line(f"call void @free(ptr {record.text})"))
    return_when(f, lost, status)
    _release(f, f.at(record, _CONTEXTS, "i8"))
    f.store(record, out)
    f.give(NULL)
    f.finish()


def _release(f: Function, slot: Value) -> None:
    f.line(f"store atomic i64 0, ptr {slot.text} release, align 8")


def _write_take(module: Module) -> None:
    """take(kernel, slot) -> status: the place of a context that no other run has."""
    f = Function(module, "take", (Parameter("kernel"), Parameter("slot")), result="ptr")
    kernel, out = f.parameter("kernel"), f.parameter("slot")
    lock = f.at(kernel, _LOCK, "i8")
    f.line("br label %again")
    f.label("again")

    def count() -> Value:
        return f.value("i64", f"load atomic i64, ptr {f.at(kernel, _COUNT, 'i8').text} acquire, align 8")

    def look(number: Value, _: tuple[Value, ...]) -> None:
        slot = f.at(f.at(kernel, _CONTEXTS, "i8"), f.mul(number, 16), "i8")
        before = f.value("i64", f"atomicrmw xchg ptr {slot.text}, i64 1 acquire, align 8")
        free, on = f.fresh("free"), f.fresh("on")
        f.line(f"br i1 {f.compare('eq', before, f.integer(0)).text}, label %{free}, label %{on}")
        f.label(free)
        f.store(slot, out)
        f.give(NULL)
        f.label(on)

    known = count()
    f.loop(f.integer(0), known, 1, look)
    f.call("lock", lock)
    now = count()
    grown = f.compare("ne", now, known)
    full = f.compare("sge", now, f.integer(MOST_CONTEXTS))
    f.line(f"br i1 {f.binary('or', grown, full).text}, label %later, label %more")
    f.label("later")
    unlock(f, lock)
    f.value("i32", "call i32 @sched_yield()")
    f.line("br label %again")
    f.label("more")
    status = called(f, "add_context", kernel)
    unlock(f, lock)
    f.store(f.at(f.at(kernel, _CONTEXTS, "i8"), f.mul(now, 16), "i8"), out)
    f.give(status)
    f.finish()


def _pass_on(f: Function, status: Value) -> None:
    return_when(f, f.compare("ne", status, NULL), status)


def _write_run(module: Module) -> None:
    """run_with(api, op, context, model, inputs, outputs) -> status."""
    given = (
        Parameter("api"), Parameter("op"), Parameter("context"), Parameter("model"), Parameter("inputs"),
        Parameter("outputs"),
    )  # fmt: skip
    f = Function(module, "run_with", given, result="ptr")
    api, operator, context, model, inputs, outputs = (f.parameter(one.name) for one in given)
    _pass_on(f, called(f, "choose", api, operator, model, inputs))
    _pass_on(f, called(f, "allot", api, operator, context, model, outputs))
    _pass_on(f, called(f, "room", api, operator, outputs))
    counts = [own(f, operator, f"{word}_count", "i64") for word in ("input", "output")]
    run = own(f, operator, "run")
    code = f.value("i32", f"call i32 {run.text}({operands_of(model, inputs, counts[0], outputs, counts[1])})")
    f.line(f"br i1 {f.compare('ne', code, f.number('i32', 0)).text}, label %bad, label %good")
    f.label("bad")
    f.give(called(f, "refused", api, operator, code, model))
    f.label("good")
    f.give(called(f, "hand", api, operator, context, model, outputs))
    f.finish()


def _write_compute(module: Module) -> None:
    """KernelComputeV2(kernel, context) -> status."""
    f = Function(module, "KernelComputeV2", (Parameter("kernel"), Parameter("context")), exported=True, result="ptr")
    kernel, context = f.parameter("kernel"), f.parameter("context")
    api, operator = (f.load("ptr", f.at(kernel, place, "i8")) for place in (_API, _OPERATOR))
    lists = []
    for word in ("input", "output"):
        size = f.mul(own(f, operator, f"{word}_count", "i64"), TENSOR)
        lists.append(f.value("ptr", f"alloca i8, i64 {size.text}, align 8"))
    place = f.value("ptr", "alloca ptr, align 8")
    size = f.mul(own(f, operator, "output_count", "i64"), 8 * MOST_DIMS)
    dims = f.value("ptr", f"alloca i8, i64 {size.text}, align 8")
    f.call("prepare", operator, lists[1], dims)
    _pass_on(f, called(f, "gather", api, operator, context, lists[0]))
    _pass_on(f, called(f, "take", kernel, place))
    slot = f.load("ptr", place)
    model = f.load("ptr", f.at(slot, 8, "i8"))
    status = called(f, "run_with", api, operator, context, model, *lists)
    _release(f, slot)
    f.call("drop", operator, lists[1])
    f.give(status)
    f.finish()


def _write_destroy(module: Module) -> None:
    """KernelDestroy(kernel): the first context last, since the others read its weights."""
    f = Function(module, "KernelDestroy", (Parameter("kernel"),), exported=True)
    kernel = f.parameter("kernel")
    operator = f.load("ptr", f.at(kernel, _OPERATOR, "i8"))
    count = f.load("i64", f.at(kernel, _COUNT, "i8"))

    def one(number: Value, _: tuple[Value, ...]) -> None:
        place = f.mul(f.sub(f.sub(count, 1), number), 16)
        model = f.load("ptr", f.at(f.at(kernel, _CONTEXTS + 8, "i8"), place, "i8"))
        f.line(f"call void {own(f, operator, 'destroy').text}(ptr {model.text})")

    f.loop(f.integer(0), count, 1, one)
    f.line(f"call void @free(ptr {kernel.text})")
    f.finish()

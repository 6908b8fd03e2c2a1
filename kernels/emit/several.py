"""Several programs of one model in one library: for processors of several levels, and for listed sizes of its dims.

A `Variant` is a listing for a level and a point. Each is a program of its own, as `kernels/emit/program.py` writes it,
under a name that nobody outside sees; this module writes the functions that everybody calls. A model of theirs holds a
model of every point at the level that the processor has: one arena, one scratch and one copy of the weights, which the
first lends to the others (kernels/emit/options.py), and one pool.

    P_run       finds the point whose dims the tensors have, that of the last call first
    P_set_dim   chooses the point that P_run_raw runs, dim by dim; P_options has `sizes` for the first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.emit import layout as at
from kernels.emit.layout import ARGUMENTS, LIVE
from kernels.emit.options import (
    LENDER,
    SHARED_POOL,
    SIZE_COUNT,
    SIZES,
    WEIGHTS,
    WEIGHTS_BYTES,
    WEIGHTS_PATH,
    fresh_options,
    option,
    write_options,
)
from kernels.emit.processor import Requirement, write_missing
from kernels.emit.refusal import (
    BAD_ARGUMENT,
    BAD_PROCESSOR,
    NO_MEMORY,
    OK,
    failed,
    is_model,
    is_null,
    refuse_when,
    return_when,
    say,
    text,
)
from kernels.emit.several_calls import LEVEL, ORDER, POINT, enter, left, write_calls
from kernels.listing import Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

Sizes = tuple[tuple[str, int], ...]  # the names of dims, and a size of each

# Offsets in the record, in bytes: what is at LIVE, at BUSY and at ERROR is where single programs have it.
_MODELS = ARGUMENTS
_CALLED = (
    "open", "run", "run_raw", "dims", "profile", "after_fork", "destroy", "error", "check", "pool",
)  # fmt: skip
_NULL = Value(("null",), "ptr")


@dataclass(frozen=True, slots=True)
class Level:
    """What a processor must have, and a listing for each point, in the order of the points."""

    needed: tuple[Requirement, ...]
    listings: tuple[Listing, ...]


def write_several(
    module: Module, name: str, levels: Sequence[Level], points: Sequence[Sizes], weights_bytes: int
) -> None:
    """Add the functions of a library called `name`; levels are asked for in their order, the last is the oldest.

    Points have the same dims in the same order; one point without any stands for a program of one size.
    """
    front = Front(module, name, tuple(levels), tuple(points), weights_bytes)
    module.declare("calloc", "ptr", ["i64", "i64"])
    module.declare("free", "void", ["ptr"])
    module.declare("strcmp", "i32", ["ptr", "ptr"])
    write_options(module)
    for number, level in enumerate(levels):
        write_missing(module, f"lacking{number}", level.needed)
    front.write()


@dataclass(frozen=True, slots=True)
class Front:
    """A library: what its functions read, and how."""

    module: Module
    name: str
    levels: tuple[Level, ...]
    points: tuple[Sizes, ...]
    weights_bytes: int

    def write(self) -> None:
        """All functions."""
        self._write_table()
        self._write_level()
        self._write_begin()
        self._write_bring()
        self._write_create()
        self._write_create_with()
        self._write_set_dim()
        write_calls(self)
        self._write_destroy()
        self._write_error()

    def function(self, name: str, result: str, *given: Parameter) -> Function:
        """A function of the interface."""
        return Function(self.module, f"{self.name}_{name}", given, exported=True, result=result)

    def _write_table(self) -> None:
        """The functions of each listing, level by level and point by point; and the order in which models are made."""
        rows = []
        for level in self.levels:
            for one in level.listings:
                for function in _CALLED:
                    symbol = one.symbol("open") if function == "open" else f"{one.name}_{function}"
                    rows.append(f"@{symbol}")
                    self.module.declare(symbol, *_SIGNATURES[function])
        self.module.constant("several.functions", "ptr", rows, align=8)
        order = []
        for level in self.levels:  # those that several workers run come first: what they lend serves one, too
            numbers = range(len(level.listings))
            order += sorted(numbers, key=lambda number: level.listings[number].ticketed is None)
        self.module.constant("several.order", "i64", [str(number) for number in order], align=8)
        sizes = [str(size) for point in self.points for _, size in point]
        self.module.constant("several.sizes", "i64", sizes or ["0"], align=8)

    def entry(self, f: Function, record: Value, point: Value, function: str) -> Value:
        """A function of the listing for a point, at the model's level."""
        level = f.load("i64", f.at(record, LEVEL, "i8"))
        row = f.add(f.mul(level, len(self.points)), point)
        place = f.add(f.mul(row, len(_CALLED)), _CALLED.index(function))
        return f.load("ptr", f.at(Value(("@several.functions",), "ptr"), place, "ptr"))

    def model(self, f: Function, record: Value, point: Value) -> Value:
        """The model of a point."""
        return f.load("ptr", f.at(f.at(record, _MODELS, "i8"), point, "ptr"))

    def _write_level(self) -> None:
        """level() -> i64: the first whose code the processor can run; the number of levels for none."""
        f = Function(self.module, "level", (), result="i64")
        for number in range(len(self.levels)):
            lacking = f.call(f"lacking{number}", result="ptr")
            assert lacking is not None, "it gives a result"
            return_when(f, is_null(f, lacking), f.integer(number))
        f.give(f.integer(len(self.levels)))
        f.finish()

    def _write_begin(self) -> None:
        f = Function(self.module, "begin", (Parameter("out"),), result="i32")
        out = f.parameter("out")
        return_when(f, is_null(f, out), f.number("i32", BAD_ARGUMENT))
        f.store(_NULL, out)
        record = f.value("ptr", f"call ptr @calloc(i64 1, i64 {self.sizes_at + 8 * len(self.points[0])})")
        return_when(f, is_null(f, record), f.number("i32", NO_MEMORY))
        f.store(record, out)
        f.store(f.integer(LIVE), f.at(record, at.READY, "i8"))
        level = f.call("level", result="i64")
        lacking = f.call(f"lacking{len(self.levels) - 1}", result="ptr")
        assert level is not None and lacking is not None, "they give results"
        refuse_when(
            f, f.compare("eq", level, f.integer(len(self.levels))), BAD_PROCESSOR, record,
            "this processor lacks '%s', which all code here is compiled for; compile the model for one like it.",
            lacking,
        )  # fmt: skip
        f.store(level, f.at(record, LEVEL, "i8"))
        f.give(f.number("i32", OK))
        f.finish()

    def _write_bring(self) -> None:
        """bring(record, options) -> code: a model for each point, of options that are known."""
        f = Function(self.module, "bring", (Parameter("record"), Parameter("options")), result="i32")
        record, options = f.parameter("record"), f.parameter("options")
        failed(f, self._first_point(f, record, options))
        f.store(_NULL, f.at(options, SIZES, "i8"))
        self.take_sizes(f, record, f.load("i64", f.at(record, POINT, "i8")))
        level = f.load("i64", f.at(record, LEVEL, "i8"))

        def one(turn: Value, _: tuple[Value, ...]) -> None:
            row = f.add(f.mul(level, len(self.points)), turn)
            point = f.load("i64", f.at(ORDER, row, "i64"))
            slot = f.at(f.at(record, _MODELS, "i8"), point, "ptr")
            open_one = self.entry(f, record, point, "open")
            code = f.value("i32", f"call i32 {open_one.text}(ptr {slot.text}, ptr {options.text})")

            def tell() -> None:
                error = self.entry(f, record, point, "error")
                made = f.load("ptr", slot)
                say(f, record, "%s", f.value("ptr", f"call ptr {error.text}(ptr {made.text})"))
                f.line(f"ret i32 {code.text}")
                f.label(f.fresh("never"))

            f.when(f.compare("ne", code, f.number("i32", OK)), tell)

            def lend() -> None:
                lender = f.load("ptr", slot)
                f.store(lender, f.at(options, LENDER, "i8"))
                f.store(_NULL, f.at(options, WEIGHTS_PATH, "i8"))
                f.store(f.load("ptr", f.at(lender, at.WEIGHTS, "i8")), f.at(options, WEIGHTS, "i8"))
                f.store(f.integer(self.weights_bytes), f.at(options, WEIGHTS_BYTES, "i8"))
                pool = self.entry(f, record, point, "pool")
                used = f.value("ptr", f"call ptr {pool.text}(ptr {lender.text})")
                f.store(used, f.at(options, SHARED_POOL, "i8"))

            f.when(is_null(f, option(f, options, "ptr", LENDER)), lend)

        f.loop(f.integer(0), f.integer(len(self.points)), 1, one)
        f.store(f.integer(LIVE + 1), f.at(record, at.READY, "i8"))
        f.give(f.number("i32", OK))
        f.finish()

    @property
    def sizes_at(self) -> int:
        """Where the sizes that were set last lie in the record, behind a pointer for each point."""
        return _MODELS + 8 * len(self.points)

    def _first_point(self, f: Function, record: Value, options: Value) -> Value:
        """Take the point of the options' sizes; gives a code."""
        sizes, count = option(f, options, "ptr", SIZES), option(f, options, "i64", SIZE_COUNT)
        dims = len(self.points[0])

        def named() -> list[Value]:
            wrong = f.compare("ne", count, f.integer(dims))
            sentence = f"%lld sizes are given; the program has {dims} free dims."
            refuse_when(f, wrong, BAD_ARGUMENT, record, sentence, count)
            point = self._point_of(f, sizes)
            f.store(point, f.at(record, POINT, "i8"))
            sentence = f"the program is not made for these sizes, but for {self.listed()}."
            refuse_when(f, f.compare("eq", point, f.integer(len(self.points))), BAD_ARGUMENT, record, sentence)
            return [f.number("i32", OK)]

        (code,) = f.when(is_null(f, sizes), lambda: [f.number("i32", OK)], named)
        return code

    def listed(self) -> str:
        """The points, for people; inside a format of printf."""
        texts = (", ".join(f"{name}={size}" for name, size in point) for point in self.points)
        return "; ".join(texts).replace("%", "%%")

    def _point_of(self, f: Function, sizes: Value) -> Value:
        """The point with these sizes of all dims, in their order; the number of points for none."""
        dims, table = len(self.points[0]), Value(("@several.sizes",), "ptr")

        def look(point: Value, carried: tuple[Value, ...]) -> list[Value]:
            def same(axis: Value, still: tuple[Value, ...]) -> list[Value]:
                mine = f.load("i64", f.at(table, f.add(f.mul(point, dims), axis), "i64"))
                equal = f.compare("eq", mine, f.load("i64", f.at(sizes, axis, "i64")))
                return [f.binary("and", still[0], equal)]

            (fits,) = f.loop(f.integer(0), f.integer(dims), 1, same, [f.number("i1", True)])
            return [f.select(fits, point, carried[0])]

        none = f.integer(len(self.points))
        (found,) = f.loop(f.integer(0), none, 1, look, [none])
        return found

    def _write_create(self) -> None:
        f = self.function("create", "i32", Parameter("model"), Parameter("path"))
        options = fresh_options(f)
        failed(f, _called(f, "begin", f.parameter("model")))
        record, path = f.load("ptr", f.parameter("model")), f.parameter("path")
        refuse_when(f, is_null(f, path), BAD_ARGUMENT, record, "no path of a weights file is given.")
        f.store(path, f.at(options, WEIGHTS_PATH, "i8"))
        f.give(_called(f, "bring", record, options))
        f.finish()

    def _write_create_with(self) -> None:
        f = self.function("create_with", "i32", Parameter("model"), Parameter("options"))
        known = fresh_options(f)
        failed(f, _called(f, "begin", f.parameter("model")))
        record = f.load("ptr", f.parameter("model"))
        failed(f, _called(f, "options_of", record, f.parameter("options"), known))
        f.give(_called(f, "bring", record, known))
        f.finish()

    def _write_set_dim(self) -> None:
        names = [name for name, _ in self.points[0]]
        if not names:
            return
        f = self.function("set_dim", "i32", Parameter("model"), Parameter("name"), Parameter("size", "i64"))
        record, name, size = f.parameter("model"), f.parameter("name"), f.parameter("size")
        return_when(f, is_model(f, record, LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
        enter(f, record)
        f.give(left(f, record, _called(f, "choose", record, name, size)))
        f.finish()
        given = (Parameter("record"), Parameter("name"), Parameter("size", "i64"))
        f = Function(self.module, "choose", given, result="i32")
        record, name, size = f.parameter("record"), f.parameter("name"), f.parameter("size")
        known = ", ".join(f"'{one}'" for one in names).replace("%", "%%")
        refuse_when(f, is_null(f, name), BAD_ARGUMENT, record, f"no name of a dim is given; the program has {known}.")
        sizes = f.at(record, self.sizes_at, "i8")
        for axis, one in enumerate(names):
            order = f.value("i32", f"call i32 @strcmp(ptr {name.text}, ptr {text(self.module, one).text})")

            def choose(axis: int = axis, one: str = one) -> None:
                listed = sorted({dict(point)[one] for point in self.points})
                known = f.number("i1", False)
                for value in listed:
                    known = f.binary("or", known, f.compare("eq", size, f.integer(value)))
                wrong = f.compare("eq", known, f.number("i1", False))
                sentence = f"'%s' cannot be %lld; the program is made for {', '.join(map(str, listed))}."
                refuse_when(f, wrong, BAD_ARGUMENT, record, sentence, text(self.module, one), size)
                f.store(size, f.at(sizes, axis, "i64"))
                f.store(self._point_of(f, sizes), f.at(record, POINT, "i8"))
                f.line(f"ret i32 {OK}")
                f.label(f.fresh("never"))

            f.when(f.compare("eq", order, f.number("i32", 0)), choose)
        say(f, record, f"there is no free dim '%s'; the program has {known}.", name)
        f.give(f.number("i32", BAD_ARGUMENT))
        f.finish()

    def take_sizes(self, f: Function, record: Value, point: Value) -> None:
        """Make a point the one that P_run_raw runs."""
        f.store(point, f.at(record, POINT, "i8"))
        table = f.mul(point, len(self.points[0]))
        for axis in range(len(self.points[0])):
            size = f.load("i64", f.at(Value(("@several.sizes",), "ptr"), f.add(table, axis), "i64"))
            f.store(size, f.at(record, self.sizes_at + 8 * axis, "i8"))

    def _write_destroy(self) -> None:
        f = self.function("destroy", "void", Parameter("model"))
        record = f.parameter("model")
        level = f.when(is_model(f, record), lambda: [f.load("i64", f.at(record, LEVEL, "i8"))], lambda: [f.integer(0)])
        known = f.compare("ult", level[0], f.integer(len(self.levels)))

        def free() -> None:
            # Who lends is destroyed last: models of the other points point into its memory.
            def one(turn: Value, _: tuple[Value, ...]) -> None:
                row = f.add(f.mul(level[0], len(self.points)), f.sub(f.integer(len(self.points) - 1), turn))
                point = f.load("i64", f.at(ORDER, row, "i64"))
                entry, model = self.entry(f, record, point, "destroy"), self.model(f, record, point)
                f.line(f"call void {entry.text}(ptr {model.text})")

            def models() -> None:
                f.loop(f.integer(0), f.integer(len(self.points)), 1, one)

            f.when(known, models)
            f.store(f.integer(0), f.at(record, at.READY, "i8"))
            f.line(f"call void @free(ptr {record.text})")

        f.when(is_model(f, record), free)
        f.finish()

    def _write_error(self) -> None:
        f = self.function("error", "ptr", Parameter("model"))
        record = f.parameter("model")
        lost = text(
            self.module, "there is no model: it was destroyed, no place for it was given, or there is no memory."
        )
        (found,) = f.when(is_model(f, record), lambda: [f.at(record, at.ERROR, "i8")], lambda: [lost])
        f.give(found)
        f.finish()


_SIGNATURES: dict[str, tuple[str, list[str]]] = {
    "open": ("i32", ["ptr", "ptr"]), "run": ("i32", ["ptr", "ptr", "i64", "ptr", "i64"]),
    "run_raw": ("i32", ["ptr", "ptr", "ptr"]), "dims": ("i32", ["ptr", "i64", "ptr"]),
    "profile": ("void", ["ptr", "ptr", "i64"]), "after_fork": ("void", ["ptr"]), "destroy": ("void", ["ptr"]),
    "error": ("ptr", ["ptr"]), "check": ("i32", ["ptr"]), "pool": ("ptr", ["ptr"]),
}  # fmt: skip


def _called(f: Function, name: str, *operands: Value) -> Value:
    found = f.call(name, *operands, result="i32")
    assert found is not None, "it gives a result"
    return found

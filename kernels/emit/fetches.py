"""The fetches of one call, in LLVM: each begins when its place is free, and runs are told of them in their order.

fetch_all(record, call, room)        of one call, a few of them under way at the same time
fetch_free(record, call, number)     whether what a fetch waits for has ended
fetch_begun(record, room, number)    fetch_ended(record, room, number)
fetch_transform(arena, source, which)
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.emit import layout as at
from kernels.emit.ahead import REQUESTS, write_ahead
from kernels.emit.layout import MemoryLayout
from kernels.emit.reading import DIRECT, FAULT, FETCHED, NAMED, SOURCE, state, write_reading
from kernels.emit.refusal import called, within
from kernels.emit.rows import rows_of
from kernels.emit.spilling import SPILLED, write_spilling
from kernels.kernel import Sums
from kernels.listing import Fetch, FetchRows, Listing, Ticketed
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import add, pause, read
from kernels.moves import Reload, Spill

# Bytes of a fetch in the table: source, place, bytes, its kind, how many before it have to have ended, and the first of
# what it waits for. Kinds: 0; rows of a table from 1 on, transforms from -1 down, and those of intermediate results.
_ROW = 48
_SPILL, _RELOAD = 1 << 32, (1 << 32) + 1
_SPINS = 100  # looks before a thread sleeps
_NAP_NS = 30_000
_MADE = 4  # numbers of a row of the table of what is transformed


def write_fetches(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """Add the functions, and their tables; the module has declared `syscall`."""
    module.declare("nanosleep", "i32", ["ptr", "ptr"])
    write_reading(module, layout, [one for one in ticketed.fetches if isinstance(one, FetchRows)])
    module.constant("fetch.nap", "i64", ["0", str(_NAP_NS)], align=8)
    _write_tables(module, layout, ticketed)
    if transforms_of(ticketed):
        _write_transform(module, listing, ticketed)
    write_ahead(module)
    if ticketed.spilled_bytes:
        write_spilling(module, layout, ticketed.spilled_bytes)
    _write_free(module, listing, layout, ticketed)
    _write_begun(module, layout, ticketed)
    _write_ended(module, layout, ticketed)
    _write_all(module, ticketed)


def word(f: Function, table: str, width: int, row: Value, offset: int) -> Value:
    """A number of 32 bits in a row of a table."""
    start = f.at(Value((f"@{table}",), "ptr"), f.mul(row, width), "i8")
    return f.convert("zext", "i64", f.load("i32", f.at(start, offset, "i8")))


def doze(f: Function, ended: Callable[[], Value]) -> None:
    """Look until `ended` gives true; after some looks with naps between them."""
    names = ("before", "look", "wait", "pause", "nap", "ended")
    before, look, wait, pausing, nap, out = (f.fresh(stem) for stem in names)
    f.line(f"br label %{before}")
    f.label(before)
    f.line(f"br label %{look}")
    f.label(look)
    f.line(f"%{look}.n = phi i64 [ 0, %{before} ], [ %{wait}.n, %{pausing} ], [ %{wait}.n, %{nap} ]")
    f.line(f"br i1 {ended().text}, label %{out}, label %{wait}")
    f.label(wait)
    f.line(f"%{wait}.n = add i64 %{look}.n, 1")
    f.line(f"%{wait}.long = icmp ugt i64 %{wait}.n, {_SPINS}")
    f.line(f"br i1 %{wait}.long, label %{nap}, label %{pausing}")
    f.label(pausing)
    pause(f)
    f.line(f"br label %{look}")
    f.label(nap)
    f.value("i32", "call i32 @nanosleep(ptr @fetch.nap, ptr null)")
    f.line(f"br label %{look}")
    f.label(out)


def _write_tables(module: Module, layout: MemoryLayout, ticketed: Ticketed) -> None:
    claimed = {run: row for row, (run, _) in enumerate(ticketed.waits)}
    words: list[int] = []
    waits: list[int] = []
    named: list[int] = []
    made: list[int] = []
    shapes = transforms_of(ticketed)
    for one in ticketed.fetches:
        kind, told, source = 0, 0, 0
        if isinstance(one, Spill | Reload):
            kind, source = (_SPILL, one.offset) if isinstance(one, Spill) else (_RELOAD, one.offset)
            told = one.told if isinstance(one, Reload) else 0
        elif isinstance(one, FetchRows):
            argument = one.indices.argument if one.indices.space == "input" else -1
            named += [one.rows, one.row_bytes, one.count, one.dtype.bytes, argument, one.indices.offset, one.numbers]
            kind = len(named) // NAMED
        elif one.transformed is not None:
            by = one.transformed
            made += [by.place, by.elements, by.groups, shapes.index(by.sums)]
            kind = -(len(made) // _MADE)
        if not isinstance(one, Spill | Reload):
            source = layout.fetched_at + one.source
        words += [source, one.place, one.bytes, kind, told, len(waits)]
        waits += [claimed[run] for run in one.after]
    words += [0, 0, 0, 0, 0, len(waits)]
    module.constant("fetch.named", "i64", [str(word) for word in named or [0]], align=8)
    module.constant("fetch.made", "i64", [str(word) for word in made or [0]], align=8)
    module.constant("fetch.rows", "i64", [str(word) for word in words], align=8)
    module.constant("fetch.waits", "i32", [str(row) for row in waits or [0]], align=4)
    runs: list[int] = []
    for run, _ in ticketed.waits:
        runs += [(ticketed.runs[run].blocks or (0, 0))[0], ticketed.fetched[run]]
    runs += [0, len(ticketed.fetches)]  # a call ends with all of them
    module.constant("fetch.runs", "i32", [str(word) for word in runs], align=4)


def _fetch(f: Function, record: Value, source: Value, place: Value, size: Value) -> None:
    f.call("fetch", record, source, place, size, f.number("i1", True))


def transforms_of(ticketed: Ticketed | None) -> list[Sums]:
    """The sums by which fetched bytes are transformed, different ones."""
    fetches = () if ticketed is None else ticketed.fetches
    made = (one.transformed for one in fetches if isinstance(one, Fetch))
    return sorted({one.sums for one in made if one is not None})


def _write_transform(module: Module, listing: Listing, ticketed: Ticketed) -> None:
    """fetch_transform(arena, source, which): of a row of the table; a function for each kind of sums."""
    f = Function(module, "fetch_transform", (Parameter("arena"), Parameter("source"), Parameter("which", "i64")))
    arena, source, which = (f.parameter(one.name) for one in f.parameters)
    start = f.at(Value(("@fetch.made",), "ptr"), f.mul(which, 8 * _MADE), "i8")
    place, elements, groups, shape = (f.load("i64", f.at(start, number, "i64")) for number in range(_MADE))
    target = f.at(arena, place, "i8")
    for number in range(len(transforms_of(ticketed))):
        name = listing.symbol(f"transform{number}")
        module.declare(name, "void", ["ptr", "ptr", "i64", "i64"])
        given = f"ptr {source.text}, ptr {target.text}, i64 {elements.text}, i64 {groups.text}"

        def make(name: str = name, given: str = given) -> None:
            f.line(f"call void @{name}({given})")

        f.when(f.compare("eq", shape, f.integer(number)), make)
    f.finish()


def _field(f: Function, number: Value, field: int) -> Value:
    """A field of a fetch in the table; of the one behind the last there is only what tells where its waits start."""
    return f.load("i64", f.at(f.at(Value(("@fetch.rows",), "ptr"), f.mul(number, _ROW), "i8"), field, "i64"))


def _write_free(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """fetch_free(record, call, number) -> whether what a fetch waits for has ended."""
    given = (Parameter("record"), Parameter("call", "i64"), Parameter("number", "i64"))
    f = Function(module, "fetch_free", given, result="i1")
    record, call, number = (f.parameter(one.name) for one in given)
    done = f.load("ptr", within(f, record, at.SHARED + at.DONE))
    first, last = _field(f, number, 5), _field(f, f.add(number, 1), 5)
    rows = rows_of(listing, ticketed)

    def look(which: Value, carried: tuple[Value, ...]) -> list[Value]:
        row = f.convert("zext", "i64", f.load("i32", f.at(Value(("@fetch.waits",), "ptr"), which, "i32")))
        wanted = f.mul(call, rows.word(f, row, 1))
        ended = f.compare("sge", read(f, "i64", f.at(done, row, "i64"), "acquire"), wanted)
        return [f.binary("and", carried[0], ended)]

    told = f.add(f.mul(f.sub(call, 1), len(ticketed.fetches)), _field(f, number, 4))
    there = f.compare("sge", read(f, "i64", state(f, layout, FETCHED), "acquire"), told)
    (free,) = f.loop(first, last, 1, look, [there])
    f.give(free)
    f.finish()


def _write_begun(module: Module, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """fetch_begun(record, room, number): a request, where the system takes one for this fetch."""
    given = (Parameter("record"), Parameter("room"), Parameter("number", "i64"))
    f = Function(module, "fetch_begun", given)
    record, room, number = (f.parameter(one.name) for one in given)
    source, place, size, kind = (_field(f, number, field) for field in range(4))
    there = f.at(f.load("ptr", within(f, record, at.ARENA)), place, "i8")
    held = f.compare("ne", f.load("ptr", state(f, layout, SOURCE)), Value(("null",), "ptr"))
    plain = f.binary("and", f.compare("sle", kind, f.integer(0)), f.compare("eq", held, f.number("i1", False)))
    none = f.number("i32", 0)
    file = f.select(plain, f.load("i32", state(f, layout, DIRECT)), none)
    if ticketed.spilled_bytes:
        file = f.select(f.compare("sge", kind, f.integer(_SPILL)), f.load("i32", state(f, layout, SPILLED)), file)
    code = f.convert("zext", "i16", f.compare("eq", kind, f.integer(_SPILL)))
    whole = f.compare("eq", read(f, "i64", state(f, layout, FAULT), "acquire"), f.integer(0))
    slot = f.binary("urem", number, f.integer(REQUESTS))
    f.call("ahead_ask", room, slot, f.sub(f.select(whole, file, none), 1), code, source, there, size)
    f.finish()


def _write_ended(module: Module, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """fetch_ended(record, room, number): all bytes of a fetch are there, or there is a fault; everybody is told."""
    given = (Parameter("record"), Parameter("room"), Parameter("number", "i64"))
    f = Function(module, "fetch_ended", given)
    record, room, number = (f.parameter(one.name) for one in given)
    source, place, size, kind = (_field(f, number, field) for field in range(4))
    arena = f.load("ptr", within(f, record, at.ARENA))
    there = f.at(arena, place, "i8")
    got = called(f, "ahead_await", room, f.binary("urem", number, f.integer(REQUESTS)), result="i64")
    missing = f.compare("ne", got, size)

    def by_name() -> None:
        f.call("fetch_named", record, source, there, f.sub(kind, 1))

    def make() -> None:
        f.call("fetch_transform", arena, there, f.sub(f.integer(-1), kind))

    def whole_one() -> None:
        f.when(missing, lambda: _fetch(f, record, source, there, size))
        if transforms_of(ticketed):
            f.when(f.compare("slt", kind, f.integer(0)), make)

    def weights() -> None:
        if any(isinstance(other, FetchRows) for other in ticketed.fetches):
            f.when(f.compare("sgt", kind, f.integer(0)), by_name, whole_one)
        else:
            whole_one()

    def move() -> None:
        writes = f.compare("eq", kind, f.integer(_SPILL))

        def again() -> None:
            f.call("spill_move", record, source, there, size, writes)

        f.when(missing, again)

    def bring() -> None:
        if ticketed.spilled_bytes:
            f.when(f.compare("sge", kind, f.integer(_SPILL)), move, weights)
        else:
            weights()

    whole = f.compare("eq", read(f, "i64", state(f, layout, FAULT), "acquire"), f.integer(0))
    f.when(whole, bring)
    add(f, state(f, layout, FETCHED), f.integer(1), "release")
    f.finish()


def _write_all(module: Module, ticketed: Ticketed) -> None:
    """fetch_all(record, call, room): those of one call, a few of them under way at the same time.

    They begin in their order and end in their order; while there are some under way, the thread waits for the first of
    these rather than for runs, because runs may wait for it.
    """
    given = (Parameter("record"), Parameter("call", "i64"), Parameter("room"))
    f = Function(module, "fetch_all", given)
    record, call, room = (f.parameter(one.name) for one in given)

    def is_free(number: Value) -> Value:
        return called(f, "fetch_free", record, call, number, result="i1")

    def one(number: Value, carried: tuple[Value, ...]) -> list[Value]:
        before, head, look, end, after = (f.fresh(stem) for stem in ("before", "head", "look", "end", "after"))
        f.line(f"br label %{before}")
        f.label(before)
        f.line(f"br label %{head}")
        f.label(head)
        f.line(f"%{head}.n = phi i64 [ {carried[0].text}, %{before} ], [ %{head}.next, %{end} ]")
        ended = Value((f"%{head}.n",), "i64")
        under_way = f.sub(number, ended)
        f.line(f"br i1 {f.compare('eq', under_way, f.integer(0)).text}, label %{after}, label %{look}")
        f.label(look)
        room_left = f.compare("slt", under_way, f.integer(REQUESTS))
        f.line(f"br i1 {f.binary('and', room_left, is_free(number)).text}, label %{after}, label %{end}")
        f.label(end)
        f.call("fetch_ended", record, room, ended)
        f.line(f"%{head}.next = add i64 {ended.text}, 1")
        f.line(f"br label %{head}")
        f.label(after)
        doze(f, lambda: is_free(number))
        f.call("fetch_begun", record, room, number)
        return [ended]

    (ended,) = f.loop(f.integer(0), len(ticketed.fetches), 1, one, [f.integer(0)])

    def last(number: Value, _: tuple[Value, ...]) -> None:
        f.call("fetch_ended", record, room, number)

    f.loop(ended, len(ticketed.fetches), 1, last)
    f.finish()

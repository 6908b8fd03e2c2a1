"""The runs of a program by several workers, as LLVM: what `Ticketed` says, read from tables.

    walk(job, worker)              claim and run blocks, step by step, until nothing is left to claim
    whole(job, row, worker, ...)   all blocks of a run that was claimed whole, and of those that follow it
    await(job, row)                until all blocks of the runs that a row waits for have ended
    share(job)                     a call from its caller's side: the pool helps, the last blocks are waited for

Each run has one counter of the blocks that have ended, which only grows: in call number e of a model it stands at e
times the blocks when the run has ended. And each run has one word for each worker, from whose share of the blocks that
worker claims first, so that it meets in the next run what it has in its caches from this one; whoever has nothing left
claims from the others' shares. A word holds the call's number and how many blocks of the share are gone; a claim is a
compare-and-swap of both. So nothing is cleared between two calls, and a worker that is late by a whole call can claim
nothing: it sees another number and leaves.

A run that is claimed whole is one claim, whoever gets it runs all blocks. Runs that follow it are nobody else's: their
worker waits for what they need and runs them, and each has its counter, so that others wait for no more than they need.

What runs read may have to be fetched first (kernels/emit/fetching.py): then a run waits for a counter of fetches too,
and has only some blocks of its kernel.

A worker waits before its first claim in a run and never after one, or before a run that follows; and for runs whose
blocks have all been claimed: hence whoever has, or comes to, the earliest unfinished run waits for nobody, with any
number of workers.
"""

from __future__ import annotations

from kernels.emit import layout as at
from kernels.emit.fetching import await_fetches, first_block, write_fetching
from kernels.emit.layout import MemoryLayout
from kernels.emit.rows import RowTables, write_rows
from kernels.emit.stamping import is_stamped, run_block, stamp
from kernels.emit.units import begin_units, end_units
from kernels.listing import Listing, Ticketed
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import add, read, spin, write


def write_sharing(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """Add the functions, and their tables."""
    rows = write_rows(module, listing, ticketed)
    if ticketed.fetches:
        write_fetching(module, listing, layout, ticketed)
    _write_await(module, layout, ticketed, rows)
    _write_whole(module, layout, ticketed, rows)
    _write_walk(module, listing, layout, ticketed, rows)
    _write_share(module, listing, layout, ticketed, layout.few - at.SHARED if listing.sizes else None)


def counter_bytes(listing: Listing) -> int:
    """Bytes of one counter, or of one worker's words, for all runs."""
    return 8 * len(listing.runs)


def _call(f: Function, job: Value) -> Value:
    """The number of the call. Whoever reads it sees the operands of that call: they are written before."""
    return read(f, "i64", f.at(job, at.CALL, "i8"), "acquire")


def _write_await(module: Module, layout: MemoryLayout, ticketed: Ticketed, rows: RowTables) -> None:
    f = Function(module, "await", (Parameter("job"), Parameter("row", "i64")))
    job, row = f.parameter("job"), f.parameter("row")
    if ticketed.fetches:
        await_fetches(f, layout, ticketed, row)
    done, call = f.load("ptr", f.at(job, at.DONE, "i8")), _call(f, job)

    def one(place: Value, _: tuple[Value, ...]) -> None:
        earlier = rows.wait(f, place)
        wanted, counter = f.mul(call, rows.word(f, earlier, 1)), f.at(done, earlier, "i64")
        spin(f, lambda: f.compare("sge", read(f, "i64", counter, "acquire"), wanted))

    f.loop(rows.word(f, row, 3), rows.word(f, f.add(row, 1), 3), 1, one)
    f.finish()


def _operands(f: Function, layout: MemoryLayout, record: Value, first: Value) -> Value:
    """The addresses of a run's operands in the record, of which its first one has this number among all."""
    return f.at(f.at(record, layout.tables, "i8"), first, "ptr")


def _numbered(f: Function, ticketed: Ticketed, row: Value, place: Value) -> Value:
    """The number in its kernel of the block at this place of a row."""
    return f.add(place, first_block(f, row)) if ticketed.fetches else place


def _write_whole(module: Module, layout: MemoryLayout, ticketed: Ticketed, rows: RowTables) -> None:
    given = (Parameter("job"), Parameter("row", "i64"), Parameter("worker", "i64"), Parameter("scratch"))
    f = Function(module, "whole", given)
    job, first, worker, scratch = (f.parameter(one.name) for one in given)
    record, done = f.at(job, -at.SHARED, "i8"), f.load("ptr", f.at(job, at.DONE, "i8"))
    stamped = is_stamped(f, job)
    begin, run, follow, out = (f.fresh(stem) for stem in ("begin", "run", "follow", "out"))
    row, following = Value((f"%{run}.row",), "i64"), Value((f"%{run}.next",), "i64")
    f.line(f"br label %{begin}")
    f.label(begin)
    f.line(f"br label %{run}")
    f.label(run)
    f.line(f"{row.text} = phi i64 [ {first.text}, %{begin} ], [ {following.text}, %{follow} ]")
    blocks, table = rows.word(f, row, 1), _operands(f, layout, record, rows.word(f, row, 2))
    kernel = rows.kernel(f, rows.word(f, row, 0))

    def block(place: Value, _: tuple[Value, ...]) -> None:
        run_block(f, kernel, table, _numbered(f, ticketed, row, place), scratch)

    def noted(place: Value, _: tuple[Value, ...]) -> None:
        number = _numbered(f, ticketed, row, place)
        stamp(f, job, row, worker, number, lambda: run_block(f, kernel, table, number, scratch))

    f.when(stamped, lambda: f.loop(f.integer(0), blocks, 1, noted), lambda: f.loop(f.integer(0), blocks, 1, block))
    _ended(f, done, row, blocks)
    f.line(f"{following.text} = add i64 {row.text}, 1")
    f.line(f"br i1 {rows.follows(f, rows.word(f, following, 0)).text}, label %{follow}, label %{out}")
    f.label(follow)
    f.call("await", job, following)
    f.line(f"br label %{run}")
    f.label(out)
    f.finish()


def _write_walk(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed, rows: RowTables) -> None:
    f = Function(module, listing.symbol("walk"), (Parameter("job"), Parameter("worker", "i64")), exported=True)
    job, worker = f.parameter("job"), f.parameter("worker")
    record, runs = f.at(job, -at.SHARED, "i8"), len(listing.runs)
    workers, call = f.load("i64", f.at(job, at.WORKERS, "i8")), _call(f, job)
    claims, done = (f.load("ptr", f.at(job, place, "i8")) for place in (at.CLAIMS, at.DONE))
    begin_units(f, listing)
    stride = f.load("i64", f.at(job, at.STRIDE, "i8"))
    scratch = f.at(f.load("ptr", f.at(record, at.SCRATCH, "i8")), f.mul(stride, worker), "i8")
    stamped = is_stamped(f, job)
    low = f.convert("trunc", "i32", call)
    ours = f.binary("shl", f.convert("zext", "i64", low), f.integer(32))

    def step(row: Value, _: tuple[Value, ...]) -> None:
        which = rows.word(f, row, 0)
        f.when(rows.follows(f, which), lambda: None, lambda: claims_of(row, which))

    def claims_of(row: Value, which: Value) -> None:
        whole, one = rows.is_whole(f, which), f.integer(1)
        blocks = f.select(whole, one, rows.word(f, row, 1))
        each = f.select(whole, f.integer(0), one)  # whoever has run all blocks has counted them
        table = _operands(f, layout, record, rows.word(f, row, 2))
        kernel = rows.kernel(f, which)
        shares = f.minimum(blocks, workers)

        def share(turn: Value, carried: tuple[Value, ...]) -> list[Value]:
            (before,) = carried
            number = f.binary("urem", f.add(worker, turn), shares)
            first = f.div(f.mul(number, blocks), shares, signed=False)
            size = f.sub(f.div(f.mul(f.add(number, 1), blocks), shares, signed=False), first)
            place = f.at(claims, f.add(f.mul(number, runs), row), "i64")
            names = ("begin", "look", "ours", "try", "await", "claim", "work", "worked", "next")
            begin, look, mine, attempt, waiting, claim, work, worked, out = (f.fresh(stem) for stem in names)
            count, waited = f"%{look}.count", f"%{look}.waited"
            f.line(f"br label %{begin}")
            f.label(begin)
            f.line(f"%{begin}.waited = icmp ne i64 {before.text}, 0")
            f.line(f"br label %{look}")
            f.label(look)
            f.line(
                f"{count} = phi i64 [ {before.text}, %{begin} ], [ {count}, %{claim} ], [ %{work}.count, %{worked} ]"
            )
            f.line(f"{waited} = phi i1 [ %{begin}.waited, %{begin} ], [ true, %{claim} ], [ true, %{worked} ]")
            seen = read(f, "i64", place, "acquire")
            their = f.convert("trunc", "i32", f.binary("lshr", seen, f.integer(32)))
            age = f.sub(their, low)
            late = f.compare("sgt", age, f.number("i32", 0))
            f.line(f"br i1 {late.text}, label %late, label %{mine}")
            f.label(mine)
            gone = f.select(
                f.compare("eq", age, f.number("i32", 0)), f.binary("and", seen, f.integer(0xFFFFFFFF)), f.integer(0)
            )
            f.line(f"br i1 {f.compare('slt', gone, size).text}, label %{attempt}, label %{out}")
            f.label(attempt)
            f.line(f"br i1 {waited}, label %{claim}, label %{waiting}")
            f.label(waiting)
            f.call("await", job, row)
            f.line(f"br label %{claim}")
            f.label(claim)
            following = f.binary("or", ours, f.add(gone, 1))
            pair = f.value(
                "{ i64, i1 }",
                f"cmpxchg ptr {place.text}, i64 {seen.text}, i64 {following.text} acq_rel acquire, align 8",
            )
            got = f.value("i1", f"extractvalue {{ i64, i1 }} {pair.text}, 1")
            f.line(f"br i1 {got.text}, label %{work}, label %{look}")
            f.label(work)
            block = _numbered(f, ticketed, row, f.add(first, gone))

            def run_one() -> None:
                f.when(
                    stamped,
                    lambda: stamp(f, job, row, worker, block, lambda: run_block(f, kernel, table, block, scratch)),
                    lambda: run_block(f, kernel, table, block, scratch),
                )

            def run_all() -> None:
                f.call("whole", job, row, worker, scratch)

            f.when(whole, run_all, run_one)
            f.line(f"br label %{worked}")
            f.label(worked)
            f.line(f"%{work}.count = add i64 {count}, {each.text}")
            f.line(f"br label %{look}")
            f.label(out)
            return [Value((count,), "i64")]

        (ran,) = f.loop(f.integer(0), shares, 1, share, [f.integer(0)])
        some = f.compare("ne", ran, f.integer(0))
        f.when(some, lambda: _ended(f, done, row, ran))

    f.loop(0, runs, 1, step)
    f.line("br label %late")
    f.label("late")
    end_units(f, listing)
    f.finish()


def _ended(f: Function, done: Value, row: Value, blocks: Value) -> None:
    add(f, f.at(done, row, "i64"), blocks, "release")


def _write_share(
    module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed, few: int | None
) -> None:  # fmt: skip
    """`few`: where it stands, from the job, whether the sizes of a run leave so little that nobody is woken for it."""
    f = Function(module, "share", (Parameter("job"),))
    job = f.parameter("job")
    place = f.at(job, at.CALL, "i8")
    write(f, f.add(f.load("i64", place), 1), place, "release")
    if ticketed.fetches:
        f.call("fetch_begin", f.at(job, -at.SHARED, "i8"))

    def together() -> None:
        f.call("pool_run", f.load("ptr", f.at(job, at.POOL, "i8")), job)

    if few is None:
        together()
    else:
        alone, walk = f.compare("ne", f.load("i64", f.at(job, few, "i8")), f.integer(0)), listing.symbol("walk")
        f.when(alone, lambda: f.line(f"call void @{walk}(ptr {job.text}, i64 0)"), together)
    f.call("await", job, f.integer(len(ticketed.runs)))
    f.finish()

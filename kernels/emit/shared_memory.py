"""Memory and pool of a model that several workers run, as LLVM.

workers_of(options) -> i64              how many workers a model shall have; -1 for no sensible number
take_shared(record, workers, options)   code: the shared memory, its counters, a place among the pool's users
give_shared(record)                     both are given back, when the last worker has left the model
"""

from __future__ import annotations

from kernels import pool
from kernels.emit import layout as at
from kernels.emit.layout import MemoryLayout
from kernels.emit.memory import allow, count, reserve
from kernels.emit.options import LENDER, MEMORY_LIMIT, PINNED, SHARED_POOL, THREADS, option, purse
from kernels.emit.refusal import OK, is_null
from kernels.emit.sharing import counter_bytes
from kernels.listing import Listing, Ticketed
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module


def write_shared_memory(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed | None) -> None:
    """Add the functions; those of a program for one worker do nothing."""
    _write_workers(module, ticketed)
    if ticketed is None:
        return
    pool.write_pool(module, listing.symbol("pool_worker"))
    body = f"internal global [{pool.STATE_BYTES} x i8] zeroinitializer, align 64"
    module.variable("own_pool", body)
    _write_take(module, listing, layout, ticketed)
    _write_give(module, ticketed)


def _write_workers(module: Module, ticketed: Ticketed | None) -> None:
    f = Function(module, "workers_of", (Parameter("options"),), result="i64")
    options = f.parameter("options")
    none = f.number("i32", 0)
    asked = option(f, options, "i32", THREADS)
    bad = f.compare("slt", asked, none)
    if ticketed is None:
        f.give(f.select(bad, f.integer(-1), f.integer(1)))
        f.finish()
        return

    def usual() -> list[Value]:
        found = f.call("processors", result="i64")
        assert found is not None, "it gives a result"
        return [found]

    (found,) = f.when(f.compare("eq", asked, none), usual, lambda: [f.convert("sext", "i64", asked)])
    most = min(ticketed.most_workers or pool.MOST_WORKERS + 1, pool.MOST_WORKERS + 1)
    f.give(f.select(bad, f.integer(-1), f.minimum(found, f.integer(most))))
    f.finish()


def _write_take(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    given = (Parameter("record"), Parameter("workers", "i64"), Parameter("options"))
    f = Function(module, "take_shared", given, result="i32")
    record, workers, options = (f.parameter(one.name) for one in given)
    job = f.at(record, at.SHARED, "i8")
    pages = -(-counter_bytes(listing) // layout.page) * layout.page
    counted = f.mul(f.add(workers, 1), pages)
    lender = option(f, options, "ptr", LENDER)
    own = is_null(f, lender)
    before = f.select(own, f.add(f.mul(workers, layout.stride), layout.shared_scratch), f.integer(layout.page))
    size = f.add(f.add(before, counted), layout.page + layout.shared_alignment)
    pieces = f.select(own, f.add(f.mul(workers, layout.scratch_bytes), layout.shared_arena_bytes), f.integer(0))
    taken = f.at(purse(f, record, options), at.TAKEN, "i8")
    count(f, record, taken, f.add(counted, pieces), option(f, options, "i64", MEMORY_LIMIT))
    base = reserve(f, record, size)
    f.store(base, f.at(job, at.SHARED_AT, "i8"))
    f.store(size, f.at(job, at.SHARED_BYTES, "i8"))
    address = f.convert("ptrtoint", "i64", base)
    up = f.binary("and", f.add(address, layout.shared_alignment - 1), f.integer(-layout.shared_alignment))
    start = f.convert("inttoptr", "ptr", up)
    done = f.at(start, before, "i8")

    def bring() -> list[Value]:
        arena, scratch = (f.at(start, place, "i8") for place in (layout.shared_arena, layout.shared_scratch))
        size = layout.shared_arena_bytes
        if size:
            allow(f, record, arena, f.integer(size), large=size >= at.HUGE_PAGE)
        if layout.scratch_bytes:

            def one(number: Value, _: tuple[Value, ...]) -> None:
                place = f.at(scratch, f.mul(number, layout.stride), "i8")
                allow(f, record, place, f.integer(layout.scratch_bytes), large=layout.scratch_bytes >= at.HUGE_PAGE)

            f.loop(f.integer(0), workers, 1, one)
        return [arena, scratch]

    places = f.when(own, bring, lambda: [f.load("ptr", f.at(lender, place, "i8")) for place in (at.ARENA, at.SCRATCH)])
    allow(f, record, done, counted, large=False)
    for value, place in zip(places, (at.ARENA, at.SCRATCH), strict=True):
        f.store(value, f.at(record, place, "i8"))
    f.store(Value((f"@{listing.symbol('walk')}",), "ptr"), job)
    for value, place in (
        (workers, at.WORKERS), (done, at.DONE), (f.at(done, pages, "i8"), at.CLAIMS),
        (f.integer(layout.stride), at.STRIDE),
    ):  # fmt: skip
        f.store(value, f.at(job, place, "i8"))
    library = Value(("@own_pool",), "ptr")
    named = option(f, options, "ptr", SHARED_POOL)
    chosen = f.select(is_null(f, named), library, named)
    f.call("pool_take", chosen, f.sub(workers, 1), option(f, options, "i32", PINNED))
    f.store(chosen, f.at(job, at.POOL, "i8"))
    f.give(f.number("i32", OK))
    f.finish()


def _write_give(module: Module, ticketed: Ticketed) -> None:
    f = Function(module, "give_shared", (Parameter("record"),))
    if ticketed.fetches:
        f.call("fetch_stop", f.parameter("record"))
    job = f.at(f.parameter("record"), at.SHARED, "i8")
    used, start = (f.load("ptr", f.at(job, place, "i8")) for place in (at.POOL, at.SHARED_AT))

    def out() -> None:
        f.call("pool_leave", used, job)
        f.call("pool_give", used)

    def unmap() -> None:
        size = f.load("i64", f.at(job, at.SHARED_BYTES, "i8"))
        f.value("i32", f"call i32 @munmap(ptr {start.text}, i64 {size.text})")

    null = Value(("null",), "ptr")
    f.when(f.compare("ne", used, null), out)
    f.when(f.compare("ne", start, null), unmap)
    f.finish()

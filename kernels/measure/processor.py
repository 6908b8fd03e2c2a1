"""All that is measured of a processor, in rounds: each entry once a round, so that a disturbance meets few of them.

A reading is the best of several within a few milliseconds, an entry the best of its rounds: neighbours, interrupts and
a low clock only make things slower. Entries whose rounds do not agree, or whose best is not believed, have more rounds.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median

from kernels.kernel import Kernel
from kernels.llvm.compile import compile_object
from kernels.llvm.load import Loaded
from kernels.measure import instructions, products, streams, waits
from kernels.measure.entries import ENTRIES, Reading, reading_of
from kernels.peak import peak_calls
from kernels.run import Array, Calls, Executable, aligned
from kernels.target import Target
from kernels.units.state import permitted
from kernels.units.write import has_unit

ROUNDS, MORE_ROUNDS = 5, 15  # that every entry has, and that one has at the most
AGREED = 0.05  # the relative spread with which an entry needs no more rounds
READINGS = 12  # of an entry in a round
CLOCK_READINGS = 4  # as it is read beside every other
TOGETHER = 40  # of two cores that are busy at once
TURNS, TRIES = 1024, 20  # of two threads that wait for each other
STATES = 32
LARGE_PAGE = 2 << 20  # bytes
WAKES = 60
Read = Callable[[], float]  # one round of an entry: nanoseconds, what passes in one, or a share


def measure(target: Target) -> dict[str, Reading]:
    """Every entry that this machine lets itself be asked; those between cores need two that the process may use."""
    found: dict[str, list[float]] = {}
    rounds = _instructions(target) | _streams(target) | _latency(target)
    rounds |= _products(target, rounds)
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) > 1:
        rounds |= _waits(target, processors[:2]) | _others(target, processors[:2])
        rounds |= _beside(target, processors[:2])
    for number in range(MORE_ROUNDS):
        for name, read in rounds.items():
            if number < ROUNDS or not _settled(name, found[name]):
                found.setdefault(name, []).append(_counted(name, read, rounds["clock"]))
    return {name: reading_of(ENTRIES[name], found[name]) for name in ENTRIES if name in found}


def _counted(name: str, read: Read, clock: Read) -> float:
    """A round of an entry in its unit; where that has cycles, by the clock just before and after."""
    if not ENTRIES[name].by_cycle:
        return read()
    before, value, after = clock(), read(), clock()
    cycles = max(before, after)
    return value * cycles if ENTRIES[name].is_time else value / cycles


def _settled(name: str, values: list[float]) -> bool:
    reading = reading_of(ENTRIES[name], values)
    return reading.spread <= AGREED and ENTRIES[name].plausible(reading.value)


def _least(call: Callable[[], object], before: Callable[[], object] | None = None, readings: int = READINGS) -> float:
    """The least nanoseconds of several calls, each after a call of `before`."""
    found = []
    for _ in range(readings):
        if before is not None:
            before()
        started = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - started)
    return min(found)


def _instructions(target: Target) -> dict[str, Read]:
    """The clock and the rates of instructions; the time of a call."""
    loops = {
        "clock": instructions.clock(target), "loads": instructions.loads(target),
        "broadcasts": instructions.broadcasts(target), "tile_call": instructions.calls(target),
    }  # fmt: skip
    if has_unit("bf16", target) and permitted() is None:
        loops["tile_products"] = instructions.tile_products(target)
    if target.has("avx512bf16"):
        loops["dot_products"] = instructions.dot_products(target)
    executable = Executable([kernel for kernel, *_ in loops.values()])
    peak, flops = peak_calls(target, 1)
    calls: dict[str, tuple[Calls, int]] = {"multiply_adds": (peak[0], flops // (2 * target.lanes()))}
    for name, (kernel, arrays, count) in loops.items():
        calls[name] = (executable.calls([(kernel, arrays)]), count)

    def read(name: str) -> float:
        call, count = calls[name]
        nanoseconds = _least(call, readings=CLOCK_READINGS if name == "clock" else READINGS)
        return nanoseconds / count if ENTRIES[name].is_time else count / nanoseconds

    return {name: partial(read, name) for name in calls}


def _streams(target: Target) -> dict[str, Read]:
    """Bytes a nanosecond from and to each cache and memory."""
    buffer = _touched()
    sizes = streams.levels(target) | {"memory": streams.MEMORY_BYTES}
    kernels: dict[str, tuple[Kernel, int]] = {}
    for level, size in sizes.items():
        passes = streams.passes_of(size)
        for side, make in (("read", streams.reading), ("write", streams.writing)):
            name = f"{level}_{side}"
            kernels[name] = (make(target, name, size, passes), size * passes)
    flush = streams.flushing(target, "flush", streams.MEMORY_BYTES)
    executable = Executable([*(kernel for kernel, _ in kernels.values()), flush])
    arrays: Mapping[str, Array] = {"x": buffer}
    flushed = executable.calls([(flush, arrays)])

    def read(name: str, call: Calls, size: int) -> float:
        if name.startswith("memory"):
            return size / _least(call, flushed, readings=4)
        call()
        return size / _least(call)

    return {
        name: partial(read, name, executable.calls([(kernel, arrays)]), size)
        for name, (kernel, size) in kernels.items()
    }


def _latency(target: Target) -> dict[str, Read]:
    """Nanoseconds until memory answers a load."""
    buffer = _touched()
    streams.link(buffer.view("int64"), target.line)
    chase, flush = streams.chasing(target, "chase"), streams.flushing(target, "flush", streams.MEMORY_BYTES)
    executable = Executable([chase, flush])
    chased = executable.calls([(chase, {"x": buffer.view("int64")})])
    flushed = executable.calls([(flush, {"x": buffer})])
    return {"memory_latency": lambda: _least(chased, flushed, readings=4) / streams.LINKS}


def _products(target: Target, rounds: Mapping[str, Read]) -> dict[str, Read]:
    """Bytes a nanosecond of weights from memory to a product's tile, by its rows and how it asks for them."""
    memory = products.Memory(rounds["memory_read"](), rounds["memory_latency"]())
    buffer, size = _touched(), streams.MEMORY_BYTES // 4
    made = {name: products.streamed(target, name, memory, size) for name in products.names()}
    flush = streams.flushing(target, "flush", size)
    executable = Executable([*(kernel for kernel, _ in made.values()), flush])
    flushed = executable.calls([(flush, {"x": buffer})])

    def read(call: Calls, size: int) -> float:
        return size / _least(call, flushed, readings=4)

    calls = {
        name: (executable.calls([(kernel, {"x": buffer, **products.others(kernel)})]), size)
        for name, (kernel, size) in made.items()
    }
    return {name: partial(read, *call) for name, call in calls.items()}


def _touched() -> Array:
    """A buffer with pages of its own, as those that nobody has written are all one page of zeros.

    It begins with a large page where the system has them: of small ones it depends on luck which share a cache's sets.
    """
    buffer = aligned((streams.MEMORY_BYTES + LARGE_PAGE) // 4)
    buffer[:] = 1
    start = -buffer.ctypes.data % LARGE_PAGE // 4
    return buffer[start : start + streams.MEMORY_BYTES // 4]


def _waits(target: Target, processors: Sequence[int]) -> dict[str, Read]:
    """Signals, waits and wakes between two cores."""
    loaded = Loaded(compile_object(waits.waits_module(target).text(), target), target)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    functions = {name: (kind(loaded.address(name)), loaded) for name in ("signals", "waits", "wakes")}
    states = aligned(STATES * waits.STATE_BYTES, "uint8").reshape(STATES, waits.STATE_BYTES)
    places = itertools.cycle(states)  # the way of a line depends on where it lies: each run has lines of its own

    def run(name: str, rounds: int, state: Array) -> float:
        """Nanoseconds of the side that begins."""
        state[:] = 0
        taken = [0.0, 0.0]

        def side(number: int) -> None:
            started = time.perf_counter_ns()
            function, _code = functions[name]  # the code lives as long as it is held
            function(state.ctypes.data, number, rounds)
            taken[number] = time.perf_counter_ns() - started

        _on_each(processors, side)
        return taken[0]

    def turns(name: str) -> float:
        return min(run(name, TURNS, next(places)) for _ in range(TRIES)) / (2 * TURNS)

    def wake() -> float:
        state = next(places)
        run("wakes", WAKES, state)
        times = state[waits.TIMES :].view("int64")[:WAKES]
        return float(median(times.tolist()))

    return {"signal": lambda: turns("signals"), "wait": lambda: turns("waits"), "wake": wake}


def _others(target: Target, processors: Sequence[int]) -> dict[str, Read]:
    """Bytes a nanosecond of a buffer that lies modified in another core's cache.

    The middle one of the calls, since lines that were pushed out meanwhile are read faster.
    """
    size, buffer = streams.others_bytes(target), _touched()
    kernels = [make(target, name, size, 1) for name, make in (("get", streams.reading), ("put", streams.writing))]
    executable = Executable(kernels)
    get, put = (executable.calls([(kernel, {"x": buffer})]) for kernel in kernels)

    def read() -> float:
        written, taken = threading.Barrier(2), []

        def side(number: int) -> None:
            for _ in range(TOGETHER):
                if number == 1:
                    put()
                written.wait()
                if number == 0:
                    taken.append(_least(get, readings=1))  # a second one would find it in its own cache
                written.wait()

        _on_each(processors, side)
        return size / median(taken)

    return {"other_read": read}


def _beside(target: Target, processors: Sequence[int]) -> dict[str, Read]:
    """What a core keeps of its rate while another one does the same."""
    compute, _ = peak_calls(target, len(processors))
    kernel = streams.reading(target, "beside", streams.MEMORY_BYTES, 1)
    flush = streams.flushing(target, "flush", streams.MEMORY_BYTES)
    executable = Executable([kernel, flush])
    buffers = [_touched() for _ in processors]
    memory = [executable.calls([(kernel, {"x": one})]) for one in buffers]
    flushes = [executable.calls([(flush, {"x": one})]) for one in buffers]

    def share(calls: Sequence[Calls], before: Sequence[Calls] | None, readings: int) -> float:
        alone = _least(calls[0], None if before is None else before[0], readings)
        return alone / _together(processors, calls, before, readings)

    return {
        "compute_beside": lambda: share(compute, None, TOGETHER),
        "memory_beside": lambda: share(memory, flushes, 4),
    }


def _together(
    processors: Sequence[int], calls: Sequence[Calls], before: Sequence[Calls] | None, readings: int
) -> float:
    """The mean of the least nanoseconds of each core's calls, all of which begin together."""
    found = [float("inf")] * len(calls)
    barrier = threading.Barrier(len(calls))

    def work(number: int) -> None:
        for _ in range(readings):
            if before is not None:
                before[number]()
            barrier.wait()
            started = time.perf_counter_ns()
            calls[number]()
            found[number] = min(found[number], time.perf_counter_ns() - started)

    _on_each(processors, work)
    return sum(found) / len(found)


def _on_each(processors: Sequence[int], work: Callable[[int], None]) -> None:
    """Run `work(0)`, `work(1)`, ... side by side, each on a processor of its own."""
    together = threading.Barrier(len(processors))

    def begin(number: int) -> None:
        with suppress(OSError):  # a processor that was taken away meanwhile: the system then chooses
            os.sched_setaffinity(threading.get_native_id(), {processors[number]})
        together.wait()
        work(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(len(processors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

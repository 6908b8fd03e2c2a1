"""Measuring a processor: what the loops hold, when an entry has enough rounds, and one measure that is taken."""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from kernels import peak
from kernels.cores import FEW_ROWS, HALF_PAGE
from kernels.kernel import Kernel
from kernels.llvm.compile import assembly, compile_object
from kernels.measure import instructions, processor, products, streams, waits
from kernels.measure.entries import ENTRIES, reading_of
from kernels.measure.streams import MEMORY_BYTES, flushing, levels, passes_of, reading, writing
from kernels.run import Executable, aligned
from kernels.target import Target, aarch64, host, x86_64_v3, x86_64_v4

TARGETS = (x86_64_v3(), x86_64_v4(), aarch64())


def loop(text: str) -> str:
    """The longest piece of code between a label and a jump back to it."""
    pieces = re.findall(r"^(\.LBB\w+):(.*?)\n\s+j\w+\s+\1\n", text, re.MULTILINE | re.DOTALL)
    return max((body for _, body in pieces), key=len)


def test_the_loops_hold_what_they_are_said_to_time() -> None:
    target = x86_64_v4()
    kernel, _, _ = instructions.loads(target)
    body = loop(assembly(kernel.module.text(), target))
    assert len(re.findall(r"vmovaps\s+.*\(%r\w+\), %zmm", body)) == instructions.PLACES
    kernel, _, _ = instructions.broadcasts(target)
    body = loop(assembly(kernel.module.text(), target))
    assert len(re.findall(r"vpaddd\s+.*\{1to16\}", body)) == 24 * instructions.STEPS and "(%rsp)" not in body
    kernel, _, _ = instructions.clock(target)
    body = loop(assembly(kernel.module.text(), target))
    assert len(re.findall(r"\b(?:addq|xorq)\s+%r\w+, %r\w+", body)) == instructions.LINKS
    assert len(re.findall("vfmadd", body)) == 8


def test_streams_pass_every_vector_and_every_line() -> None:
    target = x86_64_v4()
    for kernel, pattern in (
        (reading(target, "r", 1 << 16, 1), r"vmovaps\s+.*\(%r\w+.*\), %zmm"),
        (writing(target, "w", 1 << 16, 1), r"vmovaps\s+%zmm\d+, .*\(%r"),
        (flushing(target, "f", 1 << 16), "clflush"),
    ):
        assert len(re.findall(pattern, loop(assembly(kernel.module.text(), target)))) == streams.VECTORS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.cpu}")
def test_every_target_has_code(target: Target) -> None:
    kernels = [make(target)[0] for make in (instructions.clock, instructions.loads, instructions.broadcasts)]
    kernels += [
        streams.chasing(target, "c"),
        instructions.calls(target)[0],
        writing(target, "w", 1 << 16, 2),
        reading(target, "r", 1 << 16, 2),
    ]
    for kernel in kernels:
        assert compile_object(kernel.module.text(), target)
    assert compile_object(waits.waits_module(target).text(), target)
    flush = "dc civac" if target.architecture.name == "aarch64" else "clflush"  # assembled on such a machine only
    assert flush in flushing(target, "f", 1 << 16).module.text()


def test_a_chain_goes_through_lines_anywhere_and_ends_where_it_began() -> None:
    buffer = np.full(MEMORY_BYTES // 8, -1)
    streams.link(buffer, 64)
    places = [0]
    while (following := int(buffer[places[-1]])) != 0:
        places.append(following)
    assert len(places) == streams.LINKS == len(set(places)) and all(place % 8 == 0 for place in places)
    assert np.count_nonzero(buffer >= 0) == streams.LINKS
    steps = np.abs(np.diff(places)) * 8
    assert np.median(steps) > 1 << 20, "far apart, where no prefetcher looks"
    body = loop(assembly(streams.chasing(x86_64_v4(), "c").module.text(), x86_64_v4()))
    assert len(re.findall(r"movq\s+\(%r\w+,%r\w+,8\), %r\w+", body)) == 1


def test_levels_are_those_that_can_be_told_apart() -> None:
    def sizes(l1: int, l2: int, l3: int) -> dict[str, int]:
        return levels(Target("x86_64-linux", "some", (), 32, 16, l1 << 10, l2 << 10, l3 << 10))

    assert sizes(48, 2048, 480 << 10) == {"l1": 24 << 10, "l2": 1 << 20, "l3": 8 << 20}
    assert sizes(32, 512, 2048) == {"l1": 16 << 10, "l2": 256 << 10, "l3": 1 << 20}
    assert sizes(32, 1024, 1408) == {"l1": 16 << 10, "l2": 512 << 10}, "the last cache is hardly larger"
    assert sizes(64, 128, 4096) == {"l1": 32 << 10, "l3": 512 << 10}, "the second one is hardly larger"
    assert streams.others_bytes(Target("x86_64-linux", "some", (), 32, 16, 48 << 10, 2 << 20, 4 << 20)) == 512 << 10
    assert passes_of(1 << 20) * (1 << 20) >= streams.LEAST_BYTES and passes_of(MEMORY_BYTES) == 1


def test_an_entry_is_the_best_of_its_rounds_with_their_spread() -> None:
    time = reading_of(ENTRIES["wait"], [110.0, 100.0, 140.0, 105.0, 120.0])
    assert (time.value, round(time.spread, 9)) == (100.0, 0.2), "four of five rounds"
    rate = reading_of(ENTRIES["clock"], [2.0, 1.0, 1.5, 1.8, 1.9])
    assert (rate.value, round(rate.spread, 9)) == (2.0, 0.25)
    share = reading_of(ENTRIES["compute_beside"], [0.9, 1.2, 0.8, 1.0, 0.95])
    assert (share.value, round(share.spread, 2)) == (0.95, 0.16), "a disturbance moves it either way"
    rough = reading_of(replace(ENTRIES["clock"], rough=True), [2.0, 1.0, 1.5, 1.8, 1.9])
    assert (rough.value, round(rough.spread, 2)) == (1.8, 0.44), "all rounds"


class Steps:
    """Entries that give what they are told, round by round, and then the last of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **values: list[float]) -> None:
        self.left = values
        monkeypatch.setattr(processor, "_instructions", lambda _: {name: partial(self.read, name) for name in values})
        monkeypatch.setattr(processor, "_streams", lambda _: {})
        monkeypatch.setattr(processor, "_products", lambda _, __: {})
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    def read(self, name: str) -> float:
        return self.left[name].pop(0) if len(self.left[name]) > 1 else self.left[name][0]


def test_an_entry_whose_rounds_do_not_agree_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not believed; others have no more than all have."""
    count = processor.MORE_ROUNDS + 1
    steps = Steps(
        monkeypatch, clock=[1.0], l3_read=[30.0] * count, memory_read=[8.0, 9.0, 8.0, 9.0, 8.0] + [9.0] * count,
        memory_write=[1e9] * count,
    )  # fmt: skip
    found = processor.measure(host())
    left = {name: len(values) for name, values in steps.left.items()}
    assert left["l3_read"] == count - processor.ROUNDS and left["memory_write"] == count - processor.MORE_ROUNDS
    assert left["memory_read"] == 5 + count - 15, "until nine tenths of them agree"
    assert found["memory_read"].value == 9.0 and not ENTRIES["memory_write"].plausible(found["memory_write"].value)


def test_cycles_are_those_of_the_clock_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes from round to round; the figure by cycle does not."""
    clock = [3.0, 3.0, 3.0, 1.0, 3.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.5]  # in each round its own, and two of the others
    Steps(monkeypatch, clock=clock, tile_call=[2.0, 3.0, 2.4], loads=[6.0, 4.0, 5.0])
    found = processor.measure(host())
    assert found["tile_call"].value == 6.0 and found["tile_call"].spread == 0.0
    assert found["loads"].value == 2.0 and found["loads"].spread == 0.0


def test_this_machine_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one round; nothing is said of how fast it is."""
    monkeypatch.setattr(processor, "ROUNDS", 1)
    monkeypatch.setattr(processor, "MORE_ROUNDS", 1)
    found = processor.measure(host())
    assert all(math.isfinite(reading.value) and reading.value > 0 for reading in found.values())
    assert (
        {"clock", "multiply_adds", "tile_call", "l1_read", "memory_write", "memory_latency"}
        <= set(found)
        <= set(ENTRIES)
    )
    several = len(os.sched_getaffinity(0)) > 1
    assert ("wake" in found) is several and ("other_read" in found) is several


@pytest.mark.parametrize("name", products.names())
def test_tiles_ask_in_the_way_that_is_measured(name: str) -> None:
    """Each entry is a product of its own: of few rows or of many, and asking where its name says."""
    memory, target = products.Memory(50.0, 100.0), host()
    rows, way = products.names()[name]
    kernel, size = products.streamed(target, name, memory, 8 << 20)
    assert 7 << 20 < size <= 8 << 20 and kernel.operand("x").bytes == size
    arrays = products.others(kernel)
    height = arrays["a"].size // products.DEPTH
    assert (height <= FEW_ROWS) is (rows == "few")
    arrays["x"] = aligned(size // 4)
    arrays["x"][:], arrays["a"][:] = 1, 1
    Executable([kernel]).calls([(kernel, arrays)])()
    assert (arrays["c"] == products.DEPTH).all()
    text = kernel.module.text()
    asking = re.findall(r"llvm\.prefetch\.p0\(ptr \S+, i32 0, i32 (\d)", text)
    assert set(asking) == {"3" if way == "near" else "2"}
    assert f"i64 {HALF_PAGE if way == 'half' else 5000}" in text


class Recorded:
    """What a measure runs, with the thread that runs it; by this machine's clock each reading takes 100 ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, int]] = []
        ticks = itertools.count(0, 100)
        monkeypatch.setattr(processor, "Executable", lambda kernels: self)
        monkeypatch.setattr(processor, "_touched", lambda: None)
        monkeypatch.setattr(processor, "peak_calls", lambda target, cores: ([self.call("peak")] * cores, 64_000))
        monkeypatch.setattr(processor, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))

    def calls(self, runs: Sequence[tuple[Kernel, object]]) -> Callable[[], None]:
        return self.call(runs[0][0].name)

    def call(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append((name, threading.get_ident()))


def test_a_rate_is_what_is_done_in_a_nanosecond_and_a_time_what_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, target = Recorded(monkeypatch), host()
    reads = processor._instructions(target)
    loops = {"clock": instructions.clock, "loads": instructions.loads, "broadcasts": instructions.broadcasts}
    for name, make in loops.items():
        assert reads[name]() == make(target)[2] / 100
    assert reads["tile_call"]() == 100 / instructions.calls(target)[2]
    assert reads["multiply_adds"]() == 64_000 / (2 * target.lanes()) / 100
    recorded.done.clear()
    for name, read in processor._streams(target).items():
        recorded.done.clear()
        level = name.partition("_")[0]
        size = (streams.levels(target) | {"memory": MEMORY_BYTES})[level]
        assert read() == size * passes_of(size) / 100
        first, *_ = (each for each, _ in recorded.done)
        assert first == ("flush" if level == "memory" else name), "caches are filled before, or emptied"
    monkeypatch.setattr(processor, "_touched", lambda: np.zeros(MEMORY_BYTES // 4, np.float32))
    recorded.done.clear()
    assert processor._latency(target)["memory_latency"]() == 100 / streams.LINKS
    assert [name for name, _ in recorded.done] == ["flush", "chase"] * 4


def test_a_cache_is_read_that_another_core_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn one thread writes the buffer and another one, which has never written it, is timed."""
    recorded = Recorded(monkeypatch)
    rate = processor._others(host(), (0, 0))["other_read"]()
    assert rate == streams.others_bytes(host()) / 100
    assert [name for name, _ in recorded.done] == ["put", "get"] * processor.TOGETHER
    writers, readers = ({thread for name, thread in recorded.done if name == kind} for kind in ("put", "get"))
    assert len(writers) == len(readers) == 1 and writers != readers


def test_cores_beside_each_other_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """First one core alone; then in each turn both caches are emptied before either core reads."""
    recorded = Recorded(monkeypatch)
    read = processor._beside(host(), (0, 0))
    assert read["memory_beside"]() > 0
    names = [name for name, _ in recorded.done]
    assert names[:8] == ["flush", "beside"] * 4
    together = names[8:]
    places = [place for place, name in enumerate(together) if name == "beside"]
    assert len(places) == 8 == together.count("flush")
    assert all(together[:place].count("flush") >= 2 * (number // 2 + 1) for number, place in enumerate(places))
    recorded.done.clear()
    assert read["compute_beside"]() > 0
    assert [name for name, _ in recorded.done] == ["peak"] * 3 * processor.TOGETHER


def test_the_peak_is_that_of_the_fastest_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "READINGS", 3)
    seconds = iter([0.0, 4.0, 5.0, 7.0, 9.0, 12.0])
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    (call,), operations = peak.peak_calls(host(), 1)
    assert peak.peak_flops(host()) == operations / 2.0
    assert peak.peak_call(host())[1] == operations == 2 * host().lanes() * peak.TURNS * peak.STEPS * peak.SUMS
    call()


def test_each_worker_is_read_and_their_peaks_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    calls = [lambda number=number: ran.append(number) for number in range(3)]
    monkeypatch.setattr(peak, "peak_calls", lambda target, workers: (calls[:workers], 600))
    clocks = defaultdict(lambda: itertools.count(0, 2))
    clock = SimpleNamespace(perf_counter=lambda: next(clocks[threading.get_ident()]))
    monkeypatch.setattr(peak, "time", clock)
    assert peak.peak_flops(host(), 3) == 300.0
    assert sorted(ran) == [number for number in range(3) for _ in range(peak.READINGS)]

"""Measuring a processor: what the loops hold, when an entry has enough rounds, and one measure that is taken."""

from __future__ import annotations

import math
import os
import re

import pytest

from kernels.llvm.compile import assembly, compile_object
from kernels.measure import instructions, processor, streams, waits
from kernels.measure.entries import ENTRIES, best_of
from kernels.measure.streams import MEMORY_BYTES, flushing, levels, passes_of, reading, writing
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
    assert len(re.findall(r"vfmadd\w+\s+.*\{1to16\}", body)) == 24 * instructions.STEPS and "(%rsp)" not in body
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
    kernels += [instructions.calls(target)[0], writing(target, "w", 1 << 16, 2), reading(target, "r", 1 << 16, 2)]
    for kernel in kernels:
        assert compile_object(kernel.module.text(), target)
    assert compile_object(waits.waits_module(target).text(), target)
    flush = "dc civac" if target.architecture.name == "aarch64" else "clflush"  # assembled on such a machine only
    assert flush in flushing(target, "f", 1 << 16).module.text()


def test_levels_are_those_that_can_be_told_apart() -> None:
    def sizes(l1: int, l2: int, l3: int) -> dict[str, int]:
        return levels(Target("x86_64-linux", "some", (), 32, 16, l1 << 10, l2 << 10, l3 << 10))

    assert sizes(48, 2048, 480 << 10) == {"l1": 24 << 10, "l2": 1 << 20, "l3": 8 << 20}
    assert sizes(32, 512, 2048) == {"l1": 16 << 10, "l2": 256 << 10, "l3": 1 << 20}
    assert sizes(32, 1024, 1408) == {"l1": 16 << 10, "l2": 512 << 10}, "the last cache is hardly larger"
    assert sizes(64, 128, 4096) == {"l1": 32 << 10, "l3": 512 << 10}, "the second one is hardly larger"
    assert passes_of(1 << 20) * (1 << 20) >= streams.LEAST_BYTES and passes_of(MEMORY_BYTES) == 1


def test_an_entry_is_the_best_of_its_rounds_with_their_spread() -> None:
    time, rate = best_of(ENTRIES["wait"], [110.0, 100.0, 140.0, 105.0, 120.0]), best_of(ENTRIES["clock"], [2.0, 1.0])
    assert (time.value, round(time.spread, 9)) == (100.0, 0.2), "three quarters of five rounds"
    assert (rate.value, rate.spread) == (2.0, 0.0)
    assert best_of(ENTRIES["clock"], [2.0, 1.0, 1.5, 1.8, 1.9]).spread == pytest.approx(0.25)


def test_an_entry_whose_rounds_do_not_agree_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not believed; others have no more than all have."""
    taken = {"clock": 0, "loads": 0, "multiply_adds": 0}

    def rounds(_: Target) -> dict[str, processor.Read]:
        def steady() -> float:
            taken["clock"] += 1
            return 3.0

        def shaken() -> float:
            taken["loads"] += 1
            return 6.0 if taken["loads"] % 3 == 0 or taken["loads"] > 7 else 3.0

        def wild() -> float:
            taken["multiply_adds"] += 1
            return 1e9

        return {"clock": steady, "loads": shaken, "multiply_adds": wild}

    monkeypatch.setattr(processor, "_instructions", rounds)
    monkeypatch.setattr(processor, "_streams", lambda _: {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    found = processor.measure(host())
    assert taken["clock"] == processor.ROUNDS and taken["multiply_adds"] == processor.MORE_ROUNDS
    assert processor.ROUNDS < taken["loads"] < processor.MORE_ROUNDS or taken["loads"] == processor.MORE_ROUNDS
    assert found["loads"].value == 6.0 and not ENTRIES["multiply_adds"].plausible(found["multiply_adds"].value)


def test_this_machine_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one round; nothing is said of how fast it is."""
    monkeypatch.setattr(processor, "ROUNDS", 1)
    monkeypatch.setattr(processor, "MORE_ROUNDS", 1)
    found = processor.measure(host())
    assert all(math.isfinite(reading.value) and reading.value > 0 for reading in found.values())
    assert {"clock", "multiply_adds", "tile_call", "l1_read", "memory_write"} <= set(found) <= set(ENTRIES)
    assert ("wake" in found) is (len(os.sched_getaffinity(0)) > 1)

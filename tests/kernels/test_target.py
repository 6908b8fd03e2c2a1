"""Architectures: what differs by them stands in records and tables, and an unknown one is refused at every door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernels import pool
from kernels.emit import layout, processor, program
from kernels.llvm import control_word, link, threads
from kernels.llvm.function import Function
from kernels.llvm.module import Module
from kernels.measure import streams
from kernels.target import ARCHITECTURES, Target, UnknownTarget, host, why_not_here
from kernels.templates import tile
from kernels.templates.convolution import choose
from tests.kernels.listings import difference
from tests.kernels.targets import NAMED

KERNELS = Path(pool.__file__).parent
UNKNOWN = Target("s390x-unknown-linux-gnu", "z14", (), 16, 32)
TABLES: tuple[Mapping[str, object], ...] = (
    ARCHITECTURES, processor.FEATURES, processor._ANSWERS, control_word._ENTER, control_word._SET, threads._PAUSE,
    streams._FLUSH,
)  # fmt: skip


def function() -> Function:
    return Function(Module(UNKNOWN), "region", ())


DOORS: dict[str, Callable[[], object]] = {
    "the memory of a program": lambda: layout.layout_of(difference(host()), UNKNOWN),
    "the program's own module": lambda: program.oldest(UNKNOWN),
    "what a processor must have": lambda: processor.requirements(UNKNOWN),
    "how a processor is asked": lambda: processor.write_missing(Module(UNKNOWN), "lacking", ()),
    "the control word": lambda: control_word.enter(function()),
    "the worker pool": lambda: pool.write_pool(Module(UNKNOWN)),
    "what is measured": lambda: streams.flushing(UNKNOWN, "flush", 1 << 20),
    "the linker": lambda: link._linker(UNKNOWN),
    "a convolution's tiles": lambda: choose.most_pixels(UNKNOWN, 1),
    "a product's tiles": lambda: tile.most_registers(UNKNOWN),
    "whether it runs here": lambda: why_not_here(UNKNOWN),
}


@pytest.mark.parametrize("door", DOORS)
def test_an_unknown_architecture_is_refused(door: str) -> None:
    with pytest.raises(UnknownTarget, match="for 's390x-unknown-linux-gnu'; known are x86_64, aarch64, "):
        DOORS[door]()


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_every_table_has_every_architecture(number: int) -> None:
    assert set(TABLES[number]) == set(ARCHITECTURES)


def test_no_branch_takes_one_architecture_for_all_others() -> None:
    """Only programs for an emulator and for an engine ask for one by name, and refuse the others; and the linker."""
    asking = {
        str(path.relative_to(KERNELS))
        for path in KERNELS.rglob("*.py")
        if "architecture.name " in path.read_text() or "is_x86" in path.read_text()
    }
    assert asking == {"emit/standalone.py", "emit/webassembly.py", "llvm/link.py"}


def test_people_are_told_what_a_machine_must_have() -> None:
    told = [target.level for target in NAMED]
    assert told == ["x86-64-v4 (AVX-512)", "x86-64-v4 (AVX-512)", "x86-64-v3 (AVX2)", "aarch64"]

"""Libraries for microcontrollers: what they compute in QEMU, what their objects have, and what cannot be one."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from graphopt.program.deploy.emulation import EMULATED
from kernels.emit import firmware as emit
from kernels.emit.firmware import Firmware, emulated, firmware, flash_bytes
from kernels.emit.program import compiled
from kernels.emit.standalone import EXIT, WRITE, NotStandalone, standalone, system_call
from kernels.llvm.compile import assembly
from kernels.llvm.elf import outside
from kernels.llvm.function import Function, Value
from kernels.llvm.link import link_program
from kernels.llvm.module import Module
from kernels.target import thumbv7em, x86_64_v3
from tests.kernels.arm import emulator, needs_arm
from tests.kernels.listings import difference, perceptron

TARGET = thumbv7em()
EMPTY = np.zeros(0, np.uint8)


def layers() -> tuple[Firmware, bytes]:
    """A perceptron's library, and its weights."""
    written = perceptron(TARGET, (16, 30, 10), rows=7)
    listing = replace(written.listing, ticketed=None)
    return firmware(listing, TARGET, np.frombuffer(written.weights, np.uint8)), written.weights


def run(objects: list[bytes], given: bytes, folder: Path) -> bytes:
    """What a program writes in the emulator."""
    program = folder / "program"
    program.write_bytes(link_program(objects, TARGET))
    program.chmod(0o700)
    words = [str(emulator("thumbv7em")), *EMULATED["thumbv7em"], str(program)]
    return subprocess.run(words, input=given, capture_output=True, check=True).stdout


@needs_arm
def test_layers_through_an_arena(tmp_path: Path) -> None:
    written = perceptron(TARGET, (16, 30, 10), rows=7)
    x = np.random.default_rng(1).standard_normal((7, 16)).astype(np.float32)
    made = emulated(layers()[0])
    assert made.read_bytes == x.nbytes, "weights are constants"
    y = np.frombuffer(run(made.objects(), x.tobytes(), tmp_path), np.float32, 70, made.outputs[0]).reshape(7, 10)
    assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()


@needs_arm
def test_subnormal_numbers_are_right(tmp_path: Path) -> None:
    left, right = (np.full((3, 5), factor * 2.0**-126, np.float32) for factor in (1.5, 1.0))
    made = emulated(firmware(difference(TARGET), TARGET, EMPTY))
    given = bytearray(made.read_bytes)
    for start, array in zip(made.inputs, (left, right), strict=True):
        given[start : start + array.nbytes] = array.tobytes()
    found = np.frombuffer(run(made.objects(), bytes(given), tmp_path), np.float32, 15, made.outputs[0])
    np.testing.assert_array_equal(found, np.full(15, 2.0**-127, np.float32))


@needs_arm
def test_places_of_tensors_and_of_none(tmp_path: Path) -> None:
    """Another program asks for them by number, and writes the addresses."""
    made = firmware(difference(TARGET), TARGET, EMPTY)
    module = Module(TARGET)
    module.variable("found", "internal global [7 x ptr] zeroinitializer, align 4")
    module.variable(made.listing.symbol("memory"), "external hidden global [1 x i8]")
    f = Function(module, "_start", (), exported=True)
    table = Value(("@found",), "ptr")
    f.store(Value((f"@{made.listing.symbol('memory')}",), "ptr"), table)
    asked = [("input", 0), ("input", 1), ("input", 2), ("input", -1), ("output", 0), ("output", 1)]
    for place, (word, number) in enumerate(asked):
        module.declare(f"difference_{word}", "ptr", ["i32"])
        f.store(f.value("ptr", f"call ptr @difference_{word}(i32 {number})"), f.at(table, place + 1, "ptr"))
    system_call(f, WRITE, "i64 1", "ptr @found", "i64 28")
    system_call(f, EXIT, "i64 0", "ptr null", "i64 0")
    f.finish()
    objects = compiled((module, *made.modules))
    memory, *places = np.frombuffer(run(objects, b"", tmp_path), np.uint32).tolist()
    assert memory % 64 == 0 and places == [memory, memory + 64, 0, 0, memory + made.laid.outputs[0], 0]


@dataclass(frozen=True)
class Part:
    """A section of an object, as this test reads it."""

    name: str
    kind: int
    flags: int
    content: bytes
    size: int


def parts(code: bytes) -> Iterator[Part]:
    """The sections of a 32-bit object for ARM."""
    assert code[:7] == b"\x7fELF\x01\x01\x01" and struct.unpack_from("<H", code, 18) == (40,)
    (start,) = struct.unpack_from("<I", code, 32)
    size, count, names = struct.unpack_from("<HHH", code, 46)
    rows = [struct.unpack_from("<10I", code, start + number * size) for number in range(count)]
    for name, kind, flags, _, offset, length, *_ in rows:
        place = rows[names][4] + name
        title = code[place : code.index(b"\0", place)].decode()
        yield Part(title, kind, flags, b"" if kind == 8 else code[offset : offset + length], length)


def test_weights_are_read_only_and_all_that_is_written_is_the_planned_memory() -> None:
    made, weights = layers()
    objects = made.objects()
    found = [part for code in objects for part in parts(code) if part.flags & 2]  # allocated
    assert all(part.kind == 8 for part in found if part.flags & 1), "what can be written begins as zeros"
    assert sum(part.size for part in found if part.flags & 1) == made.laid.total
    assert any(weights in part.content for part in found if part.name.startswith(".rodata") and not part.flags & 1)
    flash = sum(part.size for part in found if not part.flags & 1)
    assert flash <= flash_bytes(objects) < flash + 64 * len(found)
    assert all(".data" not in part.name for part in found)


def test_the_memory_is_that_of_the_pieces() -> None:
    laid = layers()[0].laid
    assert (laid.inputs, laid.arena, laid.made) == ((0,), 448, 448 + 896)  # 7 x 16, 7 x 30 and 7 x 10 numbers, in 64s
    assert laid.total == 448 + 896 + 320


def test_nothing_outside_is_asked_for() -> None:
    assert outside(layers()[0].objects()) == ()
    assert outside(layers()[0].objects()[1:]) == ()
    assert outside(emulated(layers()[0]).objects()[:1]) == ("mlp.memory", "mlp_run")


def test_registers_hold_single_precision_and_the_control_word_is_set() -> None:
    made, _ = layers()
    text = assembly(made.modules[0].text(), TARGET)
    assert text.count("vmsr\tfpscr") == 2 and "vmrs" in text, "ours, and the caller's again"
    kernel = assembly(made.modules[1].text(), TARGET)
    assert "vfma.f32" in kernel and "f64" not in kernel and "pld" not in kernel


def test_what_cannot_be_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotStandalone, match="'x86_64-unknown-linux-gnu' is no microcontroller"):
        firmware(difference(x86_64_v3()), x86_64_v3(), EMPTY)
    with pytest.raises(NotStandalone, match="written for ARM64 and RISC-V, not for 'thumbv7em-unknown-none-eabihf'"):
        standalone(difference(TARGET), TARGET)
    monkeypatch.setattr(emit, "MOST_WEIGHTS", 100)
    with pytest.raises(NotStandalone, match="bytes of flash; at most 100 fit"):
        layers()

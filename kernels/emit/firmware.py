"""A listing as a library for a microcontroller: code and weights stay in flash, all else is one memory.

With P for the listing's name the objects export

    P_input(i32) -> ptr     where an input is put             P_run()    all runs, one after the other
    P_output(i32) -> ptr    where an output is found then     P_dims(i32) -> ptr    its dims, where data decides them

They allocate nothing, ask nothing of a system, and keep nothing from run to run. Outside of them are only functions
that every compiler for such a processor brings: those that move memory, arithmetic that it has no instructions for, and
mathematics that kernels leave to the C library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.emit.common import kernel_modules
from kernels.emit.program import compiled
from kernels.emit.refusal import return_when
from kernels.emit.standalone import (
    EXIT,
    READ,
    WRITE,
    Laid,
    NotStandalone,
    Standalone,
    address,
    lay_out,
    system_call,
    transfer,
    write_runs,
)
from kernels.listing import Listing
from kernels.llvm import control_word
from kernels.llvm.elf import sections
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.target import Target

MOST_WEIGHTS = 64 << 20  # bytes: more than any flash that such a processor reads in place
_LINE = 64  # bytes: where memory and weights start


@dataclass(frozen=True, slots=True)
class Firmware:
    """The modules of a library, and where in its memory the pieces lie."""

    listing: Listing
    target: Target
    modules: tuple[Module, ...]
    laid: Laid

    def objects(self) -> list[bytes]:
        """Machine code; raises CompileError."""
        return compiled(self.modules)


def firmware(listing: Listing, target: Target, weights: npt.NDArray[np.uint8]) -> Firmware:
    """The library; raises NotStandalone for a processor beneath a system, and for more than a microcontroller has."""
    if not target.architecture.is_bare:
        raise NotStandalone(f"'{target.triple}' is no microcontroller.")
    if listing.weights_bytes > MOST_WEIGHTS:
        raise NotStandalone(f"the weights take {listing.weights_bytes:,} bytes of flash; at most {MOST_WEIGHTS:,} fit.")
    laid, name = lay_out(listing, constants=False), listing.name
    module = Module(target)
    memory, constants = listing.symbol("memory"), listing.symbol("weights")
    module.variable(memory, f"hidden global [{max(laid.total, 1)} x i8] zeroinitializer, align {_LINE}")
    module.variable(constants, _constant(weights[: listing.weights_bytes]))
    count = len(listing.outputs)
    _write_places(module, f"{name}_input", [address(one, memory) for one in laid.inputs])
    _write_places(module, f"{name}_output", [address(one, memory) for one in laid.outputs[:count]])
    if listing.dims:
        rest = iter(laid.outputs[count:])
        found = [address(next(rest), memory) if one.counted else "ptr null" for one in listing.outputs]
        _write_places(module, f"{name}_dims", found)
    f = Function(module, f"{name}_run", (), exported=True)
    caller = control_word.enter(f)
    write_runs(f, listing, laid, memory, constants)
    control_word.leave(f, caller)
    f.finish()
    return Firmware(listing, target, (module, *kernel_modules(name, listing.kernels, target)), laid)


def _constant(data: npt.NDArray[np.uint8]) -> str:
    """Bytes, as a global has them after its name."""
    text = "".join(f"\\{byte:02X}" for byte in data.tobytes() or b"\0")
    return f'internal constant [{max(data.size, 1)} x i8] c"{text}", align {_LINE}'


def _write_places(module: Module, name: str, places: Sequence[str]) -> None:
    """name(i32) -> ptr: one of these addresses; null for another number."""
    f = Function(module, name, (Parameter("number", "i32"),), exported=True, result="ptr")
    number = f.parameter("number")
    if places:
        null = Value(("null",), "ptr")
        return_when(f, f.compare("uge", number, f.number("i32", len(places))), null)
        table = module.variable(f"{name}.places", f"internal constant [{len(places)} x ptr] [{', '.join(places)}]")
        f.give(f.load("ptr", f.at(Value((table,), "ptr"), f.convert("zext", "i64", number), "ptr")))
    else:
        f.line("ret ptr null")
    f.finish()


def flash_bytes(objects: Sequence[bytes]) -> int:
    """What the objects take of flash: code and constants, each section where it may begin."""
    return sum(
        -(-one.size // max(1, one.alignment)) * max(1, one.alignment)
        for code in objects
        for one in sections(code)
        if one.in_flash
    )


def emulated(made: Firmware) -> Standalone:
    """The library with a start that reads its inputs and writes its outputs, for an emulator of Linux beneath it."""
    laid, listing = made.laid, made.listing
    module, memory = Module(made.target), listing.symbol("memory")
    module.variable(memory, f"external hidden global [{max(laid.total, 1)} x i8]")
    module.declare(f"{listing.name}_run", "void", [])
    f = Function(module, "_start", (), exported=True)
    start = Value((f"@{memory}",), "ptr")
    transfer(f, READ, start, laid.arena)
    f.line(f"call void @{listing.name}_run()")
    transfer(f, WRITE, f.at(start, laid.made, "i8"), laid.total - laid.made)
    system_call(f, EXIT, "i64 0", "ptr null", "i64 0")
    f.finish()
    return Standalone(
        (module, *made.modules), 0, laid.inputs, laid.arena,
        tuple(one - laid.made for one in laid.outputs), laid.total - laid.made,
    )  # fmt: skip

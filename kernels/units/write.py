"""LLVM of tile programs. The tiles are named by the instructions themselves, so that LLVM allocates none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels.errors import KernelsError
from kernels.llvm.function import Function, Value
from kernels.target import Target
from kernels.units.instructions import (
    ROW_BYTES,
    Ask,
    Clear,
    Instruction,
    LoadTile,
    Multiply,
    Repeat,
    StoreTile,
    TilePlace,
    UnitArithmetic,
)

_PRODUCTS: Mapping[UnitArithmetic, str] = {
    "bf16": "tdpbf16ps", "u8s8": "tdpbusd", "s8s8": "tdpbssd", "s8u8": "tdpbsud", "u8u8": "tdpbuud",
}  # fmt: skip
FEATURES: Mapping[UnitArithmetic, str] = {
    "bf16": "amx-bf16", "u8s8": "amx-int8", "s8s8": "amx-int8", "s8u8": "amx-int8", "u8u8": "amx-int8",
}  # fmt: skip


class NoMatrixUnit(KernelsError):
    """A tile program for a target that has no unit for it."""


def has_unit(arithmetic: UnitArithmetic, target: Target) -> bool:
    """Whether the target multiplies tiles of such elements."""
    return target.has("amx-tile") and target.has(FEATURES[arithmetic])


def write(f: Function, program: Sequence[Instruction], bases: Mapping[str, Value]) -> None:
    """Write a program's instructions, given the addresses that it names; raises NoMatrixUnit."""
    f.module.uses_units = True
    _write(f, program, bases, {})


def _write(f: Function, program: Sequence[Instruction], bases: Mapping[str, Value], at: Mapping[str, Value]) -> None:
    for one in program:
        match one:
            case Clear(tile):
                _call(f, "tilezero", _tile(tile))
            case LoadTile(tile, place):
                _call(f, "tileloadd64", _tile(tile), _at(f, place, bases, at), f.integer(place.stride))
            case StoreTile(tile, place):
                _call(f, "tilestored64", _tile(tile), _at(f, place, bases, at), f.integer(place.stride))
            case Multiply(arithmetic, total, left, right):
                if not has_unit(arithmetic, f.module.target):
                    raise NoMatrixUnit(f"{f.module.target.cpu} has no matrix unit for {arithmetic}.")
                _call(f, _PRODUCTS[arithmetic], _tile(total), _tile(left), _tile(right))
            case Ask(place, lines):
                first = _at(f, place, bases, at)
                for line in range(lines):
                    f.prefetch(f.at(first, line * ROW_BYTES, "i8"), locality=2)
            case Repeat():

                def turn(number: Value, _: tuple[Value, ...], loop: Repeat = one) -> None:
                    _write(f, loop.body, bases, {**at, loop.name: number})

                f.loop(0, one.count, 1, turn)


def _at(f: Function, place: TilePlace, bases: Mapping[str, Value], at: Mapping[str, Value]) -> Value:
    address = bases[place.base]
    for name, step in place.steps:
        address = f.at(address, f.mul(at[name], step), "i8")
    return f.at(address, place.offset, "i8")


def _tile(number: int) -> Value:
    return Value((str(number),), "i8", True)


def _call(f: Function, name: str, *operands: Value) -> None:
    f.module.declare(f"llvm.x86.{name}", "void", [operand.type for operand in operands])
    f.line(f"call void @llvm.x86.{name}({', '.join(f'{one.type} {one.text}' for one in operands)})")

"""What PTX text says, as records: modules, functions, instructions and their operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernels.errors import KernelsError

StateSpace = Literal["global", "const", "shared", "local", "param"]


class NotPtx(KernelsError):
    """Text that the machine cannot read, or an instruction that it does not know; the message names the line."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register, also a special one such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number as bits; `real` is the type that a 0f or 0d literal has."""

    bits: int
    real: Literal["", "f32", "f64"] = ""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, a label or a function."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset], the offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class PtxGroup:
    """Operands in braces, in parentheses, or joined by a bar."""

    members: tuple[PtxOperand, ...]


PtxOperand = Register | Immediate | Symbol | Address | PtxGroup


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    """One instruction: its name and modifiers as they stand, its operands, the predicate that guards it."""

    line: int
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[PtxOperand, ...]
    guard: str | None
    negated: bool
    text: str


@dataclass(frozen=True, slots=True)
class PtxLabel:
    """A place in a function."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class PtxTable:
    """The labels that an indexed branch chooses from."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PtxVariable:
    """A variable of a space: its element's type, how many elements, bytes of alignment, what it begins with."""

    name: str
    space: StateSpace
    kind: str
    count: int
    alignment: int
    values: tuple[int, ...] | None
    line: int


@dataclass(frozen=True, slots=True)
class PtxFunction:
    """An entry or a function: parameters, results, registers with their types, variables, and what it does."""

    name: str
    entry: bool
    parameters: tuple[PtxVariable, ...]
    results: tuple[PtxVariable, ...]
    registers: dict[str, str]
    variables: tuple[PtxVariable, ...]
    body: tuple[PtxInstruction | PtxLabel | PtxTable, ...]
    threads: int | None
    line: int


@dataclass(frozen=True, slots=True)
class PtxModule:
    """A file: its functions by name and the variables outside of them."""

    functions: dict[str, PtxFunction]
    variables: tuple[PtxVariable, ...]
    lines: tuple[str, ...]
    sources: dict[int, tuple[str, int]] = field(default_factory=dict)  # by line of PTX: file and line that it is from

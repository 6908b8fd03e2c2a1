"""Which interface a library has, and where it comes from, as a text that any caller can read.

ABI is the number of the interface in C: of the functions, their arguments and the records that they take. It only
grows, and a library of a greater number has all that one of a lesser number has, unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kernels.emit.refusal import text
from kernels.llvm.function import Function
from kernels.llvm.module import Module

ABI = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """What a library was made by, and of which model."""

    producer: str = ""  # a program and its version
    model: str = ""  # SHA-256 of the model's bytes, as hexadecimal digits; empty where it is not known


def write_version(module: Module, name: str, origin: Origin) -> None:
    """Add name() -> ptr: a JSON object with the producer, the ABI and the model."""
    f = Function(module, name, (), exported=True, result="ptr")
    known = {"producer": origin.producer, "abi": ABI, "model": origin.model}
    f.give(text(module, msgspec.json.encode(known).decode()))
    f.finish()

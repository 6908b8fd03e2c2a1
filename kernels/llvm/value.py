"""What instructions work on: values with a type, of one vector or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Value(msgspec.Struct, frozen=True):
    """One or more LLVM values of the same type.

    A kernel has ten thousands of them, and a dataclass of this form takes ten times as long to be made.
    """

    parts: tuple[str, ...]
    type: str
    is_constant: bool = False

    @property
    def text(self) -> str:
        """The single value."""
        assert len(self.parts) == 1, "this value has several parts"
        return self.parts[0]

    def split(self) -> tuple[Value, ...]:
        """Each part as a value of its own."""
        return tuple(Value((part,), self.type, self.is_constant) for part in self.parts)


def joined(values: Sequence[Value]) -> Value:
    """Several values of one type as one; their parts follow one another."""
    assert len({value.type for value in values}) == 1, "values of different types are not joined"
    return Value(tuple(part for value in values for part in value.parts), values[0].type)


Amount = Value | int  # of a kernel for any size also a Size, where a problem has a number

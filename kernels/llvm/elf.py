"""What an ELF object has: its sections and its global symbols, of 32 and of 64 bits, little-endian (System V gABI)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SYMBOL_TABLE, _NOBITS = 2, 8  # SHT_SYMTAB, SHT_NOBITS
_ALLOCATED, _WRITABLE = 2, 1  # SHF_ALLOC, SHF_WRITE


@dataclass(frozen=True, slots=True)
class _Class:
    """How objects of one width are laid out."""

    start: struct.Struct  # of the table of sections, in the header
    start_at: int
    count_at: int  # the size of a section's row, and how many there are
    section: struct.Struct  # name, type, flags, address, offset, size, link, info, alignment, entry size
    symbol: struct.Struct
    name: int  # where in a symbol its fields are: name, and number of its section
    holder: int


_WIDE = _Class(struct.Struct("<Q"), 40, 58, struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), 0, 3)
_SHORT = _Class(struct.Struct("<I"), 32, 46, struct.Struct("<IIIIIIIIII"), struct.Struct("<IIIBBH"), 0, 5)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an object."""

    kind: int
    flags: int
    offset: int
    size: int  # bytes
    link: int
    local: int  # of a table of symbols: how many are not global
    alignment: int

    @property
    def in_flash(self) -> bool:
        """Whether a program in flash has its content there: code and constants, and what variables start as."""
        return bool(self.flags & _ALLOCATED) and self.kind != _NOBITS

    @property
    def in_memory(self) -> bool:
        """Whether it takes memory that is written to."""
        return bool(self.flags & _ALLOCATED and self.flags & _WRITABLE)


def sections(code: bytes) -> list[Section]:
    """The sections of an object, by their numbers."""
    form = _class_of(code)
    (start,) = form.start.unpack_from(code, form.start_at)
    size, count = struct.unpack_from("<HH", code, form.count_at)
    found = []
    for number in range(count):
        _, kind, flags, _, offset, length, link, info, alignment, _ = form.section.unpack_from(
            code, start + number * size
        )
        found.append(Section(kind, flags, offset, length, link, info, alignment))
    return found


def defined(code: bytes) -> list[str]:
    """The names of the global symbols that an object defines."""
    return [name for name, section in _symbols(code) if section]


def outside(objects: Sequence[bytes]) -> tuple[str, ...]:
    """The names that objects ask for together, and that none of them defines, in order."""
    found = {name: section for code in objects for name, section in _symbols(code) if not section}
    return tuple(sorted(set(found) - {name for code in objects for name in defined(code)} - {""}))


def _class_of(code: bytes) -> _Class:
    return _SHORT if code[4] == 1 else _WIDE


def _symbols(code: bytes) -> Iterator[tuple[str, int]]:
    """Global symbols: a name, and the number of the section that has it; 0: none."""
    form, parts = _class_of(code), sections(code)
    for part in parts:
        if part.kind != _SYMBOL_TABLE:
            continue
        for number in range(part.local, part.size // form.symbol.size):  # the local ones come first
            fields = form.symbol.unpack_from(code, part.offset + number * form.symbol.size)
            place = parts[part.link].offset + fields[form.name]
            yield code[place : code.index(b"\0", place)].decode(), fields[form.holder]

"""Reading a shared library: its symbols, also local ones, its code, and what the loader writes into its pointers.

ELF, 64 bits, little-endian (System V gABI, chapters 4 and 5). Nothing of the library is run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphopt.errors import BundleError

_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8  # SHT_SYMTAB, SHT_RELA, SHT_NOBITS
_EXECUTABLE, _FUNCTION = 4, 2  # SHF_EXECINSTR, STT_FUNC
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_RELOCATION = struct.Struct("<QQq")  # offset, info, addend
_RELATIVE = {62: 8, 183: 1027}  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE, by machine


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named piece of a library: bytes [start, start + bytes) of its memory."""

    start: int
    bytes: int
    is_function: bool


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    start: int
    offset: int
    size: int
    link: int


class SharedLibrary:
    """A library's symbols by name, and their content. Raises BundleError for bytes that are no such library."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        try:
            (self.machine,) = struct.unpack_from("<H", content, 18)
            self._sections = tuple(self._read_sections())
            self.symbols: Mapping[str, Symbol] = dict(self._read_symbols())
            self._relocations = dict(self._read_relocations())
        except (struct.error, IndexError, ValueError) as error:
            raise BundleError(f"the library is no ELF file of 64 bits that can be read: {error}.") from error

    def read(self, name: str) -> bytes:
        """The bytes of a symbol; raises BundleError for one that is not there, or has no content in the file."""
        symbol = self._symbol(name)
        for section in self._sections:
            inside = section.start <= symbol.start and symbol.start + symbol.bytes <= section.start + section.size
            if section.start and inside and section.kind != _NO_BITS:
                start = section.offset + symbol.start - section.start
                found = self._content[start : start + symbol.bytes]
                if len(found) == symbol.bytes:
                    return found
        raise BundleError(f"the library holds no bytes for its table '{name}'.")

    def pointers(self, name: str) -> tuple[int | None, ...]:
        """What the loader writes into a table of pointers: addresses in the library; None for a place that it skips."""
        symbol = self._symbol(name)
        places = range(symbol.start, symbol.start + symbol.bytes, 8)
        held = (self._relocations.get(place) for place in places)
        return tuple(one if isinstance(one, int) else None for one in held)

    @property
    def outside(self) -> Mapping[int, str]:
        """The outside functions, by the place where the loader writes their address."""
        return {place: name for place, name in self._relocations.items() if isinstance(name, str)}

    @property
    def inside(self) -> Mapping[int, int]:
        """The addresses in the library that the loader writes, by the place where it does."""
        return {place: one for place, one in self._relocations.items() if isinstance(one, int)}

    @property
    def code(self) -> tuple[tuple[int, bytes], ...]:
        """What can be executed: pieces of the file, each with where it starts in memory."""
        return tuple(
            (one.start, self._content[one.offset : one.offset + one.size])
            for one in self._sections
            if one.flags & _EXECUTABLE and one.kind != _NO_BITS
        )

    def _symbol(self, name: str) -> Symbol:
        if name not in self.symbols:
            raise BundleError(f"the library has no table '{name}': it was stripped, or compiled by an earlier version.")
        return self.symbols[name]

    def _read_sections(self) -> Iterator[_Section]:
        if self._content[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it does not begin as one")
        (start,) = struct.unpack_from("<Q", self._content, 40)
        size, count = struct.unpack_from("<HH", self._content, 58)
        for number in range(count):
            _, kind, flags, address, offset, length, link, *_ = _SECTION.unpack_from(
                self._content, start + number * size
            )
            yield _Section(kind, flags, address, offset, length, link)

    def _read_symbols(self) -> Iterator[tuple[str, Symbol]]:
        for section in self._sections:
            if section.kind != _SYMBOLS:
                continue
            for number in range(section.size // _SYMBOL.size):
                _, info, _, _, start, length = _SYMBOL.unpack_from(
                    self._content, section.offset + number * _SYMBOL.size
                )
                yield self._symbol_name(section, number), Symbol(start, length, info & 15 == _FUNCTION)

    def _symbol_name(self, section: _Section, number: int) -> str:
        name, *_ = _SYMBOL.unpack_from(self._content, section.offset + number * _SYMBOL.size)
        start = self._sections[section.link].offset + name
        return self._content[start : self._content.index(b"\0", start)].decode()

    def _read_relocations(self) -> Iterator[tuple[int, int | str]]:
        """By address in the library: what the loader writes there, an address or the name of an outside function."""
        for section in self._sections:
            if section.kind != _RELOCATIONS:
                continue
            for place in range(section.offset, section.offset + section.size, _RELOCATION.size):
                address, info, addend = _RELOCATION.unpack_from(self._content, place)
                kind, symbol = info & 0xFFFFFFFF, info >> 32
                if kind == _RELATIVE.get(self.machine):
                    yield address, addend
                elif symbol:
                    yield address, self._symbol_name(self._sections[section.link], symbol)

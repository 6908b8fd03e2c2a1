"""Objects as a static library: an archive with an index of their symbols, as System V's ar writes it.

The index is a member of its own, which linkers look through instead of the objects: a count, for each symbol the offset
of its object, and the names (ar(5); System V gABI for the objects' symbols). The same objects give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

_MAGIC = b"!<arch>\n"
_HEAD = 60  # bytes before each member
_SYMBOL_TABLE = 2  # SHT_SYMTAB
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size


def archive(objects: Mapping[str, bytes]) -> bytes:
    """The library of objects (ELF, 64 bits, little-endian) by their names, of at most 15 characters each."""
    symbols = [(position, name) for position, code in enumerate(objects.values()) for name in _defined(code)]
    names = b"".join(name + b"\0" for _, name in symbols)
    names += bytes(len(names) % 2)
    first = len(_MAGIC) + _HEAD + 4 + 4 * len(symbols) + len(names)
    starts, start = [], first
    for code in objects.values():
        starts.append(start)
        start += _HEAD + len(code) + len(code) % 2
    index = struct.pack(f">{len(symbols) + 1}I", len(symbols), *(starts[position] for position, _ in symbols)) + names
    members = (_member(f"{name}/", code) for name, code in objects.items())
    return _MAGIC + _member("/", index) + b"".join(members)


def _member(name: str, content: bytes) -> bytes:
    """A header without time, user or group, and the content, filled up to an even length."""
    assert len(name) <= 16, "a short name"
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def _defined(code: bytes) -> Iterator[bytes]:
    """The names of the global symbols that an object defines."""
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [_SECTION.unpack_from(code, start + number * size) for number in range(count)]
    for _, kind, _, _, offset, length, link, local, *_ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        for number in range(local, length // _SYMBOL.size):  # the local ones come first
            name, _, _, section, *_ = _SYMBOL.unpack_from(code, offset + number * _SYMBOL.size)
            if section:
                place = sections[link][4] + name
                yield code[place : code.index(b"\0", place)]

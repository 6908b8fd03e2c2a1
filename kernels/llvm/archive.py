"""Objects as a static library: an archive with an index of their symbols, as System V's ar writes it.

The index is a member of its own, which linkers look through instead of the objects: a count, for each symbol the offset
of its object, and the names (ar(5); System V gABI for the objects' symbols). The same objects give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kernels.llvm.elf import defined

_MAGIC = b"!<arch>\n"
_HEAD = 60  # bytes before each member


def archive(objects: Mapping[str, bytes]) -> bytes:
    """The library of objects (ELF, little-endian) by their names, of at most 15 characters each."""
    symbols = [(position, name) for position, code in enumerate(objects.values()) for name in defined(code)]
    names = b"".join(name.encode() + b"\0" for _, name in symbols)
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

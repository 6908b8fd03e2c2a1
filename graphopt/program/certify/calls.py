"""What a run can call: the functions that are reached from its entries, without running them.

Every direct call and jump, and every address that is taken, is looked for at all bytes of a function (all words on
ARM64), so that none is missed; bytes that only look like one make the answer larger. Calls through a register are those
of the kernels, which lie in a table, of a job's function and of a thread's: they are entries here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from graphopt.program.certify.elf import SharedLibrary
from graphopt.program.certify.statement import Refused

# Of the C library: what takes memory, gives it back, or changes it, and what needs some.
ALLOCATORS = frozenset((
    "malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "memalign", "mmap", "mmap64", "munmap",
    "mremap", "mprotect", "madvise", "brk", "sbrk", "open", "fopen", "read", "pthread_create", "strdup", "dlopen",
))  # fmt: skip
_X86, _ARM = 62, 183
_STUB = 16  # bytes: where entries of the linkage table start


def reached(library: SharedLibrary, entries: Iterable[str]) -> frozenset[str]:
    """The functions, inside and outside, that code may call which begins at these; raises Refused for a missing one."""
    calls = _calls(library)
    waiting, found = list(entries), set()
    for name in waiting:
        if name not in library.symbols or not library.symbols[name].is_function:
            raise Refused(f"the library has no function '{name}'.")
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += calls.get(name, ())
    return frozenset(found)


def check_no_allocation(library: SharedLibrary, entries: Iterable[str]) -> frozenset[str]:
    """The outside functions that a run may call; raises Refused where one of them gives or takes memory."""
    names = reached(library, entries)
    outside = frozenset(library.outside.values()) & names
    taken = sorted(outside & ALLOCATORS)
    if taken:
        raise Refused(f"a run may call '{taken[0]}', which takes or gives memory.")
    return outside


def _calls(library: SharedLibrary) -> Mapping[str, set[str]]:
    """By function those that it names."""
    functions = sorted((one.start, one.bytes, name) for name, one in library.symbols.items() if one.is_function)
    starts = np.array([start for start, *_ in functions], np.int64)
    targets = {start: name for start, _, name in functions} | dict(_stubs(library))
    found: dict[str, set[str]] = defaultdict(set)
    inside, outside = library.inside, library.outside
    for place, target in _references(library):
        name = targets.get(inside.get(target, target), outside.get(target))
        number = int(np.searchsorted(starts, place, "right")) - 1
        if name is not None and number >= 0 and place < functions[number][0] + functions[number][1]:
            found[functions[number][2]].add(name)
    return found


def _stubs(library: SharedLibrary) -> Iterator[tuple[int, str]]:
    """Entries of the linkage table: code that jumps to where an outside function's address lies."""
    outside = library.outside
    for place, target in _references(library):
        if target in outside:
            yield place // _STUB * _STUB, outside[target]


def _references(library: SharedLibrary) -> Iterator[tuple[int, int]]:
    """Where code names an address that is known when it is linked, and the address."""
    read = {_X86: _references_x86, _ARM: _references_arm}.get(library.machine)
    if read is None:
        raise Refused(f"code for machine {library.machine} of ELF is not known here.")
    for start, content in library.code:
        yield from read(start, content)


def _references_x86(start: int, content: bytes) -> Iterator[tuple[int, int]]:
    """call, jmp and jcc with a distance; lea, mov, call and jmp of memory at a distance."""
    code = np.frombuffer(content + bytes(8), np.uint8)
    places = np.arange(1, max(1, len(content) - 3))  # of the distance
    before, earlier = code[places - 1], code[np.maximum(places - 2, 0)]
    branch = (before == 0xE8) | (before == 0xE9) | ((before & 0xF0 == 0x80) & (earlier == 0x0F))
    relative = (before & 0xC7 == 0x05) & np.isin(earlier, (0x8D, 0x8B, 0xFF))  # lea, mov, call and jmp of memory
    places = places[branch | relative]
    distance = sum(code[places + byte].astype(np.int64) << 8 * byte for byte in range(4))
    distance = np.where(distance >= 1 << 31, distance - (1 << 32), distance)
    yield from zip((start + places).tolist(), (start + places + 4 + distance).tolist(), strict=True)


def _references_arm(start: int, content: bytes) -> Iterator[tuple[int, int]]:
    """b and bl; adr; adrp with the add or the ldr that follows it within a few instructions."""
    words = np.frombuffer(content[: len(content) // 4 * 4], "<u4").tolist()
    pages: dict[int, tuple[int, int]] = {}  # by register: the page, and where it was set
    for number, word in enumerate(words):
        place = start + 4 * number
        if word & 0x7C000000 == 0x14000000:
            distance = (word & 0x3FFFFFF) - ((word & 0x2000000) << 1)
            yield place, place + 4 * distance
        elif word & 0x1F000000 == 0x10000000:
            away = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            away -= (away & 0x100000) << 1
            if word >> 31:
                pages[word & 31] = (place & ~0xFFF) + (away << 12), number
            else:
                yield place, place + away
        elif word >> 5 & 31 in pages and number - pages[word >> 5 & 31][1] <= 64:
            page = pages[word >> 5 & 31][0]
            if word & 0xFFC00000 == 0x91000000:  # add
                yield place, page + (word >> 10 & 0xFFF)
            elif word & 0xFFC00000 == 0xF9400000:  # ldr of 64 bits
                yield place, page + 8 * (word >> 10 & 0xFFF)

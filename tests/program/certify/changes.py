"""Bundles that are changed by seed, each in one place: the library's own tables, and what the manifest says."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable

import msgspec

from graphopt.program.certify.elf import SharedLibrary
from graphopt.program.deploy.manifest import Manifest, Use
from kernels.emit.rows import WORDS, flags_of

Bundle = tuple[Manifest, bytes]
Change = Callable[[random.Random, Manifest, bytearray], Manifest]
WHOLE, FOLLOWS = flags_of(16)


def _place(content: bytes, name: str) -> tuple[int, int]:
    """Where the bytes of a symbol lie in the file, and how many; read-only data lies at its address."""
    library = SharedLibrary(content)
    whole = library.read(name)
    start = library.symbols[name].start
    assert content[start : start + len(whole)] == whole, "tables lie in the first segment"
    return start, len(whole)


def words_of(content: bytes, name: str) -> list[int]:
    """The words of a table."""
    (start, size), (code, each) = _place(content, name), _word(name)
    return list(struct.unpack_from(f"<{size // each}{code}", content, start))


def put(content: bytearray, name: str, number: int, word: int) -> None:
    """Change one of them."""
    code, each = _word(name)
    struct.pack_into(f"<{code}", content, _place(content, name)[0] + each * number, word)


def _word(name: str) -> tuple[str, int]:
    """How a table's words are packed, and their bytes: those that workers go through have 16 bits in small programs."""
    return ("H", 2) if name in ("shared.rows", "shared.waits") else ("I", 4)


def _other(random: random.Random, word: int, most: int) -> int:
    return random.choice([one for one in range(most) if one != word])


def another_kernel(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A row runs another kernel."""
    row = random.randrange(len(manifest.runs))
    before = words_of(content, "shared.rows")[WORDS * row]
    number = before & (WHOLE - 1)
    put(content, "shared.rows", WORDS * row, before - number + _other(random, number, len(manifest.kernels)))
    return manifest


def nobody_runs(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A row follows one that no worker has whole: it never did, or it does no more."""
    first = words_of(content, "shared.rows")[: WORDS * len(manifest.runs) : WORDS]
    before = [(row, word | FOLLOWS) for row, word in enumerate(first) if not row or not first[row - 1] & WHOLE]
    after = [(row, first[row] & ~WHOLE) for row in range(len(first) - 1) if first[row + 1] & FOLLOWS]
    row, word = random.choice(before + after)
    put(content, "shared.rows", WORDS * row, word)
    return manifest


def other_blocks(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A row has a block more or less."""
    number = WORDS * random.randrange(len(manifest.runs)) + 1
    put(content, "shared.rows", number, words_of(content, "shared.rows")[number] + random.choice([-1, 1]))
    return manifest


def other_operands(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A row works on another run's operands."""
    words = words_of(content, "shared.rows")
    row = random.randrange(len(manifest.runs))
    other = _other(random, row, len(manifest.runs))
    put(content, "shared.rows", WORDS * row + 2, words[WORDS * other + 2])
    return manifest


def rows_exchanged(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A run is claimed before one that it waits for."""
    words, waits = words_of(content, "shared.rows"), words_of(content, "shared.waits")
    needing = [row for row in range(len(manifest.runs)) if words[WORDS * row + 3] < words[WORDS * row + 7]]
    row = random.choice(needing)
    other = waits[random.randrange(words[WORDS * row + 3], words[WORDS * row + 7])]
    for word in range(3):
        put(content, "shared.rows", WORDS * row + word, words[WORDS * other + word])
        put(content, "shared.rows", WORDS * other + word, words[WORDS * row + word])
    return manifest


def earlier_wait(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A wait is for an earlier row, which does not wait for the one that was needed."""
    waits = words_of(content, "shared.waits")
    number = random.choice([one for one, row in enumerate(waits) if row])
    put(content, "shared.waits", number, random.randrange(waits[number]))
    return manifest


def later_wait(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A wait is for the row itself, or for one that nobody has claimed."""
    words = words_of(content, "shared.rows")
    needing = [row for row in range(len(manifest.runs)) if words[WORDS * row + 3] < words[WORDS * row + 7]]
    row = random.choice(needing)
    number = random.randrange(words[WORDS * row + 3], words[WORDS * row + 7])
    put(content, "shared.waits", number, random.randrange(row, len(manifest.runs)))
    return manifest


def waits_lost(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A row's first wait belongs to the row before the one that it waits for."""
    words, waits = words_of(content, "shared.rows"), words_of(content, "shared.waits")
    count = len(manifest.runs)
    bounds = words[3::WORDS]
    mine = [waits[low:high] for low, high in itertools.pairwise(bounds)]
    apart = [row for row in range(1, count) if not words[WORDS * row] & FOLLOWS]
    row = random.choice([row for row in apart if mine[row] and row - 1 not in mine[row]] or [count])
    put(content, "shared.rows", WORDS * row + 3, words[WORDS * row + 3] + 1)
    return manifest


def other_target(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A pointer to a kernel leads to another one."""
    library = SharedLibrary(bytes(content))
    known = library.pointers("alone.kernels")
    number = random.randrange(len(known))
    start = library.symbols["alone.kernels"].start + 8 * number
    target = known[_other(random, number, len(known))]
    assert target is not None and known[number] is not None
    entry = content.index(struct.pack("<QQq", start, 8, known[number]))
    struct.pack_into("<q", content, entry + 16, target)
    return manifest


def _table(random: random.Random, content: bytes, *names: str) -> str:
    there = SharedLibrary(content).symbols
    return random.choice([name for name in names if name in there])


def _offsets(content: bytes, name: str) -> range:
    """Which words of a table of places are offsets: all of several workers', else every second one."""
    words = words_of(content, name)
    return range(len(words)) if name == "places.shared.arena" else range(1, len(words), 2)


def other_entry(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """An address is stored where another operand has its own, or between two of them."""
    name = _table(random, bytes(content), "places.arena", "places.weights", "places.input0")
    number = 2 * random.randrange(len(words_of(content, name)) // 2)
    put(content, name, number, words_of(content, name)[number] + random.choice([-8, -4, 4, 8, 16]))
    return manifest


def other_offset(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """An operand lies elsewhere."""
    name = _table(random, bytes(content), "places.arena", "places.shared.arena", "places.weights", "places.output0")
    number = random.choice(_offsets(content, name))
    before = words_of(content, name)[number]
    put(content, name, number, random.choice([one for one in (before - 64, before + 4, before + 64) if one >= 0]))
    return manifest


def offsets_exchanged(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """Two operands have exchanged their places."""
    while True:
        name = _table(random, bytes(content), "places.arena", "places.shared.arena", "places.weights")
        words = words_of(content, name)
        one, other = (random.choice(_offsets(content, name)) for _ in range(2))
        if words[one] != words[other]:
            put(content, name, one, words[other])
            put(content, name, other, words[one])
            return manifest


def other_buffer(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """The plan has a buffer elsewhere, of another size, or for other runs."""
    buffers = list(manifest.buffers)
    number = random.randrange(len(buffers))
    one = buffers[number]
    field = random.choice(["offset", "bytes", "begin", "end"])
    step = random.choice([-1, 1]) * (64 if field in ("offset", "bytes") else 1)
    buffers[number] = msgspec.structs.replace(one, **{field: getattr(one, field) + step})
    return msgspec.structs.replace(manifest, buffers=tuple(buffers))


def other_use(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A run is said to work on another buffer, or on other bytes of its own."""
    uses = list(manifest.uses)
    run = random.randrange(len(uses))
    operands = list(uses[run].operands)
    number = random.choice([place for place, use in enumerate(operands) if use.space != "weights"] or [0])
    use = operands[number]
    if random.random() < 0.5 and use.space == "arena" and len(manifest.buffers) > 1:
        operands[number] = Use(use.space, _other(random, use.number, len(manifest.buffers)), use.offset)
    else:
        operands[number] = Use(use.space, use.number, use.offset + random.choice([4, 64]))
    uses[run] = msgspec.structs.replace(uses[run], operands=tuple(operands))
    return msgspec.structs.replace(manifest, uses=tuple(uses))


def other_sizes(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """The arena is said to be smaller than it is."""
    field = random.choice(["arena_bytes", "shared_arena_bytes"])
    size = getattr(manifest.program, field)
    if not size:
        field, size = "arena_bytes", manifest.program.arena_bytes
    program = msgspec.structs.replace(manifest.program, **{field: size - 64 * random.randrange(1, size // 64 + 1)})
    return msgspec.structs.replace(manifest, program=program)


def other_role(random: random.Random, manifest: Manifest, content: bytearray) -> Manifest:
    """A kernel that runs is said to read what it writes."""
    running = {step.kernel for step in manifest.runs}
    kernels = list(manifest.kernels)
    number = random.choice([one for one, code in enumerate(kernels) if code.name in running])
    operands = list(kernels[number].operands)
    place = random.choice([one for one, operand in enumerate(operands) if operand.role == "output"])
    operands[place] = msgspec.structs.replace(operands[place], role="input")
    kernels[number] = msgspec.structs.replace(kernels[number], operands=tuple(operands))
    return msgspec.structs.replace(manifest, kernels=tuple(kernels))


ALONE: tuple[Change, ...] = (
    other_entry, other_offset, offsets_exchanged, other_buffer, other_use, other_sizes, other_role,
)  # fmt: skip
SEVERAL: tuple[Change, ...] = (
    another_kernel, other_blocks, other_operands, rows_exchanged, earlier_wait, later_wait, waits_lost, other_target,
    nobody_runs,
)  # fmt: skip


def changed(seed: int, manifest: Manifest, content: bytes) -> tuple[str, Bundle]:
    """The bundle with one change, and what it is called."""
    generator = random.Random(seed)
    several = manifest.program.shared_arena_bytes is not None
    changes = (*ALONE, *SEVERAL) if several else ALONE
    change = changes[seed % len(changes)]
    other = bytearray(content)
    return change.__name__, (change(generator, manifest, other), bytes(other))

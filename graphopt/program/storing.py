"""The weights of a bundle: which constants its file has, and which a library makes of them when a model is created.

Transformed constants are stored as their taps. What a program for another level wants in another order than the first
level's is moved out of that, where so few moves do it that a table of them is small; else it is stored as well.
"""

from __future__ import annotations

import bisect
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphopt.model.rooms import folder, let_go
from graphopt.program.moves import moved, moves_between
from graphopt.program.weights import FIRST, Held
from kernels.emit.making import NOTHING, Combine, Making, MakingStep, Move
from kernels.kernel import Transforming
from kernels.listing import ALIGNMENT, Listing, Place, Run
from kernels.target import Target

Bytes = npt.NDArray[np.uint8]
HUGE_PAGE = 2 << 20
LARGE = 1 << 28  # bytes of weights, of which the taps and the file are made on disk


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of the file, and for each level its listings, whose places are those in the file and behind it."""

    weights: Bytes
    levels: tuple[tuple[Listing, ...], ...]
    makings: tuple[Making, ...]


def stored(target: Target, levels: Sequence[Sequence[Listing]], weights: Bytes, held: Sequence[Held]) -> Stored:
    """What a bundle of these listings has, whose places lie in `weights`; `held` says what lies there."""
    is_large = any(map(_is_transformed, held)) and weights.size >= LARGE
    file = _File(weights, held, _on_disk(weights.size) if is_large else _InMemory())
    used = [sorted(_used(listings, file)) for listings in levels]
    for entry in used[0]:
        file.put(entry)
    plans = [_plan(file, entries, first=number == 0) for number, entries in enumerate(used)]
    content = file.content()
    page = HUGE_PAGE if content.size >= HUGE_PAGE else target.architecture.page
    start = -(-content.size // page) * page
    found, makings = [], []
    for listings, plan in zip(levels, plans, strict=True):
        making = replace(plan.at(start), stored=content.size) if plan.steps else NOTHING
        total = making.start + making.bytes if making.steps else content.size
        places = {entry: offset + start * made for entry, (offset, made) in plan.places.items()}
        found.append(tuple(_moved(one, file, places, total) for one in listings))
        makings.append(making)
    return Stored(content, tuple(found), tuple(makings))


class _File:
    """Pieces side by side, equal ones once; and where constants were found in the block of all weights."""

    def __init__(self, weights: Bytes, held: Sequence[Held], pieces: _InMemory | _OnDisk) -> None:
        self.held = sorted(held, key=lambda one: one.start)
        self.weights = weights
        self.taps: dict[int, int] = {}  # where the taps of an entry lie
        self.packed: dict[int, int] = {}
        self.of_array: dict[bytes, int] = {}  # an entry of the first level, by what it was packed of
        self._starts = [one.start for one in self.held]
        self._pieces = pieces
        self._alike: dict[tuple[int, bytes], list[int]] = {}  # where pieces lie, by size and first bytes
        self._top = 0

    def entry(self, offset: int) -> int:
        """The constant at an offset of the block."""
        return bisect.bisect_right(self._starts, offset) - 1

    def is_transformed(self, entry: int) -> bool:
        """Whether it is stored as its taps."""
        return _is_transformed(self.held[entry])

    def plain(self, entry: int) -> Bytes:
        """The bytes that a file has of a constant: its taps, or its packed form."""
        one = self.held[entry]
        if self.is_transformed(entry):
            assert one.array is not None and isinstance(one.packing, Transforming), "asked for"
            taps = np.ascontiguousarray(one.packing.taps(one.array)).reshape(-1).view(np.uint8)
            let_go(one.array)
            return taps
        return self.weights[one.start : one.start + one.size]

    def put(self, entry: int) -> None:
        """Store a constant."""
        offset = self._store(self.plain(entry))
        (self.taps if self.is_transformed(entry) else self.packed)[entry] = offset
        if (key := self.key(entry)) is not None:
            self.of_array.setdefault(key, entry)

    def find(self, entry: int) -> bool:
        """Whether its plain form is stored already, for another constant; then it is known where."""
        offset = self._stored(self.plain(entry))
        if offset is not None:
            (self.taps if self.is_transformed(entry) else self.packed)[entry] = offset
        return offset is not None

    def key(self, entry: int) -> bytes | None:
        """What it was packed of, where that is known."""
        array = self.held[entry].array
        if array is None:
            return None
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        found = hashlib.sha256(raw.data).digest() + repr((array.shape, array.dtype.str)).encode()
        let_go(array)
        return found

    def content(self) -> Bytes:
        """The file; the block itself where that is the same."""
        stays = all(offset == self.held[entry].start for entry, offset in self.packed.items())
        if stays and not self.taps and self._top == self.weights.size:
            return self.weights
        return self._pieces.joined(self._top)

    def _store(self, raw: Bytes) -> int:
        known = self._stored(raw)
        if known is not None:
            return known
        offset = self._top
        self._alike.setdefault(_kind(raw), []).append(offset)
        self._pieces.put(offset, raw)
        self._top += _filled(raw.size)
        return offset

    def _stored(self, raw: Bytes) -> int | None:
        """Where the same bytes are stored already."""
        alike = self._alike.get(_kind(raw), ())
        return next((offset for offset in alike if self._pieces.has(offset, raw)), None)


class _InMemory:
    """Pieces of a file by where they begin."""

    def __init__(self) -> None:
        self._pieces: dict[int, Bytes] = {}

    def put(self, offset: int, piece: Bytes) -> None:
        """Keep a piece."""
        self._pieces[offset] = piece

    def has(self, offset: int, piece: Bytes) -> bool:
        """Whether the piece there is the same."""
        return np.array_equal(self._pieces[offset], piece)

    def joined(self, size: int) -> Bytes:
        """All of them in a file of this size, zeros between them."""
        found = np.zeros(size, np.uint8)
        for offset, piece in self._pieces.items():
            found[offset : offset + piece.size] = piece
        return found


class _OnDisk:
    """The same in a file without a name: what is made for the file is as large as the model."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(dir=folder())  # noqa: SIM115, closed with this

    def put(self, offset: int, piece: Bytes) -> None:
        """Write a piece."""
        self._file.seek(offset)
        self._file.write(piece.data)

    def has(self, offset: int, piece: Bytes) -> bool:
        """Whether the piece there is the same."""
        self._file.seek(offset)
        return self._file.read(piece.size) == piece.tobytes()

    def joined(self, size: int) -> Bytes:
        """The file, mapped."""
        self._file.truncate(size)
        self._file.flush()
        return np.memmap(self._file, np.uint8, "r", shape=(size,))

    def __del__(self) -> None:
        self._file.close()  # a map of it stays


def _on_disk(size: int) -> _InMemory | _OnDisk:
    """Pieces on disk, where there is room for so many bytes."""
    try:
        return _OnDisk() if shutil.disk_usage(folder()).free > 2 * size else _InMemory()
    except OSError:
        return _InMemory()


def _is_transformed(one: Held) -> bool:
    return one.array is not None and isinstance(one.packing, Transforming) and one.packing.is_stored_as_taps


def _kind(raw: Bytes) -> tuple[int, bytes]:
    """What pieces are told apart by before they are compared."""
    return raw.size, raw[:FIRST].tobytes()


@dataclass(slots=True)
class _Plan:
    """Steps whose targets, and the sources that are made too, are counted from the start of what is made."""

    steps: list[tuple[MakingStep, bool]]  # whether the source is made
    places: dict[int, tuple[int, bool]]  # by constant: the offset, and whether it is one in what is made
    bytes: int = 0

    def take(self, size: int) -> int:
        """Room for so many bytes."""
        start = self.bytes
        self.bytes += _filled(size)
        return start

    def at(self, start: int) -> Making:
        """As it is where what is made starts."""
        steps = tuple(
            replace(one, source=one.source + start * made, target=one.target + start) for one, made in self.steps
        )
        return Making(steps, 0, start, self.bytes)


def _plan(file: _File, entries: Sequence[int], *, first: bool) -> _Plan:
    """How a level comes by its constants."""
    plan = _Plan([], {})
    for entry in entries:
        source = _plain_form(file, plan, entry, first=first)
        if not file.is_transformed(entry):
            plan.places[entry] = source
            continue
        packing, (offset, made) = file.held[entry].packing, source
        assert isinstance(packing, Transforming), "asked for"
        target = plan.take(file.held[entry].size)
        plan.places[entry] = target, True
        sums, size = packing.sums, 4 * packing.point_elements
        for group in range(file.held[entry].size // (sums.points * size)):
            begin = offset + group * sums.taps * size
            step = Combine(begin, target + group * sums.points * size, packing.point_elements, sums)
            plan.steps.append((step, made))
    return plan


def _plain_form(file: _File, plan: _Plan, entry: int, *, first: bool) -> tuple[int, bool]:
    """Where a constant's plain form lies: in the file, or made, for which steps are added."""
    places = file.taps if file.is_transformed(entry) else file.packed
    if first or entry in places or file.find(entry):
        return places[entry], False
    moves = _moves_of(file, entry)
    if moves is None:
        file.put(entry)
        return places[entry], False
    offset, steps = moves
    target = plan.take(file.plain(entry).size)
    for one in steps:
        plan.steps.append((replace(one, source=offset + one.source, target=target + one.target), False))
    return target, True


def _moves_of(file: _File, entry: int) -> tuple[int, tuple[Move, ...]] | None:
    """Moves out of the first level's form of the same constant, and where that lies; None where there are none."""
    key = file.key(entry)
    base = None if key is None else file.of_array.get(key)
    one = file.held[entry]
    if base is None or one.array is None:
        return None
    forms = []
    for number in (base, entry):
        packing = file.held[number].packing
        if packing is None:
            forms.append(lambda array: array.reshape(-1))
        else:
            taps = file.is_transformed(number) and isinstance(packing, Transforming)
            forms.append(packing.taps if taps and isinstance(packing, Transforming) else packing.pack)
    moves = moves_between(one.array.shape, forms[0], forms[1], one.array.dtype.itemsize)
    source, wanted = file.plain(base), file.plain(entry)
    if moves is None or not np.array_equal(moved(moves, source, wanted.size), wanted):
        return None
    return (file.taps if file.is_transformed(base) else file.packed)[base], moves


def _used(listings: Sequence[Listing], file: _File) -> set[int]:
    return {
        file.entry(place.offset) for one in listings for run in _runs(one) for place in run.operands
        if place.space == "weights"
    }  # fmt: skip


def _runs(listing: Listing) -> Iterator[Run]:
    yield from listing.runs
    if listing.ticketed is not None:
        yield from listing.ticketed.runs


def _moved(listing: Listing, file: _File, places: dict[int, int], total: int) -> Listing:
    """With its constants where the bundle has them."""

    def place(one: Place) -> Place:
        if one.space != "weights":
            return one
        entry = file.entry(one.offset)
        return replace(one, offset=places[entry] + one.offset - file.held[entry].start)

    def runs(given: Sequence[Run]) -> tuple[Run, ...]:
        return tuple(replace(run, operands=tuple(map(place, run.operands))) for run in given)

    ticketed = listing.ticketed
    if ticketed is not None:
        ticketed = replace(ticketed, runs=runs(ticketed.runs))
    return replace(listing, runs=runs(listing.runs), ticketed=ticketed, weights_bytes=total)


def _filled(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

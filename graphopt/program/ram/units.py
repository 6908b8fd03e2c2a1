"""Constants as what can be fetched of them: stretches of blocks, where each block reads its own bytes, else all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from graphopt.program.weights import Held
from kernels.dtype import DType
from kernels.emit.layout import FETCH_ALIGNMENT
from kernels.kernel import Kernel, Operand, Sums, Transforming
from kernels.listing import ALIGNMENT, Run
from kernels.size import Size

UNIT = 1 << 20  # bytes that are fetched at once, about: as many as a disk needs to be at its rate
KEPT = 64 << 10  # bytes of a constant that is never fetched: it would save nothing


@dataclass(frozen=True, slots=True)
class Named:
    """Rows of a table that indices name."""

    operand: int  # of the indices
    dtype: DType
    count: int  # at the most
    row_bytes: int
    run_count: Size | None  # of a run, where its sizes decide


@dataclass(frozen=True, slots=True)
class Taps:
    """What a constant is transformed of: the fewer bytes, which are fetched in its place."""

    held: Held
    bytes: int
    sums: Sums
    elements: int  # of a point
    groups: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Bytes [begin, end) of a constant, and the blocks that read them."""

    begin: int
    end: int
    blocks: tuple[tuple[int, int], ...]
    named: Named | None = None  # where only rows are fetched
    taps: Taps | None = None  # where taps are fetched

    @property
    def bytes(self) -> int:
        """Of the constant."""
        return self.end - self.begin

    @property
    def fetched_bytes(self) -> int:
        """That a run reads."""
        if self.named is not None:
            return self.named.count * self.named.row_bytes
        return self.bytes if self.taps is None else self.taps.bytes

    @property
    def room(self) -> int:
        """That it takes of a ring."""
        beside = 0 if self.named is None else self.named.count * self.named.dtype.bytes
        return page(self.fetched_bytes) + page(beside if self.taps is None else self.bytes)


@dataclass(slots=True)
class Constant:
    """An operand in the block of all weights, the runs that read it, and the units that it is fetched in."""

    start: int
    size: int
    units: list[Unit]
    nanoseconds: float = 0.0  # that all its runs compute
    uses: int = 0
    fetched: int = 0  # units, the last ones

    @property
    def kept_bytes(self) -> int:
        """Of those that stay in memory."""
        return self.units[len(self.units) - self.fetched].begin if self.fetched else self.size


Constants = Mapping[tuple[int, int], Constant]  # by start and size


def constants_of(
    runs: Sequence[Run], kernels: Mapping[str, Kernel], durations: Mapping[str, float], held: Sequence[Held], unit: int
) -> Constants:
    """The constants that can be fetched, in units of about so many bytes; `durations` are nanoseconds by kernel."""
    found: dict[tuple[int, int], Constant] = {}
    known_as = {(one.start, one.size): one for one in held}
    for run in runs:
        kernel = kernels[run.kernel]
        large = [
            (operand, place.offset) for operand, place in zip(kernel.operands, run.operands, strict=True)
            if place.space == "weights" and operand.bytes > KEPT
        ]  # fmt: skip
        for operand, start in large:
            cut = _cut(kernel, operand, unit) if len(large) == 1 else [_whole(operand, kernel.blocks)]
            named = _named(kernel, operand)
            taps = _taps(known_as.get((start, operand.bytes)))
            if named is not None and run.operands[named.operand].space in ("arena", "input"):
                cut = [replace(_whole(operand, kernel.blocks), named=named)]
            elif taps is not None:
                cut = [replace(_whole(operand, kernel.blocks), taps=taps)]
            one = found.setdefault((start, operand.bytes), Constant(start, operand.bytes, cut))
            if one.units != cut:  # by another kernel
                one.units = [_whole(operand, kernel.blocks)]
            one.nanoseconds += durations[run.kernel]
            one.uses += 1
    taken = sorted(found)
    behind = [*(start for start, _ in taken[1:]), max(map(sum, taken), default=0)]
    apart = [pair for pair, start in zip(taken, behind, strict=False) if sum(pair) <= start]
    return {pair: found[pair] for pair in apart}  # what overlaps another one stays


def others_of(runs: Sequence[Run], kernels: Mapping[str, Kernel], constants: Constants) -> list[tuple[int, int]]:
    """Start and size of what always stays, each once."""
    found: dict[int, int] = {}
    for run in runs:
        for operand, place in zip(kernels[run.kernel].operands, run.operands, strict=True):
            if place.space == "weights" and (place.offset, operand.bytes) not in constants:
                found[place.offset] = max(found.get(place.offset, 0), operand.bytes)
    return sorted(found.items())


def rooms_of(runs: Sequence[Run], kernels: Mapping[str, Kernel], constants: Constants) -> dict[tuple[int, int], int]:
    """By constant the bytes of a ring that hold what blocks need at once which read it."""
    found: dict[tuple[int, int], int] = {}
    for run in runs:
        read = {
            (place.offset, operand.bytes)
            for operand, place in zip(kernels[run.kernel].operands, run.operands, strict=True)
            if place.space == "weights" and (place.offset, operand.bytes) in constants
        }
        needed = sum(max(unit.room for unit in constants[pair].units) for pair in read)
        for pair in read:
            found[pair] = max(found.get(pair, 0), needed)
    return found


def _whole(operand: Operand, blocks: int) -> Unit:
    return Unit(0, operand.bytes, ((0, blocks),))


def _named(kernel: Kernel, operand: Operand) -> Named | None:
    """The indices by which a kernel takes rows of an operand, where those are few of its rows."""
    if not operand.rows:
        return None
    at, indices = next((at, one) for at, one in enumerate(kernel.operands) if one.name == "indices")
    if indices.dtype not in (DType.I32, DType.I64) or 2 * indices.elements * operand.rows > operand.bytes:
        return None
    return Named(at, indices.dtype, indices.elements, operand.rows, indices.run_elements)


def _taps(held: Held | None) -> Taps | None:
    """The taps of a constant that is stored as such."""
    if held is None or held.array is None or not isinstance(held.packing, Transforming):
        return None
    if not held.packing.is_stored_as_taps:
        return None
    sums, elements = held.packing.sums, held.packing.point_elements
    groups = held.size // (4 * sums.points * elements)
    return Taps(held, 4 * groups * sums.taps * elements, sums, elements, groups)


def _cut(kernel: Kernel, operand: Operand, size: int) -> list[Unit]:
    """Stretches of the operand's parts of about so many bytes; one of all where blocks have no parts."""
    if operand.parts is None or kernel.run_blocks is not None:  # a run may have fewer blocks
        return [_whole(operand, kernel.blocks)]
    parts = sorted(set(operand.parts))
    if parts[0][0] or parts[-1][1] != operand.bytes or any(one[1] != two[0] for one, two in pairwise(parts)):
        return [_whole(operand, kernel.blocks)]
    count = min(len(parts), max(1, round(operand.bytes / size)))
    ends = [parts[len(parts) * (one + 1) // count - 1][1] for one in range(count)]
    found = []
    for begin, end in pairwise([0, *ends]):
        read = [number for number, part in enumerate(operand.parts) if begin <= part[0] and part[1] <= end]
        found.append(Unit(begin, end, tuple(ranges(read))))
    return found


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges."""
    found: list[tuple[int, int]] = []
    for one in numbers:
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return found


def filled(size: int) -> int:
    """Bytes with what fills them up to where the next constant starts."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def page(size: int) -> int:
    """Bytes with what fills them up to where the next fetch starts."""
    return -(-size // FETCH_ALIGNMENT) * FETCH_ALIGNMENT

"""A listing: what a program does, step by step, as numbers and names. Emission turns it into machine code.

It knows neither how the order was found nor how memory was planned: a step names a kernel, and for each operand a place
in the arena, in the weights, or in what the caller passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Sums, symbol
from kernels.moves import Reload, Spill
from kernels.size import Dim, Size

ALIGNMENT = 64  # bytes: where buffers in the arena and in the weights start


class InvalidListing(KernelsError):
    """A listing whose steps do not fit its kernels or its memory."""


Space = Literal["arena", "weights", "input", "output", "sizes"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand starts: bytes from the start of the arena, of the weights, of an argument, or of the sizes."""

    space: Space
    offset: int = 0
    argument: int = 0  # which input or output
    part: tuple[int, int] | None = None  # the operand's bytes that are there, from `offset` on; None: all of them

    @property
    def origin(self) -> int:
        """Where the operand would start if all of it were there; negative where that is before the space."""
        return self.offset - (self.part[0] if self.part is not None else 0)


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the program: dense, row-major."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    held: tuple[tuple[int, int], ...] = ()  # places and integers: what an input has to hold, as dims follow from it
    counted: tuple[int, ...] = ()  # axes of an output along which `shape` is the most, and each run finds its own dim
    free: tuple[tuple[int, Size], ...] = ()  # axes along which `shape` is the most, and the dim follows from the sizes
    room: tuple[int, ...] = ()  # of a cache: dims that its memory has room for, by whose strides its elements lie
    cache: int = -1  # of an output: the input in whose memory it is; -1: in its own

    @property
    def bytes(self) -> int:
        """The size of its data."""
        size = self.dtype.bytes
        for dim in self.room or self.shape:
            size *= dim
        return size


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks of a kernel, with a place for each of its operands, in their order."""

    kernel: str
    operands: tuple[Place, ...]
    blocks: tuple[int, int] | None = None  # the first, and the one behind the last; None: all


@dataclass(frozen=True, slots=True)
class Claim:
    """From here on workers claim the blocks of the run at this position, each block once.

    Of a run that is claimed `whole` one worker runs all blocks, and after them those of the runs that follow it.
    """

    run: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """The worker that has claimed the run before it whole, or follows with that one, runs all blocks of this one."""

    run: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody goes on before all blocks of the run at this position have ended; it was claimed before."""

    run: int


ListStep = Claim | Follow | Wait


@dataclass(frozen=True, slots=True)
class Transformed:
    """What becomes of fetched bytes, both of f32, as kernels.emit.making.Combine says of each group."""

    sums: Sums
    elements: int  # of a point and of a tap: i
    groups: int
    place: int  # in the arena

    @property
    def bytes(self) -> int:
        """That are written."""
        return 4 * self.groups * self.sums.points * self.elements


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bytes of the file of weights that a thread of its own brings into the arena in each run."""

    source: int  # in what the file has behind the weights that stay in memory
    place: int  # in the arena
    bytes: int
    after: tuple[int, ...] = ()  # runs that have to end before: they work on what lies there
    transformed: Transformed | None = None  # by the same thread, once they are there

    @property
    def stored_bytes(self) -> int:
        """Of the file that may be read."""
        return self.bytes

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """Places in the arena, and how many bytes are written there."""
        made = self.transformed
        return ((self.place, self.bytes), *(() if made is None else ((made.place, made.bytes),)))


@dataclass(frozen=True, slots=True)
class FetchRows:
    """Rows of a table of the file, as indices name them: side by side, and beside them their numbers 0, 1, 2, ..."""

    source: int  # where the table starts in what the file has behind the weights that stay in memory
    place: int  # in the arena
    rows: int  # of the table
    row_bytes: int
    indices: Place  # in the arena, or in an input; a negative one counts from the end, one beyond is moved inside
    dtype: DType  # of the indices: i32 or i64
    count: int  # of the indices
    numbers: int  # where in the arena the numbers are written, of the same type
    after: tuple[int, ...] = ()  # runs that have to end before: they work on what lies there, or write the indices
    run_count: Size | None = None  # of the indices of a run, where its sizes decide; None: all

    @property
    def bytes(self) -> int:
        """Of the rows, of as many indices as there can be."""
        return self.count * self.row_bytes

    @property
    def stored_bytes(self) -> int:
        """Of the file that may be read."""
        return self.rows * self.row_bytes

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """Places in the arena, and how many bytes are written there."""
        return (self.place, self.bytes), (self.numbers, self.count * self.dtype.bytes)


Moved = Fetch | FetchRows | Spill | Reload


@dataclass(frozen=True, slots=True)
class Ticketed:
    """The runs of a listing for any number of workers, each of which goes through all steps in order.

    A worker waits only for blocks that somebody has claimed before, so whoever is first waits for nobody and no number
    of workers hangs. `runs` are those of the listing, position by position: with kernels whose blocks several workers
    share, or its own ones, and places in an arena of their own.
    """

    steps: tuple[ListStep, ...]
    runs: tuple[Run, ...]
    arena_bytes: int
    fetches: tuple[Moved, ...] = ()  # what that thread does in each run: they begin and end in their order
    fetched: tuple[int, ...] = ()  # by run: how many of them have to have ended before it begins; none: as without any
    fetched_bytes: int = 0  # of the file, behind the weights that stay in memory
    most_workers: int = 0  # that run it; 0: any number

    @property
    def waits(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The runs in the order in which they are claimed or follow, each with those that are waited for before it."""
        found, before = [], []
        for step in self.steps:
            if isinstance(step, Wait):
                before.append(step.run)
            else:
                found.append((step.run, tuple(before)))
                before = []
        return tuple(found)

    @property
    def spilled_bytes(self) -> int:
        """Of the temporary file."""
        return max((one.offset + one.bytes for one in self.fetches if isinstance(one, Spill | Reload)), default=0)

    @property
    def whole(self) -> frozenset[int]:
        """The runs of which one worker runs all blocks, those that follow included."""
        return frozenset(step.run for step in self.steps if isinstance(step, Claim) and step.whole) | self.following

    @property
    def following(self) -> frozenset[int]:
        """The runs that the worker of the run before runs."""
        return frozenset(step.run for step in self.steps if isinstance(step, Follow))


@dataclass(frozen=True, slots=True)
class Listing:
    """A program: its runs one after the other, for one worker, and where there is one the same for several.

    Raises InvalidListing where it does not fit together.
    """

    name: str  # a C identifier
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    kernels: tuple[Kernel, ...]
    runs: tuple[Run, ...]
    arena_bytes: int
    weights_bytes: int
    ticketed: Ticketed | None = None
    sizes: tuple[Dim, ...] = ()  # free dims: a run sets the size of each; they lie in the model's record, as int64
    derived: tuple[Size | int, ...] = ()  # numbers behind them, which follow from the sizes and are computed with

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name.isascii()):
            raise InvalidListing(f"'{self.name}' is no C identifier.")
        for word, arguments in (("input", self.inputs), ("output", self.outputs)):
            names = [one.name for one in arguments]
            for name in names:
                if names.count(name) > 1:
                    raise InvalidListing(f"listing '{self.name}' has two {word}s called '{name}'.")
                if "\0" in name:
                    raise InvalidListing(f"the name of {word} {name!r} has a null character, where a C string ends.")
        kernels = {kernel.name: kernel for kernel in self.kernels}
        if len(kernels) != len(self.kernels):
            raise InvalidListing(f"two kernels of listing '{self.name}' have the same name.")
        self._check_runs(kernels, self.runs, self.arena_bytes)
        if self.ticketed is not None:
            self._check_runs(kernels, self.ticketed.runs, self.ticketed.arena_bytes)
            self._check_steps(self.ticketed)
            _check_fetches(self.ticketed)

    def _check_runs(self, kernels: Mapping[str, Kernel], runs: Sequence[Run], arena: int) -> None:
        for number, run in enumerate(runs):
            kernel = kernels.get(run.kernel)
            if kernel is None:
                raise InvalidListing(f"step {number} runs kernel '{run.kernel}', which the listing does not hold.")
            if len(run.operands) != len(kernel.operands):
                raise InvalidListing(
                    f"step {number} gives {len(run.operands)} operands to kernel '{kernel.name}', which has "
                    f"{len(kernel.operands)}."
                )
            first, last = run.blocks or (0, kernel.blocks)
            if not 0 <= first <= last <= kernel.blocks:
                raise InvalidListing(
                    f"step {number} runs blocks {first} to {last} of kernel '{kernel.name}', which has {kernel.blocks}."
                )
            for operand, place in zip(kernel.operands, run.operands, strict=True):
                room = self._room(place, arena)
                begin, end = place.part or (0, operand.bytes)
                if not 0 <= begin <= end <= operand.bytes:
                    raise InvalidListing(
                        f"step {number}: bytes {begin:,} to {end:,} of operand '{operand.name}' of kernel "
                        f"'{kernel.name}' are there, which has {operand.bytes:,}."
                    )
                # What has no elements may lie anywhere.
                if place.offset < 0 or (end > begin and place.offset + end - begin > room):
                    raise InvalidListing(
                        f"step {number}: operand '{operand.name}' of kernel '{kernel.name}' takes {end - begin:,} "
                        f"bytes from {place.offset:,} of the {place.space}, which has {room:,}."
                    )
                if place.origin % operand.dtype.bytes:
                    raise InvalidListing(
                        f"step {number}: operand '{operand.name}' of kernel '{kernel.name}' starts at byte "
                        f"{place.offset:,}, which is no multiple of its element's {operand.dtype.bytes} bytes."
                    )
                if operand.role == "output" and place.space in ("weights", "input", "sizes"):
                    raise InvalidListing(
                        f"step {number}: kernel '{kernel.name}' writes operand '{operand.name}', which lies in the "
                        f"{place.space}: that is only read."
                    )

    def _check_steps(self, ticketed: Ticketed) -> None:
        """Every run is claimed once, or follows one that is claimed whole, and is waited for only after."""
        for number, (mine, shared) in enumerate(zip(self.runs, ticketed.runs, strict=False)):
            if len(mine.operands) != len(shared.operands) or not all(map(_same, mine.operands, shared.operands)):
                raise InvalidListing(f"run {number} is another one for several workers than for one.")
        claimed: set[int] = set()
        whole = False  # the last run that was claimed
        for step in ticketed.steps:
            if isinstance(step, Wait):
                if step.run not in claimed:
                    raise InvalidListing(
                        f"workers wait for run {step.run} before it is claimed: they would wait for ever."
                    )
                continue
            if isinstance(step, Follow) and not whole:
                raise InvalidListing(f"run {step.run} follows a run that no worker has claimed whole.")
            if step.run in claimed:
                raise InvalidListing(f"run {step.run} is claimed twice.")
            claimed.add(step.run)
            whole = isinstance(step, Follow) or step.whole
        if claimed != set(range(len(self.runs))) or len(ticketed.runs) != len(self.runs):
            raise InvalidListing(
                f"{len(claimed)} runs are claimed by several workers; the listing has {len(self.runs)}."
            )

    def _room(self, place: Place, arena: int) -> int:
        if place.space == "arena":
            return arena
        if place.space == "weights":
            return self.weights_bytes
        if place.space == "sizes":
            return 8 * self.size_count
        arguments = self.inputs if place.space == "input" else (*self.outputs, *self.dims)
        return arguments[place.argument].bytes if 0 <= place.argument < len(arguments) else -1

    @property
    def dims(self) -> tuple[Argument, ...]:
        """The dims, as a run finds them, of each output with counted axes.

        They lie in the model's record. Their places have the space "output", and the numbers behind those of outputs.
        """
        return tuple(Argument(f"{one.name}:dims", DType.I64, (len(one.shape),)) for one in self.outputs if one.counted)

    @property
    def uses_units(self) -> bool:
        """Whether any kernel runs on matrix units."""
        return any(kernel.module.uses_units for kernel in self.kernels)

    def symbol(self, name: str) -> str:
        """What a function of the program is called in its objects."""
        return symbol(self.name, name)

    @property
    def size_count(self) -> int:
        """How many numbers the record has that kernels read: sizes, and what is derived from them."""
        return len(self.sizes) + len(self.derived)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that a worker needs."""
        return max((kernel.scratch_bytes for kernel in self.kernels), default=0)


def _check_fetches(ticketed: Ticketed) -> None:
    """Nobody waits for ever: what a fetch waits for is claimed before the first run that waits for that fetch."""
    fetches, fetched = ticketed.fetches, ticketed.fetched
    if len(fetched) != (len(ticketed.runs) if fetches else 0):
        raise InvalidListing(f"{len(fetched)} runs say what is fetched before them, of {len(ticketed.runs)}.")
    for number, one in enumerate(fetches):
        if isinstance(one, Spill | Reload):
            if one.bytes <= 0 or one.offset < 0 or (isinstance(one, Reload) and one.told > number):
                raise InvalidListing(
                    f"fetch {number} moves {one.bytes:,} bytes at {one.offset:,} of the temporary file."
                )
        elif one.bytes <= 0 or one.source < 0 or one.source + one.stored_bytes > ticketed.fetched_bytes:
            raise InvalidListing(
                f"fetch {number} takes {one.stored_bytes:,} bytes from {one.source:,} of {ticketed.fetched_bytes:,}."
            )
        for place, size in ((one.place, one.bytes), *one.writes):
            if place < 0 or place + size > ticketed.arena_bytes:
                raise InvalidListing(
                    f"fetch {number} puts {size:,} bytes at {place:,} of the arena, which has {ticketed.arena_bytes:,}."
                )
    claimed: set[int] = set()
    free = 0  # fetches that wait for nothing that is not claimed
    for run, _ in ticketed.waits if fetches else ():
        if not 0 <= fetched[run] <= len(fetches):
            raise InvalidListing(f"run {run} waits for {fetched[run]} fetches, of {len(fetches)}.")
        for number in range(free, fetched[run]):
            late = set(fetches[number].after) - claimed
            if late:
                raise InvalidListing(
                    f"run {run} waits for fetch {number}, which waits for run {min(late)}: they would wait for ever."
                )
        free = max(free, fetched[run])
        claimed.add(run)


def _same(mine: Place, shared: Place) -> bool:
    """Whether two places are one, where they may lie differently in an arena."""
    return mine == shared or mine.space == shared.space == "arena"

"""Where a model's memory lies: one record for its state and tables, one reservation for arena, scratch and weights.

    reservation:  guard | arena | guard | scratch | guard | weights | guard

A model that several workers run has its arena, a piece of scratch for each of them and the counters elsewhere, as large
as the number of workers makes them:

    shared:       guard | arena | guard | scratch | guard | ... | scratch | guard | counters | guard

Guards are pages that nobody may touch: a kernel that leaves its memory ends with a fault, not with wrong numbers. All
places are known when the program is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.emit.checksum import STRIPE
from kernels.emit.making import NOTHING, Making
from kernels.listing import Listing
from kernels.target import Target

HUGE_PAGE = 2 << 20  # bytes; from this size on memory asks for huge pages
ERROR_BYTES = 512  # of the last error's text, its end included

FETCH_ALIGNMENT = 4096
FETCHING_BYTES = 64  # of the state of fetches (kernels/emit/fetching.py)

LIVE = 0x6C65646F6D  # of a model that can run: what was destroyed, or is none, hardly holds this number

# Offsets in the record, in bytes.
READY, RESERVED, TAKEN = 0, 8, 16  # READY: LIVE or 0; TAKEN: bytes of memory that the model has from the system
WEIGHTS, ARENA, SCRATCH, BUSY, ERROR = 24, 32, 40, 48, 64  # BUSY: an i32, 1 while a call runs
SHARED = ERROR + ERROR_BYTES  # the job of a pool: its function, its workers, and what the function reads
ARGUMENTS = SHARED + 128  # a pointer for each input, then for each output

# Offsets in the job. CALL: how many calls there were; CLAIMS: words by worker and run; DONE: a counter by run;
# SHARED_AT, SHARED_BYTES: the shared memory; null where one worker runs the model.
# STAMPS: where blocks are noted while a model is profiled, and how many it has room for; null where it is not.
WORKERS, CALL, CLAIMS, DONE, STRIDE, SHARED_AT, SHARED_BYTES, POOL, STAMPS, STAMPS_ROOM = (
    8 * place for place in range(1, 11)
)


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Offsets in the reservation, from a start that is a multiple of `alignment`; all in bytes."""

    page: int
    alignment: int
    arena: int
    scratch: int
    weights: int
    arena_bytes: int
    scratch_bytes: int  # of one worker
    weights_bytes: int  # of the file: whole stripes
    making: Making  # what is made behind them
    reserved: int
    tables: int  # where the tables of operands start in the record
    dims: int  # where the dims that a run finds start in the record
    sizes: int  # where the sizes of a run start in the record, and behind them the dims that follow from them
    blocks: int  # where the blocks start that a run of these sizes has of each kernel
    few: int  # where it stands whether these are so few that the caller does them alone
    fetching: int  # where the state of fetches starts in the record
    record: int
    shared_alignment: int  # of the start of the shared memory
    shared_arena: int
    shared_arena_bytes: int
    shared_scratch: int  # the first worker's
    stride: int  # from one worker's scratch to the next one's
    fetched_at: int  # where in the file what is fetched starts
    file_bytes: int

    @property
    def moves(self) -> bool:
        """Whether a thread of the model's own fetches weights, or spills intermediate results."""
        return self.record > self.fetching

    @property
    def fetches(self) -> bool:
        """Whether the file has more than stays in memory."""
        return self.file_bytes > self.weights_bytes


def fetched_at(kept: int) -> int:
    """Where in the file what is fetched starts, behind so many bytes that stay in memory."""
    return -(-kept // FETCH_ALIGNMENT) * FETCH_ALIGNMENT


def layout_of(
    listing: Listing, target: Target, beside: Sequence[Listing] = (), making: Making = NOTHING
) -> MemoryLayout:
    """The memory of a listing's model; with room for what the listings beside it need, which then lies alike.

    With steps of `making` only the first of the listing's weights are in the file.
    """
    page = target.architecture.page
    weights = -(-(making.stored if making.steps else listing.weights_bytes) // STRIPE) * STRIPE
    together = (listing, *beside)
    arena_bytes, scratch_bytes = (
        max(getattr(one, f"{part}_bytes") for one in together) for part in ("arena", "scratch")
    )
    parts = (arena_bytes, scratch_bytes, making.start + making.bytes if making.steps else weights)
    alignment = HUGE_PAGE if max(parts) >= HUGE_PAGE else page
    ends, starts = [0], []
    for size in parts:
        step = HUGE_PAGE if size >= HUGE_PAGE else page
        starts.append(-(-(ends[-1] + page) // step) * step)
        ends.append(starts[-1] + -(-size // page) * page)
    arena, scratch, brought = starts
    tables = ARGUMENTS + 8 * (len(listing.inputs) + len(listing.outputs))
    dims = tables + 8 * sum(len(run.operands) for run in listing.runs)
    sizes = dims + sum(one.bytes for one in listing.dims)
    blocks = sizes + 8 * listing.size_count + 8 * sum(len(one.free) for one in (*listing.inputs, *listing.outputs))
    few = blocks + (8 * len(listing.kernels) if listing.sizes else 0)
    fetching = few + (8 if listing.sizes else 0)
    fetched = listing.ticketed.fetched_bytes if listing.ticketed is not None else 0
    moves = listing.ticketed is not None and bool(listing.ticketed.fetches)
    record = fetching + (FETCHING_BYTES if moves else 0)
    behind = fetched_at(weights)
    shared = 0
    if any(one.ticketed is not None for one in together):
        shared = max(one.arena_bytes if one.ticketed is None else one.ticketed.arena_bytes for one in together)
    step = HUGE_PAGE if shared >= HUGE_PAGE else page
    shared_scratch = step + -(-shared // page) * page + page
    stride = -(-scratch_bytes // page) * page + page
    return MemoryLayout(
        page, alignment, arena, scratch, brought, arena_bytes, scratch_bytes, weights, making, ends[-1] + page, tables,
        dims, sizes, blocks, few, fetching, record, step, step, shared, shared_scratch, stride, behind,
        behind + fetched if fetched else weights,
    )  # fmt: skip

"""How fast a core does what kernels are made of: the numbers behind every estimate, in cycles.

What a core does in a cycle, and how fast its caches and memory are, comes from the target (`Target.core`): measured,
known or usual. The numbers here say how much of each shows in a kernel's time: shares of reading that computing does
not hide, and cycles around the innermost loops. They were fitted to products drawn at random and to convolutions of
networks on two cores, one with one 64-byte multiply-add a cycle and one with two. An estimate chooses between
candidates of one kernel, so that only ratios between its terms matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.target import Target
from kernels.templates.grid import Group

HIDDEN_SUMS = 16  # of a tile whose stores pass while the next one begins: a core looks no further ahead
STORE_MORE = 0.6  # more cycles for each further one
ROW = 7.0  # cycles for each further row of a tile of an image, for each vector: a run of its own in the output
MANY_SUMS = 24  # of a tile of pixels, beyond which its steps were seen to take longer, though none is on the stack
MANY = 0.03  # share of such a step
CUT = 2.0  # more cycles for the last vector of a row when it is stored with a mask
LATENCY = 4.6  # cycles from one multiply-add to the next on the same sum: four, and a little that nothing fills
FEW_SUMS = 6.0  # cycles of a step with fewer sums than this: the latency, and loads that come late with nothing to fill
PRESSURE = 0.1  # share of the loads that is not hidden behind products: between equals, fewer loads are better
# Shares of reading that show, of what the core would need to read so much.
CONSTANT = 0.1  # packed weights, from where those of the program lie
CONSTANT_STREAM = 0.002  # more for each vector of a panel: every one is a stream of its own to the core's prefetching
REREAD_NEAR = 1.3  # A again for a further panel, from the first cache: element by element
REREAD = 1.2  # from the second one
FAR_PANEL = 0.1  # from beyond it: where a block needs more than the second cache holds
# Of a cache: what is read again after so much has passed is still there, and none of it after so much.
NEAR_HELD, NEAR_PASSED = 0.75, 1.5  # of the first one
FAR_HELD, FAR_PASSED = 0.15, 1.0  # of the second one, which others share and whose sets pages fill unevenly
AHEAD = 0.8  # weights that a convolution asks for while it works on others
EXPOSED = 1.9  # weights that nothing asks for ahead: they come in short runs
WAIT = 0.5  # cycles to load one vector of sums that wait in scratch for the next part of the depth
RESUME = 30.0  # cycles of a tile's part for a loop that ends and another one that begins, which nothing fills
PAGE = 4096  # bytes: rows that lie a multiple of it apart fall into one set of the first cache
WAYS = 8  # rows of one set that stay there
CROWDED = 1.5  # cycles of a step for each further row


def step_cycles(products: float, pixels: int, vectors: int, target: Target, pressure: float = PRESSURE) -> float:
    """Cycles of one step of a tile of pixels by vectors: its products, its loads or the latency of its chains."""
    speed = target.core
    loads = pixels / speed.broadcasts + vectors / speed.loads
    step = max(products / speed.products, loads, LATENCY) + pressure * loads
    return step * (1 + MANY) if pixels * vectors > MANY_SUMS else step


def tile_cycles(rows: int, vectors: int, depth: float, cut: bool, target: Target) -> float:
    """Cycles of one register tile: its products or its loads, whichever takes longer, and what surrounds them."""
    speed, sums = target.core, rows * vectors
    step = max(
        sums / speed.products,
        rows / speed.broadcasts + vectors / speed.loads,
        FEW_SUMS if sums < FEW_SUMS * speed.products else 0.0,
    )
    stores = sums / speed.stores + STORE_MORE * max(0, sums - HIDDEN_SUMS)
    return depth * step + speed.call + stores + (CUT * rows if cut else 0.0)


def product_cycles(
    rows: Sequence[Group],
    panels: Sequence[Group],
    depth: int,
    bytes_of_group: int,
    cut: bool,
    target: Target,
    part: int | None = None,
    share: float = 1.0,
) -> float:
    """Cycles of a whole product: groups of rows by groups of panels (in vectors), `depth` groups of the depth deep.

    All rows of a block take `part` groups of the depth (None: all) before they take the next ones. A group of B takes
    `share` of 32 bits in memory.
    """
    total = 0.0
    for position, wide in enumerate(panels):
        last = cut and position == len(panels) - 1
        for tall in rows:
            for count, masked in ((wide.count - 1, False), (1, last)) if last else ((wide.count, False),):
                total += tall.count * count * tile_cycles(tall.size, wide.size, depth, masked, target)
    height = sum(tall.size * tall.count for tall in rows)
    vectors = sum(wide.size * wide.count for wide in panels)
    reads = sum(wide.count for wide in panels)
    for wide in panels:
        each = share * CONSTANT_STREAM * wide.size / target.constant_rate
        total += each * wide.count * wide.size * target.vector_bytes * depth
    widest = max((wide.size for wide in panels), default=0) * target.vector_bytes * min(part or depth, depth)
    if widest > target.l1:
        total += depth * reread_cycles(rows, panels, target)
    bytes_of_a = height * depth * bytes_of_group
    near = bytes_of_a <= target.l1 // 2
    total += (REREAD_NEAR / target.core.l1 if near else REREAD / target.core.l2) * bytes_of_a * reads
    reading = share * vectors * target.vector_bytes * depth / target.constant_rate
    return max(total, reading) + CONSTANT * min(total, reading)


def reread_cycles(rows: Sequence[Group], panels: Sequence[Group], target: Target) -> float:
    """Cycles of a step of the depth for reading panels from the second cache again, for every further tile of rows."""
    total = 0.0
    for wide in panels:
        streamed = wide.size * target.vector_bytes / target.core.l2
        for place, tall in enumerate(rows):
            worked = tall.size * wide.size / target.core.products
            again = wide.count * (tall.count - (1 if place == 0 else 0))
            total += again * (beside(worked, streamed) - worked)
    return total


def beside(worked: float, streamed: float) -> float:
    """Cycles of work and of a stream beside it that is asked for ahead, each alone in cycles.

    Of the shorter one the square of its share of the longer one shows: what needs a small part of what a cache or the
    memory gives comes in time. Seen were 0.06 of panels from the second cache at 0.34 of the products' time, little of
    weights from memory at 0.4, and all of the products beside weights that take 1.7 times as long.
    """
    return max(worked, streamed) + min(worked, streamed) * (min(1.0, streamed / worked) ** 2 if worked else 0.0)


def beside_again(worked: float, size: int, whole: int, target: Target, more: float = 0.0) -> float:
    """Cycles of work beside `size` bytes that are read again after `whole` bytes have passed.

    The second cache holds them, or in part, or what lies behind it does. `more` cycles of other reads come on top.
    """
    near, far = size / target.core.l2, size / target.rate(max(whole, target.l2 + 1))
    close = beside(worked, near + more)
    return close + lost(whole, target.l2, FAR_HELD, FAR_PASSED) * (beside(worked, far + more) - close)


def lost(whole: int, cache: int, held: float, passed: float) -> float:
    """The share of what is read again after `whole` bytes that a cache no longer holds, by degrees in between."""
    return min(1.0, max(0.0, (whole / cache - held) / (passed - held)))


def crowded_cycles(rows: Sequence[Group], panels: Sequence[Group], depth: int) -> float:
    """Cycles of a product for rows of A that push one another out of the first cache."""
    more = sum(tall.count * max(0, tall.size - WAYS) for tall in rows)
    return CROWDED * more * sum(wide.count for wide in panels) * depth


def waiting_cycles(rows: Sequence[Group], panels: Sequence[Group], target: Target) -> float:
    """Cycles of all tiles for ending one part of the depth in scratch, and going on from there with the next one."""
    tiles = sum(tall.count for tall in rows) * sum(wide.count for wide in panels)
    sums = sum(tall.count * tall.size for tall in rows) * sum(wide.count * wide.size for wide in panels)
    return tiles * (target.core.call + RESUME) + (1 / target.core.stores + WAIT) * sums


def outgrows(bytes_of_row: int, rows: int, columns: int, target: Target) -> bool:
    """Whether rows of A, a panel of so many columns and the next one, which is on its way, outgrow the second cache."""
    return bytes_of_row * (rows + 2 * columns) > target.l2


def with_weights(cycles: float, size: int, target: Target, *, again: float = 0.0, ahead: bool = False) -> float:
    """Cycles of work beside which `size` bytes of weights are read, and then so many times more.

    The first time they come from where the weights of the program lie, then from the cache that holds them. `ahead`:
    they are asked for while others are worked on.
    """
    reading = size / target.constant_rate + again * size / target.rate(size)
    return max(cycles, reading) + (AHEAD if ahead else EXPOSED) * min(cycles, reading)


def nanoseconds(cycles: float, target: Target) -> float:
    """The time of so many cycles."""
    return cycles / target.core.gigahertz

"""How fast a core does what kernels are made of: the numbers behind every estimate, in cycles.

An estimate chooses between candidates of one kernel, so that only ratios between its terms matter. The constants were
fitted to 767 matrix products drawn at random (up to 8 candidates each) on a core with one 64-byte fused multiply-add
per cycle, half of them checked with what the other half gave; they stand for what each term means, and so carry over to
other cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.target import Target
from kernels.templates.grid import Group

GIGAHERTZ = 3.6  # of the core, where nothing better is known: estimates are in nanoseconds
TILE = 4.0  # cycles to call a tile, set its sums to zero and return
STORE = 2.0  # cycles to store one vector of sums
HIDDEN_SUMS = 16  # of a tile whose stores pass while the next one begins: a core looks no further ahead
STORE_MORE = 0.6  # more cycles for each further one
CUT = 2.0  # more cycles for the last vector of a row when it is stored with a mask
LATENCY = 4.0  # cycles from one fused multiply-add to the next one on the same sum
FEW_SUMS = 6.0  # cycles of a step with fewer sums than this: the latency, and loads that come late with nothing to fill
PRESSURE = 0.1  # share of the loads that is not hidden behind products: between equals, fewer loads are better
CONSTANT_BYTE = 0.013  # cycles for each byte of packed weights, which come from the last cache or from memory
CONSTANT_STREAM = 0.001  # more for each vector of a panel: every one is a stream of its own to the core's prefetching
REREAD_NEAR_BYTE = 0.02  # cycles for each byte of A that is read again for a further panel, from the first cache
REREAD_BYTE = 0.05  # from the second one
REREAD_PANEL_BYTE = 0.004  # cycles for each byte of a panel that is read again for further rows, from the second cache
FAR_PANEL_BYTE = 0.013  # from beyond it: where a block needs more than the second cache holds
WAIT = 1.0  # cycles to load one vector of sums that wait in scratch for the next part of the depth


def step_cycles(products: int, pixels: int, vectors: int, target: Target, pressure: float = PRESSURE) -> float:
    """Cycles of one step of a tile of pixels by vectors: its products, its loads or the latency of its chains."""
    speed = target.core
    loads = pixels / speed.broadcasts + vectors / speed.loads
    return max(products / speed.products, loads, LATENCY) + pressure * loads


def tile_cycles(rows: int, vectors: int, depth: float, cut: bool, target: Target) -> float:
    """Cycles of one register tile: its products or its loads, whichever takes longer, and what surrounds them."""
    speed, sums = target.core, rows * vectors
    step = max(
        sums / speed.products,
        rows / speed.broadcasts + vectors / speed.loads,
        FEW_SUMS if sums < FEW_SUMS * speed.products else 0.0,
    )
    stores = STORE * sums + STORE_MORE * max(0, sums - HIDDEN_SUMS)
    return depth * step + TILE + stores + (CUT * rows if cut else 0.0)


def product_cycles(
    rows: Sequence[Group],
    panels: Sequence[Group],
    depth: int,
    bytes_of_group: int,
    cut: bool,
    target: Target,
    part: int | None = None,
) -> float:
    """Cycles of a whole product: groups of rows by groups of panels (in vectors), `depth` groups of the depth deep.

    All rows of a block take `part` groups of the depth (None: all) before they take the next ones.
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
        each = CONSTANT_BYTE + CONSTANT_STREAM * wide.size
        total += each * wide.count * wide.size * target.vector_bytes * depth
    widest = max((wide.size for wide in panels), default=0) * target.vector_bytes * min(part or depth, depth)
    if widest > target.l1:
        again = sum(tall.count for tall in rows) - 1
        total += REREAD_PANEL_BYTE * again * vectors * target.vector_bytes * depth
    bytes_of_a = height * depth * bytes_of_group
    return total + (REREAD_NEAR_BYTE if bytes_of_a <= target.l1 // 2 else REREAD_BYTE) * bytes_of_a * reads


def waiting_cycles(rows: Sequence[Group], panels: Sequence[Group]) -> float:
    """Cycles of all tiles for ending one part of the depth in scratch, and going on from there with the next one."""
    tiles = sum(tall.count for tall in rows) * sum(wide.count for wide in panels)
    sums = sum(tall.count * tall.size for tall in rows) * sum(wide.count * wide.size for wide in panels)
    return tiles * TILE + (STORE + WAIT) * sums


def outgrows(bytes_of_row: int, rows: int, columns: int, target: Target) -> bool:
    """Whether rows of A, a panel of so many columns and the next one, which is on its way, outgrow the second cache."""
    return bytes_of_row * (rows + 2 * columns) > target.l2

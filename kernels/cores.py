"""Known cores by LLVM's name: what one does in a cycle, for code that is compiled for a machine which is not at hand.

A machine that is at hand is measured instead (`kernels/measure`). Figures of instructions and caches are those of the
makers' optimization guides and of published measurements, sustained by one core under vectors of the widest kind;
memory is that of a server with one core at work. How tiles ask for weights was measured by this library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

# Where a tile that reads weights alone asks for them, and how far ahead: into the first cache or into the second one as
# far as memory has bytes under way, or into the second one half a page at the most.
WayToAsk = Literal["near", "far", "half"]
FEW_ROWS = 4  # of a tile: so many and fewer ask as `few`, more as `tall`
HALF_PAGE = 2048  # bytes


@dataclass(frozen=True, slots=True)
class Core:
    """What one core does in a cycle: what estimates are made of.

    Where no machine was measured it is a usual server's core; a known one by its name (`known_core`).
    """

    products: float  # fused multiply-adds of vectors
    loads: float  # of vectors
    broadcasts: float  # loads of one element into all lanes
    stores: float = 1.0  # of vectors
    l1: float = 64.0  # bytes read from the first cache
    l2: float = 32.0  # from the second
    l3: float = 10.0  # from the last
    memory: float = 5.0
    call: float = 4.0  # cycles of a call and its return
    gigahertz: float = 3.6  # under vectors
    latency: float = 100.0  # nanoseconds until memory answers a load
    tile_products: float = 0.0625  # of two tiles of bfloat16, where there is a matrix unit
    dot_products: float = 1.0  # of vectors of pairs of bfloat16, where there are such instructions
    few: WayToAsk = "near"  # of tiles of few rows, the one that brings most
    tall: WayToAsk = "near"  # of tiles of more

    @property
    def under_way(self) -> int:
        """Bytes that are on their way from memory while the core reads it at its rate: rate times latency.

        (J. Little, A Proof for the Queuing Formula L = λW, 1961.)
        """
        return int(self.memory * self.gigahertz * self.latency)

    def asks(self, rows: int) -> tuple[bool, int]:
        """How a tile of so many rows asks for weights that it reads alone: into the first cache or not; bytes ahead."""
        way = self.few if rows <= FEW_ROWS else self.tall
        return way == "near", min(self.under_way, HALF_PAGE) if way == "half" else self.under_way


# Of x86 cores by vectors of 32 bytes, however many of 64 bytes they do.
MOST_PRODUCTS, MOST_LOADS, MOST_STORES = 2.0, 2.0, 2.0
# Name -> bytes of the vectors, and what a core does in a cycle.
KNOWN: Mapping[str, tuple[int, Core]] = {
    "haswell": (32, Core(2, 2, 2, l1=64, l2=28, l3=9, memory=4, gigahertz=3.0)),
    "broadwell": (32, Core(2, 2, 2, l1=64, l2=28, l3=9, memory=4, gigahertz=3.0)),
    "skylake": (32, Core(2, 2, 2, l1=64, l2=32, l3=12, memory=5, gigahertz=3.6)),
    "skylake-avx512": (64, Core(2, 2, 2, l1=128, l2=48, l3=8, memory=4.5, gigahertz=2.9)),
    "cascadelake": (64, Core(2, 2, 2, l1=128, l2=48, l3=8, memory=4.5, gigahertz=3.0)),
    "icelake-server": (64, Core(2, 2, 1.8, l1=128, l2=48, l3=8, memory=4.5, gigahertz=3.2)),
    "rocketlake": (64, Core(2, 2, 1.75, l1=125, l2=52, l3=8, memory=4.7, gigahertz=3.6)),
    "sapphirerapids": (64, Core(2, 2, 1.75, l1=125, l2=52, l3=8, memory=4.7, gigahertz=3.6)),
    "znver2": (32, Core(2, 2, 2, l1=64, l2=32, l3=18, memory=6, gigahertz=3.3)),
    "znver3": (32, Core(2, 2, 2, l1=64, l2=32, l3=22, memory=7, gigahertz=3.5)),
    "znver4": (64, Core(1, 1, 2, 0.5, l1=64, l2=32, l3=20, memory=8, gigahertz=3.6, dot_products=1, few="half")),
    "znver5": (64, Core(2, 2, 2, l1=128, l2=64, l3=24, memory=8, gigahertz=4.0, dot_products=2)),
    "neoverse-n1": (16, Core(2, 2, 2, l1=32, l2=24, l3=10, memory=6, gigahertz=3.0)),
    "neoverse-v1": (16, Core(4, 3, 3, l1=48, l2=32, l3=12, memory=7, gigahertz=2.6)),
    "neoverse-n2": (16, Core(2, 3, 3, 2, l1=48, l2=32, l3=12, memory=7, gigahertz=2.8)),
    "neoverse-v2": (16, Core(4, 3, 3, 2, l1=48, l2=32, l3=12, memory=8, gigahertz=2.8)),
}


def known_core(name: str, vector_bytes: int) -> Core | None:
    """A known core by LLVM's name, as it runs code of so wide vectors; None for another name."""
    if name not in KNOWN:
        return None
    width, core = KNOWN[name]
    return by_vectors(core, width, vector_bytes)


def by_vectors(core: Core, width: int, wanted: int) -> Core:
    """A core that was described by vectors of `width` bytes, as it works with vectors of `wanted` bytes."""
    if wanted == width:
        return core
    more = width / wanted
    products, loads, stores = core.products * more, core.loads * more, core.stores * more
    broadcasts = core.broadcasts  # of an element: hardly slower into wider vectors
    if more > 1:
        products = min(products, max(MOST_PRODUCTS, core.products))
        loads = min(loads, max(MOST_LOADS, core.loads))
        stores = min(stores, max(MOST_STORES, core.stores))
        broadcasts = max(broadcasts, min(products, loads))
    return replace(
        core, products=products, loads=loads, broadcasts=broadcasts, stores=stores, l1=min(core.l1, loads * wanted)
    )

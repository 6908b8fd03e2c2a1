"""Small devices and random task graphs for the tests of policies."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from scheduler.device import Device, device
from scheduler.tasks import Kernel, Need, Region, TaskGraph


def small_gpu(
    multiprocessors: int = 3, launch_ns: float = 2000.0, signal_ns: float = 1000.0, block_fixed_ns: float = 1000.0
) -> Device:
    """A V100 of a few multiprocessors."""
    return replace(
        device("v100"), multiprocessors=multiprocessors, launch_ns=launch_ns, signal_ns=signal_ns,
        block_fixed_ns=block_fixed_ns,
    )  # fmt: skip


def near(blocks: int, halo: float) -> TaskGraph:
    """Two regions of as many blocks, of which each needs those around its own."""
    wide = (Kernel("k", blocks, (5000.0,), 1024),)
    return TaskGraph("near", (Region("a", wide), Region("b", wide)), (Need("a", "b", "near", halo),))


@st.composite
def task_graphs(draw: st.DrawFn, most_regions: int = 7, most_blocks: int = 6) -> TaskGraph:
    """Regions with one to three kernels, needs from all or near blocks, batch keys here and there."""
    count = draw(st.integers(1, most_regions))
    sizes = st.sampled_from([(64, 32, 0), (128, 96, 8192), (256, 128, 16384)])
    regions = []
    for number in range(count):
        kernels = []
        for which in range(draw(st.integers(1, 3))):
            threads, registers, shared = draw(sizes)
            time = float(draw(st.integers(100, 5000)))
            times = (time, time * draw(st.sampled_from([1, 2])), 3 * time)
            blocks = draw(st.integers(1, most_blocks))
            kernels.append(Kernel(f"k{which}", blocks, times, threads, registers, shared))
        regions.append(Region(f"r{number}", tuple(kernels), draw(st.sampled_from([None, "a"]))))
    if count > 1 and draw(st.booleans()):  # two of a kind
        regions[1] = Region("r1", regions[0].kernels, "a")
        regions[0] = Region("r0", regions[0].kernels, "a")
    needs = []
    for target in range(count):
        for source in range(target):
            if draw(st.integers(0, 3)) == 0:
                near = draw(st.booleans())
                halo = draw(st.sampled_from([0.0, 0.1, 0.3]))
                names = f"r{source}", f"r{target}"
                needs.append(Need(*names, "near", halo) if near else Need(*names, reuse=draw(st.booleans())))
    return TaskGraph("random", tuple(regions), tuple(needs))

"""The lecture's example: the product [64,512] x [512,128] beside a convolution, on eight multiprocessors.

Alone the product is fastest with 8 small blocks, of 32 x 32 outputs; with 2 large ones, of 64 x 64, six multiprocessors
have nothing to do. But beside a convolution of 6 blocks the two large ones just fill what is left:

    small blocks, then the convolution          large blocks beside the convolution
    P P P P P P P P                             P P C C C C C C
    C C C C C C . .    two idle                 P P C C C C C C
    C C C C C C . .
"""

from __future__ import annotations

from scheduler.policies.choose import schedule
from scheduler.tasks import Kernel, Region, TaskGraph
from tests.scheduler.policies.graphs import small_gpu

SMALL = Kernel("32 x 32", 8, (4000.0, 8000.0), 256, 128, 8192)
LARGE = Kernel("64 x 64", 2, (9000.0, 18000.0), 256, 128, 16384)
CONVOLUTION = Kernel("3 x 3", 6, (9000.0, 18000.0), 256, 128, 16384)
GRAPH = TaskGraph("lecture", (Region("product", (SMALL, LARGE)), Region("convolution", (CONVOLUTION,))))
DEVICE = small_gpu(8, launch_ns=2000.0, signal_ns=1000.0, block_fixed_ns=0.0)


def test_one_launch_after_the_other_takes_the_small_blocks() -> None:
    made = schedule(GRAPH, DEVICE, policy="launches")
    assert made.program.choice["product"] == 0
    assert made.makespan == (2000 + 4000) + (2000 + 9000)


def test_the_lower_latency_is_chosen_over_idle_multiprocessors() -> None:
    made = schedule(GRAPH, DEVICE, work=150_000)
    assert made.program.choice["product"] == 1
    assert made.makespan == 2000 + 9000
    assert list(made.simulation.utilisation) == [9 / 11] * 8  # all of them, from the launch on
    first = {name: made.simulation.start[made.simulation.region == number].min()
             for number, name in enumerate(made.simulation.regions)}  # fmt: skip
    assert first == {"product": 2000.0, "convolution": 2000.0}

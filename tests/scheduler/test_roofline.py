"""Kernels from flops and bytes: what they promise, in what order, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import cpu, device
from scheduler.errors import InvalidDevice, InvalidTaskGraph
from scheduler.roofline import Work, alone_ns, candidates, least_work_ns

V100, H200 = device("v100"), device("h200")
PRODUCT = Work("product", 2 * 64 * 128 * 512, 4 * (64 * 512 + 512 * 128), 4 * 64 * 128, 64 * 128, 512)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([V100, H200]), st.integers(1, 3000), st.integers(1, 2000), st.integers(1, 5000))
def test_no_kernel_beats_the_device(gpu, rows: int, columns: int, depth: int) -> None:  # type: ignore[no-untyped-def]
    flops, read, written = 2 * rows * columns * depth, 4 * (rows + columns) * depth, 4 * rows * columns
    made = candidates(gpu, Work("x", flops, read, written, rows * columns, depth))
    least = max(flops / gpu.peak_flops, (read + written) / gpu.bandwidth) * 1e9
    assert 1 <= len(made) <= 8
    for kernel in made:
        assert gpu.occupancy(kernel.resources) >= 1
        assert alone_ns(gpu, kernel) >= least
        assert least_work_ns(gpu, kernel) / gpu.multiprocessors >= least
        assert list(kernel.times) == sorted(kernel.times)
    alone = [alone_ns(gpu, kernel) for kernel in made]
    assert alone == sorted(alone)


def test_from_the_fastest_alone_to_the_least_work() -> None:
    made = candidates(V100, PRODUCT)
    assert len(made) >= 3
    assert made[0].blocks > made[-1].blocks
    assert alone_ns(V100, made[0]) < alone_ns(V100, made[-1])
    assert least_work_ns(V100, made[0]) > least_work_ns(V100, made[-1])


def test_depth_is_not_cut_where_blocks_fill_the_device() -> None:
    made = candidates(V100, Work("x", 2 * 4096 * 4096 * 64, 4 * 2 * 4096 * 64, 4 * 4096 * 4096, 4096 * 4096, 64))
    assert all("/" not in kernel.name for kernel in made)


def test_two_small_blocks_share_a_multiprocessor_and_two_large_ones_take_turns() -> None:
    kernels = {kernel.name.partition("/")[0]: kernel for kernel in candidates(V100, PRODUCT)}
    small = next(kernel for kernel in kernels.values() if kernel.threads < 256)
    assert small.time(2) < 2 * small.time(1)  # four warps alone leave half of the multiprocessor
    large = candidates(V100, Work("x", 2.0e12, 1 << 20, 1 << 20, 1 << 18, 4096))[-1]
    assert (large.threads, large.time(2)) == (256, 2 * large.time(1))


def test_a_cpu_has_the_blocks_that_are_given() -> None:
    made = candidates(cpu(2), replace(PRODUCT, blocks=6))
    assert [kernel.blocks for kernel in made] == [6]
    several = candidates(cpu(2), replace(PRODUCT, flops=1e9))
    assert [kernel.blocks for kernel in several] == [8, 2, 1]
    assert several[2].time(1) == pytest.approx(1e9 / 6.0e10 * 1e9)


def test_work_without_outputs_is_refused() -> None:
    with pytest.raises(InvalidTaskGraph, match="the work 'none' has 0 outputs of depth 1"):
        candidates(V100, Work("none", 1, 1, 1, 0))


def test_a_gpu_without_a_peak_is_refused() -> None:
    with pytest.raises(InvalidDevice, match="device 'v100' tells no peak flops or no bandwidth; add them to"):
        candidates(replace(V100, peak_flops=0.0), PRODUCT)

"""Kernels from flops and bytes: what they promise, in what order, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import cpu, device
from scheduler.errors import InvalidDevice, InvalidTaskGraph
from scheduler.roofline import Work, _products, alone_ns, block_rows, candidates, least_work_ns

V100, H200 = device("v100"), device("h200")
PRODUCT = Work("product", 2 * 64 * 128 * 512, 4 * (64 * 512 + 512 * 128), 4 * 64 * 128, 64 * 128, 512)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([V100, H200]), st.integers(1, 3000), st.integers(1, 2000), st.integers(1, 5000))
def test_no_kernel_beats_the_device(gpu, rows: int, columns: int, depth: int) -> None:  # type: ignore[no-untyped-def]
    flops, read, written = 2 * rows * columns * depth, 4 * (rows + columns) * depth, 4 * rows * columns
    made = candidates(gpu, Work("x", flops, read, written, rows * columns, depth, rows, columns))
    least = max(flops / gpu.peak_flops, (read + written) / gpu.bandwidth) * 1e9
    assert 1 <= len(made) <= 12
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


def test_a_convolution_has_no_small_tiles_and_its_depth_is_not_cut() -> None:
    deep = replace(PRODUCT, depth=4096, flops=8 * PRODUCT.flops)
    assert any("/" in kernel.name for kernel in candidates(V100, deep))
    made = candidates(V100, replace(deep, convolution=True))
    assert all("/" not in kernel.name for kernel in made)
    assert not {kernel.name for kernel in made} & {"tile32x32s4", "tile64x32s4", "tile32x64s4"}


def test_tiles_cover_rows_and_columns() -> None:
    # 289 positions and 192 channels, as in Inception-V3: 3 x 2 tiles of 128 x 128, where 4 would hold as many numbers.
    work = Work("x", 2 * 289 * 192 * 1344, 4 * 1344 * 481, 4 * 289 * 192, 289 * 192, 1344, 289, 192)
    blocks = {kernel.name: kernel.blocks for kernel in _products(V100, work)}
    assert (blocks["tile128x128"], blocks["tile32x64s4"], blocks["tile32x32s4"]) == (6, 30, 60)
    made = {kernel.name: kernel for kernel in _products(V100, work)}
    begins, ends = block_rows(work, made["tile128x128"])
    assert list(begins * 289) == pytest.approx([0, 0, 128, 128, 256, 256])
    assert list(ends * 289) == pytest.approx([128, 128, 256, 256, 289, 289])


def test_pieces_of_a_tile_lie_in_its_rows() -> None:
    made = {kernel.name: kernel for kernel in _products(V100, PRODUCT)}  # 91 x 91: three tiles of 32 rows and columns
    begins, ends = block_rows(PRODUCT, made["tile32x32s4/2"])
    assert len(begins) == 3 * 3 * 2
    assert list(begins[4:8] * 91) == pytest.approx([0, 0, 32, 32])
    assert list(ends[4:8] * 91) == pytest.approx([32, 32, 64, 64])


def test_four_warps_with_tiles_wait_at_barriers_alone_and_hide_it_together() -> None:
    made = {kernel.name: kernel for kernel in _products(V100, replace(PRODUCT, depth=4096, flops=8 * PRODUCT.flops))}
    four, eight, two = made["tile32x32s4"], made["tile128x128"], made["tile64x64"]
    assert four.time(2) == pytest.approx(1.8 * four.time(1), abs=2)
    assert eight.time(2) == pytest.approx(2 * eight.time(1), abs=2)
    assert two.time(2) == two.time(1)  # two warps keep half of the multiprocessor's sub-partitions busy


def test_what_was_just_written_is_read_from_the_cache() -> None:
    copied = Work("copy", 0, 4 << 18, 4 << 18, 1 << 18)
    again = replace(copied, recent_bytes=4 << 18)
    memory, cache = (least_work_ns(V100, candidates(V100, one)[0]) for one in (copied, again))
    # 2 MiB by 765 GB/s; or half of it, which is more than all of it by 2155 GB/s; and what blocks take besides.
    assert memory - cache == pytest.approx((1 << 20) / 765e9 * 1e9 * 80, rel=0.02)
    large = replace(copied, read_bytes=4 << 20, recent_bytes=4 << 20, outputs=1 << 20)
    assert candidates(V100, large) == candidates(V100, replace(large, recent_bytes=0))


def test_adding_up_pieces_takes_a_signal_and_the_cache() -> None:
    deep = Work("x", 2 * 256 * 256 * 8192, 1 << 20, 1 << 18, 256 * 256, 8192)
    made = {kernel.name: kernel for kernel in _products(H200, deep)}
    whole, half = made["tile128x128"], made["tile128x128/2"]
    assert half.blocks == 2 * whole.blocks
    assert half.time(1) > whole.time(1) / 2 + H200.signal_ns


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

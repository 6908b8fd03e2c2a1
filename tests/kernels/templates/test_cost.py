"""The estimate's terms, each by what it must prefer; constants may be fitted anew as long as these hold."""

from __future__ import annotations

from kernels.target import Target, x86_64_v3, x86_64_v4
from kernels.templates import cost
from kernels.templates.gemm import Gemm, GemmCandidate, candidates, estimate
from kernels.templates.grid import balanced


def chosen(rows: int, columns: int, depth: int, target: Target | None = None) -> GemmCandidate:
    return candidates(Gemm(rows, columns, depth), target or x86_64_v4())[0]


def per_product(rows: int, vectors: int, depth: int) -> float:
    """Cycles of a tile for each of its multiply-adds."""
    return cost.tile_cycles(rows, vectors, depth, False, x86_64_v4()) / (rows * vectors * depth)


def test_deep_tiles_reach_the_peak_and_shallow_ones_do_not() -> None:
    assert per_product(4, 6, 2000) < 1.01
    assert per_product(4, 6, 5) > 1.2


def test_shallow_tiles_of_many_sums_wait_for_their_stores() -> None:
    # Sixteen sums are stored while the next tile begins; 24 cost more for each.
    assert per_product(4, 4, 5) < per_product(4, 6, 5)
    assert per_product(2, 8, 5) == per_product(4, 4, 5)


def test_few_sums_wait_for_one_another() -> None:
    assert per_product(1, 4, 500) > per_product(1, 6, 500)
    assert chosen(1, 1000, 2048).vectors >= 6


def test_wide_panels_of_cold_weights_cost_more_for_each_byte() -> None:
    def cycles(vectors: int) -> float:
        return cost.product_cycles(balanced(2, 2), balanced(36, vectors), 500, 4, False, x86_64_v4())

    assert cycles(4) < cycles(9)


def test_rows_that_leave_the_first_cache_are_read_by_few_panels() -> None:
    def reread(rows: int) -> float:
        """Cycles for each row that six panels cost more than three."""
        narrow, wide = (
            cost.product_cycles(balanced(rows, 4), balanced(12, vectors), 100, 4, False, x86_64_v4())
            for vectors in (2, 4)
        )
        return (narrow - wide) / rows

    assert reread(400) > 1.2 * reread(40)  # 400 rows of 400 bytes are 160 KB


def test_deep_products_take_the_depth_in_parts() -> None:
    assert chosen(128, 768, 3072).depth_block == 384
    assert chosen(128, 768, 100).depth_block is None
    assert chosen(1, 1000, 2048).depth_block is None, "one row has no sums that others wait for"


def test_short_parts_are_not_tried_where_rows_leave_the_second_cache() -> None:
    def parts(rows: int) -> set[int | None]:
        return {one.depth_block for one in candidates(Gemm(rows, 768, 1024), x86_64_v4())}

    assert min(part for part in parts(128) if part) < 200
    assert parts(2000) == {None, 384}


def test_sums_that_wait_for_the_next_part_cost_time() -> None:
    target, gemm = x86_64_v4(), Gemm(64, 64, 768)
    times = [estimate(gemm, GemmCandidate(6, 4, 11, 1, "constant", part), target) for part in (384, 192, 96, 48)]
    assert times[0] < times[1] and times[2] < times[3]


def test_sixteen_registers_keep_their_tile() -> None:
    found = chosen(128, 768, 768, x86_64_v3())
    assert found.rows * found.vectors in (12, 10)


def test_a_step_takes_its_products_its_loads_or_its_latency() -> None:
    """On a core with one product and one load of a vector per cycle, and two broadcasts."""
    products, loads, latency = (
        cost.step_cycles(*given, x86_64_v4(), pressure=0.0) for given in ((24, 12, 2), (4, 8, 3), (2, 2, 1))
    )
    assert (products, loads, latency) == (24, 7, cost.LATENCY)
    assert cost.step_cycles(24, 12, 2, x86_64_v4(), pressure=0.5) == 24 + 0.5 * 8
    assert cost.step_cycles(26, 13, 2, x86_64_v4(), pressure=0.0) == 26 * (1 + cost.MANY), "more sums than 24"

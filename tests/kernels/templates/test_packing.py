"""Panels of weights beside plain loops, and the memory that packing takes beside its result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from kernels.kernel import Filling, Packing
from kernels.templates.bits import BitsProduct, ColumnPacking
from kernels.templates.grid import balanced, split_last
from kernels.templates.packing import PanelPacking
from kernels.templates.quantized.packing import TilePacking
from kernels.templates.quantized.product import QuantizedProduct

Array = np.ndarray


def by_loops(packing: PanelPacking, matrices: Array) -> Array:
    """Element by element: [matrix][group][panel][step][column][element of the step]."""
    steps = max(-(-packing.depth // packing.group), packing.least)
    found: list[float] = []
    for matrix in matrices:
        for group in packing.groups:
            width = group.size * packing.lanes
            for panel in range(group.count):
                first = group.start * packing.lanes + panel * width
                for step in range(steps):
                    for column in range(first, first + width):
                        for depth in range(step * packing.group, (step + 1) * packing.group):
                            inside = depth < packing.depth and column < packing.columns
                            found.append(matrix[depth, column] if inside else 0)
    return np.array(found, matrices.dtype)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("depth", "columns", "group", "least", "matrices"),
    [(5, 7, 1, 0, 1), (8, 40, 1, 0, 2), (7, 33, 4, 0, 1), (6, 16, 2, 5, 3), (1, 1, 4, 0, 1), (9, 35, 2, 0, 2)],
)
def test_panels_have_every_element_in_its_place(
    depth: int, columns: int, group: int, least: int, matrices: int, turned: bool
) -> None:
    lanes = 4
    groups = split_last(balanced(-(-columns // lanes), 3), columns % lanes)
    packing = PanelPacking(
        depth, columns, lanes, tuple(groups), group, 1 if turned else columns, depth if turned else 1, matrices,
        depth * columns, least,
    )  # fmt: skip
    array = np.arange(1, matrices * depth * columns + 1, dtype=np.float32).reshape(matrices, depth, columns)
    given = np.ascontiguousarray(array.swapaxes(1, 2)) if turned else array
    np.testing.assert_array_equal(packing.pack(given), by_loops(packing, array))


def peak_of(call: Callable[[], object]) -> int:
    """Bytes of arrays that a call holds at once at the most, beyond those before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


DEPTH, COLUMNS, LANES = 1000, 1200, 16
GROUPS = tuple(balanced(COLUMNS // LANES, 4))


@pytest.mark.parametrize(
    ("packing", "kind"),
    [
        (PanelPacking(DEPTH, COLUMNS, LANES, GROUPS), np.float32),
        (PanelPacking(DEPTH, COLUMNS, LANES, GROUPS, row=1, column=DEPTH), np.float32),
        (PanelPacking(DEPTH, COLUMNS, LANES, GROUPS, group=4, least=260), np.int8),
        (ColumnPacking(BitsProduct(1, COLUMNS, 2048, 4, 32), LANES, GROUPS, "codes", 4), np.uint8),
    ],
)
def test_packed_weights_are_written_where_they_shall_lie(packing: Packing, kind: type) -> None:
    assert isinstance(packing, Filling)
    given = np.ones(DEPTH * COLUMNS if isinstance(packing, PanelPacking) else COLUMNS * 1024, kind)
    packed = np.zeros(packing.elements, kind)
    assert peak_of(lambda: packing.fill(given, packed)) < given.nbytes / 20
    assert packed.any()


def test_weights_in_bytes_take_few_times_their_size() -> None:
    side = 2048
    problem = QuantizedProduct(1, side, side)
    packing = TilePacking(problem.convolution, "u8s8", LANES, 4)
    array = np.ones((side, side), np.int8)
    # The result and its words in the order of channels; sums of eight bytes are made of some channels at once.
    assert peak_of(lambda: packing.pack(array)) < 2.5 * packing.elements + (12 << 20)

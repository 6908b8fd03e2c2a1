"""The estimate of tiles from what is counted, beside the fit that it replaces: judged by tiles timed on an H200.

docs/benchmarks/tiles/h200.json has 18 tiles of 31 products and convolutions (2026-11-26, python -m bench.gpu.tiles),
each the median of five graphs of twenty launches. The kernels were an earlier form: their counts are here, read off
their PTX. Three of their blocks had room on a multiprocessor. Times above six times the best tile's are left out: the
device was not alone, and most of them are no tile's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from kernels.ptx.tasks.tile import TILES, SliceCounts, TaskTile, TiledProduct, cycles
from kernels.target import Target, cuda

ISSUE = 24
MEASURED = Path(__file__).parents[2] / "docs" / "benchmarks" / "tiles" / "h200.json"
RESIDENT = 3  # blocks of the measured launches, by their 80 registers
COUNTS = SliceCounts(slice=16.0, vector=6.0, element=6.0, tap=0.0, tapped=13.5, placed=37.0, check=0.0)
LAUNCH_NS = 2100.0  # between two kernels of a graph, as measured there with a small one: in all of the times
CLOCK = 1.755  # cycles of a nanosecond
_APART = 6.0
Estimate = Callable[[TaskTile, TiledProduct, Target], float]


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each estimate."""
    estimates: dict[str, Estimate] = {
        "counted": lambda tile, product, target: cycles(tile, product, target, RESIDENT, COUNTS),
        "counted, two blocks resident": lambda tile, product, target: cycles(tile, product, target, 2, COUNTS),
        "fitted before": fitted,
    }
    columns = ("estimate", "tiles", "median error x", "mean error x", "estimate / measured", "chosen / best", "at most")
    rows = [(name, *_judged(estimate)) for name, estimate in estimates.items()]
    counts, fit = rows[0], rows[-1]
    sheet.table("estimates of tiles beside an H200's times, launches included", columns, rows)
    figure = f"{counts[3]:.2f} x; chosen tiles {counts[5]:.2f} x the best, the fit's {fit[5]:.2f} x"
    text = "mean error of the estimate from counts"
    return [Bar(ISSUE, 4, text, f"at most the fit's, {fit[3]:.2f} x", figure, counts[3] <= 1.01 * fit[3])]


def fitted(tile: TaskTile, product: TiledProduct, target: Target) -> float:
    """The estimate until 2026-11-26: its constants were fitted to these tiles."""
    of_right = 40.0 if product.channels and product.channels % 32 else 3.0 if product.right == 4 else 16.0
    of_left = 3.0 if product.left == 4 else 16.0
    blocks = product.matrices * -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    slices = max(1, -(-product.depth // tile.slice))
    multiplies = tile.rows * tile.columns * tile.slice / 128
    held = tile.pieces * tile.slice * (tile.tall + tile.wide) * 4 / 128
    copies = (tile.rows * of_left + tile.columns * of_right) * tile.slice / 128
    beside = min(2, -(-blocks // max(1, target.workers)))
    each = max((multiplies + 0.9 * held + copies) * (1.7 if beside > 1 else 1.0), 300.0)
    stores = tile.rows * tile.columns / 256 * 5.0
    return -(-blocks // (beside * max(1, target.workers))) * (slices * each + 3000.0 + stores)


def _judged(estimate: Estimate) -> tuple[Any, ...]:
    target, by_name = cuda("sm_90"), {str(tile): tile for tile in TILES}
    errors, lost = list[float](), list[float]()
    for one in json.loads(MEASURED.read_text()):
        product, taken = TiledProduct(*one["product"]), one["microseconds"]
        best = min(taken.values())
        said = {
            name: (estimate(by_name[name], product, target) / CLOCK + LAUNCH_NS) / 1000 for name in taken
        }  # fmt: skip
        errors += [float(np.log(said[name] / us)) for name, us in taken.items() if us < _APART * best]
        lost.append(taken[min(said, key=said.__getitem__)] / best)
    found = np.array(errors)
    return (
        len(found), float(np.exp(np.median(np.abs(found)))), float(np.exp(np.abs(found).mean())),
        float(np.exp(found.mean())), float(np.exp(np.log(lost).mean())), max(lost),
    )  # fmt: skip


if __name__ == "__main__":
    main(measure)

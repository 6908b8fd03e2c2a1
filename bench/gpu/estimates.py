"""The estimate of tiles from what is counted, judged by tiles that were timed on two GPUs.

docs/benchmarks/tiles has 18 tiles of 68 products and convolutions on an H100, and all 20 of 36 convolutions on an H200
(python -m bench.gpu.tiles): each the median of five graphs of twenty launches. Four constants of the estimate were
chosen by the H100's times, two of its tiles by the H200's. Times above six times the best tile's are left out: the
device was not alone, and most of them are no tile's. Beside it stands a fit to times of an H200 and an earlier form of
the kernels, which chose tiles before.
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
from kernels.ptx.tasks.tile import TILES, TaskTile, TiledProduct, cycles
from kernels.target import Target, cuda

ISSUE = 24
FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks" / "tiles"
LAUNCH_NS = 1600.0  # between two kernels of a graph, measured with small ones: in all times
CLOCK = {"h100": 1.755, "h200": 1.98}  # cycles of a nanosecond
_APART = 6.0
Estimate = Callable[[TaskTile, TiledProduct, Target], float]


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each estimate."""
    estimates: dict[tuple[str, str], Estimate] = {
        ("h100", "counted"): cycles,
        ("h100", "fitted before"): fitted,
        ("h200", "counted"): cycles,
        ("h200", "fitted before"): fitted,
    }
    columns = (
        "device", "estimate", "tiles", "median error x", "mean error x", "estimate / measured", "chosen / best",
        "at most",
    )  # fmt: skip
    rows = {key: _judged(key[0], estimate) for key, estimate in estimates.items()}
    title = "estimates of tiles beside measured times, launches included"
    sheet.table(title, columns, [(*key, *row) for key, row in rows.items()])
    counts, fit = rows["h100", "counted"], rows["h100", "fitted before"]
    figure = f"{counts[2]:.2f} x; chosen tiles {counts[4]:.2f} x the best, the fit's {fit[4]:.2f} x"
    text = "mean error of the estimate from counts, on an H100"
    return [Bar(ISSUE, 4, text, f"at most the fit's, {fit[2]:.2f} x", figure, counts[2] <= 1.01 * fit[2])]


def fitted(tile: TaskTile, product: TiledProduct, target: Target) -> float:
    """The estimate until 2026-11-26: its constants were fitted to the H200's tiles."""
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


def _judged(device: str, estimate: Estimate) -> tuple[Any, ...]:
    target, by_name = cuda("sm_90"), {str(tile): tile for tile in TILES}
    errors, lost = list[float](), list[float]()
    for one in json.loads((FOLDER / f"{device}.json").read_text()):
        product, taken = TiledProduct(*one["product"]), one["microseconds"]
        best = min(taken.values())
        said = {
            name: (estimate(by_name[name], product, target) / CLOCK[device] + LAUNCH_NS) / 1000 for name in taken
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

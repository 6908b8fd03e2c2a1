"""Steps in less memory beside torch: `.venv-torch/bin/python -m bench.gradients.checkpoints [NAME ...]`.

Sequential networks in float32 on one thread, as torch modules and as our training steps, with the same weights, batch
and plain SGD. Torch runs them in eager mode, by `checkpoint_sequential` in several numbers of segments, and compiled
under its activation memory budget, by the backend `aot_eager_decomp_partition`; with `--inductor` by that too, which
needs a C++ compiler and takes minutes for each budget. Torch's memory is the peak of what its CPU allocator gave out
during a step, from its profiler's log, without parameters, gradients and what oneDNN takes for itself; ours is the
arena of the program, gradients included until their weights are updated.

Losses and gradients are compared first, in the measure of `bench.gradients`. A point of torch is held where a program
of ours takes no more memory and no more time: times by turns, as medians of pairwise ratios, at the end of their 95 %
bootstrap interval. `--every` makes a program at the memory of every eager way, for a whole curve; without it only where
no other is as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.bar import Bar, Sheet, console
from bench.gradients.__main__ import FACTOR, FLOOR
from bench.peers import OURS
from graphopt.report.interactive import interactive_page

if TYPE_CHECKING:
    from bench.gradients.points import Compared  # torch is in an environment of its own

ISSUE, NUMBER = 23, 5
TEXT = "steps in less memory beside torch, {} networks, one thread"
TARGET = "losses and gradients equal; at each of torch's points no more memory and no more time"
NAMES = ("mlp64", "bert4", "resnet18", "deep50", "deep200")
QUICK = ("resnet18",)
ROUNDS, QUICK_ROUNDS = 11, 5
MIB = 1 << 20
FOLDER = Path(__file__).parent / "templates"


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS, names: Sequence[str] = (),
    inductor: bool = False, every: bool = False, page: Path | None = None,
) -> list[Bar]:  # fmt: skip
    """Torch's checkpoints and budgets, and programs within the memory of each."""
    names = names or (QUICK if quick else NAMES)
    text = TEXT.format(len(names))
    if find_spec("torch") is None:
        return [Bar(ISSUE, NUMBER, text, TARGET, "not measured: torch is not installed", None)]
    from bench.gradients.checkpointed import Backend  # torch is in an environment of its own
    from bench.gradients.points import compare

    backends: list[Backend] = [] if quick else ["aot_eager_decomp_partition"]
    backends += ["inductor"] if inductor else []

    def tell(line: str) -> None:
        sheet.console.print(line, highlight=False)

    found = []
    for name in names:
        found.append(compare(name, QUICK_ROUNDS if quick else ROUNDS, backends, tell, every=every))
        _show(sheet, found[-1])
    if page is not None:
        page.write_bytes(checkpoints_page(found))
    points = [one for network in found for one in network.points]
    held = sum(one.is_held for one in points)
    unequal = [one.name for one in found if not one.is_equal(FACTOR, FLOOR)]
    figure = f"{held} of {len(points)} points held"
    figure += "".join(
        f"; {network.name} not at {', '.join(str(one.way) for one in network.points if not one.is_held)}"
        for network in found
        if not all(one.is_held for one in network.points)
    )
    figure += f"; not equal: {', '.join(unequal)}" if unequal else ""
    return [Bar(ISSUE, NUMBER, text, TARGET, figure, held == len(points) and not unequal)]


def _show(sheet: Sheet, one: Compared) -> None:
    loss, gradient = one.own.loss, one.own.gradient
    rows: list[tuple[object, ...]] = [("torch float32, worst run", f"{loss:.1e}", f"{gradient:.1e}")]
    rows += [(str(point.way), f"{point.error.loss:.1e}", f"{point.error.gradient:.1e}") for point in one.points]
    rows.append(("ours", f"{one.ours.loss:.1e}", f"{one.ours.gradient:.1e}"))
    sheet.table(
        f"{one.name}: relative errors from torch's float64; equal: {'yes' if one.is_equal(FACTOR, FLOOR) else 'NO'}",
        ("way", "loss", "worst gradient"), rows,
    )  # fmt: skip
    sheet.table(
        f"{one.name}: {one.blocks} blocks; memory beyond parameters, gradients and state",
        ("torch", "MiB", "time / eager", "ours, MiB", "torch's time / ours", "from", "to", "held"),
        [
            (
                str(point.way), point.memory / MIB, point.slower.median,
                None if point.ours is None else point.ours / MIB,
                *((None,) * 3 if point.faster is None else (point.faster.median, point.faster.low, point.faster.high)),
                point.is_held,
            )
            for point in one.points
        ],
    )  # fmt: skip
    sheet.table(
        f"{one.name}: programs of ours" + "".join(f"; {words}" for words in one.refused),
        ("budget, MiB", "arena, MiB", "time / torch's eager", "from", "to", "bits", "made in s"),
        [
            (
                None if program.budget is None else program.budget / MIB, program.memory / MIB, program.slower.median,
                program.slower.low, program.slower.high, program.is_equal, program.seconds,
            )
            for program in one.programs
        ],
    )  # fmt: skip


def checkpoints_page(found: Sequence[Compared]) -> bytes:
    """Time against memory on each network, UTF-8; one file, no network."""
    data: list[dict[str, Any]] = []
    for one in found:
        lines: dict[str, list[tuple[str, float, float]]] = {"checkpoint_sequential": []}
        for point in one.points:
            line = "checkpoint_sequential" if point.way.backend is None else f"budget, {point.way.backend}"
            lines.setdefault(line, []).append((str(point.way), point.memory / MIB, point.slower.median))
        lines["ours"] = [
            ("no budget" if program.budget is None else f"budget {program.budget / MIB:.1f} MiB",
             program.memory / MIB, program.slower.median)
            for program in one.programs
        ]  # fmt: skip
        data.append(
            {
                "name": one.name,
                "lines": [{"name": name, "points": sorted(line, key=lambda at: at[1])} for name, line in lines.items()],
            }
        )
    return interactive_page(
        "checkpoints.html", data, ("checkpoints.js",), {}, folder=FOLDER, record={"model": "checkpoints"}, found=found,
        mib=MIB,
    )  # fmt: skip


def command(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(NAMES)}; all without any.")] = None,
    quick: Annotated[bool, typer.Option(help="One small network, eager, fewer rounds.")] = False,
    inductor: Annotated[bool, typer.Option(help="Budgets by inductor too; minutes for each.")] = False,
    every: Annotated[bool, typer.Option(help="A program at the memory of every eager way.")] = False,
    page: Annotated[Path | None, typer.Option(help="Draw time against memory in this HTML file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Steps in less memory beside torch."""
    sheet = Sheet(console())
    if unknown := set(names or ()) - set(NAMES):
        raise typer.BadParameter(f"There is no {min(unknown)}; there are {', '.join(NAMES)}.")
    bars = measure(sheet, quick=quick, names=names or (), inductor=inductor, every=every, page=page)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)

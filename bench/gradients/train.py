"""Training steps beside torch: `.venv-torch/bin/python -m bench.gradients.train [NAME ...] [--page FILE]`.

Five networks train on generated data for 200 steps: with torch in float64, which is the truth, with torch in float32,
and with the step that graphopt writes, in ONNX Runtime and as our program. The distance of a run is the largest
difference of its losses from those of float64; ours may be twice torch's in float32, or 1e-6. Torch's is the worst of
three runs, two of them on weights that are moved by a unit of rounding: where ReLUs and pools decide by rounding which
way a gradient goes, losses part by chance, and one run says little about how far. The page has the curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, get_args

import typer

import graphopt
from bench.bar import Bar, Sheet, console
from bench.peers import OURS
from models import trainable

ISSUE, NUMBER = 23, 2
TEXT = "training beside torch for {} steps, {} networks"
FACTOR, FLOOR = 2.0, 1e-6
TARGET = f"distance from float64 <= max({FACTOR:g} x torch float32's, {FLOOR:g})"
STEPS, QUICK_STEPS = 200, 20
QUICK: tuple[trainable.Name, ...] = ("mlp", "bert")
Optimizer = graphopt.Optimizer
OPTIMIZERS: Mapping[trainable.Name, Optimizer] = {
    "mlp": Optimizer(name="sgd", learning_rate=0.05),
    "lstm": Optimizer(name="adam", learning_rate=2e-3),
    "bert": Optimizer(name="adamw", learning_rate=5e-4, weight_decay=0.01),
    "resnet18": Optimizer(name="momentum", learning_rate=5e-4),
    "mobilenet_v2": Optimizer(name="momentum", learning_rate=1e-4, weight_decay=1e-4),
}


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS,
    names: Sequence[trainable.Name] = (), page: Path | None = None,
) -> list[Bar]:  # fmt: skip
    """Losses of 200 steps, and their distance from float64."""
    names = names or (QUICK if quick else get_args(trainable.Name))
    steps = QUICK_STEPS if quick else STEPS
    text = TEXT.format(steps, len(names))
    if find_spec("torch") is None:
        return [Bar(ISSUE, NUMBER, text, TARGET, "not measured: torch is not installed", None)]
    from bench.gradients.curves import Curves, curves_page, train  # torch is in an environment of its own

    found: list[Curves] = []
    for name in names:
        found.append(train(name, OPTIMIZERS[name], steps))
        sheet.console.print(f"{name}: {found[-1].verdict}", highlight=False)
    sheet.table(
        f"{steps} steps: largest distance of a loss from torch's float64",
        ("network", "optimizer", "first loss", "last ten", "torch float32", "ONNX Runtime", "program", "holds"),
        [one.row(FACTOR, FLOOR) for one in found],
    )
    if page is not None:
        page.write_bytes(curves_page(found, steps))
    held = [one for one in found if one.holds(FACTOR, FLOOR)]
    refused = [f"{one.name} ({engine})" for one in found for engine in one.refused]
    figure = f"{len(held)} of {len(found)} hold" + (f"; refused: {', '.join(refused)}" if refused else "")
    return [Bar(ISSUE, NUMBER, text, TARGET, figure, len(held) == len(found))]


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Networks; all without any.")] = None,
    quick: Annotated[bool, typer.Option(help="Two networks, 20 steps.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the curves to this HTML file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Training steps beside torch."""
    sheet = Sheet(console())
    chosen = [name for name in get_args(trainable.Name) if name in (names or ())]
    if unknown := set(names or ()) - set(chosen):
        raise typer.BadParameter(f"There is no {min(unknown)}; there are {', '.join(get_args(trainable.Name))}.")
    bars = measure(sheet, quick=quick, names=chosen, page=page)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)

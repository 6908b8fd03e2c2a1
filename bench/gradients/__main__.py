"""Gradients of zoo models beside torch autograd: `.venv-torch/bin/python -m bench.gradients [NAME ...] [--quick]`.

The gradient graph that graphopt writes runs in stock ONNX Runtime in float32; torch evaluates the same model by
operations of its own in float64, which is the truth, and in float32, which is what is usual. The error of a gradient is
its largest difference from float64 over the largest number of the float64 one. It may be twice that of torch in
float32, the worst of three runs on weights that differ by a unit of rounding, or 1e-5. A tensor whose gradient is
nothing but rounding (below 1e-9 of the model's largest, as that of a key's bias in attention, which is zero) is held to
the model's largest gradient.

torch is in an environment of its own, so that neither the product nor its tests can lean on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.bar import Bar, Sheet, console
from bench.peers import OURS

ISSUE, NUMBER = 23, 1
TEXT = "gradients beside torch autograd, {} zoo models"
FACTOR, FLOOR = 2.0, 1e-5
TARGET = f"<= max({FACTOR:g} x torch float32's error, {FLOOR:g})"
CASES: Mapping[str, Literal["cross-entropy", "mse"]] = {
    "mlp_tiny": "cross-entropy",
    "gru_op": "mse",
    "lstm_bi_op": "cross-entropy",
    "squeezenet1_1": "cross-entropy",
    "mobilenet_v2": "cross-entropy",
    "resnet18": "cross-entropy",
    "densenet121": "cross-entropy",
    "unet_own": "cross-entropy",
    "bert_small_rawdynamo": "mse",
    "swin_tiny": "cross-entropy",
    "gpt2_dyn": "cross-entropy",
}
QUICK = ("mlp_tiny", "squeezenet1_1", "lstm_bi_op")


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS, names: Sequence[str] = ()
) -> list[Bar]:
    """Every weight's gradient on zoo models with losses, in ONNX Runtime."""
    names = names or (QUICK if quick else tuple(CASES))
    text = TEXT.format(len(names))
    if find_spec("torch") is None:
        return [Bar(ISSUE, NUMBER, text, TARGET, "not measured: torch is not installed", None)]
    from bench.gradients.beside import gradients_beside  # torch is in an environment of its own

    found = []
    for name in names:
        found.append(gradients_beside(name, CASES[name]))
        sheet.console.print(f"{name}: {found[-1].verdict}", highlight=False)
    sheet.table(
        "gradients: relative error of the worst tensor",
        ("model", "loss", "tensors", "torch float32", "ours", "worst / allowed", "of", "not held"),
        [
            (
                one.model, CASES[one.model], one.tensors, f"{one.own:.1e}",
                "-" if one.ours is None else f"{one.ours:.1e}", one.worst, one.where, one.beyond,
            )
            for one in found
        ],
    )  # fmt: skip
    refused = [one for one in found if one.worst is None]
    held = [one for one in found if one.worst is not None and one.worst <= 1]
    worst = max((one.worst for one in found if one.worst is not None), default=0.0)
    figure = f"{len(held)} of {len(found)} hold; worst {worst:.2f} of what is allowed"
    figure += f"; refused: {', '.join(one.model for one in refused)}" if refused else ""
    return [Bar(ISSUE, NUMBER, text, TARGET, figure, len(held) == len(found))]


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Models of the table; all without any.")] = None,
    quick: Annotated[bool, typer.Option(help="Three small models.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Gradients of zoo models beside torch autograd."""
    sheet = Sheet(console())
    if unknown := [name for name in names or () if name not in CASES]:
        raise typer.BadParameter(f"There is no {unknown[0]}; there are {', '.join(CASES)}.")
    bars = measure(sheet, quick=quick, names=names or ())
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)

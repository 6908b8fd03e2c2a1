"""`graphopt gradient`: a model with a loss and its gradients."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import (
    PATH,
    check_outputs,
    json_option,
    parse_shapes,
    parse_sizes,
    progress,
    shape_option,
    shown,
    size_option,
)
from graphopt.cli.streams import read_source
from graphopt.report.training import print_gradient

loss_options = [
    click.option(
        "--loss", required=True, metavar="cross-entropy|mse|OUTPUT",
        help="The loss: against targets that are an input then, or an output of one element.",
    ),
    click.option(
        "--with-respect-to", multiple=True, metavar="NAMES",
        help="Inputs and weights, * for any text; else everything that trains.",
    ),
    click.option("--output", "read", metavar="NAME", help="The output that the loss reads; else the first of floats."),
    click.option(
        "--class-axis", type=int, metavar="N",
        help="Where classes lie; else along the axis of a last Softmax, or 1, or the last one of three.",
    ),
    click.option("--ignore-index", type=int, metavar="N", help="Targets that do not count."),
]  # fmt: skip


def with_loss(command: click.decorators.FC) -> click.decorators.FC:
    """Give a command the options of losses."""
    for option in reversed(loss_options):
        command = option(command)
    return command


def names_of(given: tuple[str, ...]) -> str | list[str]:
    """The values of --with-respect-to: several options, or names joined by commas."""
    listed = [name.strip() for text in given for name in text.split(",") if name.strip()]
    return listed or "trainable"


@click.command()
@click.argument("source", metavar="MODEL", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@with_loss
@shape_option
@size_option
@json_option
def command(
    source: Path, output: Path, loss: str, with_respect_to: tuple[str, ...], read: str | None, class_axis: int | None,
    ignore_index: int | None, shape: tuple[str, ...], dim: tuple[str, ...], json: bool,
) -> None:  # fmt: skip
    """Write MODEL with a loss and its gradients as further outputs, in operators that every runtime has."""
    check_outputs(source, (("OUT", output),))
    with progress(f"differentiating {source.name}"):
        result = graphopt.gradient(
            read_source(source), loss=loss, with_respect_to=names_of(with_respect_to), output=read,
            class_axis=class_axis, ignore_index=ignore_index, shapes=parse_shapes(shape), dims=parse_sizes(dim),
        )  # fmt: skip
    result.save(output)
    shown(result.record(str(output)), json, print_gradient)

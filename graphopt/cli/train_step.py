"""`graphopt train-step`: a model as its own training step."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.gradient import names_of, with_loss
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
    switch,
)
from graphopt.cli.streams import read_source
from graphopt.gradient.optimizers import OPTIMIZERS, Optimizer, OptimizerName
from graphopt.report.training import print_step


@click.command()
@click.argument("source", metavar="MODEL", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@with_loss
@click.option(
    "--optimizer", type=click.Choice(OPTIMIZERS), default="sgd", show_default=True, help="As PyTorch's of that name."
)
@click.option("--learning-rate", type=float, default=1e-2, show_default=True, help="The default of the step's input.")
@click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Of all weights that train.")
@click.option("--momentum", type=float, default=0.9, show_default=True, help="Of --optimizer momentum.")
@click.option("--beta1", type=float, default=0.9, show_default=True, help="Of adam and adamw.")
@click.option("--beta2", type=float, default=0.999, show_default=True, help="Of adam and adamw.")
@click.option("--epsilon", type=float, default=1e-8, show_default=True, help="Of adam and adamw.")
@switch("--keep-statistics", "BatchNormalization uses the statistics that it has, and leaves them.")
@click.option(
    "--accumulate", type=click.IntRange(min=1), default=1, metavar="N", show_default=True,
    help="Average the gradients of N runs; weights change in every N-th.",
)  # fmt: skip
@shape_option
@size_option
@json_option
def command(
    source: Path, output: Path, loss: str, with_respect_to: tuple[str, ...], read: str | None, class_axis: int | None,
    ignore_index: int | None, optimizer: OptimizerName, learning_rate: float, weight_decay: float, momentum: float,
    beta1: float, beta2: float, epsilon: float, keep_statistics: bool, accumulate: int, shape: tuple[str, ...],
    dim: tuple[str, ...], json: bool,
) -> None:  # fmt: skip
    """Write a step that trains MODEL: from a batch, weights and state to the loss, new weights and new state."""
    check_outputs(source, (("OUT", output),))
    chosen = Optimizer(
        name=optimizer, learning_rate=learning_rate, weight_decay=weight_decay, momentum=momentum, beta1=beta1,
        beta2=beta2, epsilon=epsilon,
    )  # fmt: skip
    with progress(f"differentiating {source.name}"):
        result = graphopt.train_step(
            read_source(source), loss=loss, optimizer=chosen, with_respect_to=names_of(with_respect_to), output=read,
            class_axis=class_axis, ignore_index=ignore_index, batch_statistics=not keep_statistics,
            accumulate=accumulate, shapes=parse_shapes(shape), dims=parse_sizes(dim),
        )  # fmt: skip
    result.save(output)
    shown(result.record(str(output)), json, print_step)

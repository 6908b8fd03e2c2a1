"""The record of a model with gradients."""

from __future__ import annotations

import msgspec


class GradientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt gradient` wrote."""

    schema: str = "graphopt.gradient/1"
    input: str
    output: str  # empty: nothing was written
    loss: str  # the output that is the loss
    gradients: dict[str, str]  # by the value that they are taken to: the output
    parameters: int  # elements of these values, those with free dims left out
    nodes_before: int
    nodes_after: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt train-step` wrote."""

    schema: str = "graphopt.train_step/1"
    input: str
    output: str  # empty: nothing was written
    loss: str  # the output that is the loss
    optimizer: str
    seed: str | None  # the input that decides what Dropout drops
    carried: tuple[tuple[str, str, str], ...]  # input, output, kind: parameter, statistic, state or count
    nodes_before: int
    nodes_after: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class FitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt.fit` did."""

    schema: str = "graphopt.fit/1"
    model: str
    engine: str
    runs: int
    losses: tuple[float, ...]  # by run
    parameters: int  # numbers that were trained
    checkpoint: str  # the file; empty: none
    resumed: int  # runs that the checkpoint had at the beginning

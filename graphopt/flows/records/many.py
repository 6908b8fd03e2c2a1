"""Results of a folder of models, as `--json` prints them and as a run that is taken up again reads them."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["done", "refused", "crashed"]


class Result(msgspec.Struct, frozen=True):
    """What became of one model."""

    model: str  # its path in the folder
    status: Status  # refused: the command said why; crashed: its process died at every try
    error: str | None
    tries: int
    seconds: float  # of the last try
    record: dict[str, object] | None  # what the command's `--json` printed
    task: str  # digest of the model's file, the command and its options


class ManyRecord(msgspec.Struct, frozen=True):
    """A folder of models."""

    command: str
    folder: str
    results: tuple[Result, ...]  # by name of the model
    taken_over: int  # how many an earlier run had left
    schema: str = "graphopt.many/1"

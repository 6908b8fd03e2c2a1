"""`graphopt verify`: compare two models on seeded feeds, and find where they part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import FeedFiles, Json, Seconds, Tolerance, console, print_json, progress
from graphopt.errors import VerificationError
from graphopt.flows.optimize import DEFAULT_VERIFY_SECONDS
from graphopt.flows.records.models import VerifyRecord
from graphopt.report.terminal import line, print_verify


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help="The model that is right.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The model to compare with it.")],
    bisect: Annotated[
        bool, typer.Option("--bisect", help="When they differ, find the first intermediate value that does.")
    ] = False,
    verify_seconds: Seconds = DEFAULT_VERIFY_SECONDS,
    feeds: FeedFiles = None,
    tolerance: Tolerance = None,
    json: Json = False,
) -> None:
    """Compare two models with the same inputs and outputs. A check on seeded feeds, not a proof.

    Exit status: 0 equal within the tolerances, 1 different or at fault, 2 wrong usage.
    """
    with progress("verifying") as tell:
        verification = api.verify(a, b, seconds=verify_seconds, feeds=feeds, tolerance=tolerance)
        if verification.status == "not run":
            raise VerificationError(
                f"'{a}' and '{b}' could not be compared: {verification.reason}; make sure that ONNX Runtime runs '{a}'."
            )
        divergence = None
        if bisect and not verification.passed:
            divergence = api.first_divergence(a, b, seconds=verify_seconds, progress=tell)
    record = VerifyRecord(
        a=str(a), b=str(b), equal=verification.passed, verification=verification, divergence=divergence,
    )  # fmt: skip
    if json:
        print_json(record)
    screen = console(json)
    print_verify(screen, record)
    if bisect and not record.equal and divergence is None:
        line(screen, "first difference  none of the values that both models name differs by itself")
    if not record.equal:
        raise typer.Exit(1)

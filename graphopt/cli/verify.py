"""`graphopt verify`: compare two models on seeded feeds, and find where they part."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import (
    PATH,
    feeds_option,
    json_option,
    progress,
    seconds_option,
    shown,
    switch,
    tolerance_option,
)
from graphopt.errors import VerificationError
from graphopt.flows.records.models import VerifyRecord
from graphopt.report.terminal import print_verify


@click.command()
@click.argument("a", metavar="A", type=PATH)
@click.argument("b", metavar="B", type=PATH)
@switch("--bisect", "When they differ, find the first intermediate value that does.")
@seconds_option
@feeds_option
@tolerance_option
@json_option
def command(
    a: Path, b: Path, bisect: bool, verify_seconds: float, feeds: tuple[str, ...], tolerance: float | None, json: bool
) -> None:
    """Compare B with A, which is right. A check on seeded feeds, not a proof.

    Exit status: 0 equal within the tolerances, 1 different or at fault, 2 wrong usage.
    """
    with progress("verifying") as tell:
        verification = graphopt.verify(a, b, seconds=verify_seconds, feeds=feeds or None, tolerance=tolerance)
        if verification.status == "not run":
            raise VerificationError(
                f"'{a}' and '{b}' could not be compared: {verification.reason}; make sure that ONNX Runtime runs '{a}'."
            )
        divergence = None
        if bisect and not verification.passed:
            divergence = graphopt.first_divergence(a, b, seconds=verify_seconds, progress=tell)
    record = VerifyRecord(
        a=str(a), b=str(b), equal=verification.passed, verification=verification, divergence=divergence,
    )  # fmt: skip
    place = shown(record, json, print_verify)
    if bisect and not record.equal and divergence is None:
        place.line("first difference  none of the values that both models name differs by itself")
    if not record.equal:
        raise click.exceptions.Exit(1)

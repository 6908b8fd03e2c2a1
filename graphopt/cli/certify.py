"""`graphopt certify`: prove a bundle from the tables in its library, and try it on fresh feeds."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import PATH, json_option, progress, shown
from graphopt.report.certifying import print_certificate


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.option("--model", type=PATH, metavar="MODEL", help="Compare with this model in ONNX Runtime too.")
@click.option("--feeds", type=click.IntRange(min=1), default=3, metavar="N", show_default=True, help="Fresh feeds.")
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", show_default=True, help="Of fresh feeds.")
@json_option
def command(bundle: Path, model: Path | None, feeds: int, seed: int, json: bool) -> None:
    """Prove a bundle from the tables in its library, and run it with several numbers of threads.

    Proved, for one worker and for any number: memory, values, no deadlock, no race, no allocation in a run. A bundle
    that is not proved is refused with the run, its bytes and what is missing; exit status 1.
    """
    with progress(f"certifying {bundle.name}"):
        certificate = graphopt.certify(bundle, model=model, feeds=feeds, seed=seed)
    shown(certificate, json, print_certificate)

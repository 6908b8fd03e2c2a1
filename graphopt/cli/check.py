"""`graphopt check`: whether a bundle is whole, and what it has code for."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import PATH, json_option, progress, shown
from graphopt.report.checking import print_checked


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.option("--model", type=PATH, metavar="MODEL", help="Ask whether the bundle was made of this model.")
@json_option
def command(bundle: Path, model: Path | None, json: bool) -> None:
    """Check that a bundle is whole: its files, its weights' checksum, its interface and its levels.

    Creation looks at the size of the weights alone, so that it is quick; this reads them. A bundle that is not whole is
    refused with the file and the fault; exit status 1. `graphopt certify` proves besides what its runs do.
    """
    with progress(f"checking {bundle.name}"):
        checked = graphopt.check_bundle(bundle, model=model)
    shown(checked, json, print_checked)

"""`python -m memplan`: problems in files, solutions as JSON on standard output; exit status 1 for bad input."""

from __future__ import annotations

import sys

import click

from memplan.cli import pack, remat, tiers
from memplan.errors import MemplanError

app = click.Group(
    commands={"pack": pack.command, "remat": remat.command, "tiers": tiers.command},
    help="Memory plans of problems without a model.",
)


def main() -> None:
    """Run the command; what memplan refuses is one sentence on standard error and exit status 1."""
    try:
        app()
    except MemplanError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

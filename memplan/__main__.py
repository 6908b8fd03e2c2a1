"""`python -m memplan`: problems in files, solutions as JSON on standard output; exit status 1 for bad input."""

from __future__ import annotations

import sys

import typer

from memplan.cli import pack, remat, tiers
from memplan.errors import MemplanError

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command("pack")(pack.command)
app.command("remat")(remat.command)
app.command("tiers")(tiers.command)


@app.callback()
def root() -> None:
    """Memory plans of problems without a model."""  # with a callback, a single command keeps its name


def main() -> None:
    """Run the command; what memplan refuses is one sentence on standard error and exit status 1."""
    try:
        app()
    except MemplanError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""`python -m scheduler`: problems and programs in files, answers as JSON; exit status 1 for what is refused."""

from __future__ import annotations

import sys

import click

from scheduler.cli import check, solve
from scheduler.errors import SchedulerError

app = click.Group(
    commands={"solve": solve.command, "check": check.command},
    help="Schedules of task graphs, and whether a program is safe.",
)


def main() -> None:
    """Run the command; what scheduler refuses is one sentence on standard error and exit status 1."""
    try:
        app()
    except SchedulerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

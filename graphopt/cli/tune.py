"""`graphopt tune`: what was measured of kernels on this machine, and handing it on; `--tune` of other commands."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.options import PATH, UsageError, json_option, shown
from graphopt.flows.tune import export_choices, import_choices, tuning_record
from graphopt.report.tuning import print_tuning

SECONDS = 3.0  # in which compile measures where nobody says how long

tune_option = click.option(
    "--tune", type=click.FloatRange(min=0), metavar="SECONDS", envvar="GRAPHOPT_TUNE",
    help=f"Measure kernels in the program and keep what is found; 0: estimates choose. [default: {SECONDS:g}, for this "
    "machine]",
)  # fmt: skip


@click.command()
@click.option("--export", "out", type=PATH, metavar="FILE", help="Write what is kept, for machines of this kind.")
@click.option("--import", "given", type=PATH, metavar="FILE", help="Keep what another machine of this kind exported.")
@json_option
def command(out: Path | None, given: Path | None, json: bool) -> None:
    """Show which kernels were measured on this machine, or hand that on to another one of its kind.

    compile --tune SECONDS measures, and keeps what it finds in the user's cache folder for this processor.
    """
    if out is not None and given is not None:
        raise UsageError("--import", "one at a time: leave out --export.")
    if out is not None:
        record = export_choices(out)
    elif given is not None:
        record = import_choices(given)
    else:
        record = tuning_record()
    shown(record, json, print_tuning)


def seconds_of(given: float | None, *, here: bool) -> float:
    """How long to measure: as asked, or a little where the program is for this machine."""
    if given is not None:
        return given
    return SECONDS if here else 0.0

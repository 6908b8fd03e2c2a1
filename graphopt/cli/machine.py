"""`graphopt machine`: the record of this machine, measured the first time and kept."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import PATH, json_option, progress, shown, switch
from graphopt.errors import OptionError, SaveError
from graphopt.flows.machine import check_machine
from graphopt.machine.kept import cache_folder, kept_file
from graphopt.machine.record import MachineRecord
from graphopt.model.text import Progress
from graphopt.report.machine import print_check, print_machine
from graphopt.report.screen import screen
from kernels.cores import KNOWN

NONE = "none"


def _absolute(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The file as every process of a folder's models finds it; names stay."""
    return value if value is None or value == NONE or _is_name(value) else str(Path(value).absolute())


def _is_name(value: str) -> bool:
    return value in KNOWN and not Path(value).exists()


machine_option = click.option(
    "--machine", metavar="FILE|CORE|none", envvar="GRAPHOPT_MACHINE", callback=_absolute,
    help="Choose kernels and plan threads with this record, for a known core (znver4, ...) or a usual one; else with "
    "this machine's record, measured once.",
)  # fmt: skip


def read_machine(given: str | None, tell: Progress) -> MachineRecord | str | None:
    """What `--machine` means: a record in a file, a known core, none, or this machine's, measured if none is kept."""
    if given == NONE:
        return None
    if given is not None and _is_name(given):
        return given
    if given is not None:
        return graphopt.machine(given)
    try:
        return graphopt.machine(progress=tell)
    except (OptionError, SaveError) as error:
        screen(for_errors=True).line(f"planned without a record of this machine: {error}")
        return None


@click.command()
@switch("--measure", "Measure again, and keep that.")
@click.option("--machine", "file", type=PATH, metavar="FILE", help="Show the record in this file.")
@switch("--check", "Measure again, keep nothing, and say for each entry how far it is from the record.")
@json_option
def command(measure: bool, file: Path | None, check: bool, json: bool) -> None:
    """Show what this machine was measured to do, by which programs for several threads are planned.

    Measured when it is first asked for, or at the first compile, and kept in the user's cache folder for this
    processor. An entry is the best of its rounds, or their median where luck helps too; the spread is how far nine
    tenths of them lie from it.
    """
    with progress("graphopt machine") as tell:
        record = graphopt.machine(file, again=measure, progress=tell)
        checked = check_machine(record, tell) if check else None
    if checked is not None:
        shown(checked, json, print_check)
        return
    place = shown(record, json, print_machine)
    if file is None:
        place.line(f"{'kept':<13} in {kept_file(record.key, cache_folder())}")

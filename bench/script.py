"""The command line that every measuring script has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol

import typer

from bench.bar import Bar, Sheet, console
from bench.peers import OURS


class Measure(Protocol):
    """What a script measures: fills `sheet` and returns the bars."""

    def __call__(
        self, sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS
    ) -> list[Bar]:
        """Measure; `data` is the folder of outside models, `quick` asks for less, `optimizer` may be a peer."""
        ...


def main(measure: Measure) -> None:
    """Run `measure` with the options of the command line."""

    def command(
        data: Annotated[
            Path | None, typer.Option(envvar="GRAPHOPT_DATA", help="Folder of models from outside.")
        ] = None,
        json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
        quick: Annotated[bool, typer.Option(help="A smaller sweep.")] = False,
        optimizer: Annotated[str, typer.Option(help="Measure this one in our place.")] = OURS,
    ) -> None:
        sheet = Sheet(console())
        bars = measure(sheet, data=data, quick=quick, optimizer=optimizer)
        sheet.bars(bars)
        if json:
            sheet.write(json, bars)

    command.__doc__ = measure.__doc__
    typer.run(command)

"""`graphopt run`: run a bundle on arrays from files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from graphopt.cli.options import UsageError, console
from graphopt.errors import OptionError
from graphopt.files.place import told
from graphopt.files.single import write_file
from graphopt.program.deploy.session import Bundle


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder that `graphopt compile` wrote.")],
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input; NAME= may be left out when there is one."),
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write each output there as NAME.npy.")] = None,
) -> None:
    """Run a bundle once and show its outputs."""
    program = Bundle(bundle)
    names = [one.name for one in program.inputs]
    feeds = {}
    for text in given or ():
        name, separator, path = text.rpartition("=")
        if not separator:
            if len(names) != 1:
                raise UsageError("--input", f"'{text}' names no input; the bundle has {', '.join(names)}.")
            name = names[0]
        feeds[name] = _read(Path(path))
    found = program(**feeds)
    screen = console(False)
    for name, array in found.items():
        first = np.array2string(array.reshape(-1)[:6], precision=5, separator=", ")
        screen.print(f"{name}  {array.dtype} {list(array.shape)}  {first}", markup=False, soft_wrap=True)
        if output is not None:
            _write(output, f"{name.replace('/', '_')}.npy", array)


def _write(folder: Path, name: str, array: np.ndarray) -> None:
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, array)
    write_file(folder / name, content.getbuffer())


def _read(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise OptionError(f"'{path}' is no array that can be read: {error}; write it with numpy.save.") from error
    return array

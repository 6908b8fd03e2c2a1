"""Inputs of a program from files: `--input NAME=FILE.npy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphopt.cli.options import UsageError, several, switch
from graphopt.errors import OptionError
from graphopt.model.text import nearest

input_option = several("--input", metavar="NAME=FILE.npy", text="An input; NAME= may be left out when there is one")
random_option = switch("--random", "Draw the inputs that are not given, by a seed that stays the same.")


def read_inputs(names: Sequence[str], given: Sequence[str], *, random: bool) -> dict[str, np.ndarray]:
    """The arrays of `--input`, for a program with inputs of these names; all of them, unless others are `random`."""
    feeds = {}
    for text in given:
        name, separator, path = text.rpartition("=")
        if not separator:
            if len(names) != 1:
                raise UsageError("--input", f"'{text}' names no input; there are {', '.join(names)}.")
            name = names[0]
        if name not in names:
            raise UsageError("--input", f"there is no input '{name}'; {nearest(name, names)}.")
        feeds[name] = _read(Path(path))
    missing = [name for name in names if name not in feeds]
    if missing and not random:
        raise UsageError("--input", f"'{missing[0]}' is missing: give --input {missing[0]}=FILE.npy, or --random.")
    return feeds


def _read(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise OptionError(f"'{path}' does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise OptionError(f"'{path}' is no array that can be read: {error}; write it with numpy.save.") from error
    return array

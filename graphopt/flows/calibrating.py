"""Calibration data: files that hold many samples for each input, as feeds of the model's own dims."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import Draw, Feed, make_feed
from graphopt.check.given import Feeds, read_feeds
from graphopt.check.inputs import inputs_of
from graphopt.errors import OptionError
from graphopt.model.text import shown

DRAWN: tuple[Draw, ...] = ("normal", "unit", "positive")  # feeds on which errors are measured without data
HELD_OUT = 4  # one feed of so many is left out of calibration, and errors are measured on it


def samples_of(model: ir.Model, data: Feeds) -> list[Feed]:
    """The feeds of calibration data: those of `feeds` elsewhere, and arrays that hold many of them.

    An array with an axis in front of the input's dims has a sample at each place of it; one whose first dim is a
    multiple of the input's has as many. Raises OptionError for arrays that fit no input, or not each other.
    """
    sources: list[object] = []
    for source in [data] if isinstance(data, (str, os.PathLike, Mapping)) else list(data):
        arrays = _arrays(source)
        sources += [source] if arrays is None else _cut(model, arrays, _caption(source))
    return [one.feed for one in read_feeds(model, sources)]  # type: ignore[arg-type]


def parted(feeds: list[Feed]) -> tuple[list[Feed], list[Feed]]:
    """Feeds to calibrate with, and feeds to measure errors on: the same ones where there is a single one."""
    if len(feeds) == 1:
        return feeds, feeds
    held = max(len(feeds) // HELD_OUT, 1)
    return feeds[:-held], feeds[-held:]


def drawn(model: ir.Model, sizes: Mapping[str, int]) -> list[Feed]:
    """Seeded feeds with dynamic dims of some sizes, else of 1. Raises OptionError for inputs that no value suits."""
    try:
        return [make_feed(inputs_of(model), sizes, draw) for draw in DRAWN]
    except ValueError as error:
        raise OptionError(f"no feed can be drawn for this model: {error}; give data.") from error


def _caption(source: object) -> str:
    return f"'{source}'" if isinstance(source, (str, os.PathLike)) else "data"


def _arrays(source: object) -> Mapping[str, object] | None:
    """The arrays of a mapping or of one .npz file; None for another source, which `read_feeds` knows."""
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_file():
        return None
    try:
        with np.load(source, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, AttributeError):
        return None  # read_feeds refuses it


def _cut(model: ir.Model, arrays: Mapping[str, object], caption: str) -> list[dict[str, object]]:
    """One feed for each sample."""
    counts: dict[str, int] = {}
    pieces: dict[str, list[object]] = {}
    declared = {value.name or "": value.shape for value in model.graph.inputs}
    for name, given in arrays.items():
        array, shape = np.asarray(given), declared.get(name)
        pieces[name] = [array] if shape is None else _pieces(array, shape)
        if name in declared:
            counts[name] = len(pieces[name])
    count = max(counts.values(), default=1)
    for name, number in counts.items():
        if number not in (1, count):
            most = next(key for key, value in counts.items() if value == count)
            raise OptionError(
                f"{caption} has {number:,} samples of '{shown(name)}' and {count:,} of '{shown(most)}'; "
                "give as many of each."
            )
    used = {name: group for name, group in pieces.items() if name in counts or count == 1}
    return [
        {name: group[place if len(group) == count else 0] for name, group in used.items()} for place in range(count)
    ]


def _pieces(array: np.ndarray, shape: ir.Shape) -> list[object]:
    dims = [dim if isinstance(dim, int) else None for dim in shape]
    if array.ndim == len(dims) + 1:
        return list(array)
    first = dims[0] if dims else None
    if array.ndim == len(dims) and first and array.shape[0] > first and array.shape[0] % first == 0:
        return list(np.split(array, array.shape[0] // first))
    return [array]

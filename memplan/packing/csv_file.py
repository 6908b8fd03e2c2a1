"""Packing problems as CSV, the format of MiniMalloc: `id,lower,upper,size`, one buffer a line, half-open lifetimes.

Further columns may be there: `alignment` (bytes), `offset` (bytes, where the buffer is pinned; empty: free), `gaps`
(`lower-upper`, several with a space between) and `hint`, which is ignored, in any order. Sizes are bytes as they
stand; the capacity is not in the file.

Source of the format: https://github.com/google/minimalloc (a gap's window, `lower-upper@from:to`, is refused).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from memplan.errors import MemplanError
from memplan.plan import Packing
from memplan.problem import Buffer, InvalidProblem, MemoryProblem

REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "offset", "gaps", "hint")


class InvalidFile(MemplanError):
    """A file that is no packing problem: the message names the file, the line and the fault."""


def read_csv(path: Path) -> MemoryProblem:
    """The problem in a file; every buffer may start at any byte unless it has an alignment. Raises InvalidFile."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidFile(f"'{path}' cannot be read: {reason}.") from error
    rows = [(number, row) for number, row in enumerate(csv.reader(lines), start=1) if any(cell.strip() for cell in row)]
    if not rows:
        raise InvalidFile(f"'{path}' is empty; the first line must be '{','.join(REQUIRED)}'.")
    columns = [cell.strip() for cell in rows[0][1]]
    missing = [name for name in REQUIRED if name not in columns]
    unknown = [name for name in columns if name not in REQUIRED + OPTIONAL]
    if missing or unknown or len(set(columns)) != len(columns):
        fault = f"lacks {', '.join(missing)}" if missing else f"has '{unknown[0]}'" if unknown else "names one twice"
        raise InvalidFile(
            f"'{path}', line {rows[0][0]}: the header {fault}; it must name {', '.join(REQUIRED)} and may name "
            f"{', '.join(OPTIONAL)}."
        )
    buffers: dict[str, Buffer] = {}
    for number, row in rows[1:]:
        where = f"'{path}', line {number}"
        if len(row) != len(columns):
            raise InvalidFile(f"{where}: {len(row)} fields where the header names {len(columns)}.")
        buffer = _buffer(where, dict(zip(columns, (cell.strip() for cell in row), strict=True)))
        if buffer.name in buffers:
            raise InvalidFile(f"{where}: a buffer '{buffer.name}' was there before.")
        buffers[buffer.name] = buffer
    return MemoryProblem(tuple(buffers.values()), alignment=1)


def _buffer(where: str, cells: Mapping[str, str]) -> Buffer:
    if not cells["id"]:
        raise InvalidFile(f"{where}: the id is empty.")
    lower, upper, size = (_number(where, name, cells[name]) for name in REQUIRED[1:])
    alignment = _number(where, "alignment", cells["alignment"]) if cells.get("alignment") else None
    offset = _number(where, "offset", cells["offset"]) if cells.get("offset") else None
    if offset is not None and alignment is not None and alignment > 0 and offset % alignment:
        raise InvalidFile(f"{where}: the offset {offset} is no multiple of the alignment {alignment}.")
    try:
        gaps = tuple(_gap(where, gap) for gap in cells.get("gaps", "").split())
        return Buffer(cells["id"], size, lower, upper, alignment, offset, gaps)
    except InvalidProblem as error:
        raise InvalidFile(f"{where}: {error}") from error


def _number(where: str, column: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise InvalidFile(f"{where}: the {column} '{text}' is not a whole number.") from error
    if abs(number) >= 1 << 62:
        raise InvalidFile(f"{where}: the {column} {text} is too large.")
    return number


def _gap(where: str, text: str) -> tuple[int, int]:
    lower, dash, upper = text.partition("-")
    if not dash or not lower.isdecimal() or not upper.isdecimal():
        raise InvalidFile(f"{where}: the gap '{text}' is not of the form lower-upper.")
    return int(lower), int(upper)


def write_csv(problem: MemoryProblem, path: Path, packing: Packing | None = None) -> None:
    """Write a problem; with a packing, its offsets as a column. Raises InvalidFile for what the format cannot say."""
    for buffer in problem.buffers:
        if buffer.alias is not None or buffer.layout is not None:
            raise InvalidFile(f"buffer '{buffer.name}' lies in another or has a layout, which a CSV file cannot say.")
    alignments = {buffer.name: problem.alignment_of(buffer) for buffer in problem.buffers}
    offsets: Mapping[str, int | str]
    if packing is not None:
        offsets = packing.offsets
    else:
        offsets = {buffer.name: "" if buffer.offset is None else buffer.offset for buffer in problem.buffers}
    optional = {
        "alignment": any(one != 1 for one in alignments.values()),
        "gaps": any(buffer.gaps for buffer in problem.buffers),
        "offset": any(one != "" for one in offsets.values()),
    }
    columns = [*REQUIRED, *(name for name, needed in optional.items() if needed)]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            for buffer in problem.buffers:
                writer.writerow({
                    "id": buffer.name, "lower": buffer.begin, "upper": buffer.end, "size": buffer.size,
                    "alignment": alignments[buffer.name], "offset": offsets[buffer.name],
                    "gaps": " ".join(f"{begin}-{end}" for begin, end in buffer.gaps),
                })  # fmt: skip
    except OSError as error:
        raise InvalidFile(f"'{path}' cannot be written: {error.strerror}.") from error

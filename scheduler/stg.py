"""Standard Task Graph files: one row for each task, with its time and what it waits for.

    50                          how many tasks; not trusted, nor are the entry and the exit counted in it
    0    0    0                 number, time, count of predecessors
    1    7    1    0            and as many predecessors by number
    ...
    51   0    2    49    50
    # a comment, and whatever follows it

Rows are read until a line that begins with # or the end. The entry and the exit, which take no time, are tasks like the
others. Format: Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
algorithms", Journal of Scheduling 5, 2002.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import InvalidTaskGraph
from scheduler.lists.tasks import Tasks, tasks_of_edges

EXACT = 2**53  # whole numbers above are not told apart by floating point


@dataclass(frozen=True, slots=True, eq=False)
class StandardGraph:
    """The tasks of a file, in ascending order of their numbers there."""

    name: str
    numbers: tuple[int, ...]
    tasks: Tasks


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    number: int
    time: float
    before: tuple[int, ...]


def read_stg(file: Path) -> StandardGraph:
    """The graph of a file. Raises InvalidTaskGraph naming the file, and the line if there is one to blame."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidTaskGraph(f"'{file}' cannot be read: {reason}; give a Standard Task Graph file.") from error
    return parse_stg(text, file.name)


def parse_stg(text: str, name: str) -> StandardGraph:
    """The graph that a file's text tells. Raises InvalidTaskGraph."""
    lines = [(number, line.split()) for number, line in enumerate(_until_comment(text.splitlines()), 1) if line.strip()]
    if not lines:
        raise InvalidTaskGraph(f"'{name}' is empty: a Standard Task Graph file begins with its number of tasks.")
    line, first = lines[0]
    if len(first) != 1 or not first[0].isdecimal():
        raise InvalidTaskGraph(f"'{name}', line {line}: '{' '.join(first)}' is no number of tasks, which comes first.")
    rows = sorted((_row(name, line, words) for line, words in lines[1:]), key=lambda row: (row.number, row.line))
    if not rows:
        raise InvalidTaskGraph(f"'{name}' has no task: a row is a number, a time, a count and as many predecessors.")
    place = {row.number: position for position, row in enumerate(rows)}
    _check(name, rows, place)
    edges = [(place[other], place[row.number]) for row in rows for other in row.before]
    numbers = tuple(row.number for row in rows)
    sources, targets = [source for source, _ in edges], [target for _, target in edges]
    return StandardGraph(name, numbers, tasks_of_edges([row.time for row in rows], sources, targets, names=numbers))


def _until_comment(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if line.lstrip().startswith("#"):
            return
        yield line


def _row(name: str, line: int, words: list[str]) -> _Row:
    where = f"'{name}', line {line}"
    if len(words) < 3:
        raise InvalidTaskGraph(
            f"{where}: a row is a number, a time, a count and as many predecessors; here are {len(words)} fields."
        )
    number, count, *before = (_whole(where, word) for word in (words[0], *words[2:]))
    try:
        time = float(words[1])
    except ValueError as error:
        raise InvalidTaskGraph(f"{where}: the time '{words[1]}' of task {number} is not a number.") from error
    if not 0 <= time <= EXACT:
        raise InvalidTaskGraph(f"{where}: the time {words[1]} of task {number} is not between 0 and {EXACT}.")
    if count != len(before):
        raise InvalidTaskGraph(f"{where}: task {number} says it has {count} predecessors and names {len(before)}.")
    return _Row(line, number, time, tuple(before))


def _whole(where: str, word: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise InvalidTaskGraph(f"{where}: '{word}' is not a whole number.") from error


def _check(name: str, rows: list[_Row], place: dict[int, int]) -> None:
    for position, row in enumerate(rows):
        if place[row.number] != position:
            raise InvalidTaskGraph(f"'{name}', line {rows[position + 1].line}: task {row.number} is there already.")
        for other in row.before:
            if other not in place:
                raise InvalidTaskGraph(
                    f"'{name}', line {row.line}: task {row.number} waits for {other}, which is not there."
                )
    if sum(row.time for row in rows) > EXACT:
        raise InvalidTaskGraph(f"'{name}': the times add up to more than {EXACT}: too much to count.")

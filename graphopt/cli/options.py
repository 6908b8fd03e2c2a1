"""What the commands share: options, parsing of NAME=VALUE texts, progress, and where output goes."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from graphopt.errors import OptionError
from graphopt.files.place import find_place
from graphopt.files.single import write_file
from graphopt.flows.records.encode import encode
from graphopt.memory.share import read_budget
from graphopt.model.text import ONCE, Progress, nearest
from graphopt.report.screen import Screen, screen

F = TypeVar("F", bound=Callable[..., object])
Option = Callable[[F], F]

PATH = click.Path(path_type=Path)


class UsageError(Exception):
    """The command line itself is wrong, whatever the model; exit status 2."""

    def __init__(self, option: str, fault: str) -> None:
        super().__init__(f"{option}: {fault}")


def several(*names: str, metavar: str, text: str) -> Callable[[F], F]:
    """An option that may be given more than once."""
    return click.option(*names, multiple=True, metavar=metavar, help=f"{text}; repeatable.")


def switch(name: str, text: str) -> Callable[[F], F]:
    """An option that is on when it is given."""
    return click.option(name, is_flag=True, help=text)


json_option = switch("--json", "Print one JSON object on stdout; everything else goes to stderr.")
shape_option = several("--shape", metavar="NAME=1x3x224x224", text="Fix an input's shape, also as NAME:1,3,224,224")
size_option = several("--dim", metavar="NAME=SIZE", text="Fix a dynamic dim, one without a name as INPUT:AXIS")
range_option = several(
    "--dim", metavar="NAME=SIZE",
    text="Fix a dynamic dim, one without a name as INPUT:AXIS; NAME=224,256 makes a program for each size, NAME=1..512 "
    "one for all of them (from 0 where the dim may be empty), and NAME=OTHER+1 follows from another dim",
)  # fmt: skip
value_option = several("--value", metavar="NAME=16000", text="Fix an input at a value, or at a list such as 1,2,3")
defaults_option = switch("--fix-defaults", "Take inputs that have defaults for constants, so that they fold.")
feeds_option = several(
    "--feeds", metavar="FILE.npz|FOLDER",
    text="Compare on these inputs too: a .npz file with an array for each input (and for outputs that are expected), "
    "or a folder of them or of ONNX test data sets",
)  # fmt: skip
tolerance_option = click.option(
    "--tolerance", type=float, metavar="1e-3",
    help="Allow this relative difference instead of a multiple of the model's own rounding.",
)  # fmt: skip


def _level(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value not in (0, 1, 2, 3):
        raise UsageError("--level", f"there is no level {value}; levels are 0 to 3.")
    return value


level_option = click.option(
    "--level", type=int, callback=_level, default=2, metavar="0..3", show_default=True,
    help="0 clean-up only, 1 folding and algebra, 2 weight folding and fusion, 3 also rewrites that may change the "
    "last digits or help only on some machines.",
)  # fmt: skip
seconds_option = click.option(
    "--verify-seconds", type=float, default=300.0, metavar="S", show_default=True,
    help="Time for runs of the original, in seconds.",
)  # fmt: skip


def _pairs(texts: Sequence[str], option: str, form: str) -> Iterator[tuple[str, str]]:
    """Name and value of each text; the name is what stands before the last `=`."""
    seen: set[str] = set()
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not separator or not name or not value:
            raise UsageError(option, f"'{text}' is not of the form {form}.")
        if name in seen:
            raise UsageError(option, f"'{name}' is given twice.")
        seen.add(name)
        yield name, value


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`NAME=1x3x224x224` or `NAME:1,3,224,224`, several times."""
    found = {}
    for name, value in _pairs([_with_equals(text) for text in texts], "--shape", "NAME=1x3x224x224"):
        sizes = value.replace(",", "x").split("x")
        if not all(map(_is_count, sizes)):
            raise UsageError("--shape", f"'{value}' is not a shape; join sizes with x, such as 1x3x224x224.")
        found[name] = tuple(int(size) for size in sizes)
    return found


def _with_equals(text: str) -> str:
    """`NAME:1,3` as other optimizers write it, in our form."""
    name, colon, value = text.rpartition(":")
    return f"{name}={value}" if colon and all(map(_is_count, value.split(","))) else text


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_size(text: str) -> bool:
    return _is_count(text) and int(text) > 0


def parse_dims(texts: Sequence[str]) -> dict[str, int | str]:
    """`NAME=3` fixes, `NAME=N` frees, several times."""
    found: dict[str, int | str] = {}
    for name, value in _pairs(texts, "--dim", "NAME=3 or NAME=N"):
        if _is_count(value):
            found[name] = int(value)
        elif value.isidentifier():
            found[name] = value
        else:
            raise UsageError("--dim", f"'{value}' is neither a size nor a name for a dim.")
    return found


def parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    """`NAME=3` only, several times."""
    found = {}
    for name, value in parse_dims(texts).items():
        if not isinstance(value, int):
            raise UsageError("--dim", f"'{name}={value}' gives no size; give a number, {name}=8 for example.")
        found[name] = value
    return found


_TERM = r"(?:\d+|[A-Za-z_]\w*)"
_FORMULA = re.compile(rf"(?=.*[A-Za-z_]){_TERM} *([-+*/]+ *{_TERM} *)*")  # of other dims: past + 1, 32*n


def parse_sized_dims(texts: Sequence[str]) -> dict[str, int | str | tuple[int, int] | list[int]]:
    """`NAME=3`, listed sizes `NAME=3,5,8`, a range `NAME=1..512`, or a formula `NAME=OTHER+1`, several times."""
    found: dict[str, int | str | tuple[int, int] | list[int]] = {}
    for name, value in _pairs(texts, "--dim", "NAME=8, NAME=3,5 or NAME=1..8"):
        least, dots, most = value.partition("..")
        sizes = value.split(",")
        if dots and _is_count(least) and _is_size(most) and int(least) <= int(most):
            found[name] = int(least), int(most)
        elif dots:
            raise UsageError("--dim", f"'{name}={value}' is no range; give a least and a greatest size, {name}=1..8.")
        elif len(sizes) > 1 and all(map(_is_count, sizes)):
            found[name] = [int(size) for size in sizes]
        elif _FORMULA.fullmatch(value):
            found[name] = value
        else:
            found |= parse_sizes([f"{name}={value}"])
    return found


def parse_values(texts: Sequence[str]) -> dict[str, str | list[str]]:
    """`NAME=16000` or `NAME=1,2,3`, several times; what the texts spell depends on the input's type."""
    return {name: value.split(",") if "," in value else value for name, value in _pairs(texts, "--value", "NAME=16000")}


def parse_budget(text: str | None, option: str) -> str | None:
    """The text, if it is a budget: bytes such as 40MiB, or a share such as 50%."""
    try:
        read_budget(text)
    except OptionError as error:
        raise UsageError(option, str(error)) from error
    return text


def parse_skips(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Names of passes or rules, each of which must be known."""
    for name in names:
        if name not in known:
            raise UsageError("--skip", f"there is no pass or rule '{name}'; {nearest(name, known)}.")
    return tuple(names)


Record = TypeVar("Record", bound=msgspec.Struct)
# A file that may be asked for, what a line calls it, and what makes its bytes of the record.
Written = tuple[Path | None, str, Callable[[Record], bytes]]


def check_outputs(source: Path, outputs: Sequence[tuple[str, Path | None]]) -> None:
    """Refuse before the work is done what could not, or must not, be written after it; each output with its option."""
    seen: dict[Path, str] = {}
    for option, path in outputs:
        if path is None:
            continue
        place = find_place(path)
        if same_file(path, source):
            raise UsageError(option, f"'{path}' is the input itself; choose another file.")
        if not place.stream and seen.setdefault(place.path, option) != option:
            raise UsageError(option, f"'{path}' is written by {seen[place.path]} too; choose another file.")


def shown(record: Record, json: bool, text: Callable[[Screen, Record], None]) -> Screen:
    """Print a record: as text on stdout, or as JSON there and as text on stderr; returns where the text went."""
    if json:
        print_json(record)
    found = screen(json)
    text(found, record)
    return found


def write_reports(place: Screen, record: Record, files: Sequence[Written[Record]]) -> None:
    """Write what was asked for, and say so; raises SaveError."""
    for path, what, make in files:
        if path is not None:
            write_file(path, make(record))
            place.line(f"{what:<13} written to {path}")


def print_json(record: msgspec.Struct) -> None:
    """The record alone on stdout."""
    sys.stdout.write(encode(record).decode())
    sys.stdout.flush()


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Say on stderr what is waited for, and for how long; at once, and in a line of its own, what is done only once."""
    place = screen(for_errors=True)
    with place.waiting(what) as said:

        def hear(text: str) -> None:
            if ONCE in text and not place.is_terminal:
                place.line(text)
            said(text)

        yield hear


def same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to one existing file."""
    return first.exists() and second.exists() and first.samefile(second)

"""What the commands share: option types, parsing of NAME=VALUE texts, progress, and where output goes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import typer
from rich.console import Console

from graphopt.files.place import find_place
from graphopt.files.single import write_file
from graphopt.model.text import nearest
from graphopt.passes import pipeline
from graphopt.report.json_report import encode
from graphopt.report.terminal import Screen, line
from memplan.compiling import telling
from memplan.tiers.machine import InvalidMachine, parse_bytes

Progress = Callable[[str], None]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr.")]
Level = Annotated[
    int,
    typer.Option(
        "--level", min=0, max=3, metavar="0..3",
        help="0 clean-up only, 1 folding and algebra, 2 weight folding and fusion, 3 what may change rounding.",
    ),
]  # fmt: skip
Target = Annotated[
    pipeline.Target,
    typer.Option("--target", help="Operators the result may use: those of ONNX, or also ONNX Runtime's com.microsoft."),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value", metavar="NAME=16000", help="Fix an input at a value, or at a list such as 1,2,3; repeatable."
    ),
]
FixDefaults = Annotated[
    bool, typer.Option("--fix-defaults", help="Take inputs that have defaults for constants, so that they fold.")
]
FeedFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--feeds", metavar="FILE.npz|FOLDER",
        help="Compare on these inputs too: a .npz file with an array for each input (and for outputs that are "
        "expected), or a folder of them or of ONNX test data sets; repeatable.",
    ),
]  # fmt: skip
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance", min=0.0, metavar="1e-3",
        help="Allow this relative difference instead of a multiple of the model's own rounding.",
    ),
]  # fmt: skip
Layout = pipeline.Layout
Switch = Literal["on", "off"]
Seconds = Annotated[
    float, typer.Option("--verify-seconds", min=0.001, metavar="S", help="Time for runs of the original, in seconds.")
]


class UsageError(Exception):
    """The command line itself is wrong, whatever the model; exit status 2."""

    def __init__(self, option: str, fault: str) -> None:
        super().__init__(f"{option}: {fault}")


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
    """`NAME=1x3x224x224`, several times."""
    found = {}
    for name, value in _pairs(texts, "--shape", "NAME=1x3x224x224"):
        sizes = value.split("x")
        if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
            raise UsageError("--shape", f"'{value}' is not a shape; join positive sizes with x, such as 1x3x224x224.")
        found[name] = tuple(int(size) for size in sizes)
    return found


def parse_dims(texts: Sequence[str]) -> dict[str, int | str]:
    """`NAME=3` fixes, `NAME=N` frees, several times."""
    found: dict[str, int | str] = {}
    for name, value in _pairs(texts, "--dim", "NAME=3 or NAME=N"):
        if value.isascii() and value.isdigit():
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
        if not isinstance(value, int) or value < 1:
            raise UsageError("--dim", f"'{name}={value}' gives no size; sizes start at 1.")
        found[name] = value
    return found


def parse_values(texts: Sequence[str]) -> dict[str, str | list[str]]:
    """`NAME=16000` or `NAME=1,2,3`, several times; what the texts spell depends on the input's type."""
    return {name: value.split(",") if "," in value else value for name, value in _pairs(texts, "--value", "NAME=16000")}


def parse_budget(text: str | None, option: str) -> int | None:
    """Bytes from a text such as 40MiB; None for None."""
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except InvalidMachine as error:
        raise UsageError(option, str(error)) from error


STDOUT = Path("-")
Record = TypeVar("Record", bound=msgspec.Struct)
# A file that may be asked for, what a line calls it, and what makes its bytes of the record.
Written = tuple[Path | None, str, Callable[[Record], bytes]]


def json_or_console(record: msgspec.Struct, json_file: Path | None) -> Console:
    """Where tables go; with the file `-` the record is printed alone on stdout first."""
    if json_file == STDOUT:
        print_json(record)
    return console(json_file == STDOUT)


def check_outputs(source: Path, outputs: Sequence[tuple[str, Path | None]]) -> None:
    """Refuse before the work is done what could not, or must not, be written after it; each output with its option."""
    seen: dict[Path, str] = {}
    for option, path in outputs:
        if path is None or path == STDOUT:
            continue
        place = find_place(path)
        if same_file(path, source):
            raise UsageError(option, f"'{path}' is the input itself; choose another file.")
        if not place.stream and seen.setdefault(place.path, option) != option:
            raise UsageError(option, f"'{path}' is written by {seen[place.path]} too; choose another file.")


def write_reports(screen: Console, record: Record, files: Sequence[Written[Record]]) -> None:
    """Write what was asked for, and say so; raises SaveError."""
    for path, what, make in files:
        if path is not None and path != STDOUT:
            write_file(path, make(record))
            line(screen, f"{what:<14} written to {path}")


def parse_skips(names: Sequence[str]) -> tuple[str, ...]:
    """Names of passes or rules, each of which must exist."""
    known = [*pipeline.names(), *(rule.name for rule in pipeline.rules())]
    for name in names:
        if name not in known:
            raise UsageError("--skip", f"there is no pass or rule '{name}'; {nearest(name, known)}.")
    return tuple(names)


def console(json: bool) -> Console:
    """Where tables go: stdout, or stderr when stdout belongs to the JSON object."""
    return Screen(stderr=json, highlight=False)


def print_json(record: msgspec.Struct) -> None:
    """The record alone on stdout."""
    sys.stdout.write(encode(record).decode())
    sys.stdout.flush()


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A moving line on stderr while something long is running.

    When stderr is not a terminal, it only says that solvers have to be compiled, the first time that they are.
    """
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        with telling(lambda text: line(screen, text)):
            yield lambda text: None
        return
    with screen.status(what) as status:

        def tell(text: str) -> None:
            status.update(f"{what}: {text}")

        with telling(tell):
            yield tell


def same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to one existing file."""
    return first.exists() and second.exists() and first.samefile(second)

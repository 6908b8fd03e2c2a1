"""The command `graphopt`: one file per subcommand, one place where errors become a sentence and an exit status."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence

import typer

from graphopt.cli import bench, diff, explain, inspect, optimize, verify
from graphopt.cli import compile as compile_
from graphopt.cli import memory as memory_
from graphopt.cli import run as run_
from graphopt.cli import schedule as schedule_
from graphopt.cli.options import UsageError, print_json
from graphopt.errors import GraphoptError
from graphopt.flows.records.models import Failure
from graphopt.model.text import shown

app = typer.Typer(
    help="A better ONNX model, checked equal to the first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("optimize")(optimize.command)
app.command("verify")(verify.command)
app.command("diff")(diff.command)
app.command("inspect")(inspect.command)
app.command("explain")(explain.command)
app.command("memory")(memory_.command)
app.command("schedule")(schedule_.command)
app.command("compile")(compile_.command)
app.command("run")(run_.command)
app.command("bench")(bench.command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit status: 0 done, 1 the input is at fault, 2 wrong usage."""
    json = "--json" in arguments
    try:
        typer.main.get_command(app).main(list(arguments), prog_name="graphopt")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
        if status == 2 and json:
            print_json(Failure("the command line is not understood; stderr says why"))
        return status
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written.", json, 130)
    except UsageError as error:
        return _fail(str(error), json, 2)
    except GraphoptError as error:
        return _fail(str(error), json)
    except MemoryError:
        return _fail("there is not enough memory for this model; nothing was written.", json)
    except OSError as error:
        return _fail(_system_fault(error), json)
    except Exception as error:  # a fault of our own: the user shall see a sentence and where to look, not a trace
        return _fail(_own_fault(error), json)
    return 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def _fail(text: str, json: bool, status: int = 1) -> int:
    line = shown(" ".join(text.split()))
    print(f"error: {line}", file=sys.stderr)
    if json:
        print_json(Failure(line))
    return status


def _system_fault(error: OSError) -> str:
    where = f"'{error.filename}'" if error.filename else "a file"
    if error.errno == errno.ENOSPC:
        return f"{where} could not be written: the disk is full; free some space, also where temporary files lie."
    return f"{where} could not be read or written: {error.strerror or error}; nothing was written."


def _own_fault(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "graphopt" in frame.filename]
    place = f" at {frames[-1].filename.rpartition('graphopt')[2].lstrip('/')}:{frames[-1].lineno}" if frames else ""
    return (
        f"graphopt has a fault of its own ({type(error).__name__}{place}: {error}); nothing was written, "
        "please report this with the model."
    )

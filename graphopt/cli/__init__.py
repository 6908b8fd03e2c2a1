"""The command `graphopt`: one file per subcommand, one place where errors become a sentence and an exit status.

A subcommand is imported when it is asked for, so that help and refusals are there at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import graphopt
from graphopt.cli.flags import in_flags
from graphopt.errors import GraphoptError
from graphopt.extras import missing
from graphopt.lazy import SYMBOLIC, Lazy, postponing
from graphopt.model.collection import importing
from graphopt.model.text import nearest, shown

if TYPE_CHECKING:
    from graphopt.cli import options
    from graphopt.flows.records import failure
else:
    options = Lazy("graphopt.cli.options")
    failure = Lazy("graphopt.flows.records.failure")

# Each command and its line of help: the first sentence of its own.
COMMANDS = {
    "optimize": "Write a better model that was checked against the original; without OUT, show what would change.",
    "compile": "Write a program that runs without Python: a shared library, its weights, a C header, an example.",
    "memory": "Show how much memory intermediate results need, what causes the peak, and what would save some.",
    "schedule": "Show how a model's kernels share the workers of a device, simulated.",
    "gradient": "Write a model with a loss and its gradients as further outputs.",
    "train-step": "Write a model's training step, which any runtime repeats.",
    "quantize": "Write a model with products and convolutions in bytes, each chosen by its measured error and latency.",
    "verify": "Compare two models with the same inputs and outputs.",
    "diff": "Show what changed between two models, node by node.",
    "inspect": "Show operators, opsets, parameters, shapes, dynamic dims, flops and bytes.",
    "explain": "Tell where a rule fired and why not elsewhere, or what became of a node.",
    "run": "Run a bundle or a model once and show its outputs.",
    "profile": "Show where the time of a program goes, step by step and worker by worker.",
    "check": "Check that a bundle is whole: its files, its weights' checksum, its interface and its levels.",
    "certify": "Prove a bundle from the tables in its library, and run it with several numbers of threads.",
    "machine": "Show what this machine was measured to do, by which programs for several threads are planned.",
    "tune": "Show which kernels were measured on this machine, or hand that on to another one of its kind.",
    "bench": "Measure models or bundles beside other runtimes, by turns, on one thread.",
    "completion": "Print what makes a shell complete graphopt's commands and options.",
}
REPORT = "please report this with the model that shows it: CONTRIBUTING.md says how"


class Interrupted(Exception):
    """The user has pressed Ctrl-C."""


class Commands(click.Group):
    """The subcommands; what is no name of one, but looks like a file, is a model for `optimize`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which help shows them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        with postponing(*SYMBOLIC), importing():
            found: click.Command = importlib.import_module(f"graphopt.cli.{cmd_name.replace('-', '_')}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lines of help, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Begins with `optimize` where the first word is a model."""
        if args and args[0] not in COMMANDS and _is_model(args[0]):
            args = ["optimize", *args]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no command '{args[0]}': {nearest(args[0], list(COMMANDS))}.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """The command; an interrupt comes out as one of ours, as click would print an empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error


def _is_model(word: str) -> bool:
    if word.startswith("-"):
        return word == "-"
    return os.sep in word or bool(Path(word).suffix) or Path(word).exists()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(graphopt.__version__, "-V", "--version", prog_name="graphopt")
def app() -> None:
    """A better ONNX model, checked against the original; its memory; a native program of it.

    graphopt MODEL shows what optimizing would change, graphopt MODEL OUT writes it.
    """


def run_line(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit status: 0 done, 1 the input is at fault, 2 wrong usage."""
    json = "--json" in arguments
    try:
        status = app.main(list(arguments) or ["--help"], prog_name="graphopt", standalone_mode=False)
    except (Interrupted, KeyboardInterrupt, click.Abort):
        return _fail("interrupted; nothing was written.", json, 130)
    except click.UsageError as error:
        return _fail(_usage(error), json, 2)
    except click.ClickException as error:
        return _fail(error.format_message(), json, error.exit_code)
    except GraphoptError as error:
        return _fail(in_flags(str(error)), json)
    except BrokenPipeError:  # whoever read the output has gone, as `head` does
        _close_stdout()
        return 1
    except MemoryError:
        return _fail("there is not enough memory for this model; nothing was written.", json)
    except OSError as error:
        return _fail(_system_fault(error), json)
    except ModuleNotFoundError as error:
        return _fail(str(missing(error) or _own_fault(error)), json)
    except Exception as error:  # a fault of our own: the user shall see a sentence and where to look, not a trace
        if isinstance(error, options.UsageError):
            return _fail(str(error), json, 2)
        return _fail(_own_fault(error), json)
    return (status or 0) if arguments else 2  # a command that ends early says its status


def main() -> None:
    """The console script."""
    sys.exit(run_line(sys.argv[1:]))


def _usage(error: click.UsageError) -> str:
    where = f"graphopt {error.ctx.info_name}" if error.ctx is not None and error.ctx.parent is not None else "graphopt"
    text = error.format_message().rstrip(".")
    return f"{text}{'' if text.endswith('?') else ';'} '{where} --help' lists what there is."


def _fail(text: str, json: bool, status: int = 1) -> int:
    line = shown(" ".join(text.split()))
    print(f"error: {line}", file=sys.stderr)
    if json:
        options.print_json(failure.Failure(line))
    return status


def _close_stdout() -> None:
    """Python would write what is left when it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system_fault(error: OSError) -> str:
    where = f"'{error.filename}'" if error.filename else "a file"
    if error.errno == errno.ENOSPC:
        return f"{where} could not be written: the disk is full; free some space, also where temporary files lie."
    return f"{where} could not be read or written: {error.strerror or error}; nothing was written."


def _own_fault(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "graphopt" in frame.filename]
    place = f" at {frames[-1].filename.rpartition('graphopt')[2].lstrip('/')}:{frames[-1].lineno}" if frames else ""
    return f"internal error ({type(error).__name__}{place}: {error}); outputs may be missing; {REPORT}."

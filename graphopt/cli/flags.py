"""Messages speak of arguments, as Python has them; a command line hears of its own options."""

from __future__ import annotations

import ast
import re
import shlex
from functools import partial


def _each(option: str, found: re.Match[str]) -> str:
    """An option for each entry of an argument that is a dict; the argument itself where it is none."""
    try:
        given = ast.literal_eval(found[1])
    except (SyntaxError, ValueError):
        return found[0]
    return " ".join(f"{option} {shlex.quote(f'{name}={_sizes(option, size)}')}" for name, size in given.items())


def _sizes(option: str, given: object) -> str:
    """A size or a formula as it is, a range as 1..64, a shape as 1x64, several sizes as 64,128."""
    if isinstance(given, tuple):
        return "..".join(map(str, given))
    return ("x" if option == "--shape" else ",").join(map(str, given)) if isinstance(given, list) else str(given)


# What a message says, and what stands for it on the command line.
FLAGS = (
    (re.compile(r"\bshapes=(\{[^{}]*\})"), partial(_each, "--shape")),
    (re.compile(r"\bdims=(\{[^{}]*\})"), partial(_each, "--dim")),
    (re.compile(r"\bbudget=(\d+) \* 1024"), r"--budget \1KiB"),
    (re.compile(r"\b(in_place|inline)=True"), lambda found: f"--{found[1].replace('_', '-')}"),
    (re.compile(r"\b(level|opset|order|tolerance)='?(\w+)'?"), r"--\1 \2"),
    (re.compile(r"\bbudget_error\b"), "--budget-error"),
    (re.compile(r"\b(dims|budget)=(?!\w)"), lambda found: {"dims": "--dim", "budget": "--budget"}[found[1]]),
    (re.compile(r"\bfeeds='(\S+)'"), r"--feeds \1"),
    (re.compile(r"pass unchecked=True"), "pass --no-verify"),
)


def in_flags(text: str) -> str:
    """The message with options in place of arguments: `--dim batch=1` for `dims={'batch': 1}`."""
    for argument, option in FLAGS:
        text = argument.sub(option, text)
    return text

"""Messages speak of arguments, as Python has them; a command line hears of its own options."""

from __future__ import annotations

import re

# What a message says, and what stands for it on the command line.
FLAGS = (
    (
        re.compile(r"shapes=\{'([^']+)': \[([\d, ]+)\]\}"),
        lambda found: f"--shape {found[1]}={found[2].replace(', ', 'x')}",
    ),
    (re.compile(r"dims=\{'([^']+)': '?([^'}]+)'?\}"), r"--dim \1=\2"),
    (re.compile(r"\bbudget=(\d+) \* 1024"), r"--budget \1KiB"),
    (re.compile(r"\b(in_place|inline)=True"), lambda found: f"--{found[1].replace('_', '-')}"),
    (re.compile(r"\b(level|opset|order|tolerance)='?(\w+)'?"), r"--\1 \2"),
    (re.compile(r"\bbudget_error\b"), "--budget-error"),
    (re.compile(r"\b(dims|budget)=(?!\w)"), lambda found: {"dims": "--dim", "budget": "--budget"}[found[1]]),
    (re.compile(r"pass unchecked=True"), "pass --no-verify"),
)


def in_flags(text: str) -> str:
    """The message with options in place of arguments: `--dim batch=1` for `dims={'batch': 1}`."""
    for argument, option in FLAGS:
        text = argument.sub(option, text)
    return text

"""`python -m memplan pack`: offsets for the buffers of a CSV file."""

from __future__ import annotations


def command() -> None:
    """Not there yet."""

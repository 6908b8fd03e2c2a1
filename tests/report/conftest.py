"""The shell of the command line's tests: a report is asked for there."""

from __future__ import annotations

from tests.cli.conftest import shell

__all__ = ["shell"]

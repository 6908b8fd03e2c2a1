"""The version of graphopt, as the command, the package and generated files say it."""

from __future__ import annotations

VERSION = "0.1.0"

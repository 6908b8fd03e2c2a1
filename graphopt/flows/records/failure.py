"""What is printed in place of a result when there is none."""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """Why there is no result, in a sentence."""

    error: str
    schema: str = "graphopt.error/1"

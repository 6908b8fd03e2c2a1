"""What `graphopt tune` shows and writes."""

from __future__ import annotations

import msgspec

from graphopt.machine.record import Key
from kernels.tune import Choice


class TemplateLine(msgspec.Struct, frozen=True):
    """Kernels of one template."""

    template: str
    kernels: int
    measured: int  # of them, with more than one candidate
    changed: int  # of those, where another candidate was faster than the likely best


class TuningRecord(msgspec.Struct, frozen=True):
    """What is kept of one machine."""

    cpu: str
    file: str
    templates: tuple[TemplateLine, ...]
    schema: str = "graphopt.tune/1"


class TuningFile(msgspec.Struct, frozen=True):
    """Choices for machines of one kind."""

    key: Key
    choices: dict[str, Choice]
    schema: str = "graphopt.choices/1"

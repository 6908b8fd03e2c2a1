"""The walk of a use case through the rooms of graphopt: every call of ours, by the rooms of caller and callee.

    python -m bench.walk [MODEL]    rooms in the order in which `compile` enters them, and calls that climb a floor

A call climbs when the callee's room stands above the caller's (the floors of tests/test_architecture.py). What a caller
hands down as a function, such as a rule, climbs when it is called: such calls are listed by their two rooms.

Calls by the bodies of modules are no part of a walk: a module is imported once, by whatever asks for it first.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import graphopt
import models

ROOT = Path(graphopt.__file__).parent
FLOORS = (
    "libraries", "errors", "extras", "lazy", "version", "files", "machine", "model", "check", "rewrite", "passes",
    "gradient",
    "quantization", "memory", "program", "flows", "report", "refusals", "cli",
)  # fmt: skip
LIBRARIES = ("memplan", "scheduler", "kernels")


@dataclass(frozen=True, slots=True)
class Walk:
    """What was called, by rooms."""

    rooms: tuple[str, ...]  # in the order in which they were first entered
    calls: int  # of our functions by our functions
    climbs: Counter[tuple[str, str]]  # caller's and callee's room, the latter above the former


def walk(use_case: Callable[[], object]) -> Walk:
    """Run a use case and look at every call that it makes in this thread."""
    rooms: dict[str, None] = {}
    climbs: Counter[tuple[str, str]] = Counter()
    calls = imports = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls, imports
        if frame.f_code.co_name == "<module>":
            imports += {"call": 1, "return": -1}.get(event, 0)
            return
        callee = _room(frame) if event == "call" and not imports else None
        if callee is None:
            return
        rooms.setdefault(callee)
        caller, back = None, frame.f_back
        while back is not None and caller is None:
            caller, back = _room(back), back.f_back
        if caller is not None:
            calls += 1
            if FLOORS.index(callee) > FLOORS.index(caller):
                climbs[caller, callee] += 1

    sys.setprofile(look)
    try:
        use_case()
    finally:
        sys.setprofile(None)
    return Walk(tuple(rooms), calls, climbs)


def _room(frame: FrameType) -> str | None:
    """The room of the function that runs in a frame; None where it is not ours."""
    file = frame.f_code.co_filename
    if file not in _ROOMS:
        _ROOMS[file] = _room_of(Path(file))
    return _ROOMS[file]


_ROOMS: dict[str, str | None] = {}


def _room_of(file: Path) -> str | None:
    if file.is_relative_to(ROOT):
        room = file.relative_to(ROOT).parts[0].removesuffix(".py")
        return room if room in FLOORS else None
    return "libraries" if any(file.is_relative_to(ROOT.parent / name) for name in LIBRARIES) else None


def compiled(name: str) -> Walk:
    """The walk from a model of the zoo, its dims fixed, to its bundle."""
    with tempfile.TemporaryDirectory() as folder:
        return walk(lambda: graphopt.compile(models.load(name), dims=models.sizes(name)).save(Path(folder) / "bundle"))


def main(words: Sequence[str]) -> None:
    """Print the walk of `compile`."""
    found = compiled(words[0] if words else "squeezenet1_1")
    print(f"{found.calls:,} calls; rooms: {', '.join(found.rooms)}")
    for (caller, callee), count in found.climbs.most_common():
        print(f"{caller} calls up into {callee}: {count:,} times")
    if not found.climbs:
        print("no call climbs")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Engines in a process of their own, for models on which ONNX Runtime may end its process.

It checks little of what it runs: a damaged model may end it, and a few feeds of models that onnx accepts. Here that
process is not ours; its end is a CannotRun, and so is asking for more memory than it is given. Other models that onnx
accepts never come here.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from graphopt.check import engine
from graphopt.check.engine import CannotRun, OutOfTime
from graphopt.model.rooms import Lent, Room, lent

MOST_BYTES = 1800 << 20  # of memory, for a model with few weights
SHARE = 16  # what is added for each byte of the weights
GRACE = 5.0  # seconds beyond those of a run, after which the process is ended
LARGE = 1 << 20  # bytes of an array that is handed over as a file
NO_ROOMS: Mapping[str, Room] = {}
ENDED = "ONNX Runtime ended its process on this model"

Weight = tuple[Path, np.dtype[np.generic], tuple[int, ...], int]  # file, dtype, dims, the ONNX type's number


class Process:
    """A process that holds engines. It ends with `close`, or by what it runs; then another one is to be started."""

    def __init__(self, most_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", engine.__file__, str(most_bytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; what it holds is gone."""
        self._process.kill()
        self._process.communicate()

    def load(
        self, path: Path, weights: Mapping[str, Weight], seconds: float | None = None, *, optimized: bool = False,
        alone: bool = False, frugal: bool = False,
    ) -> Distant:  # fmt: skip
        """The model at `path`, loaded there, `optimized` by ONNX Runtime where that is wanted; raises CannotRun.

        `alone` leaves out the reference evaluator, as `optimized` does; `frugal` is that of `Engine`.
        """
        found = self.ask(("load", path, weights, optimized, optimized or alone, frugal), seconds)
        assert isinstance(found, tuple), "the answer to a load"
        return Distant(self, *found)

    def ask(self, request: tuple[object, ...], seconds: float | None) -> object:
        """The answer to one request; raises CannotRun and OutOfTime, CannotRun also where the process has ended."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            process.kill()

        timer = None if seconds is None else threading.Timer(seconds + GRACE, stop)
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            pickle.dump(request, process.stdin, protocol=5)  # which copies no array
            process.stdin.flush()
            verdict, found = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.close()
            if expired.is_set():
                raise OutOfTime from None
            raise CannotRun(ENDED) from None
        finally:
            if timer is not None:
                timer.cancel()
        if verdict == "late":
            raise OutOfTime
        if verdict == "refused":
            raise CannotRun(found)
        return found


class Distant:
    """An engine in that process; used as engine.Engine is."""

    def __init__(self, process: Process, number: int, name: str) -> None:
        self.name = name
        self._process = process
        self._number = number

    @property
    def alive(self) -> bool:
        """Whether its process can be asked."""
        return self._process.alive

    def run(
        self, feed: Mapping[str, object], seconds: float | None = None, rooms: Mapping[str, Room] = NO_ROOMS
    ) -> Sequence[object]:
        """The outputs in order; raises CannotRun with the engine's words, or OutOfTime.

        Outputs that `rooms` are given for are written into files, and large arrays are fed as files.
        """
        with ExitStack() as files:
            given, places = dict(feed), dict[str, Lent]()
            if rooms:
                with suppress(OSError):
                    given = {name: _handed(files, value) for name, value in feed.items()}
                    places = {name: files.enter_context(lent(room)) for name, room in rooms.items()}
            found = self._process.ask(("run", self._number, given, seconds, places), seconds)
            assert isinstance(found, list), "the answer to a run"
            written = iter(places.values())  # in the order of the outputs
            return [next(written).array() if isinstance(one, Room) else one for one in found]


def _handed(files: ExitStack, value: object) -> object:
    """What is fed, a large array as a file."""
    if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
        return value
    return files.enter_context(lent(value))


class Lasting:
    """A distant engine that is loaded again for the next feed where one has ended its process."""

    def __init__(self, load: Callable[[], Distant]) -> None:
        """Raises CannotRun where it cannot be loaded."""
        self._load = load
        self._engine = load()
        self.name = self._engine.name

    def run(
        self, feed: Mapping[str, object], seconds: float | None = None, rooms: Mapping[str, Room] = NO_ROOMS
    ) -> Sequence[object]:
        """As `Distant.run`."""
        if not self._engine.alive:
            self._engine = self._load()
        return self._engine.run(feed, seconds, rooms)

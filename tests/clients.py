"""A client of Dask for tests of what is done with its answers: one process, no cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

import msgspec


class InThisProcess:
    """Does at once what a client of Dask has workers do; a future is what it will give."""

    def __init__(self, workers: int, losing: int = 0, strangers: int = 0) -> None:
        """`losing`: answers that get lost; `strangers`: workers on a processor of another kind, the last ones."""
        self.workers, self.losing, self.strangers = workers, losing, strangers
        self.parts: list[Any] = []  # what went to one worker alone

    def nthreads(self) -> Mapping[str, int]:
        return {f"tcp://{number}": 1 for number in range(self.workers)}

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        raise TimeoutError

    def scatter(
        self, data: Sequence[Any], *, workers: Sequence[str] | None, broadcast: bool, hash: bool
    ) -> list[Any]:  # fmt: skip
        if workers is not None:
            self.parts += data
        return list(data)

    def submit(
        self, function: Callable[..., Any], *args: Any, workers: Sequence[str] | None, allow_other_workers: bool,
        pure: bool,
    ) -> Any:  # fmt: skip
        return function(*args)

    def run(self, function: Callable[[], Any]) -> Mapping[str, Any]:
        found = {address: function() for address in self.nthreads()}
        for address in list(found)[self.workers - self.strangers :]:
            found[address] = msgspec.structs.replace(found[address], cpu="A strange one", llvm="1.2.3")
        return found

    def gather(self, futures: Any) -> Any:
        self.losing -= 1
        if self.losing >= 0:
            raise CancelledError("a worker is gone")
        return futures

"""A running cluster of Dask: reaching it, and what it loses with a worker that dies.

Data that a client has handed out lies on workers alone and dies with them; tasks that need it are then given up, and
are to be submitted again with the data. Tasks of other data go to another worker by themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from graphopt.errors import OptionError

T = TypeVar("T")
TRIES = 5  # of what a cluster has lost something of
WAIT = 60  # seconds for a first worker
PAUSE = 0.25  # seconds before the second try, and twice as many before each further one


class Client(Protocol):
    """What is used of `distributed.Client`."""

    def nthreads(self) -> Mapping[str, int]:
        """The threads of each worker, by its address."""

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        """Return when there are so many."""

    def scatter(self, data: Sequence[Any], *, workers: Sequence[str] | None, broadcast: bool, hash: bool) -> list[Any]:
        """Hand out data to workers, or to all of them."""

    def submit(
        self, function: Callable[..., Any], *args: Any, workers: Sequence[str] | None, allow_other_workers: bool,
        pure: bool,
    ) -> Any:  # fmt: skip
        """Have a function called on a worker, with what futures among its arguments give."""

    def run(self, function: Callable[[], Any]) -> Mapping[str, Any]:
        """What a function gives on every worker, by address."""

    def gather(self, futures: Any) -> Any:
        """What futures give."""


Cluster = str | Client  # an address, or a client of the caller's own


@contextlib.contextmanager
def reached(cluster: Cluster) -> Iterator[Any]:
    """A client of a cluster, closed at the end where it was not the caller's own.

    Raises OptionError for a cluster that cannot be reached, and MissingExtra where Dask is not installed.
    """
    if not isinstance(cluster, str):
        yield cluster
        return
    distributed = importlib.import_module("distributed")
    try:
        client = distributed.Client(cluster)
    except (OSError, ValueError, TimeoutError) as error:
        raise OptionError(f"no cluster of Dask answers at '{cluster}': {error}") from error
    with client:
        yield client


def workers_of(client: Client) -> dict[str, int]:
    """The threads of each worker that is there, in the order of addresses; raises OptionError where none comes."""
    if not client.nthreads():
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(1, WAIT)
    found = dict(sorted(client.nthreads().items()))
    if not found:
        raise OptionError("the cluster of Dask has no worker; start one with 'dask worker ADDRESS'.")
    return found


def repeated(work: Callable[[], T]) -> T:
    """What `work` gives; it is done again where the cluster has lost with a worker what it needs.

    Raises OptionError where that goes on, and where workers end by what they are given.
    """
    for attempt in range(TRIES):
        try:
            return work()
        except (CancelledError, TimeoutError, OSError) as error:
            lost = error
            time.sleep(PAUSE * 2**attempt)
        except ModuleNotFoundError as error:
            raise OptionError(f"a worker of the cluster has no module '{error.name}'; install it there.") from error
        except Exception as error:
            if type(error).__name__ == "KilledWorker":  # of a library that may not be installed
                raise OptionError(f"workers of the cluster end by what they are given: {error}") from error
            raise
    raise OptionError(f"the cluster of Dask loses its workers, or no longer answers: {lost}") from lost

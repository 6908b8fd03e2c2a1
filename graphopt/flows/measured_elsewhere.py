"""Kernels measured on the machines of a cluster, each a part of them, as if they had been measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.errors import OptionError
from graphopt.flows.cluster import Client, Cluster, reached, repeated, workers_of
from graphopt.machine.kept import own_key
from graphopt.machine.record import Key
from graphopt.program.elsewhere import Job, shares
from graphopt.program.make import measured
from kernels.tune import Choice


def of_this_kind(client: Client) -> list[str]:
    """The addresses of a cluster's workers, all of them of this machine's kind.

    Raises OptionError that names the others: other processors, caches or versions of LLVM.
    """
    workers_of(client)  # waits for the first one
    keys: Mapping[str, Key] = repeated(lambda: client.run(own_key))
    own = own_key()
    others = [f"{address} is {_said(key, own)}" for address, key in sorted(keys.items()) if key != own]
    if others:
        raise OptionError(
            f"kernels are measured on machines of one kind, and this one is {own.cpu} (LLVM {own.llvm}): "
            f"{', '.join(others)}; start workers on machines like this one alone."
        )
    return sorted(keys)


def _said(key: Key, own: Key) -> str:
    """What a machine is, as far as it is another one."""
    if key.cpu == own.cpu and key.llvm == own.llvm:
        return f"one with caches of {', '.join(map(str, key.caches))} bytes, or another core"
    return f"{key.cpu} (LLVM {key.llvm})"


@dataclass(frozen=True, slots=True)
class OnCluster:
    """Has the machines of a cluster measure; `program.elsewhere.Elsewhere` says what it is given."""

    cluster: Cluster

    def __call__(
        self, job: Job, taken: Mapping[str, float], known: Mapping[str, Choice], seconds: float
    ) -> Mapping[str, Choice]:
        """The choices that machines find for their shares of the kernels.

        Raises OptionError for a cluster that is no longer of one kind, or does not answer.
        """
        with reached(self.cluster) as client:
            found: list[Mapping[str, Choice]] = repeated(lambda: _asked(client, job, taken, known, seconds))
        return {key: choice for one in found for key, choice in one.items()}


def _asked(
    client: Client, job: Job, taken: Mapping[str, float], known: Mapping[str, Choice], seconds: float
) -> list[Mapping[str, Choice]]:
    workers = of_this_kind(client)
    held = client.scatter([job, known], workers=None, broadcast=True, hash=False)
    futures = [
        client.submit(
            measured_there, *held, only, seconds, own_key(), workers=[place], allow_other_workers=True, pure=False
        )
        for place, only in zip(workers, shares(taken, len(workers)), strict=False)
    ]
    found: list[Mapping[str, Choice]] = client.gather(futures)
    return found


def measured_there(
    job: Job, known: Mapping[str, Choice], only: frozenset[str], seconds: float, key: Key
) -> Mapping[str, Choice]:
    """What a worker finds of some kernels; one of another kind, which came later, finds nothing."""
    return measured(job, only, known, seconds) if own_key() == key else {}

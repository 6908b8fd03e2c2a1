"""A training step on the workers of a cluster: each has a shard of the batch, and their gradients are averaged.

Parameters and state live here. In each run the workers are given the parameters, compute loss, gradients and running
statistics of their shards, and add up what belongs together by twos; the mean comes back, and changes them once. A
worker that dies takes nothing along but what it was computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
import onnx

from graphopt.flows.cluster import Client, repeated, workers_of
from graphopt.flows.runners import Arrays, Engine, Run, opened
from graphopt.flows.shards import Cutter, Shard
from graphopt.gradient.halves import halves_of
from graphopt.gradient.step import RATE, Step
from graphopt.model.load import load
from graphopt.model.save import to_proto

Sums = list[np.ndarray]


class OverCluster:
    """A step whose gradients workers compute. There are as many shards as workers at the beginning."""

    def __init__(
        self, client: Client, engine: Engine, proto: onnx.ModelProto, step: Step, values: Arrays, threads: int
    ) -> None:
        """`threads` of each worker, and of the update here; 0: as many as Dask gives tasks of a worker.

        Raises OptionError for a cluster without workers and for inputs that cannot be cut, and ModelError for a step
        that does not come apart.
        """
        workers = workers_of(client)
        halves = halves_of(load(proto), step)
        first, second = to_proto(halves.gradients), to_proto(halves.update)
        self._client, self._most = client, len(workers)
        self._values = dict(values)
        read = {value.name for value in first.graph.input}
        self._read = [name for name in self._values if name in read]
        carried = {one.input for one in step.carried}
        self._cutter = Cutter(step, [one for one in proto.graph.input if one.name not in (*carried, RATE)])
        self._model = first.SerializeToString()
        self._call = partial(weighted, engine=engine, threads=threads or min(workers.values()), means=halves.means,
                             statistics=halves.statistics, reads=frozenset(read))  # fmt: skip
        self._held: Any = None  # the model, on the workers
        self._means, self._step = halves.means, step
        self._statistics = {one.output: one.input for one in step.carried if one.kind == "statistic"}
        self._changed = {one.output: one.input for one in step.carried if one.kind != "statistic"}
        self._takes = {value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                       for value in second.graph.input}  # fmt: skip
        self._update = opened(second, engine, threads)

    def run(self, feeds: Arrays) -> float:
        """The loss of a batch; the values after it are the next run's."""
        given = {name: array for name, array in feeds.items() if name != RATE}
        shards = self._cutter.shards(given, self._most)
        mean = repeated(lambda: self._mean(shards))
        found = dict(zip((*self._means, *self._statistics), mean, strict=True))
        taken = {**found, **self._values, **({RATE: feeds[RATE]} if RATE in feeds else {})}
        update = {name: taken[name].astype(kind, copy=False) for name, kind in self._takes.items() if name in taken}
        after = dict(zip(self._changed.values(), self._update(list(self._changed), update), strict=True))
        for output, name in self._statistics.items():
            after[name] = found[output].astype(self._values[name].dtype, copy=False)
        self._values = after
        return float(found[self._step.loss].reshape(-1)[0])

    def carried(self) -> dict[str, np.ndarray]:
        """What the next run would take."""
        return dict(self._values)

    def _mean(self, shards: Sequence[Shard]) -> Sums:
        """What the workers compute of the shards, averaged."""
        client, workers = self._client, list(workers_of(self._client))
        held, self._held = self._held, None  # given anew where this attempt fails
        if held is None:
            (held,) = client.scatter([self._model], workers=None, broadcast=True, hash=False)
        values = {name: self._values[name] for name in self._read}
        (given,) = client.scatter([values], workers=None, broadcast=False, hash=False)  # workers hand it on
        sums = []
        for number, shard in enumerate(shards):
            place = [workers[number % len(workers)]]
            (part,) = client.scatter([shard], workers=place, broadcast=False, hash=False)
            sums.append(
                client.submit(self._call, held, given, part, workers=place, allow_other_workers=True, pure=False)
            )
        while len(sums) > 1:
            pairs = [sums[begin : begin + 2] for begin in range(0, len(sums), 2)]
            sums = [
                client.submit(added, *pair, workers=None, allow_other_workers=False, pure=False)
                if len(pair) == 2 else pair[0]
                for pair in pairs
            ]  # fmt: skip
        found: Sums = client.gather(sums[0])
        self._held = held
        return found


def weighted(
    model: bytes, values: Arrays, shard: Shard, *, engine: Engine, threads: int, means: Sequence[str],
    statistics: Sequence[str], reads: frozenset[str],
) -> Sums:  # fmt: skip
    """What a shard adds to the means of its batch; a worker calls this."""
    run, alone = _opened(model, engine, threads)
    feeds = {name: array for name, array in {**values, **shard.feeds}.items() if name in reads}
    with alone:
        found = run([*means, *statistics], feeds)
        parts = [shard.weight] * len(means) + [shard.share] * len(statistics)
        return [_part(np.asarray(array), part) for array, part in zip(found, parts, strict=True)]


def added(one: Sums, other: Sums) -> Sums:
    """Two sums as one; a worker calls this."""
    return [np.asarray(first + second) for first, second in zip(one, other, strict=True)]


def _part(array: np.ndarray, part: float) -> np.ndarray:
    """In float32 at least. A shard that counts nothing may have no loss: its gradients are NaN, and no part."""
    wide = array.astype(np.promote_types(array.dtype, np.float32))
    return np.asarray(wide * part) if part else np.zeros_like(wide)


@lru_cache(maxsize=2)
def _opened(model: bytes, engine: Engine, threads: int) -> tuple[Run, Lock]:
    """The half of a step that a worker runs, made once in its process, and run by one of its threads at a time."""
    return opened(onnx.ModelProto.FromString(model), engine, threads), Lock()

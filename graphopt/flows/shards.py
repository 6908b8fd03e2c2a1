"""A batch in shards: its samples lie along the first dim, and every shard has a run of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx

from graphopt.errors import OptionError
from graphopt.gradient.losses import TARGET
from graphopt.gradient.step import Step

Arrays = Mapping[str, np.ndarray]
SEEDS = 1_000_000_007  # between the seeds of two shards: far from those of other runs, modulo the prime of a Dropout


@dataclass(frozen=True, slots=True)
class Shard:
    """Some samples of a batch."""

    feeds: dict[str, np.ndarray]
    share: float  # of the batch's samples
    weight: float  # of what the loss of the batch counts; 0 where all targets of the shard are ignored


class Cutter:
    """Cuts batches of a step; `inputs` are those of a batch."""

    def __init__(self, step: Step, inputs: Sequence[onnx.ValueInfoProto]) -> None:
        """Raises OptionError where inputs do not begin with one dim."""
        self._step = step
        firsts = {value.name: _first(value) for value in inputs if value.name != step.seed}
        leading = sorted(firsts, key=lambda name: name != TARGET)  # a target has samples first, whatever inputs have
        free = [name for name in leading if isinstance(firsts[name], str)]
        self.fixed: int | None = None  # samples of each shard, where the step is of so many
        if free:
            named = {name: firsts[name] for name in free if firsts[name]}
            for name, first in named.items():
                other = next(iter(named))
                if first != named[other]:
                    raise OptionError(
                        f"'{other}' begins with '{named[other]}' and '{name}' with '{first}'; a batch is cut in shards "
                        "along one first dim."
                    )
            self._cut = free
        else:
            sizes = [(name, first) for name in leading if isinstance(first := firsts[name], int)]
            if not sizes:
                raise OptionError("no input of the step has a first dim, along which a batch would be cut in shards.")
            self.fixed = sizes[0][1]
            self._cut = [name for name, first in sizes if first == self.fixed]
        self._whole = {value.name: _dims(value) for value in inputs if value.name not in (*self._cut, step.seed)}

    def shards(self, feeds: Arrays, most: int) -> list[Shard]:
        """A batch in at most so many shards, of as equal sizes as there are; of a step of fixed dims in those.

        Raises OptionError for a batch whose inputs have different numbers of samples, or none.
        """
        sizes = {name: len(feeds[name]) if np.ndim(feeds[name]) else 0 for name in self._cut}
        samples = sizes[self._cut[0]]
        other = next((name for name, size in sizes.items() if size != samples), None)
        if other is not None:
            raise OptionError(
                f"a batch has {samples} samples of '{self._cut[0]}' and {sizes[other]} of '{other}'; they are cut in "
                "shards together."
            )
        if not samples:
            raise OptionError("a batch holds no samples.")
        for name, dims in self._whole.items():
            given = np.shape(feeds[name])
            if len(given) != len(dims) or any(one not in (None, two) for one, two in zip(dims, given, strict=True)):
                raise OptionError(
                    f"'{name}' does not begin with samples, so that all of it goes to every worker; it has the dims "
                    f"{list(given)}, and the step takes {['?' if one is None else one for one in dims]}."
                )
        if self.fixed is not None and samples % self.fixed:
            raise OptionError(
                f"a batch of {samples} samples is no multiple of the {self.fixed} that the step is of; take such a "
                "one, or a step whose first dim is free."
            )
        count = min(most, samples) if self.fixed is None else samples // self.fixed
        ends = [samples * number // count for number in range(count + 1)]
        counted = self._counted(feeds, samples)
        total = float(counted.sum())
        found = []
        for number, (begin, end) in enumerate(pairwise(ends)):
            part = {name: array[begin:end] if name in self._cut else array for name, array in feeds.items()}
            if self._step.seed in part:
                part[self._step.seed] = np.asarray(feeds[self._step.seed] + number * SEEDS, np.int64)
            share = (end - begin) / samples
            found.append(Shard(part, share, float(counted[begin:end].sum()) / total if total else share))
        return found

    def _counted(self, feeds: Arrays, samples: int) -> np.ndarray:
        """How many targets of each sample the loss counts, or 1 of each."""
        if self._step.ignored is None or TARGET not in self._cut:
            return np.ones(samples)
        return np.asarray(np.sum((feeds[TARGET] != self._step.ignored).reshape(samples, -1), axis=1))


def _first(value: onnx.ValueInfoProto) -> int | str | None:
    """The first dim of an input: a number, a name, empty where it has none; None where there is no first dim."""
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not kind.shape.dim:
        return None
    dim = kind.shape.dim[0]
    return int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param)


def _dims(value: onnx.ValueInfoProto) -> list[int | None]:
    """The dims of an input; None for those that are free."""
    return [int(dim.dim_value) if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim]

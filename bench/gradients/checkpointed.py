"""Steps of torch under less memory: `checkpoint_sequential`, and the activation memory budget of `torch.compile`.

Memory is read from torch's own profiler, which logs what the CPU allocator gives and takes back, compiled code's
tensors too. What is counted is the largest sum at any time of what a step allocates, without the gradients that it
leaves behind, which we grant torch from their first byte on; parameters and the batch are there before. What oneDNN and
MKL take from the system for themselves is not in the log, and counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from types import FunctionType
from typing import Any, Literal

import numpy as np
import onnx
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint_sequential

from bench.gradients.sequential import Network

Backend = Literal["inductor", "aot_eager_decomp_partition"]
RATE = 1e-3
BUDGETS = (1.0, 0.5, 0.33, 0.2, 0.1)
SEGMENTS = 6  # numbers of segments, at equal ratios up to twice the root of the blocks


@dataclass(frozen=True, slots=True)
class Way:
    """How torch runs a step: eager, eager in segments that are computed again, or compiled within a share of memory."""

    segments: int = 1
    backend: Backend | None = None
    budget: float = 1.0  # of what is saved for the backward pass

    def __str__(self) -> str:
        if self.backend is not None:
            return f"{'inductor' if self.backend == 'inductor' else 'aot_eager'}, budget {self.budget:g}"
        return "eager" if self.segments == 1 else f"{self.segments} segments"


def ways(blocks: int, backends: Sequence[Backend]) -> list[Way]:
    """Plain, segments by equal ratios, and every budget of every backend."""
    counts = sorted({round(one) for one in np.geomspace(2, min(2 * sqrt(blocks), blocks - 1), SEGMENTS)})
    compiled = [Way(backend=backend, budget=budget) for backend in backends for budget in BUDGETS]
    return [Way(), *(Way(segments=count) for count in counts), *compiled]


class Stepper:
    """A network in torch with its own SGD on one thread, run in one way; compiled code is made by the first step."""

    def __init__(
        self, network: Network, model: onnx.ModelProto, batch: Mapping[str, np.ndarray], way: Way,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        torch.set_num_threads(1)
        self._blocks, self.parameters = network.modules(model, dtype)
        self._optimizer = torch.optim.SGD(self.parameters.values(), lr=RATE)
        tensors = {name: torch.from_numpy(one.copy()) for name, one in batch.items()}
        self._target = tensors.pop("target")
        given = [one.to(dtype) if one.is_floating_point() else one for one in tensors.values()]
        self._given: Any = given[0] if len(given) == 1 else tuple(given)
        self._way = way
        self._compiled: Any = None
        if way.backend is not None:
            # A budget is no key of torch's caches, which are by code object: every way has one of its own.
            own = FunctionType(Stepper._forward.__code__.replace(), globals())
            self._compiled = torch.compile(partial(own, self), backend=way.backend, dynamic=False)

    def __call__(self) -> float:
        """A step; its loss."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.gradients()
        self._optimizer.step()
        return loss

    def gradients(self) -> float:
        """The loss; gradients are added to those that the parameters have."""
        with torch._functorch.config.patch(activation_memory_budget=self._way.budget):
            total = self._forward() if self._compiled is None else self._compiled()
            total.backward()
        return float(total.detach())

    def peak(self) -> int:
        """Bytes of a step beyond parameters, gradients and state, by the allocator's log."""
        self()
        self._optimizer.zero_grad(set_to_none=True)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
            self.gradients()
            self._optimizer.step()
        left = {one.grad.untyped_storage().data_ptr() for one in self.parameters.values() if one.grad is not None}
        return peak_of(_allocations(log), left)

    def _forward(self) -> Tensor:
        if self._way.segments > 1:
            found = checkpoint_sequential(
                self._blocks, self._way.segments, self._given, use_reentrant=False, preserve_rng_state=False
            )
        else:
            found = self._blocks(self._given)
        return F.cross_entropy(found, self._target)


def peak_of(allocations: Sequence[tuple[int, int]], left: set[int]) -> int:
    """The largest sum of bytes that are there at once; `allocations` are addresses and bytes, those below 0 freed.

    What lies at the addresses `left` at the end does not count.
    """
    last = {address: at for at, (address, size) in enumerate(allocations) if size > 0}
    there: dict[int, int] = {}
    now = most = 0
    for at, (address, size) in enumerate(allocations):
        if size > 0:
            there[address] = 0 if address in left and last[address] == at else size
            now += there[address]
            most = max(most, now)
        else:
            now -= there.pop(address, 0)  # what was there before the log counts as nothing
    return most


def _allocations(log: Any) -> list[tuple[int, int]]:
    """Addresses and bytes, in order of time."""
    found: list[tuple[int, int, int]] = []

    def gather(events: Iterable[Any]) -> None:
        for event in events:
            if event.tag == torch._C._profiler._EventType.Allocation and event.extra_fields.ptr:
                found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
            gather(event.children)

    gather(log.profiler.kineto_results.experimental_event_tree())
    return [(address, size) for _, address, size in sorted(found, key=lambda one: one[0])]

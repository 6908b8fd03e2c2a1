"""One network's points of memory and time: torch's ways through a step, and programs of ours at their memory.

Gradients are compared first: ours are what a step at a rate that is a power of two takes from the weights. Then torch's
ways are measured, and those that another beats in both memory and time are left out of what programs are made for: from
the least memory up, a program is made at a way's memory, and another where that one is not as fast as a way that takes
more. At the end everything runs by turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch

import graphopt
from bench.gradients.beside import RUNS, errors, nudged
from bench.gradients.checkpointed import Backend, Stepper, Way, ways
from bench.gradients.sequential import NETWORKS, Network, batch_of
from bench.kernels.timing import Ratio, pin, ratio, readings, unpin
from graphopt.errors import OptionError
from graphopt.flows.asked import optimized
from graphopt.flows.fit import first_values
from graphopt.gradient.step import RATE
from graphopt.model.load import load
from graphopt.program.deploy.compiled import Whole
from graphopt.program.make import make
from kernels.target import host

SEED = 23
LARGE_RATE = 1024.0  # so large that rounding of the weights hides no gradient
LOOKS = 3  # runs that a first look at a time takes
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Errors:
    """Of the loss and of the worst gradient, from torch's float64."""

    loss: float
    gradient: float


@dataclass(frozen=True, slots=True)
class Point:
    """A way of torch, and the program of ours that is as fast as any within its memory."""

    way: Way
    memory: int  # bytes beyond parameters, gradients and state
    slower: Ratio  # its time over that of torch's eager mode
    error: Errors
    ours: int | None  # bytes of our program's arena; None: none keeps this memory
    faster: Ratio | None  # torch's time over ours

    @property
    def is_held(self) -> bool:
        """Whether ours takes no more memory and no more time, at the end of the interval."""
        return self.faster is not None and self.faster.high >= 1


@dataclass(frozen=True, slots=True)
class Program:
    """A program of ours."""

    memory: int  # bytes of its arena
    budget: int | None
    slower: Ratio  # its time over that of torch's eager mode
    is_equal: bool  # in every bit to the one without a budget
    seconds: float  # of making it


@dataclass(frozen=True, slots=True)
class Compared:
    """A network in torch and as programs."""

    name: str
    blocks: int
    own: Errors  # torch's float32, the worst of some runs
    ours: Errors
    points: tuple[Point, ...]
    programs: tuple[Program, ...]
    refused: tuple[str, ...]

    def is_equal(self, factor: float, floor: float) -> bool:
        """Whether losses and gradients are torch's within rounding, and no budget changes a bit."""
        loss, gradient = (max(factor * one, floor) for one in (self.own.loss, self.own.gradient))
        found = [self.ours, *(one.error for one in self.points)]
        equal = all(one.loss <= loss and one.gradient <= gradient for one in found)
        return equal and all(one.is_equal for one in self.programs)


class _Ours:
    """Programs of a step on the weights that torch has."""

    def __init__(self, model: onnx.ModelProto, batch: Arrays) -> None:
        made = graphopt.train_step(model, loss="cross-entropy")
        proto = made.to_proto()
        self.step, self._model = made.step, optimized(load(proto))
        self._values = {**first_values(proto, made.step), **batch}
        self.refused: list[str] = []

    def make(self, budget: int | None) -> tuple[Whole, float] | None:
        """A program for one thread, and the seconds of making it; None where it is refused."""
        begun = time.perf_counter()
        try:
            found = make(self._model, host(), "step", False, budget, None, threads=1)
        except OptionError as refusal:
            self.refused.append(str(refusal))
            return None
        assert isinstance(found, Whole), "every region of these steps has a kernel"
        return found, time.perf_counter() - begun

    def feed(self, rate: float) -> dict[str, np.ndarray]:
        """Values of its own for a program that changes them where they lie."""
        return {RATE: np.array(rate, np.float32), **{name: np.array(one) for name, one in self._values.items()}}

    def results(self, program: Whole) -> dict[str, np.ndarray]:
        """The loss, and weights after a step at a large rate, by the names that they had."""
        names = {self.step.loss: "", **{one.output: one.input for one in self.step.carried}}
        assert program.program is not None, "it is for this machine"
        found = program.program.run(list(names), self.feed(LARGE_RATE))
        return dict(zip(names.values(), found, strict=True))

    def gradients(self, results: Arrays) -> tuple[float, dict[str, np.ndarray]]:
        """The loss, and the gradients of what trains."""
        trained = [one.input for one in self.step.carried if one.kind == "parameter"]
        changes = {one: (self._values[one].astype(np.float64) - results[one]) / LARGE_RATE for one in trained}
        return float(results[""].reshape(-1)[0]), changes


def compare(
    name: str, rounds: int, backends: Sequence[Backend], tell: Callable[[str], None], *, every: bool = False
) -> Compared:
    """Torch's ways and our programs on a network; with `every`, a program at each way's memory, for a curve."""
    network, batch = NETWORKS[name], {}
    model = network.build()
    batch = batch_of(model, SEED)
    wide = _gradients(network, model, batch, torch.float64)
    plain = [_errors(wide, _gradients(network, nudged(model, run), batch, torch.float32)) for run in range(RUNS)]
    own = Errors(max(one.loss for one in plain), max(one.gradient for one in plain))

    blocks = len(network.modules(model, torch.float32)[0])
    steppers: dict[Way, Stepper] = {}
    memory: dict[Way, int] = {}
    error: dict[Way, Errors] = {}
    seconds: dict[Way, float] = {}
    for way in ways(blocks, backends):
        stepper = Stepper(network, model, batch, way)
        error[way] = _errors(wide, _given(stepper))
        memory[way] = stepper.peak()
        seconds[way] = _look(stepper)
        steppers[way] = stepper
        tell(f"{name}, {way}: {memory[way] / (1 << 20):.2f} MiB, {seconds[way]:.3f} s")

    ours = _Ours(model, batch)
    first = ours.make(None)
    assert first is not None, "no budget refuses nothing"
    expected = ours.results(first[0])
    found: dict[int | None, tuple[Whole, float]] = {None: first}
    times: dict[int, float] = {first[0].linked.listing.arena_bytes: _look(_bound(first[0], ours))}
    for way in sorted(memory, key=lambda one: memory[one]):
        is_held = any(arena <= memory[way] and taken <= seconds[way] for arena, taken in times.items())
        is_beaten = any(memory[one] <= memory[way] and seconds[one] < seconds[way] for one in memory)
        if (is_held or is_beaten) and not (every and way.backend is None):
            continue
        if (program := ours.make(memory[way])) is not None:
            found[memory[way]] = program
            arena = program[0].linked.listing.arena_bytes
            times[arena] = _look(_bound(program[0], ours))
            tell(f"{name}, ours: {arena / (1 << 20):.2f} MiB, {times[arena]:.3f} s, made in {program[1]:.0f} s")

    sides = {str(way): stepper for way, stepper in steppers.items()}
    programs = {f"ours {budget}": _bound(one, ours) for budget, (one, _) in found.items()}
    pin()
    try:
        taken = readings({**sides, **programs}, rounds)
    finally:
        unpin()
    eager = taken[str(Way())]
    arenas = {budget: one.linked.listing.arena_bytes for budget, (one, _) in found.items()}
    points = []
    for way in steppers:
        within = {
            arena: ratio(taken[str(way)], taken[f"ours {budget}"])
            for budget, arena in arenas.items() if arena <= memory[way]
        }  # fmt: skip
        best = max(within, key=lambda arena: within[arena].median, default=None)
        faster = None if best is None else within[best]
        points.append(Point(way, memory[way], ratio(taken[str(way)], eager), error[way], best, faster))
    made = []
    for budget, (one, took) in found.items():
        same = all(np.array_equal(expected[key], value) for key, value in ours.results(one).items())
        made.append(Program(arenas[budget], budget, ratio(taken[f"ours {budget}"], eager), same, took))
    its = _errors(wide, ours.gradients(expected))
    return Compared(name, blocks, own, its, tuple(points), tuple(made), tuple(ours.refused))


def _gradients(
    network: Network, model: onnx.ModelProto, batch: Arrays, dtype: torch.dtype
) -> tuple[float, dict[str, np.ndarray]]:
    return _given(Stepper(network, model, batch, Way(), dtype))


def _given(stepper: Stepper) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients, which are not there before and not behind."""
    loss = stepper.gradients()
    found = {}
    for name, one in stepper.parameters.items():
        assert one.grad is not None, f"{name} has no gradient"
        found[name], one.grad = one.grad.numpy(), None
    return loss, found


def _errors(wide: tuple[float, Arrays], found: tuple[float, Arrays]) -> Errors:
    return Errors(abs(found[0] - wide[0]) / abs(wide[0]), max(errors(wide[1], found[1]).values()))


def _bound(program: Whole, ours: _Ours) -> Callable[[], object]:
    assert program.program is not None, "it is for this machine"
    return program.program.bind(ours.feed(1e-3))


def _look(call: Callable[[], object]) -> float:
    """Seconds of a call, the least of a few."""
    call()
    found = []
    for _ in range(LOOKS):
        begun = time.thread_time()
        call()
        found.append(time.thread_time() - begun)
    return min(found)

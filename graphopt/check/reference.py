"""Whether two models are equal: run on seeded feeds, compared output by output. A check, not a proof.

Shares no code with the passes. Outputs that depend on random operators are excluded and listed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphopt.check.feeds import DRAWS, Assignment, Input, assignments, inputs_of, make_feed
from graphopt.check.foreign import cut
from graphopt.check.runner import CannotRun, OutOfTime, Workplace
from graphopt.check.tolerance import LIMITS, compare
from graphopt.model.nodes import nodes_of, subgraphs
from graphopt.model.oversized import oversized

NOT_REPEATABLE = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
SIZES_WANTED = 2  # how many values each dynamic dim takes
TRIES = 64  # how many assignments of dims are tried to find them
FEW_TRIES = 8  # with draws that suit few models


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on two models."""

    status: str  # "verified", "different", "not run" (no engine runs the original), "off"
    feeds: int  # on how many feeds the outputs were compared
    max_abs: float
    max_rel: float
    reason: str | None  # why the models are not equal, or why nothing was run
    excluded: tuple[str, ...]  # outputs that were not compared, because they are random
    sizes: tuple[dict[str, int], ...]  # the values that the dynamic dims took
    engine: str
    tolerance: dict[str, float]
    limited: str | None  # what kept the check from being complete, None when it was

    @property
    def passed(self) -> bool:
        """Whether the models were found equal."""
        return self.status == "verified"


OFF = Verification("off", 0, 0.0, 0.0, None, (), (), "", {}, None)
UNCHANGED = Verification("verified", 0, 0.0, 0.0, None, (), (), "", {}, "nothing was rewritten, so nothing was run")


class Reference:
    """The original model, run once on feeds that suit it; candidates are compared with its recorded outputs."""

    def __init__(self, workplace: Workplace, model: ir.Model, seconds: float) -> None:
        self.workplace = workplace
        self.seconds = seconds
        self.model = model
        self.problem: str | None = None
        self.limited: str | None = None
        self.sizes: list[dict[str, int]] = []
        self.cases: list[tuple[dict[str, object], list[object]]] = []
        self.excluded = random_outputs(model)
        # A model is held to the strictest check that the original passes.
        self.checks = next((full for full in (True, False) if workplace.checker_error(model, full) is None), None)
        self.engine = ""
        started = time.monotonic()
        self.foreign: tuple[str, ...] = ()
        runnable = model
        self._sound = self.checks is True
        self.problem = oversized(model)
        if self.problem is not None:
            return
        try:
            self.runner = workplace.runner(model, self._sound)
        except CannotRun as error:
            around = cut(model)
            if around is None:
                self.problem = str(error)
                return
            runnable, self.foreign = around.model, around.operators
            try:
                self.runner = workplace.runner(runnable, self._sound)
            except CannotRun as rest:
                self.problem = str(rest)
                return
        self.engine = self.runner.engine
        self._record(feed_inputs(runnable), started)
        if self.foreign:
            self.limited = f"compared around what cannot be run here: {', '.join(self.foreign)}"

    def _record(self, inputs: tuple[Input, ...], started: float) -> None:
        """Find sizes and draws that the original accepts, and keep what it gives.

        Sizes are looked for with one draw, for a wrong size fails with every draw; the other draws have their turn
        with the likeliest sizes only when the first finds none.
        """
        self._failure = "no feed was found that the model accepts"
        dynamic = any(isinstance(dim, str) for item in inputs for dim in item.dims or ())
        wanted = SIZES_WANTED if dynamic else 1
        for first in range(DRAWS):
            for sizes in itertools.islice(_distinct(assignments(inputs)), TRIES if first == 0 else FEW_TRIES):
                if len(self.sizes) == wanted or self.limited is not None:
                    break
                if self._try(inputs, sizes, first, started):
                    self.sizes.append(sizes)
                    for draw in range(DRAWS):
                        if draw != first and self._try(inputs, sizes, draw, started):
                            break
            if self.sizes or self.limited is not None:
                break
        if not self.cases:
            self.problem = self._failure
        elif dynamic and len(self.sizes) < SIZES_WANTED and self.limited is None:
            self.limited = "only one set of sizes for the dynamic dims was found that the original accepts"

    def _try(self, inputs: tuple[Input, ...], sizes: Assignment, draw: int, started: float) -> bool:
        """Run the original on one feed and keep the outputs; False when it refuses or time is up."""
        left = self.seconds - (time.monotonic() - started)
        try:
            if left <= 0:
                raise OutOfTime
            feed = make_feed(inputs, sizes, draw)
            self.cases.append((feed, list(self.runner.run(feed, left))))
        except OutOfTime:
            self.limited = f"stopped after {self.seconds:.0f} s"
            self._failure = f"no run of the original succeeded within the {self.seconds:.0f} s for verification"
            return False
        except (CannotRun, ValueError, TypeError, MemoryError, OverflowError) as error:
            self._failure = str(error)
            return False
        return True

    def check(self, candidate: ir.Model) -> Verification:
        """Compare a candidate with the original."""
        if self.checks is not None:
            fault = self.workplace.checker_error(candidate, self.checks)
            if fault is not None:
                return self._verdict("different", 0, 0.0, 0.0, f"the result is not a valid model: {fault}")
        if self.problem is not None:
            return self._verdict("not run", 0, 0.0, 0.0, self.problem)
        if self.foreign:
            around = cut(candidate)
            if around is None or around.operators != self.foreign:
                return self._verdict("different", 0, 0.0, 0.0, "a custom operator was changed or removed")
            candidate = around.model
        try:
            runner = self.workplace.runner(candidate, self._sound)
        except CannotRun as error:
            return self._verdict("different", 0, 0.0, 0.0, f"the result cannot be loaded: {error}")
        if runner.engine != self.engine:
            why = f"only {runner.engine} can load the result, and {self.engine} the original"
            return self._verdict("different", 0, 0.0, 0.0, why)
        max_abs = max_rel = 0.0
        for number, (feed, expected) in enumerate(self.cases):
            try:
                outputs = runner.run(feed)
            except CannotRun as error:
                return self._verdict("different", number, max_abs, max_rel, f"the result cannot be run: {error}")
            for name, one, other in zip(runner.output_names, expected, outputs, strict=True):
                if name in self.excluded:
                    continue
                difference = compare(one, other)
                max_abs, max_rel = max(max_abs, difference.max_abs), max(max_rel, difference.max_rel)
                if difference.reason is not None:
                    return self._verdict(
                        "different", number + 1, max_abs, max_rel, f"output '{name}': {difference.reason}"
                    )
        return self._verdict("verified", len(self.cases), max_abs, max_rel, None)

    def _verdict(self, status: str, feeds: int, max_abs: float, max_rel: float, reason: str | None) -> Verification:
        return Verification(
            status, feeds, max_abs, max_rel, reason, tuple(sorted(self.excluded)), tuple(self.sizes), self.engine,
            dict(LIMITS), self.limited,
        )  # fmt: skip


def _distinct(plans: Iterable[Assignment]) -> Iterator[Assignment]:
    seen: list[Assignment] = []
    for plan in plans:
        if plan not in seen:
            seen.append(plan)
            yield plan


def feed_inputs(model: ir.Model) -> tuple[Input, ...]:
    """What has to be fed to run the model."""
    return inputs_of(_without_weights(model))


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """Inputs, nodes and initializers' dims, without the data."""
    proto = onnx.ModelProto()
    for value in model.graph.inputs:
        proto.graph.input.append(ir.to_proto(value))
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            proto.graph.initializer.append(
                onnx.TensorProto(
                    name=name, data_type=int(value.const_value.dtype), dims=value.const_value.shape.numpy()
                )
            )
    for node in model.graph:
        if node.op_type == "Gather":
            proto.graph.node.append(ir.to_proto(node))
    return proto


def random_outputs(model: ir.Model) -> frozenset[str]:
    """The outputs that depend on an operator whose result no two runs share."""
    drawn = {
        identifier
        for identifier, function in model.functions.items()
        if any(node.op_type in NOT_REPEATABLE for node in nodes_of(function.graph))
    }
    tainted: set[ir.Value] = set()
    for node in nodes_of(model.graph):
        inner = [deeper for graph in subgraphs(node) for deeper in nodes_of(graph)]
        own = [node, *inner]
        random = any(item.op_type in NOT_REPEATABLE or item.op_identifier() in drawn for item in own)
        random = random or any(_trains(item) for item in own)
        random = random or any(v in tainted for item in own for v in item.inputs if v is not None)
        if random:
            tainted.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in tainted)


def _trains(node: ir.Node) -> bool:
    """Whether a Dropout draws its mask: it has a training flag that is not a plain false."""
    if node.op_type != "Dropout" or len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    flag = node.inputs[2].const_value
    return flag is None or node.inputs[2].is_graph_input() or bool(flag.numpy().any())


def verify(original: ir.Model, candidate: ir.Model, seconds: float = 300.0) -> Verification:
    """Compare two models with equal signatures on seeded feeds."""
    with Workplace() as workplace:
        return Reference(workplace, original, seconds).check(candidate)

"""A training step: one run computes the loss of a batch and gives the parameters and the optimizer's state after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.gradient.differentiate import LossRequest, differentiate
from graphopt.gradient.maker import GradientMaker
from graphopt.gradient.optimizers import RULES, Change, Optimizer
from graphopt.gradient.training import SEED, Training, train
from graphopt.model import constants
from graphopt.model.collection import paused_collection
from graphopt.model.nodes import remove_unused
from graphopt.model.operators.gradients.terms import Term

METADATA = "graphopt.train_step"  # key of the model's metadata: JSON of `Step`, `from_metadata` reads it
RATE, COUNT, MICRO = "learning_rate", "step", "micro_step"


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that a step takes and gives."""

    input: str
    output: str
    kind: str  # parameter, statistic, state or count


@dataclass(frozen=True, slots=True)
class Step:
    """The values of a training step, by name. Parameters and statistics have their first values as defaults of their
    inputs; state and counts begin as zeros."""

    loss: str
    carried: tuple[Carried, ...]
    seed: str | None  # the input that decides what Dropout drops
    learning_rate: str = RATE
    gradients: tuple[str, ...] = ()  # inner values, in the order of the parameters
    ignored: int | None = None  # targets that do not count in the loss

    def to_metadata(self) -> str:
        """JSON, for the model's metadata."""
        rows = [[one.input, one.output, one.kind] for one in self.carried]
        said = {"version": 1, "loss": self.loss, "carried": rows, "seed": self.seed, "rate": RATE}
        return json.dumps({**said, "gradients": self.gradients, "ignored": self.ignored})


def from_metadata(text: str) -> Step:
    """The step that a model's metadata describes."""
    data = json.loads(text)
    carried = tuple(Carried(*row) for row in data["carried"])
    gradients = tuple(data.get("gradients", ()))
    return Step(data["loss"], carried, data["seed"], data["rate"], gradients, data.get("ignored"))


def step_of(model: ir.Model) -> Step | None:
    """The step that a model says it is; None where it says none."""
    text = model.metadata_props.get(METADATA)
    return None if text is None else from_metadata(text)


def open_carried(model: ir.Model, *, required: bool) -> None:
    """Let checks begin with what a training step begins with: weights as they are, state that is zero.

    With `required`, weights lose their defaults: they must be fed, as a program that held them could not train.
    """
    step = step_of(model)
    if step is None:
        return
    names = {step.learning_rate, *(one.input for one in step.carried)}
    for value in model.graph.inputs:
        if value.name not in names:
            continue
        if value.name in model.graph.initializers:
            if required:
                del model.graph.initializers[value.name]
        elif value.shape is not None and value.dtype is not None:
            value.const_value = ir.Tensor(np.zeros(value.shape.numpy(), value.dtype.numpy()), name=value.name)


@paused_collection()
def make_step(
    model: ir.Model,
    request: LossRequest,
    optimizer: Optimizer,
    *,
    with_respect_to: str | Sequence[str] = "trainable",
    batch_statistics: bool = True,
    accumulate: int = 1,
) -> Step:
    """Make a model its own training step, in place: outputs are the loss and what is carried to the next run.

    With `accumulate` n, gradients of n runs are averaged, and parameters change in every n-th.
    """
    if accumulate < 1:
        raise OptionError(f"accumulate is {accumulate}; gradients of at least 1 run are taken together.")
    modes: list[Training] = []

    def prepare(maker: GradientMaker) -> None:
        modes.append(train(maker, batch_statistics=batch_statistics))

    done = differentiate(model, request, with_respect_to, prepare)
    maker, graph = done.maker, model.graph
    strangers = [value.name for value in done.gradients if constants.of_initializer(value) is None]
    if strangers:
        raise OptionError(f"'{strangers[0]}' is an input, which a step cannot change; name weights.")
    writer = _Writer(maker, optimizer, accumulate)
    computed = len(graph)
    del graph.outputs[:]
    graph.outputs.append(done.loss)
    carried = writer.write({value: maker.term(gradient) for value, gradient in done.gradients.items()})
    for value, term in modes[0].running.items():
        carried.append(_carry(maker, value, term, "statistic"))
    _in_early_order(graph, computed)
    remove_unused(graph)
    seed = modes[0].seed
    step = Step(
        done.loss.name or "", tuple(carried), None if seed is None else SEED,
        gradients=tuple(gradient.name or "" for gradient in done.gradients.values()),
        ignored=request.ignore_index if request.loss == "cross-entropy" else None,
    )  # fmt: skip
    model.metadata_props[METADATA] = step.to_metadata()
    return step


def _in_early_order(graph: ir.Graph, computed: int) -> None:
    """Put the nodes behind the first `computed` ones where their operands are there: a gradient then goes at once."""
    nodes = list(graph)
    missing = {
        node: {value.producer() for value in node.inputs if value is not None} - {None} for node in nodes[computed:]
    }
    ordered: list[ir.Node] = []
    waiting = [node for node, producers in reversed(missing.items()) if not producers]
    for node in [None, *nodes[:computed]]:
        pending = waiting if node is None else [node]
        while pending:
            one = pending.pop()
            ordered.append(one)
            for reader in reversed([reader for output in one.outputs for reader in output.consumers()]):
                if reader in missing and one in missing[reader]:
                    missing[reader].remove(one)
                    if not missing[reader]:
                        pending.append(reader)
    graph.remove(nodes)
    graph.extend(ordered)


def _carry(maker: GradientMaker, value: ir.Value, after: Term, kind: str) -> Carried:
    """Make an initializer an input with a default, and its value after the step an output."""
    if not value.is_graph_input():
        maker.graph.inputs.append(value)
        tensor = constants.of_initializer(value)
        if value.type is None and tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    output = maker.give(after.value, f"{value.name}_new")
    return Carried(value.name or "", output.name or "", kind)


class _Writer:
    """Writes the changes of all parameters."""

    def __init__(self, maker: GradientMaker, optimizer: Optimizer, accumulate: int) -> None:
        self.maker, self.optimizer, self.accumulate = maker, optimizer, accumulate
        self.carried: list[Carried] = []
        self.rate = self._default_input(RATE, np.array(optimizer.learning_rate, np.float32))
        self.applies: Term | None = None  # whether this run changes parameters

    def write(self, gradients: dict[ir.Value, Term]) -> list[Carried]:
        """The parameters and states after the step, as outputs."""
        maker, optimizer = self.maker, self.optimizer
        if self.accumulate > 1:
            micro = self._state_input(MICRO, ir.DataType.INT64, [])
            following = maker.op("Mod", micro + 1, micro.number(self.accumulate))
            self.applies = following.equals(0)
            self._give(micro, following, "count")
        first = second = None
        if optimizer.counts:
            before = self._state_input(COUNT, ir.DataType.INT64, [])
            count = before + 1 if self.applies is None else (before + 1).where(self.applies, before)
            runs = (before + 1).cast(ir.DataType.DOUBLE)
            first = 1.0 - maker.op("Pow", runs.number(optimizer.beta1), runs)
            second = (1.0 - maker.op("Pow", runs.number(optimizer.beta2), runs)).apply("Sqrt")
            self._give(before, count, "count")
        for value, gradient in gradients.items():
            self._change(value, gradient, first, second)
        return self.carried

    def _change(self, value: ir.Value, gradient: Term, first: Term | None, second: Term | None) -> None:
        maker, parameter = self.maker, self.maker.term(value)
        kind = parameter.dtype
        shape = ir.Shape(parameter.sizes)
        total: Term | None = None
        if self.applies is not None:
            summed = self._state_input(f"{value.name}.sum", kind, shape)
            total = summed + gradient
            gradient = total * (1 / self.accumulate)
            self._give(summed, total.zeros().where(self.applies, total), "state")
        states = tuple(self._state_input(f"{value.name}.{slot}", kind, shape) for slot in self.optimizer.slots)
        after, new_states = RULES[self.optimizer.name](
            Change(
                self.optimizer, parameter, gradient, states, self.rate.cast(kind),
                None if first is None else first.cast(kind), None if second is None else second.cast(kind),
            )
        )  # fmt: skip
        for old, new in zip(states, new_states, strict=True):
            self._give(old, new if self.applies is None else new.where(self.applies, old), "state")
        if self.applies is not None:
            after = after.where(self.applies, parameter)
        self.carried.append(_carry(maker, value, after, "parameter"))

    def _state_input(self, name: str, kind: ir.DataType, shape: Sequence[int] | ir.Shape) -> Term:
        value = ir.Value(name=self.maker.unique(name), type=ir.TensorType(kind), shape=ir.Shape(shape))
        self.maker.graph.inputs.append(value)
        return self.maker.term(value)

    def _default_input(self, name: str, array: np.ndarray) -> Term:
        kind = ir.DataType.from_numpy(array.dtype)
        value = ir.Value(
            name=self.maker.unique(name), type=ir.TensorType(kind), shape=ir.Shape(array.shape),
            const_value=ir.Tensor(array, name=name),
        )  # fmt: skip
        self.maker.graph.inputs.append(value)
        self.maker.graph.register_initializer(value)
        return self.maker.term(value)

    def _give(self, before: Term, after: Term, kind: str) -> None:
        output = self.maker.give(after.value, f"{before.value.name}_new")
        self.carried.append(Carried(before.value.name or "", output.name or "", kind))

"""RNN, GRU and LSTM of every form: all activations, weights that are computed, clips, lengths, layouts.

The common forms have a template, which is faster. One sequence of a batch runs from its first step to its last while
others run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.model.nodes import attribute_of
from graphopt.program.regions.activations import Activation, UnknownActivation, activations
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.routines.sums import summed
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, integer, maximum, minimum, number
from kernels.tensor.expression import Expression

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _activations(node: Defined, directions: int) -> list[list[Activation]]:
    """The activations of each direction."""
    given = attribute_of(node.node, "activations")
    names = None if given is None else [str(one) for one in given.value]
    alphas, betas = node.numbers("activation_alpha"), node.numbers("activation_beta")
    try:
        return activations(node.node.op_type, names, alphas, betas, directions)
    except UnknownActivation as unknown:
        raise node.refuse(f"has the activation {unknown}, which is none of ONNX") from unknown


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dims of a layer; with `batch_first` those of the batch come before the steps."""

    steps: int
    batch: int
    inputs: int
    directions: int
    hidden: int
    batch_first: bool

    def x(self, step: Expression, item: Expression) -> Expression:
        """Where the input of a step begins."""
        line = item * self.steps + step if self.batch_first else step * self.batch + item
        return line * self.inputs

    def y(self, step: Expression, direction: Expression, item: Expression) -> Expression:
        """Where the output of a step begins."""
        if self.batch_first:
            return ((item * self.steps + step) * self.directions + direction) * self.hidden
        return ((step * self.directions + direction) * self.batch + item) * self.hidden

    def state(self, direction: Expression, item: Expression) -> Expression:
        """Where a state begins, one that is given or one that is left."""
        line = item * self.directions + direction if self.batch_first else direction * self.batch + item
        return line * self.hidden


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer while one of its directions is written."""

    node: Defined
    w: Stage
    kind: DType
    sizes: Sizes
    x: Grid
    weights: Grid
    recurrence: Grid
    bias: Grid | None
    peepholes: Grid | None
    h: Grid
    c: Grid
    gates: Grid  # [gates, hidden]
    other: Grid  # [hidden]
    direction: int

    def clipped(self, value: Expression) -> Expression:
        """What an activation is given."""
        limit = self.node.number("clip", 0.0)
        return minimum(maximum(value, -limit), limit) if limit > 0 else value

    def from_input(self, row: Expression, start: Expression) -> Expression:
        """A row of W with the input of a step."""
        first = self.w.local(DType.I64, self.row(row) * self.sizes.inputs)

        def term(at: Expression) -> Expression:
            return self.of(self.weights, first + at) * self.of(self.x, start + at)

        return summed(self.w, self.kind, self.sizes.inputs, term)

    def from_state(self, row: Expression, state: Grid) -> Expression:
        """A row of R with a state."""
        first = self.w.local(DType.I64, self.row(row) * self.sizes.hidden)
        return summed(self.w, self.kind, self.sizes.hidden, lambda at: self.of(self.recurrence, first + at) * state[at])

    def row(self, row: Expression) -> Expression:
        """The row of a gate's matrices, counted through all directions."""
        return row + self.direction * GATES[self.node.node.op_type] * self.sizes.hidden

    def biased(self, gate: int, at: Expression, *, of_state: bool) -> Expression:
        """The bias of a gate: W's or R's."""
        if self.bias is None:
            return number(0, self.kind)
        count = GATES[self.node.node.op_type]
        first = (self.direction * 2 * count + (count if of_state else 0) + gate) * self.sizes.hidden
        return self.of(self.bias, at + first)

    def peephole(self, gate: int, at: Expression, cell: Expression) -> Expression:
        """What the cell adds to a gate."""
        if self.peepholes is None:
            return number(0, self.kind)
        return self.of(self.peepholes, at + (self.direction * 3 + gate) * self.sizes.hidden) * cell

    def of(self, tensor: Grid, place: Expression) -> Expression:
        """An element as it is computed with."""
        return as_type(tensor.at(place), self.kind)


def recurrent(node: Defined) -> None:
    """One layer: for each direction and each item of the batch its steps, one after the other."""
    count = GATES[node.node.op_type]
    x, weights = node.input(0), node.input(1)
    batch_first = bool(node.integer("layout", 0))
    batch, steps = x.shape[:2] if batch_first else x.shape[1::-1]
    sizes = Sizes(steps, batch, x.shape[2], weights.shape[0], weights.shape[1] // count, batch_first)
    kind, functions = held(x.dtype), _activations(node, sizes.directions)
    hidden = sizes.hidden
    for direction in range(sizes.directions):
        backwards = node.text("direction", "forward") == "reverse" or direction == 1
        with node.stage() as w:
            read = [w.reads(node.input(at)) if node.has(at) else None for at in range(8)]
            results = [w.writes(node.output(at)) if node.wants(at) else None for at in range(3)]
            data, matrix, recurrence = w.reads(x), w.reads(weights), w.reads(node.input(2))
            layer = Layer(
                node, w, kind, sizes, data, matrix, recurrence, read[3], read[7], w.scratch(kind, (hidden,)),
                w.scratch(kind, (hidden,)), w.scratch(kind, (count, hidden)), w.scratch(kind, (hidden,)), direction,
            )  # fmt: skip
            with w.shared(batch) as (item,):
                state = w.local(DType.I64, sizes.state(integer(direction), item))
                for held_state, first in ((layer.h, read[5]), (layer.c, read[6])):
                    with w.loop(hidden) as at:
                        held_state[at] = number(0, kind) if first is None else layer.of(first, state + at)
                lengths = read[4]
                length = integer(steps) if lengths is None else as_type(lengths.at(item), DType.I64)
                length = w.local(DType.I64, minimum(maximum(length, 0), steps))
                with w.loop(length) as turn:
                    step = w.local(DType.I64, length - 1 - turn if backwards else turn)
                    start = w.local(DType.I64, sizes.x(step, item))
                    _CELLS[node.node.op_type](layer, start, functions[direction])
                    _keep(layer, results[0], sizes.y(step, integer(direction), item), layer.h)
                with w.loop(steps, length) as step:
                    _keep(layer, results[0], sizes.y(step, integer(direction), item), None)
                _keep(layer, results[1], state, layer.h)
                _keep(layer, results[2], state, layer.c)


def _keep(layer: Layer, result: Grid | None, start: Expression, state: Grid | None) -> None:
    if result is not None:
        first = layer.w.local(DType.I64, start)
        with layer.w.loop(layer.sizes.hidden) as at:
            value = number(0, layer.kind) if state is None else state[at]
            result.put(first + at, as_type(value, result.dtype))


def _sums(layer: Layer, start: Expression, gates: Sequence[int]) -> None:
    """W x + R h + both biases of some gates."""
    w, hidden = layer.w, layer.sizes.hidden
    for gate in gates:
        with w.loop(hidden) as at:
            total = layer.from_input(at + gate * hidden, start) + layer.from_state(at + gate * hidden, layer.h)
            total = total + layer.biased(gate, at, of_state=False) + layer.biased(gate, at, of_state=True)
            layer.gates[gate, at] = total


def _rnn(layer: Layer, start: Expression, functions: Sequence[Activation]) -> None:
    _sums(layer, start, (0,))
    with layer.w.loop(layer.sizes.hidden) as at:
        layer.h[at] = functions[0](layer.clipped(layer.gates[0, at]))


def _gru(layer: Layer, start: Expression, functions: Sequence[Activation]) -> None:
    """Gates z, r, h; the reset gate acts before R, or behind it with `linear_before_reset`."""
    w, hidden, kind = layer.w, layer.sizes.hidden, layer.kind
    _sums(layer, start, (0, 1))
    late = bool(layer.node.integer("linear_before_reset", 0))
    with w.loop(hidden) as at:
        reset = w.local(kind, functions[0](layer.clipped(layer.gates[1, at])))
        layer.gates[1, at] = reset
        layer.other[at] = layer.h[at] if late else reset * layer.h[at]
    with w.loop(hidden) as at:
        row = at + 2 * hidden
        found = layer.from_state(row, layer.other) + layer.biased(2, at, of_state=True)
        past = w.local(kind, found * layer.gates[1, at] if late else found)
        layer.gates[2, at] = layer.from_input(row, start) + layer.biased(2, at, of_state=False) + past
    with w.loop(hidden) as at:
        update = w.local(kind, functions[0](layer.clipped(layer.gates[0, at])))
        new = w.local(kind, functions[1](layer.clipped(layer.gates[2, at])))
        layer.h[at] = (1.0 - update) * new + update * layer.h[at]


def _lstm(layer: Layer, start: Expression, functions: Sequence[Activation]) -> None:
    """Gates i, o, f, c; with `input_forget` the forget gate is 1 - i."""
    w, kind = layer.w, layer.kind
    _sums(layer, start, (0, 1, 2, 3))
    with w.loop(layer.sizes.hidden) as at:
        cell = w.local(kind, layer.c[at])

        def gate(which: int, cell: Expression, peephole: int | None) -> Expression:
            value = layer.gates[which, at]
            return layer.clipped(value if peephole is None else value + layer.peephole(peephole, at, cell))

        entry = w.local(kind, functions[0](gate(0, cell, 0)))
        coupled = bool(layer.node.integer("input_forget", 0))
        forget = w.local(kind, 1.0 - entry if coupled else functions[0](gate(2, cell, 2)))
        new = w.local(kind, forget * cell + entry * functions[1](gate(3, cell, None)))
        layer.c[at] = new
        layer.h[at] = functions[0](gate(1, new, 1)) * functions[2](new)


_CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
DEFINITIONS: dict[str, Definition] = {"RNN": recurrent, "GRU": recurrent, "LSTM": recurrent}

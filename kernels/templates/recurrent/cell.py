"""One step of a cell for a vector of hidden units: from the gates to the new state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Value
from kernels.templates.epilogue import TileLeaves
from kernels.templates.recurrent.problem import Recurrent
from kernels.tensor.expression import Variable


@dataclass(frozen=True, slots=True)
class Units:
    """A vector of hidden units of one sequence, while a step computes it."""

    given: Callable[[int], Value]  # W x + b of a gate
    product: Callable[[int], Value]  # R h of a gate
    unit: Value  # the first of them
    state: Value  # where they stand in a state
    direction: int
    valid: Value | None  # the lanes that are there; None: all
    runs: Value | None  # whether the sequence still runs; None: it does

    def gate(self, f: Function, index: int) -> Value:
        """Both together."""
        return f.add(self.product(index), self.given(index))


class CellFormulas:
    """The formulas of one layer's cell, for vectors of some lanes; `gate` gives the sum of a gate by its number."""

    def __init__(self, layer: Recurrent, lanes: int) -> None:
        self._layer, self._lanes = layer, lanes

    def activate(self, f: Function, index: int, value: Value) -> Value:
        """An activation by its number."""
        leaves = TileLeaves(f, {}, Variable("column", 1), self._lanes).place(value, {}, (0,))
        return emit(f, self._layer.activations[index], self._lanes, leaves)

    def rnn(self, f: Function, gate: Value) -> Value:
        """The new state."""
        return self.activate(f, 0, gate)

    def update(self, f: Function, gate: Callable[[int], Value]) -> Value:
        """How much of its state a GRU keeps."""
        return self.activate(f, 0, gate(0))

    def reset(self, f: Function, gate: Callable[[int], Value]) -> Value:
        """How much of its state, or of the product with it, a GRU's hidden gate sees."""
        return self.activate(f, 0, gate(1))

    def gru(self, f: Function, update: Value, hidden: Value, before: Value) -> Value:
        """The new state, given the sum of the hidden gate."""
        proposed = self.activate(f, 1, hidden)
        return f.add(proposed, f.mul(update, f.sub(before, proposed)))

    def lstm(
        self, f: Function, gate: Callable[[int], Value], peephole: Callable[[int], Value], cell: Value
    ) -> tuple[Value, Value]:
        """The new state, and the new state of the cell."""

        def activated(index: int, number: int, state: Value) -> Value:
            total = gate(index)
            if self._layer.with_peepholes:
                total = f.fma(peephole(number), state, total)
            return self.activate(f, 0, total)

        take, keep = activated(0, 0, cell), activated(2, 2, cell)
        updated = f.fma(keep, cell, f.mul(take, self.activate(f, 1, gate(3))))
        return f.mul(activated(1, 1, updated), self.activate(f, 2, updated)), updated


class CellWriter:
    """Writes steps of one layer's cell. What it keeps lies in scratch from `cell_at` and `reset_at` (elements) on."""

    def __init__(self, layer: Recurrent, lanes: int, cell_at: int, reset_at: int) -> None:
        self._layer, self._lanes, self._cell_at, self._reset_at = layer, lanes, cell_at, reset_at
        self._vector, self._cell = types.vector("float", lanes), CellFormulas(layer, lanes)

    def step(self, f: Function, here: Units, before: Value, phase: str) -> Value | None:
        """The new state; None when this phase only prepares it."""
        if self._layer.cell == "rnn":
            return self._cell.rnn(f, here.gate(f, 0))
        if self._layer.cell == "lstm":
            return self._lstm(f, here)
        place = f.at(f.parameter("scratch"), f.add(here.state, self._reset_at))
        update_at = f.at(f.parameter("scratch"), f.add(here.state, self._cell_at))

        def gate(index: int) -> Value:
            return here.gate(f, index)

        if phase == "first":
            f.store(self._cell.update(f, gate), update_at)
            f.store(f.mul(self._cell.reset(f, gate), before), place)
            return None
        if phase == "second":
            update, hidden = f.load(self._vector, update_at), here.gate(f, 2)
        else:
            update, reset = self._cell.update(f, gate), self._cell.reset(f, gate)
            bias_at = f.add(here.unit, here.direction * self._layer.hidden)
            recurrent = f.add(here.product(2), self.read(f, "hidden_bias", bias_at, here.valid))
            hidden = f.fma(reset, recurrent, here.given(2))
        return self._cell.gru(f, update, hidden, before)

    def _lstm(self, f: Function, here: Units) -> Value:
        place = f.at(f.parameter("scratch"), f.add(here.state, self._cell_at))
        cell = f.load(self._vector, place)

        def peephole(number: int) -> Value:
            at = f.add(here.unit, (here.direction * 3 + number) * self._layer.hidden)
            return self.read(f, "peepholes", at, here.valid)

        after, updated = self._cell.lstm(f, lambda index: here.gate(f, index), peephole, cell)
        if here.runs is not None:
            updated = f.select(f.splat(here.runs, self._lanes), updated, cell)
        f.store(updated, place)
        return after

    def read(self, f: Function, name: str, at: Value, valid: Value | None) -> Value:
        """A vector of an operand, or its valid lanes."""
        address = f.at(f.parameter(name), at)
        return f.load(self._vector, address) if valid is None else f.masked_load(self._vector, address, valid)

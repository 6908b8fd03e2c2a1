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


class CellWriter:
    """Writes steps of one layer's cell. What it keeps lies in scratch from `cell_at` and `reset_at` (elements) on."""

    def __init__(self, layer: Recurrent, lanes: int, cell_at: int, reset_at: int) -> None:
        self._layer, self._lanes, self._cell_at, self._reset_at = layer, lanes, cell_at, reset_at
        self._vector = types.vector("float", lanes)

    def step(self, f: Function, here: Units, before: Value, phase: str) -> Value | None:
        """The new state; None when this phase only prepares it."""
        if self._layer.cell == "rnn":
            return self._activate(f, 0, here.gate(f, 0))
        if self._layer.cell == "lstm":
            return self._lstm(f, here)
        place = f.at(f.parameter("scratch"), f.add(here.state, self._reset_at))
        update_at = f.at(f.parameter("scratch"), f.add(here.state, self._cell_at))
        if phase == "first":
            f.store(self._activate(f, 0, here.gate(f, 0)), update_at)
            f.store(f.mul(self._activate(f, 0, here.gate(f, 1)), before), place)
            return None
        if phase == "second":
            update, proposed = f.load(self._vector, update_at), self._activate(f, 1, here.gate(f, 2))
        else:
            update, reset = self._activate(f, 0, here.gate(f, 0)), self._activate(f, 0, here.gate(f, 1))
            bias_at = f.add(here.unit, here.direction * self._layer.hidden)
            recurrent = f.add(here.product(2), self.read(f, "hidden_bias", bias_at, here.valid))
            proposed = self._activate(f, 1, f.fma(reset, recurrent, here.given(2)))
        return f.add(proposed, f.mul(update, f.sub(before, proposed)))

    def _lstm(self, f: Function, here: Units) -> Value:
        place = f.at(f.parameter("scratch"), f.add(here.state, self._cell_at))
        cell = f.load(self._vector, place)

        def gate(index: int, peephole: int, state: Value) -> Value:
            total = here.gate(f, index)
            if self._layer.with_peepholes:
                at = f.add(here.unit, (here.direction * 3 + peephole) * self._layer.hidden)
                total = f.fma(self.read(f, "peepholes", at, here.valid), state, total)
            return self._activate(f, 0, total)

        take, keep = gate(0, 0, cell), gate(2, 2, cell)
        updated = f.fma(keep, cell, f.mul(take, self._activate(f, 1, here.gate(f, 3))))
        after = f.mul(gate(1, 1, updated), self._activate(f, 2, updated))
        if here.runs is not None:
            updated = f.select(f.splat(here.runs, self._lanes), updated, cell)
        f.store(updated, place)
        return after

    def _activate(self, f: Function, index: int, value: Value) -> Value:
        leaves = TileLeaves(f, {}, Variable("column", 1), self._lanes).place(value, {}, (0,))
        return emit(f, self._layer.activations[index], self._lanes, leaves)

    def read(self, f: Function, name: str, at: Value, valid: Value | None) -> Value:
        """A vector of an operand, or its valid lanes."""
        address = f.at(f.parameter(name), at)
        return f.load(self._vector, address) if valid is None else f.masked_load(self._vector, address, valid)

"""Recurrent layers in steps: a region for each step and direction; steps of independent layers run side by side.

All steps of a layer share one kernel; the places say which step it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.recurrent.step import STEP, RecurrentStep

_BYTES = DType.F32.bytes


def lower_steps(
    scope: Scope, node: ir.Node, layer: Recurrent, steps: Sequence[RecurrentStep], r: npt.NDArray[np.generic],
    buffers: Mapping[str, Buffer],
) -> None:  # fmt: skip
    """The regions of all steps. `buffers` are those of operands but R; results that nobody uses have none."""
    for number in range(len(layer.directions)):
        _Direction(scope, node, layer, steps, r[number], buffers, number).lower()


@dataclass(frozen=True, slots=True)
class _Direction:
    scope: Scope
    node: ir.Node
    layer: Recurrent
    steps: Sequence[RecurrentStep]
    r: npt.NDArray[np.generic]
    buffers: Mapping[str, Buffer]
    number: int

    @property
    def _state(self) -> int:
        """Bytes of a state."""
        return _BYTES * self.layer.batch * self.layer.hidden

    def _own(self, name: str, size: int) -> Place:
        """The direction's part of an operand, of so many bytes."""
        return Place(self.buffers[name], self.number * size)

    def _temporary(self, purpose: str) -> Place:
        return Place(self.scope.temporary(purpose, self.node.outputs[0].name, self._state))

    def lower(self) -> None:
        """Each step from the state that the one before it left."""
        layer, scope = self.layer, self.scope
        kernels = [scope.kernel(STEP, one) for one in self.steps]
        packed = [scope.weight("packed r", self.node.name, self.r, kernel.operand("r")) for kernel in kernels]
        state, cell = self._own("initial_h", self._state), self._own("initial_c", self._state)
        for passed in range(layer.steps):
            at = layer.steps - 1 - passed if layer.directions[self.number] == "reverse" else passed
            is_last = passed == layer.steps - 1
            after, cell_after = self._after(at, is_last)
            places = self._read(at) | {"h": state, "c": cell, "y": after, "y_c": cell_after}
            self._add(kernels, packed, places)
            state, cell = after, cell_after
        for name, final in (("y_h", state), ("y_c", cell)):
            if name in self.buffers and final != self._own(name, self._state):
                self._copy(final, self._own(name, self._state))

    def _after(self, at: int, is_last: bool) -> tuple[Place, Place]:
        """Where a step leaves the states."""
        place = at * len(self.layer.directions) + self.number
        if "y" in self.buffers:
            state = Place(self.buffers["y"], place * self._state)
        elif is_last and "y_h" in self.buffers:
            state = self._own("y_h", self._state)
        else:
            state = self._temporary("state")
        if self.layer.cell != "lstm":
            return state, state
        is_result = is_last and "y_c" in self.buffers
        return state, self._own("y_c", self._state) if is_result else self._temporary("cell state")

    def _read(self, at: int) -> dict[str, Place]:
        """What a step reads besides states and R."""
        layer, hidden = self.layer, self.layer.hidden
        row = _BYTES * len(layer.directions) * layer.gates * hidden
        found = {
            "gates": Place(self.buffers["gates"], at * layer.batch * row + self.number * _BYTES * layer.gates * hidden)
        }
        for name, size in (("hidden_bias", hidden), ("peepholes", 3 * hidden)):
            if name in self.buffers:
                found[name] = self._own(name, _BYTES * size)
        return found

    def _add(self, kernels: Sequence[Kernel], packed: Sequence[Buffer], places: Mapping[str, Place]) -> None:
        """The region of a step, or the two of one that resets the state before it multiplies."""
        nodes = (self.node,)
        if len(kernels) == 1:
            self.scope.add(kernels[0], {**places, "r": packed[0]}, nodes)
            return
        between = {"update": self._temporary("update"), "seen": self._temporary("seen")}
        self.scope.add(kernels[0], {**places, **between, "r": packed[0]}, nodes)
        second = {**places, "before": places["h"], "h": between["seen"], "update": between["update"]}
        self.scope.add(kernels[1], {**second, "r": packed[1]}, nodes)

    def _copy(self, source: Place, aim: Place) -> None:
        shape = (self.layer.batch, self.layer.hidden)
        here, there = (
            replace(View.dense(one.buffer, DType.F32, shape), offset=one.offset // _BYTES) for one in (source, aim)
        )
        self.scope.copy(here, there, (self.node,))

"""One step of a recurrent layer in one direction, for several workers: a block has a panel of hidden units.

The state before a step is what the step before it wrote, so that steps follow one another, and the blocks of each wait
for those of the one before. One block has all gates of its units: R h by a tile of products, then the cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Function, Parameter, Value
from kernels.size import nothing
from kernels.target import Target
from kernels.templates.grid import Group, each_piece, pieces
from kernels.templates.recurrent.build import RecurrentBuilder
from kernels.templates.recurrent.problem import Recurrent, RecurrentCandidate, candidates
from kernels.templates.template import Template

Phase = Literal["all", "first", "second"]  # a GRU that resets the state before its product takes two steps


@dataclass(frozen=True, slots=True)
class RecurrentStep:
    """A step of one direction.

    Operands: "gates", from those of the step on, of which a row of the batch has `apart` elements; "r" constant
    [gates * hidden, hidden]; "h" [batch, hidden], what R is multiplied with; an LSTM's "c"; "hidden_bias" and
    "peepholes" of the direction; in the second phase also "before" and "update" [batch, hidden]. Outputs: "y" and an
    LSTM's "y_c" [batch, hidden]; of the first phase "update" and "seen", which the second one multiplies with.
    """

    layer: Recurrent  # of one step and one direction
    apart: int
    phase: Phase = "all"

    @classmethod
    def of(cls, layer: Recurrent, phase: Phase = "all") -> RecurrentStep:
        """The step of any direction of a layer."""
        apart = len(layer.directions) * layer.gates * layer.hidden
        return cls(replace(layer, steps=1, directions=("forward",)), apart, phase)

    @classmethod
    def phases(cls, layer: Recurrent) -> tuple[RecurrentStep, ...]:
        """The steps that make one of the layer; none where there are lengths, whose rows are at steps of their own."""
        if layer.with_lengths:
            return ()
        if layer.cell == "gru" and not layer.linear_before_reset:
            return cls.of(layer, "first"), cls.of(layer, "second")
        return (cls.of(layer),)

    @property
    def gates(self) -> tuple[int, ...]:
        """Whose rows of R are multiplied."""
        return {"all": tuple(range(self.layer.gates)), "first": (0, 1), "second": (2,)}[self.phase]

    @property
    def operands(self) -> tuple[tuple[str, Literal["input", "constant", "output"], int], ...]:
        """Operands but R: name, role, elements."""
        layer, gates = self.layer, self.layer.gates * self.layer.hidden
        states = layer.batch * layer.hidden
        found: list[tuple[str, Literal["input", "constant", "output"], int]] = [
            ("gates", "input", (layer.batch - 1) * self.apart + gates if states else 0), ("h", "input", states)
        ]  # fmt: skip
        if layer.cell == "lstm":
            found.append(("c", "input", states))
        if self.phase == "second":
            found += [("before", "input", states), ("update", "input", states)]
        if layer.cell == "gru" and layer.linear_before_reset:
            found.append(("hidden_bias", "constant", layer.hidden))
        if layer.with_peepholes:
            found.append(("peepholes", "constant", 3 * layer.hidden))
        names = ("update", "seen") if self.phase == "first" else ("y", "y_c") if layer.cell == "lstm" else ("y",)
        return (*found, *((name, "output", states) for name in names))


def _candidates(step: RecurrentStep, target: Target) -> tuple[RecurrentCandidate, ...]:
    return candidates(step.layer, target)


def build(step: RecurrentStep, candidate: RecurrentCandidate, target: Target, name: str = "recurrent_step") -> Kernel:
    """The kernel of a step of one phase; its operands are those that `RecurrentStep` lists, R second."""
    return _StepBuilder(step, candidate, target, name).kernel()


STEP = Template("recurrent_step", RecurrentStep, _candidates, build)


class _StepBuilder(RecurrentBuilder):
    def __init__(self, step: RecurrentStep, candidate: RecurrentCandidate, target: Target, name: str) -> None:
        super().__init__(step.layer, candidate, target, name)
        self.step = step
        self.panels = pieces(self.unit_groups)
        self.in_place = step.layer.hidden == self.padded  # no lanes behind the last unit: the state is read as it lies

    def kernel(self) -> Kernel:
        layer = self.problem
        operands = [Operand(one, role, DType.F32, elements) for one, role, elements in self.step.operands]
        operands.insert(1, Operand("r", "constant", layer.r_dtype, self.packing.elements, self.packing))
        self.names = [operand.name for operand in operands]
        self.candidate = RecurrentCandidate(self.rows, self.unit_groups[0].size if self.unit_groups else 0)
        blocks = pieces(self.row_groups) * self.panels
        return self.written(operands, blocks, scratch_bytes=4 * self.scratch, flops=layer.flops)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if nothing(self.problem.batch, self.problem.hidden):
            return
        stretch = f.binary("udiv", block, f.integer(self.panels))
        panel = f.sub(block, f.mul(stretch, self.panels))

        def rows(group: Group, row: Value) -> None:
            f.call(self._tile(group.size), row, panel, scratch, *(pointers[one] for one in self.names))

        each_piece(f, self.row_groups, stretch, f.add(stretch, 1), rows)

    def _tile(self, rows: int) -> str:
        """f(row, panel, scratch, operands...): a panel of units of `rows` sequences from `row` on."""
        name = f"{self.name}_{rows}"
        if self.module.has(name):
            return name
        layer, hidden = self.problem, self.problem.hidden
        given = [Parameter("row", "i64"), Parameter("panel", "i64"), Parameter("scratch")]
        f = Function(self.module, name, [*given, *(Parameter(one) for one in self.names)])
        row, scratch = f.parameter("row"), f.parameter("scratch")
        start = f.mul(row, hidden)
        state = f.at(f.parameter("h"), start)
        if not self.in_place:
            self._padding_to_zero(f, rows)
            self._copy_rows(f, rows, state, hidden, scratch, self.padded)
            state = scratch
        cell = f.at(scratch, self.cell_at)
        if layer.cell == "lstm" and not self.in_place:
            self._copy_rows(f, rows, f.at(f.parameter("c"), start), hidden, cell, self.padded)
        new = f.at(scratch, self.state_at[1])

        def units(group: Group, vector: Value) -> None:
            unit = f.mul(vector, self.lanes)
            if layer.cell == "lstm" and self.in_place:
                for row_number in range(rows):
                    for column in range(group.size):
                        at = f.add(unit, row_number * hidden + column * self.lanes)
                        f.store(f.load(self.vector, f.at(f.parameter("c"), f.add(start, at))), f.at(cell, at))
            r = f.at(f.parameter("r"), f.mul(unit, layer.gates * hidden), memory_type(layer.r_dtype))
            self._products(f, rows, group, self.step.gates, state, r)
            self._cells(f, rows, 0, "forward", group, unit, f.integer(0), state, new, self.step.phase)

        panel = f.parameter("panel")
        each_piece(f, self.unit_groups, panel, f.add(panel, 1), units)
        f.finish()
        return name

    def _gates_of(self, f: Function, reads: Value, at: Value, number: int) -> Value:
        """Where the gates of a sequence begin; those of other directions lie between the rows."""
        return f.mul(at, self.step.apart)

    def _cell_stored(self, f: Function, at: Value, unit: Value, state: Value, valid: Value | None) -> None:
        """An LSTM's cell state goes where the next step reads it."""
        if self.problem.cell == "lstm":
            value = f.load(self.vector, f.at(f.parameter("scratch"), f.add(state, self.cell_at)))
            self._put(f, value, f.at(f.parameter("y_c"), f.add(f.mul(at, self.problem.hidden), unit)), valid)

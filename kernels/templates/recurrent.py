"""LSTM, GRU and plain recurrent layers: all steps of a batch tile in one block, the state kept in cache.

What does not depend on the state, W x + b for all steps, is one matrix product made before; here each step adds R h.
R is packed so that one tile computes all gates of the same hidden units, and a cell function turns them into the new
state at once. A block is a direction and a tile of the batch: steps follow one another, so nothing else is independent.

Gates stand in ONNX's order: input, output, forget, cell for LSTM; update, reset, hidden for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, entry
from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.epilogue import ACCUMULATED, Epilogue, TileLeaves
from kernels.templates.grid import Group, balanced, each_piece, pieces
from kernels.templates.tile import Tile, most_accumulators, write_tile
from kernels.tensor.expression import Expression, Unary, Variable

Cell = Literal["lstm", "gru", "rnn"]
GATES: dict[Cell, int] = {"lstm": 4, "gru": 3, "rnn": 1}
SIGMOID = Unary("sigmoid", ACCUMULATED[()])
TANH = Unary("tanh", ACCUMULATED[()])


class InvalidRecurrent(KernelsError):
    """A recurrent layer whose dims or activations do not fit."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A recurrent layer, in f32.

    Operands: "gates" [steps, batch, directions, gates, hidden], W x + b (and R's bias, except that of GRU's hidden gate
    with linear_before_reset: that is operand "hidden_bias" [directions, hidden]); "r" constant [directions,
    gates * hidden, hidden]; "initial_h" and, for LSTM, "initial_c" [directions, batch, hidden]; "peepholes"
    [directions, 3, hidden] in the order input, output, forget; "lengths" i32 [batch]. Outputs: "y" [steps, directions,
    batch, hidden], "y_h" and "y_c" [directions, batch, hidden]. Steps after a sequence's length give zeros in y.
    """

    cell: Cell
    steps: int
    batch: int
    hidden: int
    directions: tuple[Literal["forward", "reverse"], ...] = ("forward",)
    linear_before_reset: bool = False
    with_lengths: bool = False
    with_peepholes: bool = False
    # Functions of ACCUMULATED: of gates, of the cell's or hidden gate, and (LSTM) of the cell state on its way out.
    activations: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        wanted = {"lstm": 3, "gru": 2, "rnn": 1}[self.cell]
        if not self.activations:
            default = {"lstm": (SIGMOID, TANH, TANH), "gru": (SIGMOID, TANH), "rnn": (TANH,)}[self.cell]
            object.__setattr__(self, "activations", default)
        if len(self.activations) != wanted:
            raise InvalidRecurrent(f"{self.cell} has {wanted} activations, not {len(self.activations)}.")
        if self.with_peepholes and self.cell != "lstm":
            raise InvalidRecurrent(f"only an LSTM has peepholes, not {self.cell}.")

    @property
    def gates(self) -> int:
        """How many gates a hidden unit has."""
        return GATES[self.cell]

    @property
    def flops(self) -> int:
        """Additions and multiplications of R h in all steps."""
        return 2 * self.steps * self.batch * len(self.directions) * self.gates * self.hidden * self.hidden


@dataclass(frozen=True, slots=True)
class RecurrentCandidate:
    """Sizes that decide the speed."""

    rows: int  # of the batch in a tile
    vectors: int  # of hidden units in a tile, for each gate

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.vectors} vectors of units"


@dataclass(frozen=True, slots=True)
class UnitPacking:
    """R as [direction][panel of hidden units][depth][gate][units of the panel], zeros after the last unit."""

    directions: int
    gates: int
    hidden: int
    lanes: int
    groups: tuple[Group, ...]  # of vectors of units

    @property
    def elements(self) -> int:
        """Elements of the packed form."""
        return self.directions * self.gates * self.hidden * self.padded

    @property
    def padded(self) -> int:
        """Hidden units with those that fill the last vector."""
        return sum(group.size * group.count for group in self.groups) * self.lanes

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """From [directions, gates * hidden, hidden]."""
        given = array.reshape(self.directions, self.gates, self.hidden, self.hidden)
        units = np.zeros((self.directions, self.hidden, self.gates, self.padded), array.dtype)
        units[..., : self.hidden] = given.transpose(0, 3, 1, 2)
        parts = []
        for direction in units:
            for group in self.groups:
                for number in range(group.count):
                    start = (group.start + number * group.size) * self.lanes
                    parts.append(direction[:, :, start : start + group.size * self.lanes].reshape(-1))
        return np.concatenate(parts) if parts else np.zeros(0, array.dtype)


def candidates(layer: Recurrent, target: Target) -> tuple[RecurrentCandidate, ...]:
    """The tiles worth trying, the likely best first: as many rows as the registers hold, then as many units."""
    most, wide = most_accumulators(target), max(1, -(-layer.hidden // target.lanes()))
    found = []
    for rows in range(max(1, min(layer.batch, most // layer.gates)), 0, -1):
        vectors = min(wide, most // (rows * layer.gates), 4)
        registers = rows * layer.gates * vectors + layer.gates * vectors + 1
        if vectors >= 1 and registers <= target.vector_registers:
            found.append(RecurrentCandidate(rows, vectors))
    return tuple(found[:4]) or (RecurrentCandidate(1, 1),)


def build(layer: Recurrent, candidate: RecurrentCandidate, target: Target, name: str = "recurrent") -> Kernel:
    """The kernel; its operands are those that `Recurrent` lists."""
    return _Builder(layer, candidate, target, name).kernel()


class _Builder:
    def __init__(self, layer: Recurrent, candidate: RecurrentCandidate, target: Target, name: str) -> None:
        self.layer, self.name, self.module, self.lanes = layer, name, Module(target), target.lanes()
        self.vector = types.vector("float", self.lanes)
        self.row_groups = balanced(layer.batch, candidate.rows)
        self.unit_groups = balanced(-(-layer.hidden // self.lanes), candidate.vectors)
        self.packing = UnitPacking(len(layer.directions), layer.gates, layer.hidden, self.lanes, self.unit_groups)
        self.rows = max((group.size for group in self.row_groups), default=1)
        self.padded = self.packing.padded
        # Scratch, in elements: two states (the old one and the new one), the cell state, reset * state, and a tile.
        self.state_at = (0, self.rows * self.padded)
        self.cell_at = 2 * self.rows * self.padded
        self.reset_at = 3 * self.rows * self.padded
        self.tile_at = 4 * self.rows * self.padded
        widest = max((group.size for group in self.unit_groups), default=1)
        self.tile_row = layer.gates * widest * self.lanes
        self.scratch = self.tile_at + self.rows * self.tile_row

    @property
    def two_products(self) -> bool:
        """Whether the hidden gate waits for the reset gate of all units."""
        return self.layer.cell == "gru" and not self.layer.linear_before_reset

    def kernel(self) -> Kernel:
        layer = self.layer
        directions, states = len(layer.directions), len(layer.directions) * layer.batch * layer.hidden
        operands = [
            Operand("gates", "input", DType.F32, layer.steps * states * layer.gates),
            Operand("r", "constant", DType.F32, self.packing.elements, self.packing),
            Operand("initial_h", "input", DType.F32, states),
        ]
        if layer.cell == "lstm":
            operands.append(Operand("initial_c", "input", DType.F32, states))
        if layer.cell == "gru" and layer.linear_before_reset:
            operands.append(Operand("hidden_bias", "constant", DType.F32, directions * layer.hidden))
        if layer.with_peepholes:
            operands.append(Operand("peepholes", "constant", DType.F32, directions * 3 * layer.hidden))
        if layer.with_lengths:
            operands.append(Operand("lengths", "input", DType.I32, layer.batch))
        operands += [
            Operand("y", "output", DType.F32, layer.steps * states),
            Operand("y_h", "output", DType.F32, states),
        ]
        if layer.cell == "lstm":
            operands.append(Operand("y_c", "output", DType.F32, states))
        self.names = [operand.name for operand in operands]
        entry(self.module, self.name, self.names, self._entry)
        return Kernel(
            self.name, self.module, tuple(operands), directions * pieces(self.row_groups),
            scratch_bytes=4 * self.scratch, flops=layer.flops, traffic=sum(operand.bytes for operand in operands),
            candidate=str(RecurrentCandidate(self.rows, self.unit_groups[0].size if self.unit_groups else 0)),
        )  # fmt: skip

    def _entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        layer = self.layer
        if not (layer.batch and layer.hidden):
            return
        tiles = pieces(self.row_groups)
        for number, direction in enumerate(layer.directions):

            def run(number: int = number, direction: str = direction) -> None:
                inside = f.sub(block, number * tiles)

                def rows(group: Group, row: Value) -> None:
                    name = self._sequence(group.size, number, direction)
                    f.call(name, row, scratch, *(pointers[one] for one in self.names))

                each_piece(f, self.row_groups, inside, f.add(inside, 1), rows)

            if len(layer.directions) == 1:
                run()
            else:
                low = f.compare("sge", block, f.integer(number * tiles))
                high = f.compare("slt", block, f.integer((number + 1) * tiles))
                f.when(f.binary("and", low, high), run)

    # -- one tile of the batch over all steps ------------------------------------------------------------------------

    def _sequence(self, rows: int, number: int, direction: str) -> str:
        """f(row, scratch, operands...): all steps of `rows` sequences from `row` on."""
        name = f"{self.name}_{rows}_{number}"
        if self.module.has(name):
            return name
        layer, hidden = self.layer, self.layer.hidden
        given = [Parameter("row", "i64"), Parameter("scratch"), *(Parameter(one) for one in self.names)]
        f = Function(self.module, name, given)
        self._padding_to_zero(f, rows)
        row, scratch = f.parameter("row"), f.parameter("scratch")
        start = f.mul(f.add(row, number * layer.batch), hidden)  # of the tile in [directions, batch, hidden]
        self._copy_rows(f, rows, f.at(f.parameter("initial_h"), start), hidden, f.at(scratch, self.state_at[0]),
                        self.padded)  # fmt: skip
        if layer.cell == "lstm":
            self._copy_rows(f, rows, f.at(f.parameter("initial_c"), start), hidden, f.at(scratch, self.cell_at),
                            self.padded)  # fmt: skip

        def step(time: Value, _: tuple[Value, ...]) -> None:
            odd = f.compare("ne", f.binary("and", time, f.integer(1)), f.integer(0))
            old = f.at(scratch, f.select(odd, f.integer(self.state_at[1]), f.integer(self.state_at[0])))
            new = f.at(scratch, f.select(odd, f.integer(self.state_at[0]), f.integer(self.state_at[1])))
            self._step(f, rows, number, direction, time, old, new)

        f.loop(0, layer.steps, 1, step)
        last = f.at(scratch, self.state_at[layer.steps % 2])
        self._copy_rows(f, rows, last, self.padded, f.at(f.parameter("y_h"), start), hidden)
        if layer.cell == "lstm":
            self._copy_rows(f, rows, f.at(scratch, self.cell_at), self.padded, f.at(f.parameter("y_c"), start), hidden)
        f.finish()
        return name

    def _padding_to_zero(self, f: Function, rows: int) -> None:
        """The lanes after the last hidden unit are computed with and never stored: they must hold no garbage."""
        zero = f.number(self.vector, 0.0)
        f.loop(0, 4 * self.rows * self.padded, self.lanes,
               lambda at, _: f.store(zero, f.at(f.parameter("scratch"), at)))  # fmt: skip

    def _copy_rows(self, f: Function, rows: int, source: Value, apart: int, aim: Value, aim_apart: int) -> None:
        whole, rest = divmod(self.layer.hidden, self.lanes)
        mask = f.first_lanes(rest, self.lanes)
        for row in range(rows):

            def one(at: Value, _: tuple[Value, ...], row: int = row) -> None:
                value = f.load(self.vector, f.at(source, f.add(at, row * apart)))
                f.store(value, f.at(aim, f.add(at, row * aim_apart)))

            f.loop(0, whole * self.lanes, self.lanes, one)
            if rest:
                at = whole * self.lanes
                value = f.masked_load(self.vector, f.at(source, at + row * apart), mask)
                f.masked_store(value, f.at(aim, at + row * aim_apart), mask)

    def _step(self, f: Function, rows: int, number: int, direction: str, time: Value, old: Value, new: Value) -> None:
        phases: Sequence[tuple[str, tuple[int, ...]]] = [("all", tuple(range(self.layer.gates)))]
        if self.two_products:
            phases = [("first", (0, 1)), ("second", (2,))]
        scratch = f.parameter("scratch")
        for phase, gates in phases:
            source = f.at(scratch, self.reset_at) if phase == "second" else old
            for group in self.unit_groups:

                def panel(
                    piece: Value, _: tuple[Value, ...], group: Group = group, gates: tuple[int, ...] = gates,
                    source: Value = source, phase: str = phase,
                ) -> None:  # fmt: skip
                    vector = f.add(f.mul(piece, group.size), group.start)
                    unit = f.mul(vector, self.lanes)
                    r = f.at(f.parameter("r"), f.add(
                        f.mul(unit, self.layer.gates * self.layer.hidden),
                        number * self.layer.gates * self.layer.hidden * self.padded,
                    ))  # fmt: skip
                    self._products(f, rows, group, gates, source, r)
                    self._cells(f, rows, number, direction, group, unit, time, old, new, phase)

                f.loop(0, group.count, 1, panel)

    def _products(self, f: Function, rows: int, group: Group, gates: tuple[int, ...], state: Value, r: Value) -> None:
        """R h of some gates of a panel of units, into the tile in scratch."""
        width = group.size * self.lanes
        tile = Tile(
            rows, len(gates) * group.size, self.layer.hidden, self.padded, 1, self.layer.gates * width, self.tile_row,
            self.lanes,
        )  # fmt: skip
        name = write_tile(
            self.module, tile, Epilogue(), Variable("row", rows), Variable("column", width),
            prefix=f"{self.name}_r", b_aligned=True,
        )  # fmt: skip
        first = gates[0] * width
        f.call(name, state, f.at(r, first), f.at(f.parameter("scratch"), self.tile_at + first))

    # -- the cell ----------------------------------------------------------------------------------------------------

    def _cells(
        self, f: Function, rows: int, number: int, direction: str, group: Group, unit: Value, time: Value,
        old: Value, new: Value, phase: str,
    ) -> None:  # fmt: skip
        """The new state of a panel of units from the tile of products."""
        layer = self.layer
        hidden, rest = layer.hidden, layer.hidden % self.lanes
        scratch = f.parameter("scratch")

        def vectors(row: Value, at: Value, column: int, valid: Value | None) -> None:
            """One vector of one row; `column` of the panel, `valid` lanes or all."""
            unit_at = f.add(unit, column * self.lanes)
            reads, runs, writes = self._when(f, direction, at, time)
            base = f.add(f.mul(f.add(f.mul(reads, layer.batch), at), len(layer.directions)), number)
            base = f.add(f.mul(base, layer.gates * hidden), unit_at)
            tile_at = f.add(f.mul(row, self.tile_row), self.tile_at + column * self.lanes)
            here = _Units(
                given=lambda index: self._read(f, "gates", f.add(base, index * hidden), valid),
                product=lambda index: f.load(
                    self.vector, f.at(scratch, f.add(tile_at, index * group.size * self.lanes))
                ),
                unit=unit_at,
                state=f.add(f.mul(row, self.padded), unit_at),
                direction=number,
                valid=valid,
                runs=runs,
            )
            after = self._cell(f, here, f.load(self.vector, f.at(old, here.state)), phase)
            if after is None:
                return
            kept = after
            if runs is not None:
                running = f.splat(runs, self.lanes)
                kept = f.select(running, after, f.load(self.vector, f.at(old, here.state)))
                after = f.select(running, after, f.number(self.vector, 0.0))
            f.store(kept, f.at(new, here.state))
            y_row = f.add(f.mul(f.add(f.mul(writes, len(layer.directions)), number), layer.batch), at)
            address = f.at(f.parameter("y"), f.add(f.mul(y_row, hidden), unit_at))
            if valid is None:
                f.store(after, address)
            else:
                f.masked_store(after, address, valid)

        def one_row(row: Value, _: tuple[Value, ...]) -> None:
            at = f.add(f.parameter("row"), row)
            for column in range(group.size):
                last = column == group.size - 1 and rest and group is self.unit_groups[-1]
                if not last:
                    vectors(row, at, column, None)
                elif group.count == 1:
                    vectors(row, at, column, f.first_lanes(rest, self.lanes))
                else:
                    left = f.minimum(f.sub(f.integer(hidden - column * self.lanes), unit), f.integer(self.lanes))
                    vectors(row, at, column, f.first_lanes(left, self.lanes))

        f.loop(0, rows, 1, one_row)

    def _when(self, f: Function, direction: str, at: Value, time: Value) -> tuple[Value, Value | None, Value]:
        """The step that a sequence reads now, whether it still runs (None: always), and the step of y it writes."""
        layer = self.layer
        if not layer.with_lengths:
            step = f.sub(f.integer(layer.steps - 1), time) if direction == "reverse" else time
            return step, None, step
        length = f.convert("sext", "i64", f.load("i32", f.at(f.parameter("lengths"), at, "i32")))
        runs = f.compare("slt", time, length)
        if direction != "reverse":
            return time, runs, time
        step = f.select(runs, f.sub(f.sub(length, 1), time), time)
        return step, runs, step

    def _read(self, f: Function, name: str, at: Value, valid: Value | None) -> Value:
        address = f.at(f.parameter(name), at)
        return f.load(self.vector, address) if valid is None else f.masked_load(self.vector, address, valid)

    def _activate(self, f: Function, index: int, value: Value) -> Value:
        leaves = TileLeaves(f, {}, Variable("column", 1), self.lanes).place(value, {}, (0,))
        return emit(f, self.layer.activations[index], self.lanes, leaves)

    def _cell(self, f: Function, here: _Units, before: Value, phase: str) -> Value | None:
        """The new state; None when this phase only prepares it."""
        if self.layer.cell == "rnn":
            return self._activate(f, 0, here.gate(f, 0))
        if self.layer.cell == "lstm":
            return self._lstm(f, here)
        place = f.at(f.parameter("scratch"), f.add(here.state, self.reset_at))
        update_at = f.at(f.parameter("scratch"), f.add(here.state, self.cell_at))
        if phase == "first":
            f.store(self._activate(f, 0, here.gate(f, 0)), update_at)
            f.store(f.mul(self._activate(f, 0, here.gate(f, 1)), before), place)
            return None
        if phase == "second":
            update, proposed = f.load(self.vector, update_at), self._activate(f, 1, here.gate(f, 2))
        else:
            update, reset = self._activate(f, 0, here.gate(f, 0)), self._activate(f, 0, here.gate(f, 1))
            bias_at = f.add(here.unit, here.direction * self.layer.hidden)
            recurrent = f.add(here.product(2), self._read(f, "hidden_bias", bias_at, here.valid))
            proposed = self._activate(f, 1, f.fma(reset, recurrent, here.given(2)))
        return f.add(proposed, f.mul(update, f.sub(before, proposed)))

    def _lstm(self, f: Function, here: _Units) -> Value:
        place = f.at(f.parameter("scratch"), f.add(here.state, self.cell_at))
        cell = f.load(self.vector, place)

        def gate(index: int, peephole: int, state: Value) -> Value:
            total = here.gate(f, index)
            if self.layer.with_peepholes:
                at = f.add(here.unit, (here.direction * 3 + peephole) * self.layer.hidden)
                total = f.fma(self._read(f, "peepholes", at, here.valid), state, total)
            return self._activate(f, 0, total)

        take, keep = gate(0, 0, cell), gate(2, 2, cell)
        updated = f.fma(keep, cell, f.mul(take, self._activate(f, 1, here.gate(f, 3))))
        after = f.mul(gate(1, 1, updated), self._activate(f, 2, updated))
        if here.runs is not None:
            updated = f.select(f.splat(here.runs, self.lanes), updated, cell)
        f.store(updated, place)
        return after


@dataclass(frozen=True, slots=True)
class _Units:
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

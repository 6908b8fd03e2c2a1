"""LSTM, GRU and plain recurrent layers: all steps of a batch tile in one block, the state kept in cache.

What does not depend on the state, W x + b for all steps, is one matrix product made before; here each step adds R h.
R is packed so that one tile computes all gates of the same hidden units, and a cell function turns them into the new
state at once. A block is a direction and a tile of the batch: steps follow one another, so nothing else is independent.
Every other step takes the panels of R backwards: what a cache still holds of an R that outgrows it is read first.

Gates stand in ONNX's order: input, output, forget, cell for LSTM; update, reset, hidden for GRU.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.size import is_free, nothing
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.epilogue import Epilogue
from kernels.templates.grid import Group, balanced, cut, each_piece, pieces, tallest
from kernels.templates.recurrent.cell import CellWriter, Units
from kernels.templates.recurrent.problem import Recurrent, RecurrentCandidate, UnitPacking, candidates
from kernels.templates.template import Template
from kernels.templates.tile import ProductTile, write_tile
from kernels.tensor.expression import Variable


def build(layer: Recurrent, candidate: RecurrentCandidate, target: Target, name: str = "recurrent") -> Kernel:
    """The kernel; its operands are those that `Recurrent` lists."""
    return RecurrentBuilder(layer, candidate, target, name).kernel()


RECURRENT = Template("recurrent", Recurrent, candidates, build)


class RecurrentBuilder(Builder[Recurrent, RecurrentCandidate]):
    """Writes a layer's products and cells."""

    def __init__(self, layer: Recurrent, candidate: RecurrentCandidate, target: Target, name: str) -> None:
        super().__init__(layer, candidate, target, name)
        self.vector = types.vector("float", self.lanes)
        self.row_groups = cut(layer.batch, candidate.rows)
        self.unit_groups = balanced(-(-layer.hidden // self.lanes), candidate.vectors)
        self.packing = UnitPacking(len(layer.directions), layer.gates, layer.hidden, self.lanes, self.unit_groups)
        self.rows = tallest(self.row_groups) or 1
        self.padded = self.packing.padded
        # Scratch, in elements: two states (the old one and the new one), the cell state, reset * state, and a tile.
        self.state_at = (0, self.rows * self.padded)
        self.cell_at = 2 * self.rows * self.padded
        self.reset_at = 3 * self.rows * self.padded
        self.tile_at = 4 * self.rows * self.padded
        widest = max((group.size for group in self.unit_groups), default=1)
        self.tile_row = layer.gates * widest * self.lanes
        self.scratch = self.tile_at + self.rows * self.tile_row
        self.cell = CellWriter(layer, self.lanes, self.cell_at, self.reset_at)

    @property
    def two_products(self) -> bool:
        """Whether the hidden gate waits for the reset gate of all units."""
        return self.problem.cell == "gru" and not self.problem.linear_before_reset

    def kernel(self) -> Kernel:
        """The kernel of all steps."""
        layer = self.problem
        directions, states = len(layer.directions), len(layer.directions) * layer.batch * layer.hidden
        operands = [
            Operand("gates", "input", DType.F32, layer.steps * states * layer.gates),
            Operand("r", "constant", layer.r_dtype, self.packing.elements, self.packing),
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
        self.candidate = RecurrentCandidate(self.rows, self.unit_groups[0].size if self.unit_groups else 0)
        blocks = directions * pieces(self.row_groups)
        return self.written(operands, blocks, scratch_bytes=4 * self.scratch, flops=layer.flops)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """A direction and a tile of the batch."""
        layer = self.problem
        if nothing(layer.batch, layer.hidden):
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
        layer, hidden = self.problem, self.problem.hidden
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

        end: Amount = self._longest(f, rows) if layer.with_lengths else layer.steps
        f.loop(0, end, 1, step)
        if layer.with_lengths:
            self._zeros_from(f, rows, number, f.integer(end))
        last = self._state_after(f, scratch, f.integer(end))
        self._copy_rows(f, rows, last, self.padded, f.at(f.parameter("y_h"), start), hidden)
        if layer.cell == "lstm":
            self._copy_rows(f, rows, f.at(scratch, self.cell_at), self.padded, f.at(f.parameter("y_c"), start), hidden)
        f.finish()
        return name

    def _state_after(self, f: Function, scratch: Value, end: Value) -> Value:
        """Where the state is after so many steps."""
        steps = self.problem.steps
        if not is_free(steps) and not self.problem.with_lengths:
            return f.at(scratch, self.state_at[steps % 2])
        odd = f.compare("ne", f.binary("and", end, f.integer(1)), f.integer(0))
        return f.at(scratch, f.select(odd, f.integer(self.state_at[1]), f.integer(self.state_at[0])))

    def _length(self, f: Function, row: Amount) -> Value:
        """How many steps a sequence has."""
        return f.convert("sext", "i64", f.load("i32", f.at(f.parameter("lengths"), row, "i32")))

    def _longest(self, f: Function, rows: int) -> Value:
        """The steps of the longest of `rows` sequences, after which nothing changes."""
        longest = f.integer(0)
        for row in range(rows):
            longest = f.maximum(longest, self._length(f, f.add(f.parameter("row"), row)))
        return f.minimum(longest, f.integer(self.problem.steps))

    def _zeros_from(self, f: Function, rows: int, number: int, end: Value) -> None:
        """Zeros in y for all steps from `end` on."""
        layer, zero = self.problem, f.number(self.vector, 0.0)
        whole, rest = divmod(layer.hidden, self.lanes)

        def at(time: Value, _: tuple[Value, ...]) -> None:
            first = f.add(f.mul(f.add(f.mul(time, len(layer.directions)), number), layer.batch), f.parameter("row"))

            def one_row(row: Value, _: tuple[Value, ...]) -> None:
                y = f.at(f.parameter("y"), f.mul(f.add(first, row), layer.hidden))
                f.loop(0, whole * self.lanes, self.lanes, lambda unit, _: self._put(f, zero, f.at(y, unit), None))
                if rest:
                    self._put(f, zero, f.at(y, whole * self.lanes), f.first_lanes(rest, self.lanes))

            f.loop(0, rows, 1, one_row)

        f.loop(end, f.integer(layer.steps), 1, at)

    def _padding_to_zero(self, f: Function, rows: int) -> None:
        """The lanes after the last hidden unit are computed with and never stored: they must hold no garbage."""
        zero = f.number(self.vector, 0.0)
        f.loop(0, 4 * self.rows * self.padded, self.lanes,
               lambda at, _: f.store(zero, f.at(f.parameter("scratch"), at)))  # fmt: skip

    def _copy_rows(self, f: Function, rows: int, source: Value, apart: int, aim: Value, aim_apart: int) -> None:
        whole, rest = divmod(self.problem.hidden, self.lanes)
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
        phases: Sequence[tuple[str, tuple[int, ...]]] = [("all", tuple(range(self.problem.gates)))]
        if self.two_products:
            phases = [("first", (0, 1)), ("second", (2,))]
        scratch = f.parameter("scratch")
        back = f.compare("ne", f.binary("and", time, f.integer(1)), f.integer(0))
        for phase, gates in phases:
            source = f.at(scratch, self.reset_at) if phase == "second" else old
            for group in self.unit_groups:

                def panel(
                    piece: Value, _: tuple[Value, ...], group: Group = group, gates: tuple[int, ...] = gates,
                    source: Value = source, phase: str = phase,
                ) -> None:  # fmt: skip
                    turned = f.sub(f.integer(group.count - 1), piece)
                    vector = f.add(f.mul(f.select(back, turned, piece), group.size), group.start)
                    unit = f.mul(vector, self.lanes)
                    r = f.at(f.parameter("r"), f.add(
                        f.mul(unit, self.problem.gates * self.problem.hidden),
                        number * self.problem.gates * self.problem.hidden * self.padded,
                    ), memory_type(self.problem.r_dtype))  # fmt: skip
                    self._products(f, rows, group, gates, source, r)
                    self._cells(f, rows, number, direction, group, unit, time, old, new, phase)

                f.loop(0, group.count, 1, panel)

    def _products(self, f: Function, rows: int, group: Group, gates: tuple[int, ...], state: Value, r: Value) -> None:
        """R h of some gates of a panel of units, into the tile in scratch."""
        width = group.size * self.lanes
        tile = ProductTile(
            rows, len(gates) * group.size, self.problem.hidden, self.padded, 1, self.problem.gates * width,
            self.tile_row, self.lanes, b_dtype=self.problem.r_dtype,
        )  # fmt: skip
        name = write_tile(
            self.module, tile, Epilogue(), Variable("row", rows), Variable("column", width),
            prefix=f"{self.name}_r",
        )  # fmt: skip
        first = gates[0] * width
        r_at = f.at(r, first, memory_type(self.problem.r_dtype))
        f.call(name, state, r_at, f.at(f.parameter("scratch"), self.tile_at + first))

    # -- the cell ----------------------------------------------------------------------------------------------------

    def _cells(
        self, f: Function, rows: int, number: int, direction: str, group: Group, unit: Value, time: Value,
        old: Value, new: Value, phase: str,
    ) -> None:  # fmt: skip
        """The new state of a panel of units from the tile of products."""
        layer = self.problem
        hidden, rest = layer.hidden, layer.hidden % self.lanes
        scratch = f.parameter("scratch")

        def vectors(row: Value, at: Value, column: int, valid: Value | None) -> None:
            """One vector of one row; `column` of the panel, `valid` lanes or all."""
            unit_at = f.add(unit, column * self.lanes)
            reads, runs, writes = self._when(f, direction, at, time)
            base = f.add(self._gates_of(f, reads, at, number), unit_at)
            tile_at = f.add(f.mul(row, self.tile_row), self.tile_at + column * self.lanes)
            here = Units(
                given=lambda index: self.cell.read(f, "gates", f.add(base, index * hidden), valid),
                product=lambda index: f.load(
                    self.vector, f.at(scratch, f.add(tile_at, index * group.size * self.lanes))
                ),
                unit=unit_at,
                state=f.add(f.mul(row, self.padded), unit_at),
                direction=number,
                valid=valid,
                runs=runs,
            )
            after = self.cell.step(f, here, f.load(self.vector, f.at(old, here.state)), phase)
            if after is None:
                return
            kept = after
            if runs is not None:
                running = f.splat(runs, self.lanes)
                kept = f.select(running, after, f.load(self.vector, f.at(old, here.state)))
                after = f.select(running, after, f.number(self.vector, 0.0))
            f.store(kept, f.at(new, here.state))
            y_row = f.add(f.mul(f.add(f.mul(writes, len(layer.directions)), number), layer.batch), at)
            self._put(f, after, f.at(f.parameter("y"), f.add(f.mul(y_row, hidden), unit_at)), valid)
            self._cell_stored(f, at, unit_at, here.state, valid)

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

    def _gates_of(self, f: Function, reads: Value, at: Value, number: int) -> Value:
        """Where the gates of a sequence begin at a step."""
        layer = self.problem
        row = f.add(f.mul(f.add(f.mul(reads, layer.batch), at), len(layer.directions)), number)
        return f.mul(row, layer.gates * layer.hidden)

    def _put(self, f: Function, value: Value, address: Value, valid: Value | None) -> None:
        if valid is None:
            f.store(value, address)
        else:
            f.masked_store(value, address, valid)

    def _cell_stored(self, f: Function, at: Value, unit: Value, state: Value, valid: Value | None) -> None:
        """Store an LSTM's new cell state of some units; here it stays in scratch until the last step."""

    def _when(self, f: Function, direction: str, at: Value, time: Value) -> tuple[Value, Value | None, Value]:
        """The step that a sequence reads now, whether it still runs (None: always), and the step of y it writes."""
        layer = self.problem
        if not layer.with_lengths:
            step = f.sub(f.integer(layer.steps - 1), time) if direction == "reverse" else time
            return step, None, step
        length = self._length(f, at)
        runs = f.compare("slt", time, length)
        if direction != "reverse":
            return time, runs, time
        step = f.select(runs, f.sub(f.sub(length, 1), time), time)
        return step, runs, step

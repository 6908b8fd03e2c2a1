"""One step of a recurrent layer in one direction: a block has some hidden units, and all gates of them.

The state before a step is what the step before it wrote, so that a step is a region, whose blocks wait for those of
the step before; steps of other layers and directions run beside them. Threads beside one another have columns of R (a
unit's gate), those apart a share of its depth; their sums are added in shared memory, and a thread then has a unit of a
row of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.llvm.conversion import memory_type, widened
from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.panel import HeldPanel, sums_of_share
from kernels.ptx.tasks.threads import THREADS, Block, copies_ahead, write_task
from kernels.target import Target
from kernels.templates.recurrent.cell import CellFormulas
from kernels.templates.recurrent.step import RecurrentStep

_ROWS = 8  # of the batch, of a block
_UNITS = (32, 16, 8, 4)
_DEPTH = 16  # places of the depth of a thread, at most where there are blocks enough


@dataclass(frozen=True, slots=True)
class StepPacking:
    """R as [panel of hidden units][depth][gate][unit of the panel], zeros behind the last unit."""

    step: RecurrentStep
    units: int  # of a panel

    @property
    def panels(self) -> int:
        """Panels of units."""
        return -(-self.step.layer.hidden // self.units)

    @property
    def elements(self) -> int:
        """Elements of the packed form."""
        return self.panels * self.step.layer.hidden * len(self.step.gates) * self.units

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """From [gates * hidden, hidden]."""
        layer, gates = self.step.layer, self.step.gates
        given = array.reshape(layer.gates, layer.hidden, layer.hidden)[list(gates)]
        filled = np.zeros((len(gates), self.panels * self.units, layer.hidden), array.dtype)
        filled[:, : layer.hidden] = given
        panels = filled.reshape(len(gates), self.panels, self.units, layer.hidden)
        return np.ascontiguousarray(panels.transpose(1, 3, 0, 2)).reshape(-1)


def recurrent_step(step: RecurrentStep, target: Target, name: str) -> Kernel:
    """The task; its operands are those that `RecurrentStep` lists, R second."""
    layer, gates = step.layer, len(step.gates)
    rows = max(1, min(_ROWS, layer.batch))
    stretches = -(-layer.batch // rows)
    units = _units(layer.hidden, gates, stretches, target)
    packing = StepPacking(step, units)
    columns = gates * units
    shares = THREADS // columns
    operands = [Operand(one, role, DType.F32, elements) for one, role, elements in step.operands]
    operands.insert(1, Operand("r", "constant", layer.r_dtype, packing.elements, packing))
    blocks = packing.panels * stretches if layer.batch else 0

    sums = 4 * rows * columns * (shares + 1)
    held = None
    if blocks and layer.r_dtype is DType.F32 and copies_ahead(target):
        held = HeldPanel.of(layer.hidden, columns, columns, sums)

    def body(block: Block) -> None:
        if blocks:
            _StepWriter(block, step, rows, units, shares, held).write()

    def prepare(block: Block) -> None:
        _StepWriter(block, step, rows, units, shares, held).prepare()

    return write_task(
        target, name, operands, blocks, body, shared=held.end if held else sums,
        flops=2 * layer.batch * gates * layer.hidden * layer.hidden,
        candidate=f"{rows} rows, {units} units by {shares} shares", prepare=prepare if held else None,
    )  # fmt: skip


def _units(hidden: int, gates: int, stretches: int, target: Target) -> int:
    """Units of a block: the most whose threads have a short way through the depth, more where there are many blocks."""
    short = [one for one in _UNITS if hidden * gates * one <= _DEPTH * THREADS]
    units = short[0] if short else _UNITS[-1]
    while units < _UNITS[0] and stretches * -(-hidden // units) > 2 * max(1, target.workers):
        units *= 2
    return units


class _StepWriter:
    """Writes what a block does."""

    def __init__(
        self, block: Block, step: RecurrentStep, rows: int, units: int, shares: int, held: HeldPanel | None
    ) -> None:
        self.block, self.step, self.layer, self.rows, self.units = block, step, step.layer, rows, units
        self.panel_held = held
        self.shares, self.columns, f = shares, len(step.gates) * units, block.f
        counts = (-(-self.layer.batch // rows), -(-self.layer.hidden // units))
        stretch, self.panel = block.split(block.number, counts)
        self.first = f.mul(stretch, rows)

    def prepare(self) -> None:
        """Begin to copy R's columns of the block."""
        assert self.panel_held is not None
        self.panel_held.bring(self.block, self._columns_of_r())

    def write(self) -> None:
        """All of it: operands of the cell come while the products are summed."""
        block, f = self.block, self.block.f
        row, inside = block.split(block.thread, (self.rows, self.units))
        unit = f.add(f.mul(self.panel, self.units), inside)
        there = f.binary(
            "and", block.below(f.add(self.first, row), self.layer.batch), block.below(unit, self.layer.hidden)
        )
        there = f.binary("and", there, block.below(block.thread, self.rows * self.units))
        batch = block.least(f.add(self.first, row), self.layer.batch - 1)
        state = f.add(f.mul(batch, self.layer.hidden), unit)
        names = self._read(batch, unit, state)
        nothing = [f.number("float", 0.0)] * len(names)
        found = f.when(
            there, lambda: [f.load("float", block.at(block.pointers[name], at)) for name, at in names.values()],
            lambda: nothing,
        )  # fmt: skip
        sums = self._products()
        read = dict(zip(names, found, strict=True))

        def finish() -> None:
            base = block.at(sums, f.add(f.mul(row, self.columns), inside))
            products = {
                gate: f.load("float", f.at(base, number * self.units)) for number, gate in enumerate(self.step.gates)
            }
            for name, value in self._cell(read, products).items():
                f.store(value, block.at(block.pointers[name], state))

        f.when(there, finish)

    def _read(self, batch: Value, unit: Value, state: Value) -> dict[str, tuple[str, Value]]:
        """By a name what the cell of a thread reads: an operand, and a place in it."""
        f, layer = self.block.f, self.layer
        gates = f.add(f.mul(batch, self.step.apart), unit)
        found = {f"gate {one}": ("gates", f.add(gates, one * layer.hidden)) for one in self.step.gates}
        for name, _, _ in self.step.operands:
            if name in ("c", "before") or (name == "update" and self.step.phase == "second"):
                found[name] = (name, state)
            elif name == "h" and layer.cell == "gru" and self.step.phase != "second":
                found["before"] = (name, state)
            elif name == "hidden_bias":
                found[name] = (name, unit)
            elif name == "peepholes":
                found |= {f"peephole {one}": (name, f.add(unit, one * layer.hidden)) for one in range(3)}
        return found

    def _cell(self, read: Mapping[str, Value], products: Mapping[int, Value]) -> dict[str, Value]:
        """The outputs of a unit by their names."""
        f, cell = self.block.f, CellFormulas(self.layer, 1)

        def gate(index: int) -> Value:
            return f.add(products[index], read[f"gate {index}"])

        if self.layer.cell == "rnn":
            return {"y": cell.rnn(f, gate(0))}
        if self.layer.cell == "lstm":
            after, updated = cell.lstm(f, gate, lambda number: read[f"peephole {number}"], read["c"])
            return {"y": after, "y_c": updated}
        if self.step.phase == "first":
            return {"update": cell.update(f, gate), "seen": f.mul(cell.reset(f, gate), read["before"])}
        if self.step.phase == "second":
            update, hidden = read["update"], gate(2)
        else:
            update, recurrent = cell.update(f, gate), f.add(products[2], read["hidden_bias"])
            hidden = f.fma(cell.reset(f, gate), recurrent, read["gate 2"])
        return {"y": cell.gru(f, update, hidden, read["before"])}

    def _columns_of_r(self) -> Value:
        """Where R's columns of the block begin."""
        place = self.block.f.mul(self.panel, self.layer.hidden * self.columns)
        return self.block.at(self.block.pointers["r"], place, memory_type(self.layer.r_dtype))

    def _products(self) -> Value:
        """R h of the block's columns and rows, where they lie in shared memory: [row][gate][unit]."""
        block, f, hidden, rows = self.block, self.block.f, self.layer.hidden, self.rows
        share, column = block.split(block.thread, (self.shares, self.columns))
        kind, held = memory_type(self.layer.r_dtype), self.panel_held
        r = block.at(self._columns_of_r(), column, kind)
        states = [f.mul(block.least(f.add(self.first, row), self.layer.batch - 1), hidden) for row in range(rows)]

        def add(in_shared: bool, k: Value, total: Value, inside: Value | None) -> Value:
            near = k if inside is None else block.least(k, hidden - 1)
            if in_shared:
                assert held is not None
                near = k if inside is None else block.least(k, held.rows - 1)
                weight = f.load(kind, held.at(block, near, column))
            else:
                weight = widened(f, f.load(kind, block.at(r, f.mul(near, self.columns), kind)), self.layer.r_dtype)
            parts = []
            for state, part in zip(states, total.split(), strict=True):
                given = f.fma(f.load("float", block.at(block.pointers["h"], f.add(state, near))), weight, part)
                parts.append(given if inside is None else f.select(inside, given, part))
            return joined(parts)

        total = joined([f.number("float", 0.0)] * rows)
        # Threads that are left over behind the last share do as the last share does, and are not asked.
        begin, rows_held = block.least(share, self.shares - 1), held.rows if held else 0
        if held:
            block.await_copies(0)
            block.barrier()
            total = sums_of_share(block, begin, self.shares, 0, rows_held, total, partial(add, True))
        if rows_held < hidden:
            total = sums_of_share(block, begin, self.shares, rows_held, hidden, total, partial(add, False))

        def tell() -> None:
            for row, part in enumerate(total.split()):
                f.store(
                    part, block.at(block.shared, f.add(f.mul(f.add(f.mul(share, rows), row), self.columns), column))
                )

        f.when(block.below(share, self.shares), tell)
        block.barrier()
        count = rows * self.columns
        sums = f.at(block.shared, self.shares * count)

        def add_up(at: Value, _: tuple[Value, ...]) -> Sequence[Value]:
            found = f.number("float", 0.0)
            for other in range(self.shares):
                found = f.add(found, f.load("float", block.at(block.shared, f.add(at, other * count))))
            f.store(found, block.at(sums, at))
            return ()

        block.strided(block.thread, count, THREADS, add_up)
        block.barrier()
        return sums

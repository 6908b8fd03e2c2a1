"""Recurrent layers as problems: their dims and operands, how R is packed, and the candidates worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.target import Target
from kernels.templates.epilogue import ACCUMULATED
from kernels.templates.grid import Group
from kernels.templates.narrow import NARROW
from kernels.templates.tile import most_accumulators
from kernels.tensor.expression import Expression, Unary

Cell = Literal["lstm", "gru", "rnn"]
GATES: dict[Cell, int] = {"lstm": 4, "gru": 3, "rnn": 1}
_SIGMOID = Unary("sigmoid", ACCUMULATED[()])
_TANH = Unary("tanh", ACCUMULATED[()])
# Of gates, of the cell's or hidden gate, and (LSTM) of the cell state on its way out: ONNX's defaults.
ACTIVATIONS: dict[Cell, tuple[Expression, ...]] = {
    "lstm": (_SIGMOID, _TANH, _TANH), "gru": (_SIGMOID, _TANH), "rnn": (_TANH,)
}  # fmt: skip


class InvalidRecurrent(KernelsError):
    """A recurrent layer whose parts do not fit."""


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
    r_dtype: DType = DType.F32  # as R lies in memory: F16 and BF16 are widened as they are read
    activations: tuple[Expression, ...] = ()  # of ACCUMULATED, as many as the cell has; none: the usual ones

    def __post_init__(self) -> None:
        if not self.activations:
            object.__setattr__(self, "activations", ACTIVATIONS[self.cell])
        if len(self.activations) != len(ACTIVATIONS[self.cell]):
            raise InvalidRecurrent(f"{self.cell} has {len(ACTIVATIONS[self.cell])} activations.")
        if self.r_dtype not in (DType.F32, *NARROW):
            raise InvalidRecurrent(f"R of {self.r_dtype.value} is none that a layer widens.")
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
    """The tiles worth trying, the likely best first: as many rows as the registers hold, then as many units.

    What widens a vector has its latency beside that of the products: tiles of one row have more units then. Those of
    float32, which are as fast as R is read, have one vector where four do not fit.
    """
    most, wide = most_accumulators(target), max(1, -(-layer.hidden // target.lanes()))
    found = []
    for rows in range(max(1, min(layer.batch, most // layer.gates)), 0, -1):
        vectors = min(wide, most // (rows * layer.gates), 4)
        if rows > 1 or layer.r_dtype in NARROW:
            vectors = min(vectors, (target.vector_registers - 1) // ((rows + 1) * layer.gates))
        registers = rows * layer.gates * vectors + layer.gates * vectors + 1
        if vectors >= 1 and registers <= target.vector_registers:
            found.append(RecurrentCandidate(rows, vectors))
    return tuple(found[:4]) or (RecurrentCandidate(1, 1),)

"""What a template does to an accumulated result before it stores it: an expression of the result and other operands.

    c = Convolution(...) or Gemm(...)
    bias = Buffer("bias", DType.F32, (n,))
    residual = Buffer("residual", DType.F32, (m, n))
    Epilogue(relu(ACCUMULATED[()] + bias[c.column] + residual[c.row, c.column]))

The accumulated result is a load of the stand-in `ACCUMULATED` (`ACCUMULATED_INTEGER` where a template sums int32,
`ACCUMULATED_DOUBLE` of float64); every other load reads an operand, at indices of the variables that the template
names. The expression's type is the output's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Parameter, Value, joined
from kernels.tensor.expression import Buffer, Expression, Index, Load, Variable

ACCUMULATED = Buffer("accumulated", DType.F32, ())
ACCUMULATED_INTEGER = Buffer("accumulated_integer", DType.I32, ())
ACCUMULATED_DOUBLE = Buffer("accumulated_double", DType.F64, ())
_STAND_INS = (ACCUMULATED, ACCUMULATED_INTEGER, ACCUMULATED_DOUBLE)


class InvalidEpilogue(KernelsError):
    """An epilogue that a template cannot compute."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An expression of what was accumulated; none given: that itself."""

    value: Expression = ACCUMULATED[()]

    @property
    def dtype(self) -> DType:
        """The type of the output."""
        return self.value.dtype

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads of operands, wherever they stand."""
        return tuple(load for load in _loads(self.value) if load.buffer not in _STAND_INS)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The operands that are read besides the accumulated result, in the order of their first use."""
        return tuple(dict.fromkeys(load.buffer for load in self.loads))


def _loads(expression: Expression) -> Iterator[Load]:
    if isinstance(expression, Load):
        yield expression
    for operand in expression.operands:
        yield from _loads(operand)


class TileLeaves:
    """The leaves of an epilogue inside a tile: accumulated vectors, and operands at constant distances.

    `pointers` hold each operand's address at the tile's origin, so that a load needs no arithmetic: `offsets` are the
    distances from there, `columns` those of each vector along the variable `along`. Loads are kept: the bias of a
    column serves all rows. With `valid` lanes fewer than all, only those are read.
    """

    def __init__(
        self,
        function: Function,
        pointers: Mapping[str, Value],
        along: Variable,
        lanes: int,
        kept: dict[tuple[str, int, int, int], Value] | None = None,
    ) -> None:
        self._function = function
        self._pointers = pointers
        self._along = along
        self._lanes = lanes
        self._kept = {} if kept is None else kept
        self._offsets: Mapping[Variable, int] = {}
        self._columns: Sequence[int] = ()
        self._valid = lanes
        self._accumulated: Value | None = None

    def place(
        self, accumulated: Value, offsets: Mapping[Variable, int], columns: Sequence[int], valid: int | None = None
    ) -> TileLeaves:
        """These leaves for other vectors of the same tile: one part of `accumulated` per column."""
        made = TileLeaves(self._function, self._pointers, self._along, self._lanes, self._kept)
        made._offsets, made._columns, made._valid = offsets, columns, self._lanes if valid is None else valid
        made._accumulated = accumulated
        return made

    def load(self, load: Load) -> Value:
        """The value of a leaf, one part per column (one part for all where the column does not matter)."""
        if load.buffer in _STAND_INS:
            assert self._accumulated is not None, "place() comes before load()"
            return self._accumulated
        position = load.buffer.position(load.indices)
        step = position.factor(self._along)
        fixed = sum(factor * self._offsets.get(v, 0) for v, factor in position.terms if v != self._along)
        if step == 0:
            return self._vector(load.buffer, fixed, 0)
        return joined([self._vector(load.buffer, fixed + step * column, step) for column in self._columns])

    def position(self, index: Index) -> Value:
        """Epilogues of tiles do not compute with positions."""
        raise InvalidEpilogue("an epilogue uses an index as a value; write it as a kernel of its own.")

    def _vector(self, buffer: Buffer, displacement: int, step: int) -> Value:
        key = (buffer.name, displacement, step, self._valid)
        if key not in self._kept:
            self._kept[key] = self._read(buffer, displacement, step)
        return self._kept[key]

    def _read(self, buffer: Buffer, displacement: int, step: int) -> Value:
        f, kind = self._function, types.scalar(buffer.dtype)
        address = f.at(self._pointers[buffer.name], displacement, kind)
        whole = types.vector(kind, self._lanes)
        if step == 0:
            return f.splat(f.load(kind, address), self._lanes)
        if self._valid == self._lanes and 1 in (step, self._lanes):
            return f.load(whole, address)
        if step == 1:
            return f.masked_load(whole, address, f.first_lanes(self._valid, self._lanes))
        found = f.number(whole, 0)
        for lane in range(self._valid):
            found = f.insert(found, f.load(kind, f.at(address, lane * step, kind)), lane)
        return found


def parameters_of(epilogue: Epilogue) -> tuple[Parameter, ...]:
    """The parameters of a tile's function for the operands' addresses at its origin."""
    return tuple(Parameter(f"e.{buffer.name}", "ptr", "nocapture readonly") for buffer in epilogue.buffers)


def leaves_of(function: Function, epilogue: Epilogue, along: Variable, lanes: int) -> TileLeaves:
    """The leaves inside a function that has these parameters."""
    pointers = {buffer.name: function.parameter(f"e.{buffer.name}") for buffer in epilogue.buffers}
    return TileLeaves(function, pointers, along, lanes)


def origin(function: Function, buffer: Buffer, base: Value, load: Load, at: Mapping[Variable, Value]) -> Value:
    """An operand's address at a tile's origin, given the variables there."""
    position = load.buffer.position(load.indices)
    offset = function.integer(position.offset)
    for variable, factor in position.terms:
        if variable in at:
            offset = function.add(offset, function.mul(at[variable], factor))
    return function.at(base, offset, types.scalar(buffer.dtype))


def origins(
    function: Function, epilogue: Epilogue, bases: Mapping[str, Value], at: Mapping[Variable, Value]
) -> dict[str, Value]:
    """The addresses of all operands of an epilogue at a tile's origin.

    Raises InvalidEpilogue when one operand is read with different indices.
    """
    found: dict[str, Value] = {}
    seen: dict[str, Load] = {}
    for load in epilogue.loads:
        name = load.buffer.name
        if seen.get(name) == load:
            continue
        if name in seen:
            raise InvalidEpilogue(f"the epilogue reads operand '{name}' at two different places; give it two names.")
        seen[name] = load
        found[name] = origin(function, load.buffer, bases[name], load, at)
    return found


def apply(function: Function, epilogue: Epilogue, leaves: TileLeaves, lanes: int) -> Value:
    """The epilogue's value for the vectors that `leaves` were placed at."""
    return emit(function, epilogue.value, lanes, leaves)

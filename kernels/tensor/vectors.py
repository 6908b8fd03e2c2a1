"""Elements of buffers in lanes: loads and stores of one iteration, or of all iterations of a vectorized loop at once.

A vectorized loop of n iterations becomes as many vectors of `lanes` elements as it needs; of the last one only `last`
lanes are valid. Outside of such a loop a value is one element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.transposing import transpose
from kernels.target import Target
from kernels.tensor.expression import Buffer, Index, Load, ReduceOp, Variable
from kernels.tensor.nest import Nest, accumulator_type, statements
from kernels.tensor.scalars import identity
from kernels.tensor.traverse import loads

_SHORT_STEP = 4  # elements: up to here whole vectors and shuffles are cheaper than one load per lane
_REDUCTIONS = {"sum": ("fadd", "add"), "prod": ("fmul", "mul")}


@dataclass(frozen=True, slots=True)
class Lanes:
    """How a vectorized loop lies in vectors."""

    variable: Variable | None  # None outside of vectorized loops
    lanes: int = 1
    parts: int = 1
    last: int = 1  # valid lanes of the last part


OUTSIDE = Lanes(None)


def lanes_of(variable: Variable, widest: int) -> Lanes:
    """Vectors for a loop, of `widest` lanes or, for a shorter loop, of the next power of two."""
    lanes = min(widest, 1 << max(variable.extent - 1, 0).bit_length())
    parts = max(-(-variable.extent // lanes), 1)
    return Lanes(variable, lanes, parts, variable.extent - (parts - 1) * lanes)


def widest_lanes(nest: Nest, target: Target) -> int:
    """Lanes of a vector of the widest type that the nest computes with; the half-width floats count as f32."""
    dtypes = {one.buffer.dtype for one in statements(nest.body)}
    dtypes |= {load.buffer.dtype for one in statements(nest.body) for load in loads(one.value)}
    return min((target.lanes(accumulator_type(dtype)) for dtype in dtypes), default=1)


class Elements:
    """Loads and stores at the current iteration: `values` of the loops around, vectors along `place.variable`.

    Temporaries in `registers` have no memory: the value they hold is what a load gives. It satisfies the protocol
    `Leaves` of emission.
    """

    def __init__(self, function: Function) -> None:
        self._f = function
        self.place = OUTSIDE
        self.values: dict[Variable, Value] = {}
        self.registers: dict[str, Value] = {}
        self.bases: dict[str, Value] = {}
        self.turned: dict[tuple[str, tuple[Index, ...]], Value] = {}  # loads that stand ready in registers
        self._stored: dict[tuple[str, tuple[Index, ...]], Value] = {}  # what memory was given in this iteration
        self._pointers: list[dict[tuple[str, tuple[tuple[Variable, int], ...]], Value]] = [{}]

    # -- scopes -----------------------------------------------------------------------------------------------------

    def enter(self, variable: Variable, value: Value) -> None:
        """Begin an iteration: addresses that are found in it are forgotten when it is left."""
        self.values[variable] = value
        self._pointers.append({})
        self._stored = {}

    def leave(self, variable: Variable) -> None:
        """End an iteration."""
        del self.values[variable]
        self._pointers.pop()
        self._stored = {}

    def in_lanes(self, place: Lanes) -> Lanes:
        """Go on along other vectors; returns the present ones."""
        before, self.place = self.place, place
        self._stored = {}
        return before

    def prepare(self, buffer: Buffer, indices: tuple[Index, ...]) -> None:
        """Write the part of an address that the loops around decide already, so that it stands before the next loop."""
        if buffer.name not in self.registers and buffer.name in self.bases:
            self._pointer(buffer, buffer.position(indices))

    # -- leaves -----------------------------------------------------------------------------------------------------

    def load(self, load: Load) -> Value:
        """The elements as they are stored, one per lane."""
        return self._given(self._load(load), load.buffer.dtype)

    def _given(self, value: Value, dtype: DType) -> Value:
        """Emission takes the bits of a bf16, and an f16 as one."""
        return (
            self._f.convert("bitcast", types.with_element(value.type, "half"), value) if dtype is DType.F16 else value
        )

    def _load(self, load: Load) -> Value:
        name, f, place = load.buffer.name, self._f, self.place
        if name in self.registers:
            found = self.registers[name]
            return f.splat(found, place.lanes) if types.lanes(found.type) == 1 else found
        if self.turned and (name, load.indices) in self.turned:
            return self.turned[name, load.indices]
        if self._stored and (name, load.indices) in self._stored:
            return self._stored[name, load.indices]
        kind = memory_type(load.buffer.dtype)
        address, step = self._address(load.buffer, load.indices)
        if place.lanes == 1:
            return f.load(kind, address)
        if step == 0:
            return f.splat(f.load(kind, address), place.lanes)
        whole = types.vector(kind, place.lanes)
        made = []
        for part in range(place.parts):
            start, valid = part * place.lanes * step, self._valid(part)
            if step != 1:
                made.append(self._strided(whole, kind, address, start, step, valid))
            elif valid == place.lanes:
                made.append(f.load(whole, f.at(address, start, kind)))
            else:
                made.append(f.masked_load(whole, f.at(address, start, kind), f.first_lanes(valid, place.lanes)))
        return joined(made)

    def load_where(self, load: Load, condition: Value) -> Value:
        """The elements where the condition holds; the others are not touched."""
        return self._given(self._load_where(load, condition), load.buffer.dtype)

    def _load_where(self, load: Load, condition: Value) -> Value:
        f, place = self._f, self.place
        if load.buffer.name in self.registers:
            return self._load(load)
        kind = memory_type(load.buffer.dtype)
        address, step = self._address(load.buffer, load.indices)
        inside = f.at(self.bases[load.buffer.name], load.buffer.offset, kind)  # an element that surely exists
        if place.lanes == 1:
            return f.load(kind, f.select(condition, address, inside))
        whole = types.vector(kind, place.lanes)
        conditions = condition.split() if len(condition.parts) > 1 else condition.split() * place.parts
        made = []
        for part, one in enumerate(conditions):
            start, valid = part * place.lanes * step, self._valid(part)
            if step == 1:
                if valid < place.lanes:
                    one = f.binary("and", one, f.first_lanes(valid, place.lanes))
                made.append(f.masked_load(whole, f.at(address, start, kind), one))
                continue
            vector = f.number(whole, 0)
            for lane in range(valid):
                at = f.select(f.extract(one, lane), f.at(address, start + lane * step, kind), inside)
                vector = f.insert(vector, f.load(kind, at), lane)
            made.append(vector)
        return joined(made)

    def position(self, index: Index) -> Value:
        """An index as i64, one per lane."""
        f, place = self._f, self.place
        step = index.factor(place.variable) if place.variable else 0
        base = self._offset(tuple(term for term in index.terms if term[0] != place.variable), index.offset)
        spread = f.splat(base, place.lanes)
        if step == 0 or place.lanes == 1:
            return spread
        kind = types.vector("i64", place.lanes)
        made = []
        for part in range(place.parts):
            numbers = [(part * place.lanes + lane) * step for lane in range(place.lanes)]
            made.append(f.add(spread, Value((types.constant_lanes(kind, numbers),), kind, True)))
        return joined(made)

    # -- stores -----------------------------------------------------------------------------------------------------

    def store(self, buffer: Buffer, indices: tuple[Index, ...], value: Value) -> None:
        """The value to memory, valid lanes only; a load of it in the same iteration takes the value itself."""
        f, place = self._f, self.place
        self._stored = {key: held for key, held in self._stored.items() if key[0] != buffer.name}
        self._stored[buffer.name, indices] = value
        kind = memory_type(buffer.dtype)
        address, step = self._address(buffer, indices)
        if place.lanes == 1:
            f.store(value, address)
            return
        parts = value.split() if len(value.parts) > 1 else value.split() * place.parts
        for part, one in enumerate(parts):
            start, valid = part * place.lanes * step, self._valid(part)
            if step != 1:
                for lane in range(valid):
                    f.store(f.extract(one, lane), f.at(address, start + lane * step, kind))
            elif valid == place.lanes:
                f.store(one, f.at(address, start, kind))
            else:
                self._store_first(one, f.at(address, start, kind), valid)

    def store_interleaved(self, buffer: Buffer, indices: tuple[Index, ...], values: Sequence[Value]) -> None:
        """Several values whose elements alternate in memory; `indices` are those of the first one."""
        f, place, count = self._f, self.place, len(values)
        kind = memory_type(buffer.dtype)
        position = buffer.position(indices)
        address = f.at(self._pointer(buffer, position), position.offset, kind)
        parts = [one.split() if len(one.parts) > 1 else one.split() * place.parts for one in values]
        for part in range(place.parts):
            for number in range(count):
                left = self._valid(part) * count - number * place.lanes
                if left <= 0:
                    continue
                # Of each lane of this vector: which value it comes from, and which of its lanes.
                sources = [divmod(number * place.lanes + lane, count)[::-1] for lane in range(place.lanes)]
                vector = parts[0][part]
                vector = f.shuffle(vector, vector, [lane if value == 0 else -1 for value, lane in sources])
                for other in range(1, count):
                    order = [place.lanes + at if value == other else n for n, (value, at) in enumerate(sources)]
                    vector = f.shuffle(vector, parts[other][part], order)
                at = f.at(address, (part * count + number) * place.lanes, kind)
                if left >= place.lanes:
                    f.store(vector, at)
                else:
                    self._store_first(vector, at, left)

    def _store_first(self, vector: Value, address: Value, valid: int) -> None:
        """Some lanes of a vector, from the first."""
        # LLVM 22 makes a store of 4 bytes of a masked store of one lane of 2 that was truncated before (x86).
        if valid == 1:
            self._f.store(self._f.extract(vector, 0), address)
        else:
            self._f.masked_store(vector, address, self._f.first_lanes(valid, types.lanes(vector.type)))

    def total(self, op: ReduceOp, dtype: DType, value: Value) -> Value:
        """All valid lanes combined, as one element."""
        f, place = self._f, self.place
        if place.lanes == 1:
            return value
        parts = list(value.split() if len(value.parts) > 1 else value.split() * place.parts)
        if place.last < place.lanes:
            neutral = f.number(parts[-1].type, identity(op, dtype))
            parts[-1] = f.select(f.first_lanes(place.last, place.lanes), parts[-1], neutral)
        return f.reduce(reduction_name(op, dtype), joined(parts))

    def columns(self, load: Load, rows: Variable, lanes: Lanes) -> list[Value]:
        """What a load gives in the lanes of `lanes`, for each value of `rows`, along which the memory runs.

        Squares are read along the memory and turned in registers; neither variable has a value yet.
        """
        f, side = self._f, lanes.lanes
        assert lanes.variable is not None and lanes.parts == 1, "one vector"
        position, kind = load.buffer.position(load.indices), memory_type(load.buffer.dtype)
        whole, step = types.vector(kind, side), position.factor(lanes.variable)
        address = f.at(self._pointer(load.buffer, position), position.offset, kind)
        found: list[Value] = []
        for start in range(0, rows.extent, side):
            valid = min(side, rows.extent - start)
            square = []
            for lane in range(side):
                if lane >= lanes.last:
                    square.append(f.number(whole, 0))
                    continue
                at = f.at(address, start + lane * step, kind)
                every = valid == side
                square.append(f.load(whole, at) if every else f.masked_load(whole, at, f.first_lanes(valid, side)))
            found += transpose(f, square)[:valid]
        return found

    # -- addresses --------------------------------------------------------------------------------------------------

    def _valid(self, part: int) -> int:
        return self.place.last if part == self.place.parts - 1 else self.place.lanes

    def _strided(self, whole: str, kind: str, address: Value, start: int, step: int, valid: int) -> Value:
        """Lanes some elements apart: for short distances from whole vectors by shuffles, else one by one.

        Only elements from the first to the last valid lane are touched: the last vector is read so that it ends there.
        """
        f, lanes = self._f, types.lanes(whole)
        span = abs(step) * (valid - 1) + 1
        if abs(step) > _SHORT_STEP or span < lanes:
            return self._gathered(whole, kind, address, start, step, valid)
        first = start if step > 0 else start - span + 1
        begins = list(range(0, span - lanes + 1, lanes))
        if span % lanes:
            begins.append(span - lanes)
        vectors = [f.load(whole, f.at(address, first + begin, kind)) for begin in begins]
        # Of each lane, the vector it comes from and its place there.
        sources = []
        for lane in range(valid):
            place = lane * step if step > 0 else span - 1 + lane * step
            number = min(place // lanes, len(vectors) - 1)
            sources.append((number, place - begins[number]))
        sources += [(0, -1)] * (lanes - valid)
        found = f.shuffle(vectors[0], vectors[0], [place if number == 0 else -1 for number, place in sources])
        for number, vector in enumerate(vectors[1:], 1):
            order = [lanes + place if source == number else lane for lane, (source, place) in enumerate(sources)]
            found = f.shuffle(found, vector, order)
        return found

    def _gathered(self, whole: str, kind: str, address: Value, start: int, step: int, valid: int) -> Value:
        f = self._f
        vector = f.number(whole, 0)
        for lane in range(valid):
            vector = f.insert(vector, f.load(kind, f.at(address, start + lane * step, kind)), lane)
        return vector

    def _address(self, buffer: Buffer, indices: tuple[Index, ...]) -> tuple[Value, int]:
        """Of the first lane, and the distance of the lanes in elements."""
        position = buffer.position(indices)
        step = position.factor(self.place.variable) if self.place.variable else 0
        return self._f.at(self._pointer(buffer, position), position.offset, memory_type(buffer.dtype)), step

    def _pointer(self, buffer: Buffer, position: Index) -> Value:
        """The base and what the loops around add to it; each step is written once in the loop that decides it."""
        depth = {variable: number for number, variable in enumerate(self.values)}
        terms = sorted((term for term in position.terms if term[0] in depth), key=lambda term: depth[term[0]])
        pointer = self.bases[buffer.name]
        for count in range(1, len(terms) + 1):
            key = (buffer.name, tuple(terms[:count]))
            scope = self._pointers[depth[terms[count - 1][0]] + 1]
            if key not in scope:
                variable, factor = terms[count - 1]
                offset = self._f.mul(self.values[variable], factor)
                scope[key] = self._f.at(pointer, offset, memory_type(buffer.dtype))
            pointer = scope[key]
        return pointer

    def _offset(self, terms: tuple[tuple[Variable, int], ...], start: int) -> Value:
        total = self._f.integer(start)
        for variable, factor in terms:
            total = self._f.add(self._f.mul(self.values[variable], factor), total)
        return total


def memory_type(dtype: DType) -> str:
    """The type in which elements are loaded, moved and stored: the half-width floats as their bits.

    LLVM may turn a shuffle of bfloat into conversions, and these into calls of functions that nobody links.
    """
    return "i16" if dtype in (DType.F16, DType.BF16) else types.scalar(dtype)


def moved(function: Function, value: Value, dtype: DType) -> Value:
    """A value as emission gives it (half, bfloat) in the type of memory."""
    return function.convert("bitcast", types.with_element(value.type, memory_type(dtype)), value)


def reduction_name(op: ReduceOp, dtype: DType) -> str:
    """A reduction as `Function.reduce` calls it."""
    if op in _REDUCTIONS:
        return _REDUCTIONS[op][0 if dtype.is_float else 1]
    if dtype.is_float:
        return "maximum" if op == "max" else "minimum"
    return ("s" if dtype.is_signed else "u") + op


def register_names(nest: Nest, vectorized: Mapping[str, Variable]) -> frozenset[str]:
    """Temporaries that need no memory: those without dims, and those that are only accessed lane by lane.

    `vectorized` are the variables of vectorized loops by name. A temporary is accessed lane by lane when each index is
    the variable of a vectorized loop over all of it.
    """
    found: dict[str, bool] = {}
    for one in statements(nest.body):
        for buffer, indices in ((one.buffer, one.indices), *((x.buffer, x.indices) for x in loads(one.value))):
            found[buffer.name] = found.get(buffer.name, True) and _in_lanes(buffer, indices, vectorized)
    outside = {buffer.name for buffer in (*nest.program.inputs, *nest.program.outputs)}
    return frozenset(name for name, is_register in found.items() if is_register and name not in outside)


def _in_lanes(buffer: Buffer, indices: tuple[Index, ...], vectorized: Mapping[str, Variable]) -> bool:
    if not buffer.shape:
        return True
    if len(buffer.shape) != 1 or indices[0].offset or len(indices[0].terms) != 1:
        return False
    variable, factor = indices[0].terms[0]
    return factor == 1 and vectorized.get(variable.name) == variable and variable.extent == buffer.shape[0]

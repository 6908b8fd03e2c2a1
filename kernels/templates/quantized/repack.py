"""Weights that are computed, packed while the program runs: the same bytes as `TilePacking` makes of constant ones."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.problem import WEIGHTS
from kernels.templates.grid import unravel
from kernels.templates.quantized.arithmetic import PER_WORD, shift_of_b
from kernels.templates.quantized.packing import TilePacking, run_elements, runs
from kernels.templates.quantized.problem import WEIGHTS_ZERO, QuantizedConvolution

PACKED = "packed"


@dataclass(frozen=True, slots=True)
class Weights:
    """Where weights lie: distances in elements from one output channel, channel, tap and set to the next."""

    output_channel: int
    channel: int
    tap: int
    set: int = 0


def in_order(packing: TilePacking) -> Weights:
    """Dense weights of the shape (sets, output channels, channels / groups, *kernel)."""
    geometry = packing.problem.geometry
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    return Weights(geometry.depth * taps, taps, 1, geometry.output.channels * geometry.depth * taps)


def build_repack(packing: TilePacking, place: Weights, target: Target, name: str = "repack") -> Kernel:
    """The kernel: "weights" as `place` says, "weights_zero" where that is no constant -> "packed"."""
    return _RepackBuilder(packing, place, target, name).kernel()


class _RepackBuilder(Builder[QuantizedConvolution, str]):
    def __init__(self, packing: TilePacking, place: Weights, target: Target, name: str) -> None:
        super().__init__(packing.problem, f"repack {packing.arithmetic}", target, name)
        self.packing, self.place, self.geometry = packing, place, packing.problem.geometry
        self.words = types.vector("i32", self.lanes)
        self.vectors = -(-self.geometry.width // self.lanes)
        self.signed = self.problem.weights_dtype is DType.I8

    def kernel(self) -> Kernel:
        problem, geometry, place = self.problem, self.geometry, self.place
        taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
        far = (
            (geometry.output.channels - 1) * place.output_channel + (geometry.depth - 1) * place.channel
            + (taps - 1) * place.tap + (problem.weight_sets - 1) * place.set
        )  # fmt: skip
        zeros = geometry.output.channels if problem.zero_per_channel else 1
        operands = (
            Operand(WEIGHTS, "input", problem.weights_dtype, far + 1),
            *((Operand(WEIGHTS_ZERO, "input", problem.weights_dtype, zeros),) if problem.weights_zero is None else ()),
            Operand(PACKED, "output", DType.I8, problem.weight_sets * self.packing.elements),
        )
        return self.written(operands, problem.weight_sets * geometry.groups * self.vectors)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """A block is one vector of output channels."""
        number, group, vector = unravel(f, block, (self.problem.weight_sets, self.geometry.groups, self.vectors))
        first = f.add(f.mul(group, self.geometry.width), f.mul(vector, self.lanes))
        start = f.add(f.mul(first, self.place.output_channel), f.mul(number, self.place.set))
        origin = f.at(pointers[WEIGHTS], start, "i8")
        packed = f.add(f.mul(number, self.packing.elements), f.mul(group, self.packing.group_bytes))
        for tiles in self.packing.groups:
            valid = self._valid(tiles == self.packing.groups[-1])
            for position in range(tiles.size):
                last = position == tiles.size - 1
                begin, count = tiles.start + position, tiles.count
                inside = f.sub(vector, begin)
                low, high = f.integer(begin), f.integer(begin + (count - 1) * tiles.size)
                here = f.binary("and", f.compare("sge", vector, low), f.compare("sle", vector, high))
                rest = f.binary("urem", inside, f.integer(tiles.size))
                here = f.binary("and", here, f.compare("eq", rest, f.integer(0)))
                tile = f.sub(vector, position)
                aim = f.at(pointers[PACKED], f.add(packed, f.mul(tile, self.packing.vector_bytes)), "i8")
                aim = f.at(aim, position * self.lanes, "i32")
                f.when(here, lambda aim=aim, size=tiles.size, valid=valid if last else self.lanes: self._vector(  # type: ignore[misc]
                    f, origin, aim, size * self.lanes, valid, pointers.get(WEIGHTS_ZERO), first
                ))  # fmt: skip

    def _valid(self, is_last: bool) -> int:
        rest = self.geometry.width % self.lanes
        return rest if rest and is_last else self.lanes

    def _vector(
        self, f: Function, origin: Value, aim: Value, width: int, valid: int, zero_at: Value | None, first: Value
    ) -> None:
        """All words of one vector of output channels; vectors of a tile lie `width` words apart."""
        packing = self.packing
        zeros = self._zeros(f, zero_at, first, valid)
        if valid < self.lanes:
            zeros = f.select(f.first_lanes(valid, self.lanes), zeros, f.number(self.words, 0))
        planes, rows, columns = runs(self.problem)
        per, whole = PER_WORD[packing.arithmetic], run_elements(self.problem)
        words = f.at(aim, packing.heads * width, "i32")

        def run(number: Value, of_run: tuple[Value, ...]) -> tuple[Value, ...]:
            source = f.at(origin, f.mul(number, self._taps_of_run() * self.place.tap), "i8")
            to = f.at(words, f.mul(number, packing.run_words * width), "i32")

            def word(position: Value, carried: tuple[Value, ...], present: int = per) -> tuple[Value, ...]:
                made, total = self._word(f, source, f.mul(position, per), present, valid, zeros, carried[0])
                f.store(made, f.at(to, f.mul(position, width), "i32"))
                return (total,)

            totals = f.loop(0, whole // per, 1, word, of_run)
            return word(f.integer(whole // per), totals, whole % per) if whole % per else totals

        (total,) = f.loop(0, planes * rows * columns, 1, run, (f.number(self.words, 0),))
        elements = planes * rows * columns * whole
        if packing.has_zeros:
            f.store(zeros, f.at(aim, width, "i32"))
            f.store(f.sub(f.mul(zeros, f.number(self.words, elements)), total), aim)
        else:
            f.store(f.sub(f.number(self.words, 0), total), aim)

    def _taps_of_run(self) -> int:
        return run_elements(self.problem) // self.geometry.depth

    def _word(
        self, f: Function, source: Value, first: Value, present: int, valid: int, zeros: Value, total: Value
    ) -> tuple[Value, Value]:
        """One word of every lane, and the total of the elements so far."""
        bits = 32 // PER_WORD[self.packing.arithmetic]
        made = f.number(self.words, 0)
        for place in range(present):
            number = f.add(first, place)
            if self._taps_of_run() == 1:
                offset = f.mul(number, self.place.channel)
            else:
                tap = f.binary("udiv", number, f.integer(self.geometry.depth))
                channel = f.sub(number, f.mul(tap, self.geometry.depth))
                offset = f.add(f.mul(tap, self.place.tap), f.mul(channel, self.place.channel))
            one = self._elements(f, f.at(source, offset, "i8"), valid)
            if not self.packing.has_zeros:
                one = f.sub(one, zeros)
            if valid < self.lanes:
                one = f.select(f.first_lanes(valid, self.lanes), one, f.number(self.words, 0))
            total = f.add(total, one)
            low = f.binary("and", one, f.number(self.words, (1 << bits) - 1))
            made = f.binary("or", made, f.binary("shl", low, f.number(self.words, bits * place)))
        return made, total

    def _elements(self, f: Function, address: Value, valid: int) -> Value:
        """One shifted element of each output channel, as int32."""
        kind, step = types.vector("i8", self.lanes), self.place.output_channel
        if step == 1 and valid == self.lanes:
            found = f.load(kind, address, align=1)
        else:
            found = f.number(kind, 0)
            for lane in range(valid):
                found = f.insert(found, f.load("i8", f.at(address, lane * step, "i8")), lane)
        wide = f.convert("sext" if self.signed else "zext", self.words, found)
        return f.add(wide, f.number(self.words, shift_of_b(self.packing.arithmetic, self.problem.weights_dtype)))

    def _zeros(self, f: Function, zero_at: Value | None, first: Value, valid: int) -> Value:
        """The shifted zero points as int32; lanes that are no channels hold any number."""
        shift = shift_of_b(self.packing.arithmetic, self.problem.weights_dtype)
        zeros = self.problem.weights_zero
        if zeros is None:
            assert zero_at is not None, "the operand is there"
            if self.problem.zero_per_channel:
                kind, address = types.vector("i8", self.lanes), f.at(zero_at, first, "i8")
                some = f.masked_load(kind, address, f.first_lanes(valid, self.lanes))
                wide = f.convert("sext" if self.signed else "zext", self.words, some)
                return f.add(wide, f.number(self.words, shift))
            one = f.convert("sext" if self.signed else "zext", "i32", f.load("i8", zero_at))
            return f.splat(f.add(one, f.number("i32", shift)), self.lanes)
        if len(zeros) == 1:
            return f.number(self.words, zeros[0] + shift)
        padded = [*(zero + shift for zero in zeros), *(0,) * self.lanes]
        table = f.module.constant(f"{self.name}_zeros", "i32", [str(zero) for zero in padded])
        return f.load(self.words, f.at(Value((table,), "ptr"), first, "i32"))

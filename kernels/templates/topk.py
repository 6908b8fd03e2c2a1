"""TopK: the k largest (or smallest) elements of each row, in order, with their positions.

Among equal elements the earlier position comes first, as ONNX asks. Few are kept in an ordered list that most elements
do not enter (one comparison each); many come from a merge sort, whose stability gives the order of equal ones. NaN
counts as larger than any number, as NumPy sorts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.grid import unravel
from kernels.templates.template import only

FEW = 64  # elements of an ordered list; more are sorted


class InvalidTopK(KernelsError):
    """A TopK whose dims do not fit."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The k first elements of each row of `size` along an axis: [outer, size, inner] -> [outer, k, inner], in order."""

    outer: int
    size: int
    inner: int
    k: int
    dtype: DType = DType.F32
    largest: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.size:
            raise InvalidTopK(f"k is {self.k}, and the axis has {self.size} elements.")
        if self.dtype.held is not self.dtype or self.dtype is DType.BOOL:
            raise InvalidTopK(f"TopK of {self.dtype.value} is not supported; cast to f32 before.")


def build(problem: TopK, target: Target, name: str = "topk") -> Kernel:
    """The kernel: operands "x", "values" and "positions" (i64). A block is one row."""
    module = Module(target)
    rows = problem.outer * problem.inner
    kind = types.scalar(problem.dtype)
    sorts = problem.k > FEW

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if not problem.k or not rows:
            return
        outer, inner = unravel(f, block, (problem.outer, problem.inner))
        x = f.at(pointers["x"], f.add(f.mul(outer, problem.size * problem.inner), inner), kind)
        positions = _sorted(f, problem, x, kind, scratch) if sorts else _kept(f, problem, x, kind, scratch)
        start = f.add(f.mul(outer, problem.k * problem.inner), inner)

        def write(rank: Value, _: tuple[Value, ...]) -> None:
            position = f.load("i64", f.at(positions, rank, "i64"))
            at = f.add(start, f.mul(rank, problem.inner))
            f.store(_element(f, problem, x, kind, position), f.at(pointers["values"], at, kind))
            f.store(position, f.at(pointers["positions"], at, "i64"))

        f.loop(0, problem.k, 1, write)

    operands = (
        Operand("x", "input", problem.dtype, rows * problem.size),
        Operand("values", "output", problem.dtype, rows * problem.k),
        Operand("positions", "output", DType.I64, rows * problem.k),
    )
    scratch = 8 * (2 * problem.size if sorts else problem.k)
    candidate = "merge sort" if sorts else "ordered list"
    return write_kernel(module, name, operands, rows, body, scratch_bytes=scratch, candidate=candidate)


TOPK = only("topk", TopK, build)


def _element(f: Function, problem: TopK, x: Value, kind: str, position: Value) -> Value:
    return f.load(kind, f.at(x, f.mul(position, problem.inner), kind))


def _before(f: Function, problem: TopK, left: Value, right: Value) -> Value:
    """Whether an element stands strictly before another one in the result's order."""
    if not problem.largest:
        left, right = right, left
    if not problem.dtype.is_float:
        return f.compare("sgt" if problem.dtype.is_signed else "ugt", left, right)
    # left > right, or only left is NaN
    greater = f.compare("ogt", left, right)
    only = f.binary("and", f.compare("uno", left, left), f.compare("ord", right, right))
    return f.binary("or", greater, only)


def _kept(f: Function, problem: TopK, x: Value, kind: str, scratch: Value) -> Value:
    """An ordered list of positions: an element that stands before the last one moves up to its place."""

    def element(position: Value, _: tuple[Value, ...]) -> None:
        value = _element(f, problem, x, kind, position)
        count = f.minimum(position, f.integer(problem.k))  # how many are kept so far
        # What falls out is the last one of a full list; a list that is not full grows by one.
        start = f.minimum(count, f.integer(problem.k - 1))
        full = f.compare("eq", count, f.integer(problem.k))

        def insert() -> None:
            after = _up(f, problem, x, kind, scratch, value, start)
            f.store(position, f.at(scratch, after, "i64"))

        def last_is_after() -> list[Value]:
            held = f.load("i64", f.at(scratch, problem.k - 1, "i64"))
            return [_before(f, problem, value, _element(f, problem, x, kind, held))]

        (enters,) = f.when(full, last_is_after, lambda: [f.number("i1", True)])
        f.when(enters, insert)

    f.loop(0, problem.size, 1, element)
    return scratch


def _up(f: Function, problem: TopK, x: Value, kind: str, scratch: Value, value: Value, start: Value) -> Value:
    """Move those that come after `value` down by one, from place `start` upwards; the place that becomes free."""
    before, head, shift, out = "%" + f.fresh("from"), f.fresh("up"), f.fresh("shift"), f.fresh("free")
    enter, test = before[1:], f.fresh("test")
    f.line(f"br label %{enter}")
    f.label(enter)
    f.line(f"br label %{head}")
    f.label(head)
    place = Value((f"%{head}.p",), "i64")
    lower = Value((f"%{head}.n",), "i64")
    f.line(f"{place.text} = phi i64 [ {start.text}, %{enter} ], [ {lower.text}, %{shift} ]")
    at_top = f.compare("eq", place, f.integer(0))
    f.line(f"br i1 {at_top.text}, label %{out}, label %{test}")
    f.label(test)
    f.line(f"{lower.text} = sub i64 {place.text}, 1")
    held = f.load("i64", f.at(scratch, lower, "i64"))
    moves = _before(f, problem, value, _element(f, problem, x, kind, held))
    f.line(f"br i1 {moves.text}, label %{shift}, label %{out}")
    f.label(shift)
    f.store(held, f.at(scratch, place, "i64"))
    f.line(f"br label %{head}")
    f.label(out)
    return place


def _sorted(f: Function, problem: TopK, x: Value, kind: str, scratch: Value) -> Value:
    """All positions in order, by merging runs of 1, 2, 4, ... between two halves of scratch."""
    size = problem.size
    f.loop(0, size, 1, lambda at, _: f.store(at, f.at(scratch, at, "i64")))
    rounds = math.ceil(math.log2(size)) if size > 1 else 0

    def merge_all(number: Value, _: tuple[Value, ...]) -> None:
        odd = f.compare("ne", f.binary("and", number, f.integer(1)), f.integer(0))
        source = f.at(scratch, f.select(odd, f.integer(size), f.integer(0)), "i64")
        aim = f.at(scratch, f.select(odd, f.integer(0), f.integer(size)), "i64")
        run = f.binary("shl", f.integer(1), number)

        def element(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            return _merge_step(f, problem, x, kind, source, aim, run, carried)

        zero = f.integer(0)
        f.loop(0, size, 1, element, [zero, zero, f.minimum(run, f.integer(size)), zero])

    f.loop(0, rounds, 1, merge_all)
    return f.at(scratch, size if rounds % 2 else 0, "i64")


def _merge_step(
    f: Function, problem: TopK, x: Value, kind: str, source: Value, aim: Value, run: Value, carried: tuple[Value, ...]
) -> list[Value]:
    """Write one element of a merged pair of runs; `carried` is the pair's start, the two reading places, the count."""
    size = f.integer(problem.size)
    start, left, right, written = carried
    middle = f.minimum(f.add(start, run), size)
    end = f.minimum(f.add(middle, run), size)
    has_left, has_right = f.compare("slt", left, middle), f.compare("slt", right, end)
    last = f.integer(problem.size - 1)
    one = f.load("i64", f.at(source, f.minimum(left, last), "i64"))
    other = f.load("i64", f.at(source, f.minimum(right, last), "i64"))
    earlier = _before(f, problem, _element(f, problem, x, kind, other), _element(f, problem, x, kind, one))
    takes_right = f.binary("and", has_right, f.binary("or", earlier, f.compare("eq", has_left, f.number("i1", False))))
    f.store(f.select(takes_right, other, one), f.at(aim, written, "i64"))
    step = f.convert("zext", "i64", takes_right)
    left, right = f.add(left, f.sub(f.integer(1), step)), f.add(right, step)
    written = f.add(written, 1)
    done = f.compare("eq", written, end)
    start = f.select(done, end, start)
    left = f.select(done, end, left)
    right = f.select(done, f.minimum(f.add(end, run), size), right)
    return [start, left, right, written]

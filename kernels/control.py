"""Control flow as kernels: other kernels as a list of runs, which a loop repeats, or of which a condition chooses one.

Such a kernel is one block: whoever runs it runs all blocks of all runs, one after the other. Nothing is allocated.
Pointers of the inner runs stand in scratch, before what the inner kernels take; what the runs hand on to one another
lies in operands, as does everything else. Numbers may follow from the sizes of a run; then the kernel, and those inner
ones that ask for it, read the operand with the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kernels.dtype import DType
from kernels.kernel import ENTRY, SIZES, Kernel, Operand
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.size import Size, bound
from kernels.target import Target

ALIGNMENT = 64  # bytes, of the scratch of inner kernels
_ROW = 48  # bytes of a row of a table: entry, operand, offset, step, turn, aside


@dataclass(frozen=True, slots=True)
class Seat:
    """Where something lies: bytes from the start of an operand of the whole kernel."""

    operand: int
    offset: Size | int = 0
    step: Size | int = 0  # bytes further with every iteration
    turn: int = 0  # bytes further in every second iteration, from the second one on
    aside: int = 0  # operands further in every second iteration, from the second one on

    def by_turns(self, other: Seat) -> Seat:
        """This one in the first iteration, the other one in the second, and so on."""
        assert isinstance(self.offset, int) and isinstance(other.offset, int), "what is carried lies in one place"
        return replace(self, turn=other.offset - self.offset, aside=other.operand - self.operand)

    @property
    def moves(self) -> bool:
        """Whether it is another place in every iteration."""
        return isinstance(self.step, Size) or bool(self.step or self.turn or self.aside)


@dataclass(frozen=True, slots=True)
class Inner:
    """A run of another kernel: a seat for each of its operands."""

    kernel: Kernel
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a loop hands from one iteration to the next one: read in one place and written in the other, by turns.

    The result may be one of the two.
    """

    start: Seat  # what it is before the first iteration
    first: Seat  # where the first iteration reads it
    second: Seat  # where the second one does
    result: Seat | None  # where it goes after the last one; None: nobody asks
    bytes: Size | int


@dataclass(frozen=True, slots=True)
class Iterations:
    """How often a loop runs: as an int64 says, at most `limit` times (None: any number), while a bool holds."""

    limit: Size | int | None = None
    count: Seat | None = None  # an int64 before the loop
    begins: Seat | None = None  # a bool before the loop
    goes_on: Seat | None = None  # a bool after each iteration
    number: Seat | None = None  # where an iteration finds its number, an int64
    flag: Seat | None = None  # where it finds that it runs, a bool
    made: Seat | None = None  # where it is noted afterwards how many there were, an int64


@dataclass(frozen=True, slots=True)
class Stacked:
    """What a loop writes row by row: rows that no iteration wrote are zeros."""

    start: Seat
    bytes: Size | int  # of a row
    count: Size | int  # of rows


@dataclass(frozen=True, slots=True)
class Repetition:
    """A kernel that runs `runs` in their order, again and again. Its first operand is the memory of its own."""

    operands: tuple[Operand, ...]
    runs: tuple[Inner, ...]
    trips: Iterations
    carried: tuple[Carried, ...] = ()
    rows: tuple[Stacked, ...] = ()


@dataclass(frozen=True, slots=True)
class Choose:
    """A kernel that runs `yes` where a bool is true, else `no`. Its first operand is the memory of its own."""

    operands: tuple[Operand, ...]
    condition: Seat
    yes: tuple[Inner, ...]
    no: tuple[Inner, ...]


Control = Repetition | Choose


def written(control: Control, name: str, target: Target) -> Kernel:
    """The kernel that is described."""
    return _chosen(control, name, target) if isinstance(control, Choose) else _repeated(control, name, target)


def _repeated(control: Repetition, name: str, target: Target) -> Kernel:
    runs, trips, carried, rows = control.runs, control.trips, control.carried, control.rows
    writer = _Writer(name, target, control.operands)
    body = writer.table("body", runs)
    f = writer.f
    for one in carried:
        writer.copy(one.start, one.first, one.bytes)
    if trips.flag is not None:
        f.store(f.number("i8", 1), writer.address(trips.flag))
    most = (1 << 62) if trips.limit is None else trips.limit
    limit = f.integer(most)
    if trips.count is not None:
        count = f.load("i64", writer.address(trips.count))
        limit = f.minimum(f.maximum(count, f.integer(0)), limit)
    going = f.compare("slt", f.integer(0), limit)
    if trips.begins is not None:
        going = f.binary("and", going, writer.is_true(trips.begins))
    body.fill(moving=False)

    def iteration(number: Value) -> Value:
        if trips.number is not None:
            f.store(number, writer.address(trips.number))
        body.fill(moving=True, number=number)
        body.run()
        more = f.compare("slt", f.add(number, 1), limit)
        return more if trips.goes_on is None else f.binary("and", more, writer.is_true(trips.goes_on))

    made = _while(f, going, iteration)
    if trips.made is not None:
        f.store(made, writer.address(trips.made))
    for one in carried:
        if one.result is not None:
            odd = f.compare("ne", f.binary("and", made, f.integer(1)), f.integer(0))
            first, second, result = (writer.address(seat) for seat in (one.first, one.second, one.result))
            last = f.select(odd, second, first)
            f.when(f.compare("ne", last, result), partial(_copy, f, last, result, one.bytes))
    for row in rows:
        start = writer.address(row.start)
        f.loop(f.mul(made, _amount(f, row.bytes)), f.integer(row.count * row.bytes), 1, partial(_clear, f, start))
    return writer.kernel(runs, 1 if trips.limit is None else bound(trips.limit))


def _chosen(control: Choose, name: str, target: Target) -> Kernel:
    condition, yes, no = control.condition, control.yes, control.no
    writer = _Writer(name, target, control.operands)
    sides = [writer.table(word, runs) for word, runs in (("yes", yes), ("no", no))]

    def run(side: _Table) -> None:
        side.fill(moving=False)
        side.run()

    writer.f.when(writer.is_true(condition), partial(run, sides[0]), partial(run, sides[1]))
    return writer.kernel([*yes, *no], 1)


class _Table:
    """Inner runs as rows of constants, and a loop that goes through them."""

    def __init__(self, f: Function, name: str, runs: Sequence[Inner], scratch: Value) -> None:
        self._f = f
        self._tables = f.parameter("scratch")  # pointers of the operands of each run, one run after the other
        self._scratch = scratch
        self._count = len(runs)
        module, place, words = f.module, 0, []
        seats: dict[bool, list[int]] = {False: [], True: []}
        self._sized: dict[bool, list[tuple[int, Seat]]] = {False: [], True: []}  # with numbers that sizes decide
        for run in runs:
            words += [run.kernel.blocks, place]
            for seat in run.seats:
                if isinstance(seat.offset, int) and isinstance(seat.step, int):
                    row = [place, seat.operand, seat.offset, seat.step, seat.turn, seat.aside]
                    seats[seat.moves] += row
                else:
                    self._sized[seat.moves].append((place, seat))
                place += 8
        self._places: dict[bool, tuple[int, Value]] = {}
        for (moving, rows), word in zip(seats.items(), ("places", "moving"), strict=True):
            if rows:
                table = module.constant(f"{name}.{word}", "i64", [str(one) for one in rows])
                self._places[moving] = 8 * len(rows) // _ROW, Value((table,), "ptr")
        if runs:
            entries = module.constant(f"{name}.kernels", "ptr", [f"@{run.kernel.name}" for run in runs])
            self._kernels = Value((entries,), "ptr")
            self._runs = Value((module.constant(f"{name}.runs", "i64", [str(one) for one in words]),), "ptr")

    def fill(self, *, moving: bool, number: Value | None = None) -> None:
        """Write the pointers that stay through all iterations, or those of one iteration."""
        for entry, seat in self._sized[moving]:
            self._fill_sized(entry, seat, number)
        if moving not in self._places:
            return
        f, (count, table) = self._f, self._places[moving]
        arguments = f.parameter("arguments")

        def one(place: Value, _: tuple[Value, ...]) -> None:
            row = f.at(table, f.mul(place, _ROW), "i8")
            entry, operand, offset, step, turn, aside = (f.load("i64", f.at(row, 8 * word, "i8")) for word in range(6))
            if number is not None:
                odd = f.binary("and", number, f.integer(1))
                offset = f.add(f.add(offset, f.mul(number, step)), f.mul(odd, turn))
                operand = f.add(operand, f.mul(odd, aside))
            base = f.load("ptr", f.at(arguments, operand, "ptr"))
            f.store(f.at(base, offset, "i8"), f.at(self._tables, entry, "i8"))

        f.loop(0, count, 1, one)

    def _fill_sized(self, entry: int, seat: Seat, number: Value | None) -> None:
        assert not (seat.turn or seat.aside), "what is carried by turns lies in the memory of the greatest sizes"
        f = self._f
        offset = f.integer(seat.offset)
        if number is not None:
            offset = f.add(offset, f.mul(number, f.integer(seat.step)))
        base = f.load("ptr", f.at(f.parameter("arguments"), seat.operand, "ptr"))
        f.store(f.at(base, offset, "i8"), f.at(self._tables, entry, "i8"))

    def run(self) -> None:
        """All blocks of all runs."""
        f = self._f

        def one(place: Value, _: tuple[Value, ...]) -> None:
            entry = f.load("ptr", f.at(self._kernels, place, "ptr"))
            row = f.at(self._runs, f.mul(place, 16), "i8")
            blocks, start = f.load("i64", row), f.load("i64", f.at(row, 8, "i8"))
            table = f.at(self._tables, start, "i8")

            def block(number: Value, _: tuple[Value, ...]) -> None:
                f.line(f"call void {entry.text}(ptr {table.text}, i64 {number.text}, ptr {self._scratch.text})")

            f.loop(f.integer(0), blocks, 1, block)

        f.loop(0, self._count, 1, one)


class _Writer:
    """The entry of such a kernel while it is written."""

    def __init__(self, name: str, target: Target, operands: Sequence[Operand]) -> None:
        self._name, self._operands = name, tuple(operands)
        self._scratch = 0
        self.f = Function(Module(target), name, ENTRY, exported=True)

    def table(self, word: str, runs: Sequence[Inner]) -> _Table:
        """A list of runs; lists of one kernel share their scratch."""
        module = self.f.module
        for kernel in {run.kernel.name: run.kernel for run in runs}.values():
            module.include(kernel.module)
            module.declare(kernel.name, "void", ["ptr", "i64", "ptr"])
        pointers = -(-8 * sum(len(run.seats) for run in runs) // ALIGNMENT) * ALIGNMENT
        inner = max((run.kernel.scratch_bytes for run in runs), default=0)
        self._scratch = max(self._scratch, pointers + inner)
        return _Table(self.f, f"{self._name}.{word}", runs, self.f.at(self.f.parameter("scratch"), pointers, "i8"))

    def address(self, seat: Seat) -> Value:
        """Where something lies that does not move."""
        f = self.f
        base = f.load("ptr", f.at(f.parameter("arguments"), seat.operand, "ptr"))
        return f.at(base, f.integer(seat.offset), "i8")

    def is_true(self, seat: Seat) -> Value:
        """A bool that was written."""
        f = self.f
        return f.compare("ne", f.load("i8", self.address(seat)), f.number("i8", 0))

    def copy(self, source: Seat, aim: Seat, size: Size | int) -> None:
        """Bytes from one seat to another."""
        _copy(self.f, self.address(source), self.address(aim), size)

    def kernel(self, runs: Sequence[Inner], trips: int) -> Kernel:
        """The kernel; its operations and bytes are those of all iterations."""
        operands = list(self._operands)
        inner = [one.elements for run in runs for one in run.kernel.operands if one.role == SIZES]
        if self.f.sizes is not None:
            self.f.read_sizes(self.f.parameter("arguments"), len(operands))
            inner.append(self.f.dims_read)
        if inner:
            operands.append(Operand(SIZES, SIZES, DType.I64, max(inner)))
        self.f.finish()
        flops = trips * sum(run.kernel.flops for run in runs)
        traffic = trips * sum(run.kernel.traffic for run in runs)
        return Kernel(self._name, self.f.module, tuple(operands), 1, self._scratch, flops, traffic)


def _while(f: Function, going: Value, iteration: Callable[[Value], Value]) -> Value:
    """Iterations from number 0 on, while what each gives is true; how many there were."""
    before, head, body, back, after = (f.fresh(stem) for stem in ("begin", "while", "do", "again", "done"))
    number, following = Value((f"%{head}.number",), "i64"), Value((f"%{back}.number",), "i64")
    f.line(f"br label %{before}")
    f.label(before)
    f.line(f"br label %{head}")
    f.label(head)
    f.line(f"{number.text} = phi i64 [ 0, %{before} ], [ {following.text}, %{back} ]")
    f.line(f"%{head}.going = phi i1 [ {going.text}, %{before} ], [ %{back}.going, %{back} ]")
    f.line(f"br i1 %{head}.going, label %{body}, label %{after}")
    f.label(body)
    more = iteration(number)
    f.line(f"br label %{back}")
    f.label(back)
    f.line(f"%{back}.going = or i1 {more.text}, false")
    f.line(f"{following.text} = add i64 {number.text}, 1")
    f.line(f"br label %{head}")
    f.label(after)
    return number


def _copy(f: Function, source: Value, aim: Value, size: Size | int) -> None:
    """Bytes from one address to another, in pieces of a cache line."""
    piece, whole, end = "<8 x i64>", _amount(f, size // 64 * 64), _amount(f, size)

    def line(place: Value, _: tuple[Value, ...]) -> None:
        f.store(f.load(piece, f.at(source, place, "i8"), align=1), f.at(aim, place, "i8"), align=1)

    def byte(place: Value, _: tuple[Value, ...]) -> None:
        f.store(f.load("i8", f.at(source, place, "i8")), f.at(aim, place, "i8"))

    f.loop(0, whole, 64, line)
    f.loop(whole, end, 1, byte)


def _amount(f: Function, number: Size | int) -> Value | int:
    """A number for a loop, which is written shorter where it is constant."""
    return f.integer(number) if isinstance(number, Size) else number


def _clear(f: Function, start: Value, place: Value, _: tuple[Value, ...]) -> None:
    f.store(f.number("i8", 0), f.at(start, place, "i8"))

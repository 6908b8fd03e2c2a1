"""Writing a routine as a Python function would be written: areas with dims, variables, loops as `with` blocks.

w = Writer("row sums")
x, y = w.input("x", DType.F32, (rows, columns)), w.output("y", DType.F32, (rows,))
with w.shared(rows) as (i,):
    total = w.local(DType.F32, 0.0)
    with w.loop(columns) as j:
        w.set(total, total + x[i, j])
    y[i] = total
routine = w.routine()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from kernels.dtype import DType
from kernels.routine.grammar import (
    Area,
    Assign,
    Element,
    For,
    InvalidRoutine,
    Local,
    Put,
    Routine,
    RoutineStep,
    Shared,
    When,
    While,
)
from kernels.routine.inside import require_inside
from kernels.tensor.expression import (
    Binary,
    Cast,
    Compare,
    Expression,
    ExpressionLike,
    Number,
    Select,
    dense_strides,
    expression,
)

GridIndex = ExpressionLike | Sequence[ExpressionLike]


class Grid:
    """An area with dims: `x[i, j]` is an element, `x[i, j] = value` stores one."""

    def __init__(self, writer: Writer, area: Area, shape: tuple[int, ...]) -> None:
        self._writer, self.area, self.shape = writer, area, shape

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self.area.dtype

    def place(self, indices: GridIndex) -> Expression:
        """Where the element at the indices lies, one for each dim, in elements."""
        given = indices if isinstance(indices, Sequence) else (indices,)
        if len(given) != len(self.shape):
            raise InvalidRoutine(f"'{self.area.name}' has {len(self.shape)} dims and is given {len(given)} indices.")
        return dot(given, dense_strides(self.shape))

    def at(self, place: ExpressionLike) -> Element:
        """The element at a flat place."""
        return Element(self.area, integer(place))

    def put(self, place: ExpressionLike, value: ExpressionLike) -> None:
        """Store an element at a flat place."""
        self._writer.add(Put(self.area, integer(place), expression(value, self.dtype)))

    def __getitem__(self, indices: GridIndex) -> Element:
        return Element(self.area, self.place(indices))

    def __setitem__(self, indices: GridIndex, value: ExpressionLike) -> None:
        self.put(self.place(indices), value)


class Writer:
    """Collects a routine. Its loops are context managers; a variable is known from where it is made."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._inputs: list[Area] = []
        self._outputs: list[Area] = []
        self._scratch: list[Area] = []
        self._bodies: list[list[RoutineStep]] = []
        self._shared: tuple[Local, int, list[RoutineStep]] | None = None
        self._count = 0

    # -- areas and variables ----------------------------------------------------------------------------------------

    def input(self, name: str, dtype: DType, shape: Sequence[int]) -> Grid:
        """An operand that is read."""
        return self._area(self._inputs, name, dtype, shape)

    def output(self, name: str, dtype: DType, shape: Sequence[int]) -> Grid:
        """An operand that is written, and may be read again."""
        return self._area(self._outputs, name, dtype, shape)

    def scratch(self, dtype: DType, shape: Sequence[int]) -> Grid:
        """Memory of the worker; an iteration finds it undefined."""
        return self._area(self._scratch, f"scratch{len(self._scratch)}", dtype, shape)

    def _area(self, areas: list[Area], name: str, dtype: DType, shape: Sequence[int]) -> Grid:
        areas.append(Area(name, dtype, prod(shape)))
        return Grid(self, areas[-1], tuple(shape))

    def local(self, kind: DType, value: ExpressionLike) -> Local:
        """A variable with a first value."""
        self._count += 1
        made = Local(f"v{self._count}", kind)
        self.set(made, value)
        return made

    # -- statements -------------------------------------------------------------------------------------------------

    def set(self, local: Local, value: ExpressionLike) -> None:
        """Give a variable a value."""
        self.add(Assign(local, expression(value, local.kind)))

    def add(self, statement: RoutineStep) -> None:
        """A statement at this place."""
        if not self._bodies:
            raise InvalidRoutine(f"{self._title}: a statement outside of the shared loop.")
        self._bodies[-1].append(statement)

    @contextmanager
    def shared(self, *extents: int) -> Iterator[tuple[Expression, ...]]:
        """The outermost loops over all indices of these extents, shared among blocks; none: one iteration."""
        if self._shared is not None or self._bodies:
            raise InvalidRoutine(f"{self._title}: a routine has one shared loop, around everything else.")
        variable = Local("shared", DType.I64)
        body: list[RoutineStep] = []
        self._shared = variable, prod(extents), body
        self._bodies.append(body)
        yield self.unraveled(variable, extents)
        self._bodies.pop()

    @contextmanager
    def loop(self, stop: ExpressionLike, start: ExpressionLike = 0) -> Iterator[Local]:
        """for variable in range(start, stop)."""
        self._count += 1
        variable = Local(f"i{self._count}", DType.I64)
        self._bodies.append([])
        yield variable
        self.add(For(variable, integer(start), integer(stop), tuple(self._bodies.pop())))

    @contextmanager
    def loops(self, *extents: ExpressionLike) -> Iterator[tuple[Local, ...]]:
        """Loops inside one another, the last extent innermost."""
        variables, depth = [], len(self._bodies)
        for _ in extents:
            self._count += 1
            variables.append(Local(f"i{self._count}", DType.I64))
            self._bodies.append([])
        yield tuple(variables)
        assert len(self._bodies) == depth + len(extents), "loops inside have ended"
        for variable, extent in reversed(list(zip(variables, extents, strict=True))):
            self.add(For(variable, integer(0), integer(extent), tuple(self._bodies.pop())))

    @contextmanager
    def loop_while(self, condition: Expression) -> Iterator[None]:
        """while condition; it is evaluated before every iteration."""
        self._bodies.append([])
        yield
        self.add(While(condition, tuple(self._bodies.pop())))

    @contextmanager
    def when(self, condition: Expression) -> Iterator[None]:
        """if condition."""
        self._bodies.append([])
        yield
        self.add(When(condition, tuple(self._bodies.pop())))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """else, of the condition right before it."""
        before = self._bodies[-1].pop()
        if not isinstance(before, When) or before.otherwise:
            raise InvalidRoutine(f"{self._title}: an otherwise that follows no condition.")
        self._bodies.append([])
        yield
        self.add(When(before.condition, before.body, tuple(self._bodies.pop())))

    # -- values -----------------------------------------------------------------------------------------------------

    def unraveled(self, place: Expression, extents: Sequence[int]) -> tuple[Expression, ...]:
        """The index of each dim of a flat place, in variables of their own."""
        found: list[Expression] = []
        for number, size in reversed(list(enumerate(extents))):
            if size == 1:
                found.append(integer(0))
            elif number == 0 or prod(extents[:number]) == 1:
                found.append(place)
            else:
                found.append(self.local(DType.I64, Binary("fmod", place, integer(size))))
                place = self.local(DType.I64, Binary("div", place, integer(size)))
        return tuple(reversed(found))

    def clamped(self, value: Expression, low: ExpressionLike, high: ExpressionLike) -> Expression:
        """The value, at least `low` and at most `high`."""
        lifted = Binary("max", value, expression(low, value.dtype))
        return Binary("min", lifted, expression(high, value.dtype))

    def routine(self) -> Routine:
        """What was written."""
        if self._shared is None:
            raise InvalidRoutine(f"{self._title}: no shared loop.")
        variable, count, body = self._shared
        shared = Shared(variable, count, tuple(body))
        routine = Routine(self._title, tuple(self._inputs), tuple(self._outputs), tuple(self._scratch), shared)
        require_inside(routine)
        return routine


def integer(value: ExpressionLike) -> Expression:
    """An i64."""
    return expression(value, DType.I64)


def dot(indices: Sequence[ExpressionLike], strides: Sequence[int]) -> Expression:
    """The sum of index times stride."""
    total: Expression | None = None
    for one, stride in zip(indices, strides, strict=True):
        if isinstance(one, int) and one == 0:
            continue
        term = integer(one) if stride == 1 else integer(one) * stride
        total = term if total is None else total + term
    return integer(0) if total is None else total


def quotient(a: Expression, b: ExpressionLike) -> Expression:
    """a / b of integers, towards zero."""
    return Binary("div", a, expression(b, a.dtype))


def remainder(a: Expression, b: ExpressionLike) -> Expression:
    """What is left of a / b of integers, with the sign of a."""
    return Binary("fmod", a, expression(b, a.dtype))


def lt(a: Expression, b: ExpressionLike) -> Compare:
    """a < b."""
    return Compare("lt", a, expression(b, a.dtype))


def le(a: Expression, b: ExpressionLike) -> Compare:
    """a <= b."""
    return Compare("le", a, expression(b, a.dtype))


def gt(a: Expression, b: ExpressionLike) -> Compare:
    """a > b."""
    return Compare("gt", a, expression(b, a.dtype))


def ge(a: Expression, b: ExpressionLike) -> Compare:
    """a >= b."""
    return Compare("ge", a, expression(b, a.dtype))


def eq(a: Expression, b: ExpressionLike) -> Compare:
    """a == b."""
    return Compare("eq", a, expression(b, a.dtype))


def ne(a: Expression, b: ExpressionLike) -> Compare:
    """a != b."""
    return Compare("ne", a, expression(b, a.dtype))


def both(a: Expression, b: Expression) -> Binary:
    """Whether a and b hold; both are evaluated."""
    return Binary("and", a, b)


def either(a: Expression, b: Expression) -> Binary:
    """Whether a or b holds; both are evaluated."""
    return Binary("or", a, b)


def pick(condition: Expression, yes: Expression, no: ExpressionLike) -> Select:
    """`yes` where the condition holds, else `no`; both are evaluated."""
    return Select(condition, yes, expression(no, yes.dtype))


def minimum(a: Expression, b: ExpressionLike) -> Binary:
    """The smaller one; NaN where either is."""
    return Binary("min", a, expression(b, a.dtype))


def maximum(a: Expression, b: ExpressionLike) -> Binary:
    """The larger one; NaN where either is."""
    return Binary("max", a, expression(b, a.dtype))


def as_type(value: Expression, kind: DType) -> Expression:
    """The value in another type; itself where it has that."""
    return value if value.dtype is kind else Cast(kind, value)


def number(value: float | int | bool, kind: DType) -> Number:
    """A constant of a type."""
    return Number(value, kind)

"""The grammar of routines: statements over scalar variables and elements of buffers, in the order in which they run.

    Routine   := inputs, outputs, scratch, Shared
    Shared    := for variable in range(count): body               each iteration alone, shared among blocks
    Statement := Assign | Put | For | While | When
    Assign    := variable = value
    Put       := buffer[place] = value
    For       := for variable in range(start, stop): body         both are evaluated once
    While     := while condition: body
    When      := if condition: body else: otherwise

Values are the expressions of tensor programs with two more leaves: a `Local`, which is a scalar variable, and an
`Element` of a buffer at a place that is computed. Unlike in a tensor program an index may be any integer expression, a
loop may run for as long as the data says, and a value may be written more than once. What lies outside of its area for
certain is refused (`inside`); nothing proves that all else lies inside: a definition has to clamp what comes from data.
Both sides of a Select are evaluated, so that an element which may lie outside is read under a When.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.tensor.check import check_types
from kernels.tensor.expression import Expression, Foreign, Load, Position, Reduce
from kernels.tensor.traverse import nodes


class InvalidRoutine(KernelsError):
    """A routine whose types or names do not fit."""


@dataclass(frozen=True, slots=True)
class Area:
    """Memory of `elements` elements, row-major: an operand, or scratch that belongs to the worker."""

    name: str
    dtype: DType
    elements: int


@dataclass(frozen=True, slots=True)
class Local(Foreign):
    """A scalar variable."""

    name: str
    kind: DType

    @property
    def dtype(self) -> DType:
        """The type that it was made with."""
        return self.kind

    @property
    def mark(self) -> Hashable:
        """Its name and type."""
        return self.name, self.kind


@dataclass(frozen=True, slots=True)
class Element(Foreign):
    """The element of an area at a place, counted in elements."""

    area: Area
    place: Expression

    @property
    def dtype(self) -> DType:
        """The area's."""
        return self.area.dtype

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The place."""
        return (self.place,)

    @property
    def mark(self) -> Hashable:
        """The area."""
        return self.area


@dataclass(frozen=True, slots=True)
class Assign:
    """variable = value."""

    local: Local
    value: Expression


@dataclass(frozen=True, slots=True)
class Put:
    """area[place] = value."""

    area: Area
    place: Expression
    value: Expression


@dataclass(frozen=True, slots=True)
class For:
    """for variable in range(start, stop): body."""

    variable: Local
    start: Expression
    stop: Expression
    body: tuple[RoutineStep, ...]


@dataclass(frozen=True, slots=True)
class While:
    """while condition: body."""

    condition: Expression
    body: tuple[RoutineStep, ...]


@dataclass(frozen=True, slots=True)
class When:
    """if condition: body else: otherwise."""

    condition: Expression
    body: tuple[RoutineStep, ...]
    otherwise: tuple[RoutineStep, ...] = ()


RoutineStep = Assign | Put | For | While | When


@dataclass(frozen=True, slots=True)
class Shared:
    """for variable in range(count): body, in any order and by any worker."""

    variable: Local
    count: int
    body: tuple[RoutineStep, ...]


@dataclass(frozen=True, slots=True)
class Routine:
    """A kernel as plain loops. Raises InvalidRoutine where the text above is not kept.

    `grain` is how many iterations a block has at least, None: by their work; `scratch` belongs to one worker, undefined
    where an iteration begins. `title` says in a word what it computes. Counts, elements and numbers may be sizes that
    only a run knows (`kernels/size.py`).
    """

    title: str
    inputs: tuple[Area, ...]
    outputs: tuple[Area, ...]
    scratch: tuple[Area, ...]
    shared: Shared
    grain: int | None = None

    def __post_init__(self) -> None:
        named = (*self.inputs, *self.outputs, *self.scratch)
        if len({one.name for one in named}) != len(named):
            raise InvalidRoutine(f"{self.title}: two areas have one name.")
        if self.shared.variable.kind is not DType.I64:
            raise InvalidRoutine(f"{self.title}: '{self.shared.variable.name}' counts, and is no i64.")
        written = {*self.outputs, *self.scratch}
        for one in statements(self.shared.body):
            _check(self.title, one, set(named), written)


def statements(body: tuple[RoutineStep, ...]) -> Iterator[RoutineStep]:
    """Every statement, those around others first."""
    for one in body:
        yield one
        if isinstance(one, For | While | When):
            yield from statements(one.body)
        if isinstance(one, When):
            yield from statements(one.otherwise)


def values_of(one: RoutineStep) -> tuple[Expression, ...]:
    """The expressions of a statement itself."""
    match one:
        case Assign(_, value):
            return (value,)
        case Put(_, place, value):
            return (place, value)
        case For(_, start, stop, _):
            return (start, stop)
        case While(condition, _) | When(condition, _, _):
            return (condition,)


def _check(title: str, one: RoutineStep, known: set[Area], written: set[Area]) -> None:
    for value in values_of(one):
        check_types(value)
        for node in nodes(value):
            if isinstance(node, Load | Position | Reduce):
                raise InvalidRoutine(f"{title}: a {type(node).__name__} is no part of a routine.")
            if isinstance(node, Element) and node.area not in known:
                raise InvalidRoutine(f"{title}: '{node.area.name}' is read and is no area of the routine.")
            if isinstance(node, Element) and node.place.dtype is not DType.I64:
                raise InvalidRoutine(f"{title}: '{node.area.name}' is read at a place that is no i64.")
    match one:
        case Assign(local, _) if local.kind.held is not local.kind:
            raise InvalidRoutine(
                f"{title}: '{local.name}' is {local.kind.value}; variables are {local.kind.held.value}."
            )
        case Assign(local, value) if value.dtype is not local.kind:
            raise InvalidRoutine(f"{title}: '{local.name}' is {local.kind.value} and is given {value.dtype.value}.")
        case Put(area, place, value):
            if area not in written:
                raise InvalidRoutine(f"{title}: '{area.name}' is written and is neither an output nor scratch.")
            if value.dtype is not area.dtype or place.dtype is not DType.I64:
                raise InvalidRoutine(f"{title}: '{area.name}' is {area.dtype.value} and is given {value.dtype.value}.")
        case For(variable, start, stop, _):
            if {variable.kind, start.dtype, stop.dtype} != {DType.I64}:
                raise InvalidRoutine(f"{title}: '{variable.name}' and its bounds are no i64.")
        case While(condition, _) | When(condition, _, _) if condition.dtype is not DType.BOOL:
            raise InvalidRoutine(f"{title}: a condition is {condition.dtype.value}, and no bool.")

"""The grammar of tensor expressions: what one element of a result is, as a function of loop variables.

    expression := Number | Index | Load | Unary | Binary | Compare | Select | Cast | Reduce
    Index      := an affine function of loop variables (also usable as a value, of type i64)
    Load       := an element of a buffer, at one Index per dim

The same expressions describe whole kernels (a loop nest computes one per element) and the epilogues and prologues of
templates (there the template's own result is a Load of a buffer that it names). Everything is frozen and comparable;
`+ - * /` and comparison helpers build nodes, so that formulas read as formulas.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.size import greatest

UnaryOp = Literal[
    "neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "log", "erf", "tanh", "sigmoid", "sin", "cos",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "floor", "ceil", "round", "trunc", "sign", "not", "is_nan", "is_inf",
]  # fmt: skip
# min and max give NaN when either operand is NaN, as ONNX and NumPy do. pow as in C. mod: sign of the divisor;
# fmod: sign of the dividend. Division of integers truncates towards zero, as in ONNX.
BinaryOp = Literal["add", "sub", "mul", "div", "min", "max", "pow", "mod", "fmod", "and", "or", "xor", "shl", "shr"]
CompareOp = Literal["lt", "le", "gt", "ge", "eq", "ne"]
ReduceOp = Literal["sum", "prod", "min", "max"]


class InvalidExpression(KernelsError):
    """An expression whose types or dims do not fit."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A loop variable: runs from 0 to `extent` (exclusive)."""

    name: str
    extent: int

    def __add__(self, other: IndexLike) -> Index:
        return index(self) + other

    def __radd__(self, other: IndexLike) -> Index:
        return index(self) + other

    def __sub__(self, other: IndexLike) -> Index:
        return index(self) - other

    def __mul__(self, factor: int) -> Index:
        return index(self) * factor

    __rmul__ = __mul__


@dataclass(frozen=True, slots=True)
class Index:
    """offset + sum of factor * variable. Terms are sorted by name and have no zero factor."""

    terms: tuple[tuple[Variable, int], ...]
    offset: int = 0

    def __add__(self, other: IndexLike) -> Index:
        return _sum(((self, 1), (index(other), 1)))

    __radd__ = __add__

    def __sub__(self, other: IndexLike) -> Index:
        return self + index(other) * -1

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index(())
        return Index(tuple((v, f * factor) for v, f in self.terms), self.offset * factor)

    __rmul__ = __mul__

    def at(self, values: Mapping[Variable, int]) -> int:
        """The number, given every variable's."""
        return self.offset + sum(factor * values[variable] for variable, factor in self.terms)

    def factor(self, variable: Variable) -> int:
        """By how much the index grows when the variable grows by one."""
        return dict(self.terms).get(variable, 0)


def _sum(parts: Iterable[tuple[Index, int]], offset: int = 0) -> Index:
    """The sum of indices, each times a number, and of an offset."""
    factors: dict[Variable, int] = {}
    for one, scale in parts:
        offset += one.offset * scale
        for variable, factor in one.terms:
            factors[variable] = factors.get(variable, 0) + factor * scale
    return Index(tuple(sorted(((v, f) for v, f in factors.items() if f != 0), key=lambda term: term[0].name)), offset)


IndexLike = Variable | Index | int


def index(value: IndexLike) -> Index:
    """A variable or a number as an index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, Variable):
        return Index(((value, 1),))
    return Index((), value)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage with dims. `strides` are in elements, one per dim; none given: dense and row-major."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    offset: int = 0  # elements before the first one

    def __post_init__(self) -> None:
        if self.shape and not self.strides:
            object.__setattr__(self, "strides", dense_strides(self.shape))
        if len(self.strides) != len(self.shape):
            raise InvalidExpression(f"buffer '{self.name}' has {len(self.shape)} dims but {len(self.strides)} strides")

    def __getitem__(self, indices: IndexLike | tuple[IndexLike, ...]) -> Load:
        given = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(index(one) for one in given))

    def position(self, indices: tuple[Index, ...]) -> Index:
        """Where an element lies, in elements from the start of the storage."""
        return _sum(zip(indices, self.strides, strict=True), self.offset)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= greatest(size, 1)
    return tuple(reversed(strides))


class Expression:
    """What one element is worth."""

    __slots__ = ()

    def __add__(self, other: ExpressionLike) -> Binary:
        return Binary("add", self, expression(other, self.dtype))

    def __radd__(self, other: ExpressionLike) -> Binary:
        return Binary("add", expression(other, self.dtype), self)

    def __sub__(self, other: ExpressionLike) -> Binary:
        return Binary("sub", self, expression(other, self.dtype))

    def __rsub__(self, other: ExpressionLike) -> Binary:
        return Binary("sub", expression(other, self.dtype), self)

    def __mul__(self, other: ExpressionLike) -> Binary:
        return Binary("mul", self, expression(other, self.dtype))

    def __rmul__(self, other: ExpressionLike) -> Binary:
        return Binary("mul", expression(other, self.dtype), self)

    def __truediv__(self, other: ExpressionLike) -> Binary:
        return Binary("div", self, expression(other, self.dtype))

    def __rtruediv__(self, other: ExpressionLike) -> Binary:
        return Binary("div", expression(other, self.dtype), self)

    def __neg__(self) -> Unary:
        return Unary("neg", self)

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The expressions this one is made of."""
        return ()


@dataclass(frozen=True, slots=True)
class Number(Expression):
    """A constant."""

    value: float | int | bool
    kind: DType = DType.F32

    @property
    def dtype(self) -> DType:
        """The given type."""
        return self.kind


@dataclass(frozen=True, slots=True)
class Position(Expression):
    """An index as a value of type i64."""

    index: Index

    @property
    def dtype(self) -> DType:
        """Always i64."""
        return DType.I64


@dataclass(frozen=True, slots=True)
class Load(Expression):
    """An element of a buffer."""

    buffer: Buffer
    indices: tuple[Index, ...]

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.buffer.shape):
            raise InvalidExpression(
                f"buffer '{self.buffer.name}' has {len(self.buffer.shape)} dims and is read with "
                f"{len(self.indices)} indices"
            )

    @property
    def dtype(self) -> DType:
        """The buffer's."""
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """A function of one operand."""

    op: UnaryOp
    operand: Expression

    @property
    def dtype(self) -> DType:
        """The operand's; bool for questions."""
        return DType.BOOL if self.op in ("not", "is_nan", "is_inf") else self.operand.dtype

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The one operand."""
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(Expression):
    """A function of two operands of one type."""

    op: BinaryOp
    left: Expression
    right: Expression

    def __post_init__(self) -> None:
        if self.left.dtype != self.right.dtype:
            raise InvalidExpression(f"{self.op} of {self.left.dtype.value} and {self.right.dtype.value}: cast one")

    @property
    def dtype(self) -> DType:
        """The operands'."""
        return self.left.dtype

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Left and right."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Compare(Expression):
    """A question about two operands of one type; false when either is NaN, except for "ne"."""

    op: CompareOp
    left: Expression
    right: Expression

    def __post_init__(self) -> None:
        if self.left.dtype != self.right.dtype:
            raise InvalidExpression(f"{self.op} of {self.left.dtype.value} and {self.right.dtype.value}: cast one")

    @property
    def dtype(self) -> DType:
        """Always bool."""
        return DType.BOOL

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Left and right."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """`yes` where the condition holds, else `no`. Loads of the side not taken are not made outside their buffer."""

    condition: Expression
    yes: Expression
    no: Expression

    def __post_init__(self) -> None:
        if self.condition.dtype is not DType.BOOL or self.yes.dtype != self.no.dtype:
            raise InvalidExpression("a selection needs a bool and two operands of one type")

    @property
    def dtype(self) -> DType:
        """The two sides'."""
        return self.yes.dtype

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Condition, yes, no."""
        return (self.condition, self.yes, self.no)


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    """The operand in another type: floats to integers truncate (saturating outside the range), to bool: not zero."""

    kind: DType
    operand: Expression

    @property
    def dtype(self) -> DType:
        """The new type."""
        return self.kind

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The one operand."""
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Reduce(Expression):
    """`operand` over all values of `axes`, combined; only the outermost node of a computed value may be one."""

    op: ReduceOp
    axes: tuple[Variable, ...]
    operand: Expression

    @property
    def dtype(self) -> DType:
        """The operand's."""
        return self.operand.dtype

    @property
    def operands(self) -> tuple[Expression, ...]:
        """What is combined."""
        return (self.operand,)


class Foreign(Expression):
    """A node of another grammar that has these expressions: whoever writes it knows how."""

    __slots__ = ()

    @property
    def mark(self) -> Hashable:
        """What tells the node from others with equal operands."""
        raise NotImplementedError


ExpressionLike = Expression | float | int | bool


def expression(value: ExpressionLike, dtype: DType = DType.F32) -> Expression:
    """A number as an expression of the given type."""
    return value if isinstance(value, Expression) else Number(value, dtype)


def relu(x: Expression) -> Expression:
    """max(x, 0); NaN stays NaN."""
    return Binary("max", x, Number(0, x.dtype))


def clip(x: Expression, low: float, high: float) -> Expression:
    """x inside [low, high]; NaN stays NaN."""
    return Binary("min", Binary("max", x, Number(low, x.dtype)), Number(high, x.dtype))


def silu(x: Expression) -> Expression:
    """x * sigmoid(x)."""
    return x * Unary("sigmoid", x)


def gelu(x: Expression) -> Expression:
    """x * (1 + erf(x / sqrt 2)) / 2."""
    half = x * 0.5
    return half + half * Unary("erf", x * 0.7071067811865476)


def gelu_tanh(x: Expression) -> Expression:
    """The approximation of gelu by tanh: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2."""
    inner = x * 0.7978845608028654 * (1.0 + x * x * 0.044715)
    half = x * 0.5
    return half + half * Unary("tanh", inner)

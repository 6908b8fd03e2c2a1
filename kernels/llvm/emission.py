"""Expressions as instructions: one element's value, for a vector of elements at a time.

Where the elements come from is the caller's affair: its `Leaves` give the values of loads and positions, in one or
several vectors side by side. Values of f16 and bf16 are held and computed in f32 and rounded, to nearest even, where a
cast to their type stands and at the end; a bool is an i1 per lane, and a byte at the end. Equal nodes are written once,
and a product that only a sum uses becomes a fused multiply-add; gelu as it is
usually written, x / 2 + x / 2 * erf(x / sqrt 2), is one function.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.llvm.conversion import cast, held_type, stored, widened
from kernels.llvm.function import Function, Value
from kernels.llvm.operations import binary, compare, unary
from kernels.math.gelu import gelu
from kernels.size import as_size
from kernels.tensor.expression import (
    Binary,
    Cast,
    Compare,
    Expression,
    Foreign,
    Index,
    Load,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
)
from kernels.tensor.ranges import lies_inside

Guard = frozenset[tuple[int, bool]]  # conditions by their number, and what they must be


class EmissionError(KernelsError):
    """An expression that cannot be written as instructions."""


class Leaves(Protocol):
    """Where an expression's elements come from."""

    def load(self, load: Load) -> Value:
        """The elements as they are stored: f16 as half, bf16 as bfloat or i16, bool as i8."""
        ...

    def position(self, index: Index) -> Value:
        """The values of an index, i64."""
        ...


@runtime_checkable
class GuardedLeaves(Leaves, Protocol):
    """Leaves that can also read under a condition: what loads need that a Select keeps inside their buffer."""

    def load_where(self, load: Load, condition: Value) -> Value:
        """The elements where the condition (an i1 per lane) holds; the others are not touched and may be anything."""
        ...


@runtime_checkable
class ForeignLeaves(Leaves, Protocol):
    """Leaves that can also write the nodes of another grammar."""

    def foreign(self, node: Foreign, operands: tuple[Value, ...]) -> Value:
        """A node's value as it is stored, given its operands'."""
        ...


def emit(function: Function, expression: Expression, lanes: int, leaves: Leaves) -> Value:
    """Write one expression; its value as it is stored (f16 as half, bool as i8)."""
    return emit_all(function, (expression,), lanes, leaves)[0]


def emit_all(function: Function, expressions: Sequence[Expression], lanes: int, leaves: Leaves) -> tuple[Value, ...]:
    """Write several expressions that share what is equal in them; their values as they are stored.

    Raises EmissionError for a Reduce, and for a load that may lie outside its buffer where `leaves` cannot guard it.
    """
    graph = _Graph()
    roots = [graph.number(one) for one in expressions]
    writer = _ExpressionWriter(function, lanes, leaves, graph)
    values = writer.run(roots)
    return tuple(stored(function, value, one.dtype) for value, one in zip(values, expressions, strict=True))


class _Graph:
    """The distinct nodes of expressions, operands before users, and how often each is used."""

    def __init__(self) -> None:
        self.nodes: list[Expression] = []
        self.operands: list[tuple[int, ...]] = []
        self.gelus: set[int] = set()  # sums that are gelu of their one operand
        self._of_object: dict[int, int] = {}
        self._of_key: dict[Hashable, int] = {}
        self._kept: list[Expression] = []  # so that no id is given twice

    def number(self, root: Expression) -> int:
        """The number of a node's class of equal nodes; chains of any depth, shared parts once."""
        pending = [root]
        while pending:
            node = pending[-1]
            if id(node) in self._of_object:
                pending.pop()
                continue
            missing = [one for one in node.operands if id(one) not in self._of_object]
            if missing:
                pending += reversed(missing)
                continue
            pending.pop()
            self._enter(node)
        return self._of_object[id(root)]

    def _enter(self, node: Expression) -> None:
        operands = tuple(self._of_object[id(one)] for one in node.operands)
        x = self._gelu_operand(node, operands)
        key = _key(node, operands) if x is None else ("gelu", x)
        if x is not None:
            operands = (x,)
        if key not in self._of_key:
            self._of_key[key] = len(self.nodes)
            self.nodes.append(node)
            self.operands.append(operands)
            if x is not None:
                self.gelus.add(self._of_key[key])
        self._of_object[id(node)] = self._of_key[key]
        self._kept.append(node)

    def _gelu_operand(self, node: Expression, operands: tuple[int, ...]) -> int | None:
        """x where a sum is x / 2 + x / 2 * erf(x / sqrt 2), f64 apart."""
        if not isinstance(node, Binary) or node.op != "add" or node.dtype is DType.F64:
            return None
        for half, product in (operands, operands[::-1]):
            factors = self._factors(product)
            if factors is None or half not in factors:
                continue
            other = factors[1 - factors.index(half)]
            x, inner = self._scaled(half, 0.5), self.nodes[other]
            is_erf = isinstance(inner, Unary) and inner.op == "erf"
            if x is not None and is_erf and self._scaled(self.operands[other][0], math.sqrt(0.5)) == x:
                return x
        return None

    def _factors(self, number: int) -> tuple[int, ...] | None:
        node = self.nodes[number]
        return self.operands[number] if isinstance(node, Binary) and node.op == "mul" else None

    def _scaled(self, number: int, factor: float) -> int | None:
        """x where a node is x times a constant, as f32 sees it."""
        for one in self._factors(number) or ():
            node = self.nodes[one]
            if isinstance(node, Number) and math.isclose(node.value, factor, rel_tol=1e-7):
                a, b = self.operands[number]
                return b if one == a else a
        return None

    def live(self, roots: Sequence[int]) -> tuple[list[bool], list[int]]:
        """Which nodes the roots need, and by how many places each is used."""
        needed, uses = [False] * len(self.nodes), [0] * len(self.nodes)
        for root in roots:
            needed[root] = True
        for number in reversed(range(len(self.nodes))):
            for operand in self.operands[number] if needed[number] else ():
                needed[operand] = True
                uses[operand] += 1
        return needed, uses

    def guards(self, roots: Sequence[int]) -> list[frozenset[Guard]]:
        """For each node the guards under which it is used; any of them is enough, and an empty one means always."""
        found: list[set[Guard]] = [set() for _ in self.nodes]
        for root in roots:
            found[root].add(frozenset())
        for number in reversed(range(len(self.nodes))):
            least = {one for one in found[number] if not any(other < one for other in found[number])}
            found[number] = least
            for place, operand in enumerate(self.operands[number]):
                if isinstance(self.nodes[number], Select) and place > 0:
                    step = (self.operands[number][0], place == 1)
                    found[operand] |= {one | {step} for one in least}
                else:
                    found[operand] |= least
        return [frozenset(one) for one in found]


def _key(node: Expression, operands: tuple[int, ...]) -> Hashable:
    """Equal for nodes of equal meaning, given that their operands have equal numbers."""
    match node:
        case Number(value, kind):
            return ("number", repr(value), kind)  # 0.0 and -0.0 differ, NaN equals itself
        case Load() | Position():
            return node
        case Unary(op, _) | Binary(op, _, _) | Compare(op, _, _):
            return (type(node), op, operands)
        case Cast(kind, _):
            return ("cast", kind, operands)
        case Select():
            return ("select", operands)
        case Foreign():
            return (type(node), node.mark, operands)
        case Reduce():
            raise EmissionError("a reduction is no elementwise value: give it to a template that reduces.")
    raise AssertionError(f"no rule for {type(node).__name__}")


class _ExpressionWriter:
    """Writes the nodes of a graph in order."""

    def __init__(self, function: Function, lanes: int, leaves: Leaves, graph: _Graph) -> None:
        self._f = function
        self._lanes = lanes
        self._leaves = leaves
        self._graph = graph
        self._values: dict[int, Value] = {}
        self._uses: list[int] = []
        self._products: dict[int, int | None] = {}
        self._guards: list[frozenset[Guard]] = []

    def run(self, roots: Sequence[int]) -> list[Value]:
        """The values of the roots, not yet as they are stored."""
        graph = self._graph
        needed, self._uses = graph.live(roots)
        self._products = {number: self._product(number, roots) for number in range(len(graph.nodes))}
        self._guards = graph.guards(roots)
        fused = {one for number, one in self._products.items() if one is not None and needed[number]}
        for number in range(len(graph.nodes)):
            if needed[number] and number not in fused:
                self._value(number)
        return [self._values[root] for root in roots]

    def _value(self, number: int) -> Value:
        """A node's value, written now if it is not there yet: a guard may be needed before its turn comes."""
        if number not in self._values:
            graph, product = self._graph, self._products[number]
            for operand in graph.operands[number]:
                for one in graph.operands[operand] if operand == product else (operand,):
                    if one not in self._values:
                        self._value(one)
            self._values[number] = self._write(number, product)
        return self._values[number]

    def _write(self, number: int, product: int | None) -> Value:
        f, node, operands = self._f, self._graph.nodes[number], self._graph.operands[number]
        if number in self._graph.gelus:
            return gelu(f, self._values[operands[0]])
        match node:
            case Number(value, kind):
                size = as_size(value)
                if size is not None:
                    return f.splat(cast(f, f.integer(size), DType.I64, kind), self._lanes)
                return f.number(held_type(kind, self._lanes), _wrapped(value, kind))
            case Load():
                return widened(f, self._load(node, self._guards[number]), node.dtype)
            case Position(index):
                return self._leaves.position(index)
            case Unary(op, operand):
                return unary(f, op, self._values[operands[0]], operand.dtype)
            case Binary(op, left, _):
                if product is not None:
                    return self._fused(number, op, product)
                return binary(f, op, self._values[operands[0]], self._values[operands[1]], left.dtype)
            case Compare(op, left, _):
                return compare(f, op, self._values[operands[0]], self._values[operands[1]], left.dtype)
            case Select():
                return f.select(*(self._values[one] for one in operands))
            case Cast(kind, operand):
                return cast(f, self._values[operands[0]], operand.dtype, kind)
            case Foreign():
                assert isinstance(self._leaves, ForeignLeaves), "its grammar writes it"
                stored_value = self._leaves.foreign(node, tuple(self._values[one] for one in operands))
                return widened(f, stored_value, node.dtype)
        raise AssertionError(f"no rule for {type(node).__name__}")

    def _product(self, number: int, roots: Sequence[int]) -> int | None:
        """The operand of a sum or difference that is a product which nothing else uses."""
        graph = self._graph
        node = graph.nodes[number]
        if (
            number in graph.gelus
            or not isinstance(node, Binary)
            or node.op not in ("add", "sub")
            or not node.dtype.is_float
        ):
            return None
        for one in graph.operands[number]:
            operand = graph.nodes[one]
            if isinstance(operand, Binary) and operand.op == "mul" and self._uses[one] == 1 and one not in roots:
                return one
        return None

    def _fused(self, number: int, op: str, product: int) -> Value:
        f = self._f
        left, right = self._graph.operands[number]
        a, b = (self._values[one] for one in self._graph.operands[product])
        if product == left:
            addend = self._values[right]
            return f.fma(a, b, f.neg(addend) if op == "sub" else addend)
        return f.fma(f.neg(a) if op == "sub" else a, b, self._values[left])

    def _load(self, load: Load, guards: frozenset[Guard]) -> Value:
        if frozenset() in guards or lies_inside(load):
            return self._leaves.load(load)
        if not isinstance(self._leaves, GuardedLeaves):
            raise EmissionError(
                f"a load of '{load.buffer.name}' lies inside its buffer only under a condition, and this place of use "
                f"cannot read under conditions: compute the value before it."
            )
        return self._leaves.load_where(load, self._holds(guards))

    def _holds(self, guards: frozenset[Guard]) -> Value:
        """Where any of the guards holds."""
        f = self._f
        anywhere: Value | None = None
        for guard in sorted(guards, key=sorted):
            all_of: Value | None = None
            for number, truth in sorted(guard):
                one = self._value(number)
                one = one if truth else unary(f, "not", one, DType.BOOL)
                all_of = one if all_of is None else f.binary("and", all_of, one)
            assert all_of is not None
            anywhere = all_of if anywhere is None else f.binary("or", anywhere, all_of)
        assert anywhere is not None
        return anywhere


def _wrapped(value: float | int | bool, kind: DType) -> float | int | bool:
    """A constant in the range of its type: integers keep their low bits; LLVM's text has them signed."""
    if not kind.is_integer:
        return value
    bits = kind.bits
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) and (kind.is_signed or bits >= 8) else low

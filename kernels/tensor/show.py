"""Nests, programs and expressions as text, for people: stable, so that a test can hold it.

    for i in 0..128 parallel:
      for j in 0..64 vectorized:
        y[i, j] = exp(x[i, j] - m[i])

A buffer that is read through its flat positions (after `fuse`) is written `x.flat[...]`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Expression,
    Index,
    Load,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
)
from kernels.tensor.nest import Accumulate, Allocate, Loop, Nest, Node, Store
from kernels.tensor.program import Program
from kernels.tensor.traverse import postorder

_INFIX = {"add": ("+", 4), "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5), "and": ("&", 3), "or": ("|", 2)}
_QUESTION = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_UNARY_LEVEL, _QUESTION_LEVEL, _ATOM = 6, 1, 7
_LONGEST = 300  # nodes of an expression that is written out
_Shapes = Mapping[str, Buffer]


def show_nest(nest: Nest) -> str:
    """A nest as lines of text, with a head that names the operands."""
    program = nest.program
    shapes: dict[str, Buffer] = {}
    lines = [_head(program)]
    for buffer in (*program.inputs, *program.outputs):
        shapes[buffer.name] = buffer
    for node in nest.body:
        _node(node, "", lines, shapes)
    return "\n".join(lines) + "\n"


def show_program(program: Program) -> str:
    """A program as lines of text: one per stage."""
    lines = [_head(program)]
    for stage in program.stages:
        axes = ", ".join(f"{axis.name} < {axis.extent}" for axis in stage.axes)
        place = _place(stage.buffer, stage.indices, {})
        lines.append(f"{place} = {show(stage.value)}" + (f"  for {axes}" if axes else ""))
    return "\n".join(lines) + "\n"


def show(value: Expression) -> str:
    """An expression as text."""
    return _whole(value, {})


def show_index(one: Index) -> str:
    """An index as text: 8*i + j - 1."""
    text = ""
    for variable, factor in one.terms:
        size = "" if abs(factor) == 1 else f"{abs(factor)}*"
        sign = (" - " if factor < 0 else " + ") if text else ("-" if factor < 0 else "")
        text += f"{sign}{size}{variable.name}"
    if not text:
        return str(one.offset)
    return text if one.offset == 0 else f"{text} {'-' if one.offset < 0 else '+'} {abs(one.offset)}"


def show_buffer(buffer: Buffer) -> str:
    """A buffer's name, type and dims: x: f32[3, 7]."""
    dims = f"[{', '.join(map(str, buffer.shape))}]" if buffer.shape else ""
    return f"{buffer.name}: {buffer.dtype.value}{dims}"


def _head(program: Program) -> str:
    inputs, outputs = (", ".join(map(show_buffer, group)) for group in (program.inputs, program.outputs))
    return f"{program.name}({inputs}) -> {outputs}"


def _node(node: Node, indent: str, lines: list[str], shapes: dict[str, Buffer]) -> None:
    match node:
        case Loop(variable, body, kind, chunk):
            mark = "" if kind == "serial" else f" {kind}"
            mark += f" by {chunk}" if chunk > 1 else ""
            lines.append(f"{indent}for {variable.name} in 0..{variable.extent}{mark}:")
            for inner in body:
                _node(inner, indent + "  ", lines, shapes)
        case Allocate(buffer):
            shapes[buffer.name] = buffer
            lines.append(f"{indent}allocate {show_buffer(buffer)}")
        case Store(buffer, indices, value):
            lines.append(f"{indent}{_place(buffer, indices, shapes)} = {_whole(value, shapes)}")
        case Accumulate(buffer, indices, op, value):
            place, text = _place(buffer, indices, shapes), _whole(value, shapes)
            if op in ("sum", "prod"):
                lines.append(f"{indent}{place} {'+=' if op == 'sum' else '*='} {text}")
            else:
                lines.append(f"{indent}{place} = {op}({place}, {text})")


def _place(buffer: Buffer, indices: tuple[Index, ...], shapes: _Shapes) -> str:
    flat = ".flat" if shapes.get(buffer.name, buffer) != buffer else ""
    return f"{buffer.name}{flat}[{', '.join(map(show_index, indices))}]" if indices else buffer.name


def _whole(value: Expression, shapes: _Shapes) -> str:
    """The text of a value; of a very large one (shared parts are written out each time) only its size."""
    sizes: dict[int, int] = {}
    distinct = 0
    for node in postorder(value):
        sizes[id(node)] = 1 + sum(sizes[id(operand)] for operand in node.operands)
        distinct += 1
    if sizes[id(value)] > _LONGEST:
        return f"<{distinct} operations>"
    return _expression(value, 0, shapes)


def _expression(value: Expression, level: int, shapes: _Shapes) -> str:
    """The text, in parentheses when it binds less tightly than `level`."""
    text, own = _parts(value, shapes)
    return f"({text})" if own < level else text


def _parts(value: Expression, shapes: _Shapes) -> tuple[str, int]:
    match value:
        case Number(constant, _):
            return (str(constant), _ATOM if constant >= 0 or constant != constant else _UNARY_LEVEL)
        case Position(one):
            return show_index(one), _ATOM if len(one.terms) + bool(one.offset) <= 1 else _INFIX["add"][1]
        case Load(buffer, indices):
            return _place(buffer, indices, shapes), _ATOM
        case Unary("neg", operand):
            return f"-{_expression(operand, _UNARY_LEVEL, shapes)}", _UNARY_LEVEL
        case Unary(op, operand):
            return f"{op}({_expression(operand, 0, shapes)})", _ATOM
        case Binary(op, left, right) if op in _INFIX:
            sign, own = _INFIX[op]
            return f"{_expression(left, own, shapes)} {sign} {_expression(right, own + 1, shapes)}", own
        case Binary(op, left, right):
            return f"{op}({_expression(left, 0, shapes)}, {_expression(right, 0, shapes)})", _ATOM
        case Compare(op, left, right):
            own = _QUESTION_LEVEL
            first, second = _expression(left, own + 1, shapes), _expression(right, own + 1, shapes)
            return f"{first} {_QUESTION[op]} {second}", own
        case Select(condition, yes, no):
            texts = ", ".join(_expression(one, 0, shapes) for one in (condition, yes, no))
            return f"select({texts})", _ATOM
        case Cast(kind, operand):
            return f"{kind.value}({_expression(operand, 0, shapes)})", _ATOM
        case Reduce(op, axes, operand):
            over = ", ".join(f"{axis.name} < {axis.extent}" for axis in axes)
            return f"{op}({_expression(operand, 0, shapes)} over {over})", _ATOM
    raise AssertionError(f"no rule for {type(value).__name__}")

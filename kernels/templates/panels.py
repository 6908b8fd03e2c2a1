"""Packing a panel of a computed B while the program runs: the same layout as `PanelPacking` makes of a constant."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.transposing import transpose


def write_panel(
    module: Module,
    depth: int,
    vectors: int,
    valid: int | None,
    row: int,
    column: int,
    group: int,
    kind: str,
    *,
    prefix: str,
) -> str:
    """Write, once, the function f(B, panel) and return its name.

    `row` and `column` are B's strides in elements, `valid` the lanes of the last vector that exist (the others become
    zero), `group` how many elements of the depth lie together in a lane. With None for `valid` the function is
    f(B, panel, valid) for a B stored by columns: lanes that do not exist repeat the last one that does.
    """
    lanes = module.target.lanes(DType.F64 if kind == "double" else DType.F32)
    if valid is None:
        return _write_any(module, depth, vectors, column, lanes, prefix)
    exist = (vectors - 1) * lanes + valid
    name = f"{prefix}_panel_{depth}x{vectors}_{exist}_{row}_{column}_{group}"
    if module.has(name):
        return name
    f = Function(
        module,
        name,
        (
            Parameter("b", "ptr", "noalias nocapture readonly"),
            Parameter("panel", "ptr", "noalias nocapture"),
        ),
    )
    if column == 1 and group == 1 and kind in ("float", "double"):
        _by_rows(f, depth, vectors, exist, row, types.vector(kind, lanes))
    elif row == 1 and group == 1 and kind == "float":
        _by_columns(f, depth, vectors, exist, column, lanes, prefix)
    else:
        _one_by_one(f, depth, vectors, exist, row, column, group, kind, lanes)
    f.finish()
    return name


def _by_rows(f: Function, depth: int, vectors: int, exist: int, row: int, kind: str) -> None:
    """B stored by rows: vectors are copied."""
    lanes, element = types.lanes(kind), types.element(kind)

    def body(k: Value, _: tuple[Value, ...]) -> None:
        source = f.at(f.parameter("b"), f.mul(k, row), element)
        aim = f.at(f.parameter("panel"), f.mul(k, vectors * lanes), element)
        for vector in range(vectors):
            address = f.at(source, vector * lanes, element)
            there = min(lanes, exist - vector * lanes)
            if there <= 0:
                value = f.number(kind, 0.0)
            elif there < lanes:
                value = f.masked_load(kind, address, f.first_lanes(there, lanes))
            else:
                value = f.load(kind, address)
            f.store(value, f.at(aim, vector * lanes, element))

    f.loop(0, depth, 1, body)


def _by_columns(f: Function, depth: int, vectors: int, exist: int, column: int, lanes: int, prefix: str) -> None:
    """B stored by columns: squares are turned in registers, by one function for each kind of square."""
    width, whole = vectors * lanes, depth // lanes * lanes
    for vector in range(vectors):
        there = max(0, min(lanes, exist - vector * lanes))
        source = f.at(f.parameter("b"), vector * lanes * column)
        aim = f.at(f.parameter("panel"), vector * lanes)

        def body(k: Value, _: tuple[Value, ...], there: int = there, source: Value = source, aim: Value = aim) -> None:
            name = _square(f.module, lanes, there, column, width, lanes, prefix)
            f.call(name, f.at(source, k), f.at(aim, f.mul(k, width)))

        f.loop(0, whole, lanes, body)
        if depth > whole:
            name = _square(f.module, depth - whole, there, column, width, lanes, prefix)
            f.call(name, f.at(source, whole), f.at(aim, whole * width))


def _write_any(module: Module, depth: int, vectors: int, column: int, lanes: int, prefix: str) -> str:
    """The function of a panel whose last vector has as many lanes as a run says."""
    name = f"{prefix}_panel_{depth}x{vectors}_any_{column}"
    if module.has(name):
        return name
    given = (
        Parameter("b", "ptr", "noalias nocapture readonly"), Parameter("panel", "ptr", "noalias nocapture"),
        Parameter("valid", "i64"),
    )  # fmt: skip
    f = Function(module, name, given)
    width = vectors * lanes
    for vector in range(vectors):
        source = f.at(f.parameter("b"), vector * lanes * column)
        aim = f.at(f.parameter("panel"), vector * lanes)
        last = f.sub(f.parameter("valid"), 1) if vector == vectors - 1 else f.integer(lanes - 1)
        places = [f.mul(f.minimum(f.integer(lane), last), column) for lane in range(lanes)]
        for begin in range(0, depth, lanes):
            present = min(lanes, depth - begin)
            _turned(
                f, present, [f.at(source, f.add(place, begin)) for place in places], f.at(aim, begin * width), width
            )
    f.finish()
    return name


def _turned(f: Function, present: int, columns: Sequence[Value], aim: Value, width: int) -> None:
    """A square: `present` steps of the depth of a vector's columns, whose addresses are given."""
    kind = types.vector("float", len(columns))
    mask = f.first_lanes(present, len(columns))
    rows = [f.load(kind, at) if present == len(columns) else f.masked_load(kind, at, mask) for at in columns]
    for step, turned in enumerate(transpose(f, rows)[:present]):
        f.store(turned, f.at(aim, step * width))


def _square(module: Module, present: int, there: int, column: int, width: int, lanes: int, prefix: str) -> str:
    """f(source, aim): `present` steps of the depth of `there` columns; the columns that do not exist are zero."""
    name = f"{prefix}_square_{present}_{there}_{column}_{width}"
    if module.has(name):
        return name
    given = (Parameter("source", "ptr", "noalias nocapture readonly"), Parameter("aim", "ptr", "noalias nocapture"))
    f = Function(module, name, given)
    kind = types.vector("float", lanes)
    mask, rows = f.first_lanes(present, lanes), []
    for lane in range(lanes):
        if lane >= there:
            rows.append(f.number(kind, 0.0))
            continue
        address = f.at(f.parameter("source"), lane * column)
        rows.append(f.load(kind, address) if present == lanes else f.masked_load(kind, address, mask))
    for step, turned in enumerate(transpose(f, rows)[:present]):
        f.store(turned, f.at(f.parameter("aim"), step * width))
    f.finish()
    return name


def _one_by_one(
    f: Function, depth: int, vectors: int, exist: int, row: int, column: int, group: int, kind: str, lanes: int
) -> None:
    """Any strides and types, element by element: correct, not fast."""
    width = vectors * lanes
    steps = -(-depth // group)
    if exist < width or depth % group:
        word_kind = kind if types.bits(kind) > 32 else "i32"
        zero = f.number(word_kind, 0)

        def clear(word: Value, _: tuple[Value, ...]) -> None:
            f.store(zero, f.at(f.parameter("panel"), word, word_kind))

        f.loop(0, steps * width, 1, clear)

    def one(k: Value, _: tuple[Value, ...]) -> None:
        step = f.binary("udiv", k, f.integer(group)) if group > 1 else k
        inside = f.sub(k, f.mul(step, group)) if group > 1 else f.integer(0)

        def lane(n: Value, _: tuple[Value, ...]) -> None:
            value = f.load(kind, f.at(f.parameter("b"), f.add(f.mul(k, row), f.mul(n, column)), kind))
            place = f.add(f.mul(f.add(f.mul(step, width), n), group), inside)
            f.store(value, f.at(f.parameter("panel"), place, kind))

        f.loop(0, exist, 1, lane)

    f.loop(0, depth, 1, one)

"""If, Loop and Scan as one region each: a kernel that runs the regions of a body again, or those of one of two bodies.

What a body's regions hand on to one another lies in one temporary of the program, planned like an arena of its own. A
state is read and written by turns in two places: one in that temporary, the other where the state goes in the end,
unless the body reads what lies there. Rows of a Scan are read where they are, and what is collected
is written row by row where it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model import nodes
from graphopt.program.lifetimes import planned
from graphopt.program.order import best_order, run_in_order
from graphopt.program.regions import buffer
from graphopt.program.regions.copies import dense
from graphopt.program.regions.region import Controlled, Lowered, Problems
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from graphopt.program.subprograms import Repeated, body_of, repeated
from kernels.control import Carried, Choose, Control, Inner, Iterations, Repetition, Seat, Stacked, written
from kernels.dtype import DType
from kernels.kernel import Operand
from kernels.listing import ALIGNMENT

Seats = Mapping[int, Seat]  # by the positions of a body's inputs or outputs


def lower_if(scope: Scope, node: ir.Node) -> None:
    """A region that runs one of two bodies."""
    work = _Work(scope, node)
    condition = work.read(dense(scope, nodes.required_input(node, 0)))
    views = [scope.result(output) for output in node.outputs]
    aims = dict(enumerate(work.written(view) for view in views))
    sides: list[tuple[list[Inner], int]] = []
    for name in ("then_branch", "else_branch"):
        body = body_of(scope.model, scope.facts, node.attributes[name].as_graph(), ())
        lowered = work.lowered(body.model)
        if [(one.dtype, one.shape) for one in lowered.outputs] != [(view.dtype, view.shape) for view in views]:
            raise NotLowered(f"the branches of {nodes.describe(node)} give other types or dims.")
        given = dict(enumerate(work.read(dense(scope, value)) for value in body.outside))
        sides.append(work.runs(lowered, given, aims))
    (yes, size), (no, other) = sides
    work.memory(max(size, other))
    work.add(Choose(work.operands(), condition, tuple(yes), tuple(no)))


def lower_loop(scope: Scope, node: ir.Node) -> None:
    """A region that runs a body as often as a count and a condition say, and as there are rows for what it collects."""
    states = len(node.inputs) - 2
    limit, begins = nodes.input_at(node, 0), nodes.input_at(node, 1)
    numbers = None if limit is None else scope.facts.ints(limit)
    most = None if numbers is None or len(numbers) != 1 else max(int(numbers[0]), 0)
    for output in node.outputs[states:]:
        rows = scope.shape(output)[0]
        most = rows if most is None else min(most, rows)
    found = repeated(scope.model, scope.facts, node, most)
    work = _Work(scope, node)
    count = None if limit is None or numbers is not None else work.read(dense(scope, limit))
    first = None if begins is None or scope.facts.scalar(begins) is True else work.read(dense(scope, begins))
    number, flag, goes_on = work.memory(8), work.memory(1), work.memory(1)
    body = _Body(work, found)
    body.given += [number, flag]
    body.carry(most)
    aims = {0: goes_on}
    stacked = []
    for place, output in enumerate(node.outputs[states:], 1 + states):
        view = scope.result(output)
        size = view.dtype.bytes * prod(view.shape[1:])
        start = work.written(view)
        aims[place] = replace(start, step=size)
        stacked.append(Stacked(start, size, view.shape[0]))
    body.run(Iterations(most, count, first, goes_on, number, flag, _counted(work)), aims, stacked)


def _counted(work: _Work) -> Seat | None:
    """Where the number of iterations goes, if the dims of what is collected follow from it."""
    scope = work.scope
    dims = {scope.dims(output)[axis] for output in work.node.outputs for axis in scope.counted(output)}
    if not dims:
        return None
    view = View.dense(scope.temporary("count", work.node.outputs[0].name, DType.I64.bytes), DType.I64, (1,))
    scope.counts.places.update(dict.fromkeys(dims, view))
    return work.written(view)


def lower_scan(scope: Scope, node: ir.Node) -> None:
    """A region that runs a body for each row of its operands."""
    if scope.facts.opset(node) < 9:
        raise NotLowered(f"{nodes.describe(node)} is of ONNX 8, with a dim of batches.")
    found = repeated(scope.model, scope.facts, node, None)
    states, sources, collected = len(found.states), len(found.sources), node.outputs[len(found.states) :]
    work = _Work(scope, node)
    body = _Body(work, found)
    body.carry(found.rows)
    axes = nodes.ints_attribute(node, "scan_input_axes", (0,) * sources)
    turned = nodes.ints_attribute(node, "scan_input_directions", (0,) * sources)
    for value, axis, back in zip(found.sources, axes, turned, strict=True):
        view = scope.place(value)
        body.given.append(
            _by_rows(
                work.read(_dense(scope, view.transposed(_to_front(axis, len(view.shape))))), view, found.rows, back
            )
        )
    axes = nodes.ints_attribute(node, "scan_output_axes", (0,) * len(collected))
    turned = nodes.ints_attribute(node, "scan_output_directions", (0,) * len(collected))
    aims = {}
    for place, (output, axis, back) in enumerate(zip(collected, axes, turned, strict=True), states):
        row = found.results[place][1]
        view = work.stack(output, (found.rows, *row), axis % (len(row) + 1))
        aims[place] = _by_rows(work.written(view), view, found.rows, back)
    body.run(Iterations(found.rows), aims)


def _by_rows(start: Seat, view: View, rows: int, back: int) -> Seat:
    """A seat that moves over rows, from the last one to the first where `back` says so."""
    size = view.dtype.bytes * (prod(view.shape) // max(rows, 1))
    return replace(start, offset=start.offset + (rows - 1) * size, step=-size) if back else replace(start, step=size)


def _to_front(axis: int, rank: int) -> list[int]:
    """The order of dims that has one of them first."""
    place = axis % rank
    return [place, *(one for one in range(rank) if one != place)]


class _Work:
    """The operands of a region that runs others, and what those hand on in its memory."""

    def __init__(self, scope: Scope, node: ir.Node) -> None:
        if scope.target.is_gpu:
            raise NotLowered(f"{nodes.describe(node)} has no task of a GPU yet: its body would run in one thread.")
        self.scope, self.node = scope, node
        self.name = scope.named(node.op_type.lower())
        self._places: list[buffer.Buffer] = []
        self._operands: list[Operand] = []
        self._seats: dict[buffer.Buffer, Seat] = {}
        self._constants: dict[buffer.Buffer, Seat] = {}
        self._top = 0  # bytes of the memory that are taken
        self._memory = self._operand(scope.temporary("memory", node.outputs[0].name, 1), "output")
        self._inner = 0
        self._problems: Problems = {}  # of the bodies' kernels
        self._controls: dict[str, Controlled] = {}  # of those that run others again
        self._orders: list[tuple[int, ...]] = []  # of the bodies' regions

    def _operand(self, place: buffer.Buffer, role: Literal["input", "constant", "output"]) -> Seat:
        self._places.append(place)
        self._operands.append(Operand(f"{role}{len(self._operands)}", role, DType.U8, place.size))
        return Seat(len(self._operands) - 1)

    def read(self, view: View) -> Seat:
        """What the region reads, dense."""
        return self._touched(view.buffer, "constant" if view.buffer.role == "constant" else "input")

    def written(self, view: View) -> Seat:
        """What the region writes, dense."""
        return self._touched(view.buffer, "output")

    def _touched(self, place: buffer.Buffer, role: Literal["input", "constant", "output"]) -> Seat:
        if place not in self._seats:
            self._seats[place] = self._operand(place, role)
        return self._seats[place]

    def memory(self, size: int) -> Seat:
        """So many bytes of the region's own memory."""
        start = self._top
        self._top += -(-size // ALIGNMENT) * ALIGNMENT
        return replace(self._memory, offset=start)

    def stack(self, output: ir.Value, shape: tuple[int, ...], axis: int) -> View:
        """Where the rows of a result go one after the other; the result has them along `axis`."""
        scope = self.scope
        if axis == 0:
            return scope.result(output)
        dtype = scope.dtype(output)
        view = View.dense(scope.temporary("value", output.name, dtype.bytes * prod(shape)), dtype, shape)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
        scope.places[output] = view.transposed(order)
        return view

    def lowered(self, model: ir.Model) -> Lowered:
        """The regions of a body."""
        self._inner += 1
        return self.scope.inner(model, f"{self.name}_{self._inner}_")

    def runs(self, lowered: Lowered, given: Seats, aims: Seats) -> tuple[list[Inner], int]:
        """The regions of a body as runs in their best order, and how many bytes they take from the next free one on."""
        order = best_order(lowered)
        ordered = lowered if order is None else run_in_order(lowered, order)
        self._orders.append(tuple(range(len(lowered.regions)) if order is None else map(int, order)))
        arena = planned(ordered)
        self._problems |= lowered.problems
        self._controls |= lowered.controls
        seats: dict[buffer.Buffer, Seat] = {}
        for one in lowered.buffers:
            if one.role == "temporary":
                seats[one] = replace(self._memory, offset=self._top + arena.offsets[one])
            elif one.role == "constant":
                new = self.scope.buffer("constant", one.purpose, one.value, one.size)
                self.scope.constants[new] = lowered.constants[one]
                seats[one] = self._operand(new, "constant")
            else:
                assert one.argument is not None, "inputs and outputs are numbered"
                seats[one] = (given if one.role == "input" else aims)[one.argument]
        runs = []
        for region in ordered.regions:
            places = (replace(seats[one.buffer], offset=seats[one.buffer].offset + one.offset) for one in region.places)
            runs.append(Inner(region.kernel, tuple(places)))
        return runs, arena.plan.arena_size

    def operands(self) -> tuple[Operand, ...]:
        """All of them, with the memory that was taken."""
        memory = replace(self._places[0], size=max(self._top, ALIGNMENT))
        self._places[0], self._operands[0] = memory, replace(self._operands[0], elements=memory.size)
        return tuple(self._operands)

    def add(self, control: Control) -> None:
        """The region."""
        kernel = written(control, self.name, self.scope.target)
        self.scope.controls[kernel.name] = Controlled(control, self._problems, self._controls, tuple(self._orders))
        places = dict(zip((one.name for one in self._operands), self._places, strict=True))
        self.scope.add(kernel, places, (self.node,))


class _Body:
    """The body of a loop: what it is given, in the order of its inputs, and the states that it carries."""

    def __init__(self, work: _Work, found: Repeated) -> None:
        scope = work.scope
        self._work, self._found = work, found
        self._body = body_of(scope.model, scope.facts, found.graph, found.kinds)
        self._states = [dense(scope, value) for value in found.states]
        self._outside = [dense(scope, value) for value in self._body.outside]
        self.given: list[Seat] = []
        self._carried: list[Carried] = []

    def carry(self, most: int | None) -> None:
        """Let the states be the next inputs; there are `most` iterations at most."""
        work = self._work
        read = {view.buffer for view in (*self._states, *self._outside)}
        read |= {work.scope.place(value).buffer for value in self._found.sources}
        for view, output in zip(self._states, work.node.outputs, strict=False):
            size = view.dtype.bytes * prod(view.shape)
            result = work.scope.result(output) if nodes.is_used(output) else None
            home = None if result is None else work.written(result)
            is_apart = result is not None and result.buffer not in read
            own, other = work.memory(size), home if home is not None and is_apart else work.memory(size)
            first, second = (own, other) if most is not None and most % 2 else (other, own)
            self._carried.append(Carried(work.read(view), first, second, home, size))
            self.given.append(first.by_turns(second))

    def run(self, iterations: Iterations, aims: dict[int, Seat], stacked: Sequence[Stacked] = ()) -> None:
        """Add the region; `aims`: where the body's results go but for states."""
        work = self._work
        self.given += map(work.read, self._outside)
        for place, one in enumerate(self._carried, 1 if iterations.goes_on is not None else 0):
            aims[place] = one.second.by_turns(one.first)
        lowered = work.lowered(self._body.model)
        runs, size = work.runs(lowered, dict(enumerate(self.given)), aims)
        work.memory(size)
        work.add(Repetition(work.operands(), tuple(runs), iterations, tuple(self._carried), tuple(stacked)))


def _dense(scope: Scope, view: View) -> View:
    """A view row-major from the start of a buffer; copied there when it does not lie so."""
    if view.is_dense:
        return view
    aim = View.dense(
        scope.temporary("dense", view.buffer.value, view.dtype.bytes * prod(view.shape)), view.dtype, view.shape
    )
    scope.copy(view, aim, ())
    return aim

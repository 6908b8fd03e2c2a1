"""Routines as machine code: variables in memory and plain jumps, of which LLVM's optimizer makes vectors."""

from __future__ import annotations

from functools import partial

from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.emission import emit_all
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.routine.blocks import grain_of
from kernels.routine.grammar import (
    Area,
    Assign,
    Element,
    For,
    Local,
    Put,
    Routine,
    RoutineStep,
    When,
    While,
    statements,
)
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.template import only
from kernels.tensor.expression import Expression, Foreign, Index, Load

_ALIGNMENT = 64  # bytes, of each area of scratch


def build(routine: Routine, target: Target, name: str = "routine") -> Kernel:
    """The kernel: an entry that looks up addresses, and the loops as a function that knows them to be apart."""
    module = Module(target)
    operands = [Operand(one.name, "input", one.dtype, one.elements) for one in routine.inputs]
    operands += [Operand(one.name, "output", one.dtype, one.elements) for one in routine.outputs]
    count, grain = routine.shared.count, grain_of(routine)
    blocks = -(-count // grain) if is_free(count) else max(1, -(-count // grain))
    places, scratch = _scratch(routine.scratch)
    _write_loops(module, routine, f"{name}_loops", count if not is_free(count) and count <= grain else grain)

    def entry(f: Function, pointers: dict[str, Value], block: Value, memory: Value) -> None:
        areas = [f.at(memory, places[one], "i8") for one in routine.scratch]
        f.call(f"{name}_loops", block, *pointers.values(), *areas)

    kernel = write_kernel(module, name, operands, blocks, entry, scratch_bytes=scratch, candidate=routine.title)
    module.leave_to_optimizer(name)
    return kernel


ROUTINE = only("routine", Routine, build)


def _scratch(areas: tuple[Area, ...]) -> tuple[dict[Area, int], int]:
    """Where each area of scratch lies, in bytes, and how many all take."""
    places, total = {}, 0
    for one in areas:
        places[one] = total
        total += -(-bound(one.elements) * one.dtype.bytes // _ALIGNMENT) * _ALIGNMENT
    return places, total


def _write_loops(module: Module, routine: Routine, name: str, stretch: int) -> None:
    parameters = [Parameter("block", "i64")]
    parameters += [Parameter(f"in{at}", "ptr", "noalias nocapture readonly") for at in range(len(routine.inputs))]
    written = (*routine.outputs, *routine.scratch)
    parameters += [Parameter(f"out{at}", "ptr", "noalias nocapture") for at in range(len(written))]
    f = Function(module, name, parameters)
    pointers = {one: f.parameter(f"in{at}") for at, one in enumerate(routine.inputs)}
    pointers |= {one: f.parameter(f"out{at}") for at, one in enumerate(written)}
    _Statements(f, pointers, routine).run(stretch)
    f.finish()


class _Statements:
    """Writes statements; gives the leaves of their expressions."""

    def __init__(self, f: Function, pointers: dict[Area, Value], routine: Routine) -> None:
        self._f, self._pointers, self._routine = f, pointers, routine
        self._counters: dict[Local, Value] = {}
        self._variables: dict[Local, Value] = {}

    def run(self, stretch: int) -> None:
        """The iterations of one block."""
        f, shared = self._f, self._routine.shared
        for one in statements(shared.body):
            if isinstance(one, Assign) and one.local not in self._variables:
                self._variables[one.local] = f.value("ptr", f"alloca {types.scalar(one.local.kind)}, align 8")
        first = f.mul(f.parameter("block"), stretch)
        last = f.minimum(f.add(first, stretch), f.integer(shared.count))
        self._loop(shared.variable, first, last, shared.body)

    def _body(self, body: tuple[RoutineStep, ...]) -> None:
        f = self._f
        for one in body:
            match one:
                case Assign(local, value):
                    f.store(self._value(value), self._variables[local])
                case Put(area, place, value):
                    at, what = self._values(place, value)
                    f.store(what, f.at(self._pointers[area], at, types.scalar(area.dtype)))
                case For(variable, start, stop, inside):
                    low, high = self._values(start, stop)
                    self._loop(variable, low, high, inside)
                case While(condition, inside):
                    self._while(condition, inside)
                case When(condition, inside, otherwise):
                    f.when(self._condition(condition), partial(self._body, inside), partial(self._body, otherwise))

    def _loop(self, variable: Local, first: Value, last: Value, body: tuple[RoutineStep, ...]) -> None:
        def one(counter: Value, _: tuple[Value, ...]) -> None:
            self._counters[variable] = counter
            self._body(body)

        self._f.loop(first, last, 1, one)

    def _while(self, condition: Expression, body: tuple[RoutineStep, ...]) -> None:
        f = self._f
        head, inside, after = f.fresh("while"), f.fresh("do"), f.fresh("done")
        f.line(f"br label %{head}")
        f.label(head)
        f.line(f"br i1 {self._condition(condition).text}, label %{inside}, label %{after}")
        f.label(inside)
        self._body(body)
        f.line(f"br label %{head}")
        f.label(after)

    def _condition(self, value: Expression) -> Value:
        return self._f.convert("trunc", "i1", self._value(value))

    def _value(self, value: Expression) -> Value:
        return self._values(value)[0]

    def _values(self, *values: Expression) -> tuple[Value, ...]:
        return emit_all(self._f, values, 1, self)

    # -- leaves -----------------------------------------------------------------------------------------------------

    def load(self, load: Load) -> Value:
        """No part of a routine."""
        raise AssertionError("a routine was checked when it was made")

    def position(self, index: Index) -> Value:
        """No part of a routine."""
        raise AssertionError("a routine was checked when it was made")

    def foreign(self, node: Foreign, operands: tuple[Value, ...]) -> Value:
        """A variable, or an element."""
        f = self._f
        if isinstance(node, Local):
            if node in self._counters:
                return self._counters[node]
            return f.load(types.scalar(node.kind), self._variables[node])
        assert isinstance(node, Element), "the two leaves of routines"
        kind = types.scalar(node.area.dtype)
        return f.load(kind, f.at(self._pointers[node.area], operands[0], kind))

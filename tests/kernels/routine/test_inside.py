"""Routines that would read or write outside of their areas for certain are refused; all others are not."""

from __future__ import annotations

from itertools import product

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.errors import NotLowered
from graphopt.flows.asked import optimized
from graphopt.model.load import load
from graphopt.program.make import make_listing
from graphopt.program.regions import lower as lowering
from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.routine.grammar import InvalidRoutine, Routine
from kernels.routine.writer import Writer, integer, lt, quotient, remainder
from kernels.target import host
from tests import support


def _writes(
    extents: list[int], loops: list[tuple[int, int]], factors: list[int], number: int, elements: int
) -> Routine:
    """y[number + factors by variables] = 0, over shared extents and loops from a start for so many times."""
    w = Writer("writes")
    y = w.output("y", DType.F32, (elements,))
    with w.shared(*extents) as shared:
        variables = list(shared)

        def inside(left: list[tuple[int, int]]) -> None:
            if left:
                start, times = left[0]
                with w.loop(start + times, start) as one:
                    variables.append(one)
                    inside(left[1:])
                return
            place = integer(number)
            for variable, factor in zip(variables, factors, strict=True):
                place = place + variable * factor
            y.put(place, 0.0)

        inside(loops)
    return w.routine()


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_routine_is_refused_exactly_where_a_place_lies_outside(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    loops = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=2))
    count = len(extents) + len(loops)
    factors = data.draw(st.lists(st.integers(-2, 4), min_size=count, max_size=count))
    number, elements = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 30))
    ranges = [range(size) for size in extents] + [range(start, start + times) for start, times in loops]
    places = {number + sum(a * b for a, b in zip(factors, point, strict=True)) for point in product(*ranges)}
    is_outside = any(not 0 <= place < elements for place in places)
    if is_outside:
        with pytest.raises(InvalidRoutine, match=r"writes: 'y' has \d+ elements, and the one at -?\d+ is asked for"):
            _writes(extents, loops, factors, number, elements)
    else:
        _writes(extents, loops, factors, number, elements)


def test_reads_are_looked_at_too_and_variables_are_followed() -> None:
    w = Writer("reads")
    x, y = w.input("x", DType.F32, (12,)), w.output("y", DType.F32, (12,))
    with w.shared(12) as (i,):
        place = w.local(DType.I64, i + 1)
        y[i] = x[place]
    with pytest.raises(InvalidRoutine, match="'x' has 12 elements, and the one at 12 is asked for"):
        w.routine()


def test_what_a_condition_guards_and_what_data_decide_is_left_alone() -> None:
    w = Writer("guarded")
    x, y = w.input("x", DType.I64, (12,)), w.output("y", DType.I64, (12,))
    with w.shared(12) as (i,):
        with w.when(lt(i, 11)):
            y[i] = x[i + 1]
        found = w.local(DType.I64, x[i])
        with w.loop(found) as j:
            y.put(j, x[i])
        moved = w.local(DType.I64, 0)
        w.set(moved, moved + 100)
        y.put(moved, x[i])
    w.routine()


@pytest.mark.parametrize("more", [False, True])
def test_two_parts_of_one_variable_are_not_taken_as_free(more: bool) -> None:
    """i / 2 and i % 4 of one i: which places are reached is not the product of both."""
    w = Writer("parts")
    y = w.output("y", DType.F32, (8,))
    with w.shared(8) as (i,):
        half, rest = w.local(DType.I64, quotient(i, 2)), w.local(DType.I64, remainder(i, 4))
        y.put(half + rest if not more else i - half * 2 + rest * 2, 0.0)
    w.routine()


def test_an_operator_whose_result_is_larger_than_its_memory_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an Einsum's whose dims were inferred without its broadcast; ONNX Runtime or a refusal takes its place."""
    text = """g (float[3,1,2,4] x, float[1,5,4,6] z) => (float[3,5,2,6] y)
    { y = Einsum<equation = "...ij,...jk->...ik">(x, z) }"""
    model = optimized(load(support.model(text, 18)))
    make_listing(model, host(), "whole", False, None)
    plain = lowering.Scope.shape

    def less(scope: lowering.Scope, value: ir.Value) -> tuple[int, ...]:
        shape = plain(scope, value)
        return (3, 1, 2, 6) if shape == (3, 5, 2, 6) else shape

    monkeypatch.setattr(lowering.Scope, "shape", less)
    with pytest.raises((NotLowered, KernelsError)):
        make_listing(model, host(), "less", False, None)

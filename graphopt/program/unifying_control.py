"""If, Loop and Scan for a range of sizes: the kernels that they run, and where those work, as numbers of the sizes.

What the runs hand on to one another lies where it does at the greatest sizes, which no other size exceeds. All else,
rows and their distances, how many there are, and the kernels themselves, are made of those of all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from graphopt.program.polynomials import Differs, Fit
from kernels.control import Carried, Choose, Control, Inner, Iterations, Repetition, Seat, Stacked
from kernels.kernel import SIZES, Kernel, Operand

MEMORY = 0  # the operand with what runs hand on to one another
One = TypeVar("One")
Join = Callable[[Sequence[Kernel]], Kernel]  # the kernels of one run at all samples as one


def unified_control(fit: Fit, controls: Sequence[Control], join: Join) -> Control:
    """One of all samples, the first of which is that of the greatest sizes; raises Differs."""
    first, given = controls[0], [one.operands for one in controls]
    operands = [_operand(row) for row in _rows(given, "its operands")]
    if isinstance(first, Choose):
        choices = [one for one in controls if isinstance(one, Choose)]
        if len(choices) < len(controls):
            raise Differs("a loop or a condition")
        yes, no = (
            _runs(fit, runs, join, operands) for runs in ([one.yes for one in choices], [one.no for one in choices])
        )
        return Choose(tuple(operands), _seat(fit, [one.condition for one in choices]), yes, no)
    loops = [one for one in controls if isinstance(one, Repetition)]
    if len(loops) < len(controls):
        raise Differs("a loop or a condition")
    runs = _runs(fit, [one.runs for one in loops], join, operands)
    return Repetition(
        tuple(operands),
        runs,
        _iterations(fit, [one.trips for one in loops]),
        tuple(_carried(fit, row) for row in _rows([one.carried for one in loops], "its states")),
        tuple(_stacked(fit, row) for row in _rows([one.rows for one in loops], "what it collects")),
    )


def in_one_order(controls: Sequence[Control], orders: Sequence[Sequence[Sequence[int]]]) -> list[Control]:
    """The same controls with all runs of a body in the order that the first one has.

    Every size has an order of its own that takes least memory. `orders` say of the runs of each body which one each
    was when the body was lowered, which it is at all sizes. Raises Differs where they are not as many.
    """
    if any(list(map(len, one)) != list(map(len, orders[0])) for one in orders):
        raise Differs("the steps of its body")

    def arranged(runs: Sequence[Inner], own: Sequence[int], first: Sequence[int]) -> tuple[Inner, ...]:
        by_place = dict(zip(own, runs, strict=True))
        return tuple(by_place[place] for place in first)

    found: list[Control] = []
    for control, own in zip(controls, orders, strict=True):
        if isinstance(control, Choose):
            yes, no = map(arranged, (control.yes, control.no), own, orders[0])
            found.append(replace(control, yes=yes, no=no))
        else:
            found.append(replace(control, runs=arranged(control.runs, own[0], orders[0][0])))
    return found


def _rows(lists: Sequence[Sequence[One]], what: str) -> list[tuple[One, ...]]:
    if len({len(one) for one in lists}) > 1:
        raise Differs(what)
    return list(zip(*lists, strict=True))


def _operand(row: Sequence[Operand]) -> Operand:
    """That of the greatest sizes; what it lies in is compared as every region's operands are."""
    first = row[0]
    if any((one.name, one.role) != (first.name, first.role) for one in row):
        raise Differs("its operands")
    return first


def _runs(fit: Fit, lists: Sequence[Sequence[Inner]], join: Join, operands: list[Operand]) -> tuple[Inner, ...]:
    """The runs of a body. Constants that a kernel wants in another form than before are operands of that form."""
    found = []
    for row in _rows(lists, "the steps of its body"):
        kernel = join([one.kernel for one in row])
        seats = [_seat(fit, seats) for seats in _rows([one.seats for one in row], "the operands of a step")]
        for operand, seat in zip(kernel.operands, seats, strict=False):
            if operand.packing is not None:
                packed = replace(operands[seat.operand], packing=operand.packing, elements=operand.bytes)
                if operands[seat.operand].packing not in (None, operand.packing):
                    raise Differs("a constant that two steps read")
                operands[seat.operand] = packed
        if any(operand.role == SIZES for operand in kernel.operands):
            seats.append(Seat(len(operands)))
        found.append(Inner(kernel, tuple(seats)))
    return tuple(found)


def _is_kept(seat: Seat) -> bool:
    """Whether it lies in the memory, always or in every second iteration."""
    return MEMORY in (seat.operand, seat.operand + seat.aside)


def _seat(fit: Fit, row: Sequence[Seat]) -> Seat:
    first = row[0]
    if all(map(_is_kept, row)):
        return first
    if any((one.operand, one.turn, one.aside) != (first.operand, first.turn, first.aside) for one in row):
        raise Differs("where a step works")
    offset, step = (
        fit.number([number for number in numbers if isinstance(number, int)], "where a step works")
        for numbers in ([one.offset for one in row], [one.step for one in row])
    )
    return replace(first, offset=offset, step=step)


def _given(fit: Fit, row: Sequence[Seat | None]) -> Seat | None:
    seats = [one for one in row if one is not None]
    if seats and len(seats) < len(row):
        raise Differs("what it is told")
    return _seat(fit, seats) if seats else None


def _iterations(fit: Fit, row: Sequence[Iterations]) -> Iterations:
    limits = [one.limit for one in row if isinstance(one.limit, int)]
    if limits and len(limits) < len(row):
        raise Differs("how often it runs")
    return Iterations(
        fit.number(limits, "how often it runs") if limits else None,
        *(
            _given(fit, [getattr(one, name) for one in row])
            for name in ("count", "begins", "goes_on", "number", "flag", "made")
        ),
    )


def _carried(fit: Fit, row: Sequence[Carried]) -> Carried:
    """The two places by turns are those of the greatest sizes: an odd count would begin with the other one."""
    first = row[0]
    if len({None if one.result is None else one.result.operand for one in row}) > 1:
        raise Differs("where a state goes")
    size = fit.number([one.bytes for one in row if isinstance(one.bytes, int)], "the size of a state")
    return replace(first, start=_seat(fit, [one.start for one in row]), bytes=size)


def _stacked(fit: Fit, row: Sequence[Stacked]) -> Stacked:
    size, count = (
        fit.number([number for number in numbers if isinstance(number, int)], "what it collects")
        for numbers in ([one.bytes for one in row], [one.count for one in row])
    )
    return Stacked(_seat(fit, [one.start for one in row]), size, count)

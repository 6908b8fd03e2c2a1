"""Liveness: from a graph and the order in which its operators run to the buffers that are needed, and when."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memplan.graph import Graph, Kind, Operator
from memplan.problem import Buffer, InvalidProblem, MemoryProblem
from memplan.sharing import Life, Step, aliases

HELD: tuple[Kind, ...] = ("temporary", "input", "output")


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with primes behind it where it is taken: no value is ever mistaken for another by its spelling."""
    while name in taken:
        name += "'"
    return name


def instance(value: str, run: int, taken: Collection[str]) -> str:
    """The name of a value's buffer; one that is computed again has one for each time. `taken`: all values' names."""
    return value if run == 0 else free_name(f"{value}#{run + 1}", taken)


def workspace(operator: str, step: int, taken: Collection[str]) -> str:
    """The name of the buffer that an operator works in; `taken`: all values' names."""
    return free_name(f"{operator}@{step}", taken)


def memory_problem(
    graph: Graph,
    order: Sequence[str] | None = None,
    *,
    kinds: Collection[Kind] = HELD,
    alignment: int = 64,
    views: bool = True,
    in_place: bool = True,
    slices: bool = True,
) -> MemoryProblem:
    """The buffers of `graph` when its operators run in `order` (names, repeated ones recomputed; None: as given).

    A value lives from the step that makes it to its last use before it is made again; an input from step 0; an output
    to the end. A value that nobody uses lives while its operator runs. Values of kinds other than `kinds` are left out.
    Places that the graph offers are taken where they are free (`memplan.sharing` says when): `views` of an operand,
    results `in_place` of one, and operands that are `slices` of a result.

    Raises InvalidProblem where an operator reads what is not there.
    """
    operators = {one.name: one for one in graph.operators}
    running = [_operator(operators, name) for name in order] if order is not None else list(graph.operators)
    lives, steps, owner = _lives(graph, running)
    wanted = {name: life for name, life in lives.items() if life.kind in kinds}
    values = {value.name for value in graph.values}
    for step, operator in enumerate(running):
        if operator.workspace:
            name = workspace(operator.name, step, values)
            wanted[name] = Life(name, operator.workspace, step, step + 1, "temporary")
    found = aliases(wanted, steps, graph.shares, views=views, in_place=in_place, slices=slices)
    buffers = (
        Buffer(name, life.size, life.begin, life.end, alias=found.get(name), value=owner.get(name))
        for name, life in wanted.items()
    )
    return MemoryProblem(tuple(buffers), alignment)


def _operator(operators: dict[str, Operator], name: str) -> Operator:
    if name not in operators:
        raise InvalidProblem(f"the order names the operator '{name}', which the graph does not have.")
    return operators[name]


def _lives(graph: Graph, running: Sequence[Operator]) -> tuple[dict[str, Life], list[Step], dict[str, str]]:
    """Every buffer's life by its name, what each step reads and makes, and by buffer the value that it holds."""
    values = {value.name: value for value in graph.values}
    runs: dict[str, int] = {}
    current: dict[str, str] = {}  # value -> the buffer that holds it now
    begin: dict[str, int] = {}
    end: dict[str, int] = {}
    owner: dict[str, str] = {}
    last = max(len(running), 1)
    for value in graph.values:
        if value.kind in ("input", "constant"):
            current[value.name], owner[value.name] = value.name, value.name
            begin[value.name], end[value.name] = 0, last if value.kind == "constant" else 1
    steps = []
    for number, operator in enumerate(running):
        reads = {}
        for name in operator.inputs:
            if name not in current:
                raise InvalidProblem(f"step {number}: '{operator.name}' reads '{name}', which is not there yet.")
            reads[name] = current[name]
            end[current[name]] = max(end[current[name]], number + 1)
        makes = {}
        for name in operator.outputs:
            runs[name] = runs.get(name, -1) + 1
            held = instance(name, runs[name], values)
            current[name] = makes[name] = held
            begin[held], end[held], owner[held] = number, number + 1, name
        steps.append(Step(reads, makes))
    for value in graph.values:
        if value.kind == "output":
            if value.name not in current:
                raise InvalidProblem(f"the output '{value.name}' is never made.")
            end[current[value.name]] = last
    lives = {
        held: Life(held, values[name].size, begin[held], end[held], values[name].kind) for held, name in owner.items()
    }
    return lives, steps, owner

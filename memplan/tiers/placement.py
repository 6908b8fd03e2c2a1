"""The problem of tiers: units of placement, what each step does with them, and what that takes in each tier.

A unit is a buffer with all that lies in it (views, results in place, slices of concatenations): it is placed and moved
as a whole. Workspaces are units too, written once and read once by their operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.bounds import alias_classes
from memplan.errors import MemplanError
from memplan.graph import KINDS, Graph
from memplan.lifetimes import memory_problem, workspace
from memplan.problem import Alias, MemoryProblem
from memplan.tiers.cost import access_time
from memplan.tiers.machine import Machine


class TiersTooSmall(MemplanError):
    """Tiers that cannot hold the model; the message says by how much."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one step does with a unit."""

    step: int
    read: int  # bytes
    written: int
    changes: bool  # the step writes into it: copies elsewhere are no longer valid


@dataclass(frozen=True, slots=True)
class Unit:
    """Bytes that are placed and moved together, needed in the half-open range of steps [begin, end)."""

    name: str
    size: int  # bytes, as they are copied
    held: int  # bytes, rounded up to the alignment
    begin: int
    end: int
    uses: tuple[Use, ...]  # by step
    made: bool  # by its first use; False: there from the start, in whichever tier the plan says
    stays: bool  # a constant: at the end it is where it was at the start, so that the next run finds it


@dataclass(frozen=True, slots=True)
class Placement:
    """What is to be placed on which machine; steps are the graph's operators in their order."""

    machine: Machine
    units: tuple[Unit, ...]
    compute: tuple[float, ...]  # nanoseconds, by step
    aliases: Mapping[str, Alias]  # values that lie in others
    buffers: MemoryProblem  # one arena for all
    alignment: int  # bytes

    def access(self, use: Use) -> tuple[float, ...]:
        """Nanoseconds that a use takes, by tier."""
        return tuple(access_time(tier, use.read, use.written) for tier in self.machine.tiers)

    def live(self) -> list[int]:
        """Bytes that are needed at each step, wherever they lie."""
        changes = [0] * (len(self.compute) + 1)
        for unit in self.units:
            changes[unit.begin] += unit.held
            changes[unit.end] -= unit.held
        for step in range(1, len(changes)):
            changes[step] += changes[step - 1]
        return changes[:-1]

    def check_room(self) -> None:
        """Raises TiersTooSmall where all tiers together do not hold what is needed at once, or none holds one unit."""
        tiers = self.machine.tiers
        total = sum(tier.capacity for tier in tiers)
        peak = max(self.live(), default=0)
        if peak > total:
            raise TiersTooSmall(
                f"the model needs {peak} bytes at once and the tiers of '{self.machine.name}' hold {total}: "
                f"{peak - total} bytes too few."
            )
        largest = max(tiers, key=lambda tier: tier.capacity)
        for unit in self.units:
            if unit.held > largest.capacity:
                raise TiersTooSmall(
                    f"'{unit.name}' has {unit.held} bytes and the largest tier, '{largest.name}', holds "
                    f"{largest.capacity}: {unit.held - largest.capacity} bytes too few."
                )


def placement(graph: Graph, machine: Machine, alignment: int = 64) -> Placement:
    """The problem of placing all values of `graph`, constants included, on `machine`.

    A step that makes a view reads and writes nothing for it: the bytes stay where they are.
    """
    problem = memory_problem(graph, kinds=KINDS, alignment=alignment)
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    aliases = {buffer.name: buffer.alias for buffer in problem.buffers if buffer.alias is not None}
    root: dict[str, str] = {}
    for name in by_name:
        top = name
        while top in aliases:
            top = aliases[top].of
        root[name] = top
    values = {value.name for value in graph.values}
    uses: dict[str, dict[int, Use]] = {name: {} for name in root.values()}

    def note(step: int, name: str, read: int, written: int, changes: bool) -> None:
        known = uses[root[name]].get(step, Use(step, 0, 0, False))
        uses[root[name]][step] = Use(step, known.read + read, known.written + written, known.changes or changes)

    for step, operator in enumerate(graph.operators):
        inputs, outputs = dict.fromkeys(operator.inputs), dict.fromkeys(operator.outputs)
        viewed = {a.of for name in outputs if (a := aliases.get(name)) and a.of in inputs and not a.overwrites}
        views = {name for name in outputs if (a := aliases.get(name)) and a.of in inputs and not a.overwrites}
        slid = {name for name in inputs if (a := aliases.get(name)) and a.of in outputs}
        for name in inputs:
            note(step, name, 0 if name in viewed or name in slid else by_name[name].size, 0, False)
        for name in outputs:
            there = sum(by_name[one].size for one in slid if aliases[one].of == name)
            written = 0 if name in views else max(by_name[name].size - there, 0)
            note(step, name, 0, written, name not in views)
        if operator.workspace:
            note(step, workspace(operator.name, step, values), operator.workspace, operator.workspace, True)
    given = {value.name: value.kind for value in graph.values if value.kind in ("input", "constant")}
    units = []
    for name, ranges in alias_classes(problem).items():
        units.append(
            Unit(
                name,
                by_name[name].size,
                problem.aligned(by_name[name].size),
                ranges[0][0],
                ranges[-1][1],
                tuple(uses[name][step] for step in sorted(uses[name])),
                made=name not in given,
                stays=given.get(name) == "constant",
            )
        )
    # What is only there (a graph without operators) is there for one step.
    compute = tuple(operator.time for operator in graph.operators) or (0.0,)
    return Placement(machine, tuple(units), compute, aliases, problem, alignment)

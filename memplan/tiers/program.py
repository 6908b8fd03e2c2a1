"""Integer programs through PuLP: HiGHS where it is installed, CBC otherwise; what is found comes with a proven bound.

Two traps are kept in here. PuLP calls a solution "Optimal" that HiGHS had to leave at a limit, so that the bound is
read from HiGHS itself. And PuLP hands HiGHS no solution to start from; the subclass below does.

What a solver may do is counted: HiGHS asks at fixed places of its search whether it shall go on, and each question
counts as many steps as the program has entries, more at the root, where rounds of cuts lie between two. CBC is given a
number of nodes. Neither looks at a clock, unless the user asks for one.

Live bytes are written as a running sum over steps (`occupy`): the rows of all cliques of the interval graph would have
as many entries as there are values at each step, a running sum has two for each value and is solved faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulp

from memplan.errors import MemplanError
from memplan.work import Work

Terms = list[tuple[pulp.LpVariable, float]]


FEASIBLE = 2  # HiGHS' word for a primal solution that keeps all rows
STEPS_AT_ROOT, STEPS_AT_NODE = 15_000, 1_000  # for each entry of the program, between two questions of HiGHS


class NoPlan(MemplanError):
    """A solver that found nothing with its work."""


@dataclass(frozen=True, slots=True)
class Solved:
    """Objective and its proven lower bound, in the program's own unit; values by the variables' names."""

    objective: float
    bound: float
    solver: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Entry:
    """A variable (None: always) that takes `size` bytes in the half-open range of steps [begin, end)."""

    variable: pulp.LpVariable | None
    size: int
    begin: int
    end: int


class Program:
    """Minimises a sum of terms under linear rows; variables are numbered in the order in which they are made."""

    def __init__(self) -> None:
        self._problem = pulp.LpProblem("tiers", pulp.LpMinimize)
        self._cost: Terms = []
        self._constant = 0.0
        self._variables: list[pulp.LpVariable] = []
        self._rows = 0

    def binary(self) -> pulp.LpVariable:
        """A variable that is 0 or 1."""
        return self._add(0, 1, pulp.LpBinary)

    def continuous(self, low: float | None = 0.0, high: float | None = None) -> pulp.LpVariable:
        """A variable between two bounds; None: unbounded."""
        return self._add(low, high, pulp.LpContinuous)

    def _add(self, low: float | None, high: float | None, category: str) -> pulp.LpVariable:
        variable = pulp.LpVariable(f"v{len(self._variables)}", low, high, category)
        self._variables.append(variable)
        return variable

    def cost(self, variable: pulp.LpVariable, each: float) -> None:
        """Add a term to what is minimised."""
        self._cost.append((variable, each))

    def at_most(self, terms: Terms, limit: float) -> None:
        """The sum of the terms is at most `limit`."""
        self._row(terms, pulp.LpConstraintLE, limit)

    def at_least(self, terms: Terms, limit: float) -> None:
        """The sum of the terms is at least `limit`."""
        self._row(terms, pulp.LpConstraintGE, limit)

    def equal(self, terms: Terms, to: float) -> None:
        """The sum of the terms is `to`."""
        self._row(terms, pulp.LpConstraintEQ, to)

    def _row(self, terms: Terms, sense: int, right: float) -> None:
        joined: dict[pulp.LpVariable, float] = {}
        for variable, factor in terms:
            joined[variable] = joined.get(variable, 0.0) + factor
        self._rows += 1
        self._problem += pulp.LpConstraint(pulp.LpAffineExpression(joined), sense, f"r{self._rows}", right)

    def occupy(self, entries: Sequence[Entry], capacity: Sequence[int]) -> None:
        """At each step, what is taken is at most the capacity (bytes, by step).

        Only steps at which a clique is maximal get a row: those before something ends and after something began.
        """
        unit = max(max(capacity, default=1), 1) / 1e3
        begins: list[list[int]] = [[] for _ in capacity]
        ends: list[list[int]] = [[] for _ in range(len(capacity) + 1)]
        for number, entry in enumerate(entries):
            if entry.size and entry.begin < entry.end:
                begins[entry.begin].append(number)
                ends[entry.end].append(number)
        changed: dict[int, float] = {}  # entries that the last running sum lacks (1) or has too many (-1)
        taken = fixed = 0  # bytes if all variables are 1; of entries without a variable
        last, last_capacity, grown = None, 0, False
        for step, most in enumerate(capacity):
            for number in begins[step]:
                changed[number] = 1.0
                taken += entries[number].size
                fixed += entries[number].size if entries[number].variable is None else 0
                grown = True
            following = capacity[step + 1] if step + 1 < len(capacity) else None
            maximal = bool(ends[step + 1]) or following is None or following > most
            if taken > most and maximal and (grown or most < last_capacity):
                now = self.continuous(0.0, (most - fixed) / unit)
                terms: Terms = [(now, 1.0)] if last is None else [(now, 1.0), (last, -1.0)]
                for number, sign in changed.items():
                    variable = entries[number].variable
                    if variable is not None:
                        terms.append((variable, -sign * entries[number].size / unit))
                self.equal(terms, 0.0)
                last, last_capacity, grown, changed = now, most, False, {}
            for number in ends[step + 1]:
                if changed.pop(number, None) is None:
                    changed[number] = -1.0
                taken -= entries[number].size
                fixed -= entries[number].size if entries[number].variable is None else 0

    def solve(self, work: Work, gap: float, start: Mapping[str, float] | None = None, constant: float = 0.0) -> Solved:
        """Minimise; stops at the relative `gap` or when no work is left.

        `start`: values of some variables to begin with; HiGHS completes them. `constant` is added to the objective.
        Raises NoPlan where nothing was found.
        """
        self._problem += pulp.LpAffineExpression([*self._merged()], constant=constant)
        if work.over():
            raise NoPlan("there was no work left to ask a solver.")
        if pulp.HiGHS(msg=False).available():
            return self._highs(work, gap, start)
        return self._cbc(work, gap)

    def _merged(self) -> Terms:
        joined: dict[pulp.LpVariable, float] = {}
        for variable, each in self._cost:
            joined[variable] = joined.get(variable, 0.0) + each
        return list(joined.items())

    def _highs(self, work: Work, gap: float, start: Mapping[str, float] | None) -> Solved:
        # Searches within the search and restarts are left out: their presolve asks nothing (minutes beyond the limit
        # were measured), and what they look for, a good solution, is given at the start.
        solver = _WarmHiGHS(
            msg=False, threads=1, timeLimit=work.seconds_left(), gapRel=gap, mip_heuristic_effort=0.0,
            mip_heuristic_run_rins=False, mip_heuristic_run_rens=False, mip_heuristic_run_root_reduced_cost=False,
            mip_allow_restart=False,
        )  # fmt: skip
        solver.start = start or {}
        solver.work = work
        self._problem.solve(solver)
        work.over()  # a time limit that has ended it is noted
        # PuLP takes an interrupted search for one with a solution: whether there is one, HiGHS itself knows.
        info = self._problem.solverModel.getInfo()
        solved = self._problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
        if not solved or info.primal_solution_status != FEASIBLE:
            raise NoPlan(f"HiGHS found no plan ({pulp.LpStatus[self._problem.status]}).")
        constant = self._problem.objective.constant
        objective = pulp.value(self._problem.objective)
        # Without integer variables there is no dual bound of a search: a solved linear program is its own.
        searched = any(variable.cat == pulp.LpInteger for variable in self._variables)
        bound = info.mip_dual_bound + constant if searched else objective
        return Solved(objective, min(bound, objective), "HiGHS", self._values())

    def _cbc(self, work: Work, gap: float) -> Solved:
        """CBC tells PuLP no bound: that of the linear program is used, which is weaker and holds."""
        self._problem.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, mip=False, timeLimit=work.seconds_left()))
        relaxed = pulp.value(self._problem.objective) if self._problem.status == pulp.LpStatusOptimal else 0.0
        entries = sum(len(row) for row in self._problem.constraints.values())
        nodes = max(1, work.left // (STEPS_AT_ROOT * max(entries, 1)))
        left = work.seconds_left()
        self._problem.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=left, gapRel=gap, maxNodes=nodes))
        work.spend(nodes * STEPS_AT_ROOT * entries)
        if self._problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            raise NoPlan(f"CBC found no plan ({pulp.LpStatus[self._problem.status]}).")
        objective = pulp.value(self._problem.objective)
        return Solved(objective, min(relaxed, objective), "CBC", self._values())

    def _values(self) -> dict[str, float]:
        return {one.name: one.varValue for one in self._variables if one.varValue is not None}


class _WarmHiGHS(pulp.HiGHS):  # type: ignore[misc]  # PuLP is untyped
    """HiGHS through PuLP, from a solution that is known."""

    start: Mapping[str, float]
    work: Work

    def callSolver(self, lp: pulp.LpProblem) -> None:  # PuLP's name
        """Run, from the values of `start` where there are some, until no work is left."""
        entries = lp.solverModel.getNumNz()

        def asked(event: Any) -> None:
            self.work.spend(entries * (STEPS_AT_NODE if event.data_out.mip_node_count else STEPS_AT_ROOT))
            if self.work.over():
                event.interrupt()

        lp.solverModel.cbMipInterrupt += asked
        known = [(one.index, self.start[one.name]) for one in lp.variables() if one.name in self.start]
        if known:
            lp.solverModel.setSolution(len(known), [one[0] for one in known], [one[1] for one in known])
        lp.solverModel.run()

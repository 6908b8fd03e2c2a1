"""`python -m memplan tiers`: where every value of a graph lies in a machine's tiers, and when it moves.

The problem is one JSON document:

    {
      "schema": "memplan.tiers/1",
      "graph": {
        "values": [{"name": "x", "size": 4096, "kind": "input"}, ...],
        "operators": [{"name": "conv", "inputs": ["x", "w"], "outputs": ["y"], "time": 125000.0}, ...],
        "shares": [{"value": "y", "of": "x", "overwrites": true}]
      },
      "machine": "dram+pmem",
      "capacities": {"dram": "4GiB"}
    }

`graph` is what a document of `memplan.graph/1` contains: sizes in bytes; kinds temporary (the default), input, output,
constant; `time` is compute time in nanoseconds, without reading and writing, which tiers add; operators stand in the
order in which they run and may have a `workspace` (bytes). `machine` is a preset's name, the path of a TOML file, or
the tables of such a file: {"memory": {"tier": [...], "link": [...]}}. `capacities` (optional) replace the machine's.

The answer, on standard output (`memplan.tiers-plan/1`): `time`, `bound` and `baselines` in nanoseconds (simulated), the
relative `gap`, `stays` (half-open ranges of steps), `moves`, and by tier `capacity`, `arena_size`, `lower_bound` and
`offsets` (of each stay: the value's name, `name#2` for its second stay in that tier).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import click
import msgspec

from memplan.compiling import telling
from memplan.errors import MemplanError
from memplan.graph import Graph
from memplan.plan import Move, Stay
from memplan.tiers.machine import Machine, MachineTable, machine, parse_bytes
from memplan.tiers.placement import TiersTooSmall
from memplan.tiers.plan import Method, Mode, TierPlan, all_fast_time, plan_tiers
from memplan.verify.tiers import verify_tiers
from memplan.work import Limit


class InvalidTask(MemplanError):
    """A document that is no problem of tiers."""


class Task(msgspec.Struct, frozen=True):
    """The problem's document."""

    schema: Literal["memplan.tiers/1"]
    graph: Graph
    machine: str | MachineTable
    capacities: Mapping[str, int | str] = {}


class TierAnswer(msgspec.Struct, frozen=True):
    """What one tier holds."""

    name: str
    capacity: int
    arena_size: int
    lower_bound: int
    most_held: int
    offsets: Mapping[str, int]


class Answer(msgspec.Struct, frozen=True):
    """The plan's document; times in nanoseconds, simulated."""

    schema: Literal["memplan.tiers-plan/1"]
    machine: str
    mode: Mode
    method: Method
    solver: str
    limited: Limit | None
    time: float
    bound: float
    gap: float
    operators_time: float
    waiting_time: float  # for copies before operators
    stalled_time: float  # for overlapped copies after an operator's end
    baselines: Mapping[str, float | None]  # None: does not fit
    order: tuple[str, ...]
    tiers: tuple[TierAnswer, ...]
    stays: tuple[Stay, ...]
    moves: tuple[Move, ...]
    lies_in: Mapping[str, str]  # values without bytes of their own: where what they lie in is, they are


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--mode", type=click.Choice(get_args(Mode)), default="static", show_default=True,
    help="Whether values move, and whether operators wait for it.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(get_args(Method)), default="ilp", show_default=True, help="How the plan is found."
)
@click.option("--work", type=int, help="Steps of the integer program at most, a nanosecond each, about.")
@click.option(
    "--time-limit", type=float, help="Seconds for it at most, instead: the plan may then be another next time."
)
def command(problem: Path, mode: Mode, method: Method, work: int | None, time_limit: float | None) -> None:
    """Where every value of a graph lies in a machine's tiers, and when it moves; JSON on standard output.

    PROBLEM is a JSON document of memplan.tiers/1.
    """
    task = read_task(problem)
    target = machine_of(task)
    with telling(partial(click.echo, err=True)):
        plan = plan_tiers(task.graph, target, mode=mode, method=method, work=work, time_limit=time_limit)
    verify_tiers(task.graph, plan.memory, plan.capacities, plan.aliases, plan.alignment)
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer(task.graph, plan)), indent=1) + b"\n")


def read_task(file: Path) -> Task:
    """The problem in a file; raises InvalidTask, or what the graph and the machine refuse."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Task)
    except OSError as error:
        raise InvalidTask(f"'{file}' cannot be read: {error.strerror}.") from None
    except msgspec.ValidationError as error:
        raise InvalidTask(f"'{file}' is no document of 'memplan.tiers/1': {error}.") from None
    except msgspec.DecodeError as error:
        raise InvalidTask(f"'{file}' is no JSON: {error}.") from None


def machine_of(task: Task) -> Machine:
    """The machine of a problem, with the problem's capacities."""
    target = machine(task.machine) if isinstance(task.machine, str) else task.machine.machine()
    for tier, capacity in task.capacities.items():
        target = target.with_capacity(tier, parse_bytes(capacity))
    return target


def answer(graph: Graph, plan: TierPlan) -> Answer:
    """The plan's document, with the times of the baselines."""
    baselines: dict[str, float | None] = {"all fast": all_fast_time(graph, plan.machine, alignment=plan.alignment)}
    methods: tuple[Method, ...] = ("first-touch", "all-slow")
    for method in methods:
        try:
            baselines[method] = plan_tiers(graph, plan.machine, method=method, alignment=plan.alignment).time
        except TiersTooSmall:
            baselines[method] = None
    tiers = tuple(
        TierAnswer(
            tier.name,
            tier.capacity,
            plan.memory.arenas[tier.name].arena_size,
            plan.memory.arenas[tier.name].lower_bound,
            max(held, default=0),
            plan.memory.arenas[tier.name].offsets,
        )
        for tier, held in zip(plan.machine.tiers, plan.simulation.occupancy, strict=True)
    )
    simulation = plan.simulation
    return Answer(
        schema="memplan.tiers-plan/1",
        machine=plan.machine.name,
        mode=plan.mode,
        method=plan.method,
        solver=plan.solver,
        limited=plan.limited,
        time=plan.time,
        bound=plan.bound,
        gap=plan.gap,
        operators_time=sum(simulation.operators),
        waiting_time=sum(simulation.waits),
        stalled_time=sum(simulation.stalls),
        baselines=baselines,
        order=plan.memory.order,
        tiers=tiers,
        stays=plan.memory.stays,
        moves=plan.memory.moves,
        lies_in={name: alias.of for name, alias in plan.aliases.items()},
    )

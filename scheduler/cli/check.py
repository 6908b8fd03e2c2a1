"""`python -m scheduler check`: whether a program is safe on a device, as JSON, and in one sentence why not."""

from __future__ import annotations

import json
from pathlib import Path

import click

from scheduler.buffers import read_buffers
from scheduler.device import Device, device
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.program import Pinned, Plain, Program, Run, Ticketed, count_waits, read, read_graph
from scheduler.tasks import Kernel, Region, TaskGraph, chosen
from scheduler.verify.program import verify
from scheduler.verify.reuse import verify_reuse

NO_NEEDS = "deadlock only: pass --graph to check needs and kernels too"
NO_REUSE = "deadlock and needs: pass --buffers to check the reuse of bytes too"
ALL = "deadlock, needs, and the reuse of bytes"


@click.command()
@click.argument("program", type=click.Path(path_type=Path))
@click.option("--device", "device_name", required=True, help="cpu, cpu:N, a preset (v100, h200) or a machine file.")
@click.option("--graph", type=click.Path(path_type=Path), help="The program's task graph, as JSON.")
@click.option("--buffers", type=click.Path(path_type=Path), help="Where its buffers lie, as JSON; with --graph.")
def command(program: Path, device_name: str, graph: Path | None, buffers: Path | None) -> None:
    """Whether the program ends, and, given its task graph, whether each block comes after what it needs.

    Given its buffers too, whether those that share bytes are never in use at once. Prints the verdict with the reason,
    how many pairs of buffers share bytes, the most workers of a launch, the fewest of its workers that are resident at
    once, the number of launches and that of waits. Exit status 1 for an unsafe program and for bad input.
    """
    on = device(device_name)
    read_program = read(_content(program, "program"))
    tasks = _stand_in(read_program) if graph is None else read_graph(_content(graph, "task graph"))
    if buffers is not None and graph is None:
        raise InvalidProgram("buffers are checked with the task graph whose regions use them: pass --graph too.")
    reason, pairs = None, None
    try:
        if buffers is None:
            verify(tasks, read_program, on)
        else:
            pairs = verify_reuse(tasks, read_program, read_buffers(_content(buffers, "file of buffers")), on)
    except UnsafeProgram as error:
        reason = error
    found = {
        "safe": reason is None,
        "reason": None if reason is None else str(reason),
        "checked": NO_NEEDS if graph is None else NO_REUSE if buffers is None else ALL,
        "sharing": pairs,
        "workers": max(map(_workers, read_program.launches), default=0),
        "resident": _resident(tasks, read_program, on, known=graph is not None),
        "launches": len(read_program.launches),
        "waits": sum(map(count_waits, read_program.launches)),
    }
    click.echo(json.dumps(found))
    if reason is not None:
        raise reason


def _content(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidProgram(f"the {what} '{file}' cannot be read: {error.strerror}.") from None


def _stand_in(program: Program) -> TaskGraph:
    """A task graph of the regions and blocks that the program itself names, without needs."""
    blocks = dict.fromkeys(program.choice, 1)
    runs: list[Run] = []
    for launch in program.launches:
        if isinstance(launch, Pinned):
            runs += [one for worker in launch.workers for one in worker if isinstance(one, Run)]
        elif isinstance(launch, Ticketed):
            runs += [item.run for item in launch.items]
        else:
            runs.append(Run(launch.region, 0))
    for run in runs:
        if run.block >= len(runs):
            raise InvalidProgram(
                f"the program runs block {run.block} of '{run.region}', and has {len(runs)} runs; each block runs once."
            )
        blocks[run.region] = max(blocks.get(run.region, 1), run.block + 1)
    regions = []
    for name, count in blocks.items():
        kernels = max(0, min(program.choice.get(name, 0), 1 << 10)) + 1
        regions.append(Region(name, (Kernel("not known", count, (0.0,)),) * kernels))
    return TaskGraph(program.graph, tuple(regions))


def _workers(launch: Pinned | Ticketed | Plain) -> int:
    if isinstance(launch, Plain):
        return 0
    return len(launch.workers) if isinstance(launch, Pinned) else launch.workers


def _resident(graph: TaskGraph, program: Program, on: Device, known: bool) -> int | None:
    """None where no launch says, or its kernels would have to be known, what a block takes."""
    kernels = chosen(graph, program.choice)
    found = [
        on.resident(kernels[launch.region].resources if isinstance(launch, Plain) else launch.resources)
        for launch in program.launches if known or not isinstance(launch, Plain)
    ]  # fmt: skip
    return min(found, default=None)

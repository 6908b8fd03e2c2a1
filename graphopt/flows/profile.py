"""`profile`: the steps of a program by time, from the stamps that its workers leave."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from graphopt.errors import OptionError
from graphopt.flows.compile import compile
from graphopt.flows.records.profile import Blocks, ProfileRecord, StepLine, WorkerLine
from graphopt.flows.run import drawn_inputs
from graphopt.flows.shown import Shown
from graphopt.flows.source import name_of
from graphopt.machine.record import MachineRecord
from graphopt.model.load import Source
from graphopt.model.text import Progress, nearest, silent
from graphopt.program.deploy import runtime
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.manifest import (
    SharedKernel,
    Step,
    claims_of,
    forms_of,
    read_manifest,
    shared_of,
    steps_of,
)
from graphopt.program.deploy.session import Bundle
from kernels.peak import peak_flops
from kernels.target import host

DEFAULT_ROUNDS = 20
WARM_UP = 3  # calls before those that count
Stamps = npt.NDArray[Any]  # of runtime.STAMP


@dataclass(frozen=True, slots=True, repr=False)
class ProfileReport(Shown):
    """The record of a profile; it shows and writes itself."""

    record: ProfileRecord

    def __repr__(self) -> str:
        kept, slowest = self.record, max(self.record.steps, key=lambda line: line.work, default=None)
        most = f", most in {slowest.node or slowest.kernel}" if slowest is not None else ""
        return f"<ProfileReport {kept.program}: {kept.wall / 1e6:.3g} ms with {kept.workers} threads{most}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page (.html) or the record (.json). Raises OptionError for another ending, and SaveError."""
        self.write(path)

    def _record(self) -> ProfileRecord:
        return self.record

    def _headers(self) -> tuple[str, ...]:
        return ("step", "ms of work", "Gflop/s")

    def _figures(self) -> list[tuple[str, ...]]:
        lines = sorted(self.record.steps, key=lambda line: -line.work)
        return [(line.node or line.kernel, f"{line.work / 1e6:.3g}", f"{line.rate:.3g}") for line in lines]


@dataclass(frozen=True, slots=True)
class Profiled:
    """A program, and what its steps are."""

    name: str
    program: runtime.Program
    steps: tuple[Step, ...]
    claims: tuple[int, ...]  # as a manifest has them
    forms: tuple[Step | SharedKernel, ...]  # by step what several workers run
    sizes: Mapping[str, int] = field(default_factory=dict)  # of its free dims, else the greatest

    def feeds(self) -> dict[str, np.ndarray]:
        """Values for all inputs at these sizes, the same every time."""
        return drawn_inputs(self.program, self.sizes)


def profile(
    source: Source | Compiled,
    *,
    threads: int = 0,
    rounds: int = DEFAULT_ROUNDS,
    feeds: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    machine: MachineRecord | str | None = None,
    tune: float = 0.0,
    progress: Progress | None = None,
) -> ProfileReport:
    """Where the time of a bundle, a compiled program or a model goes, step by step and worker by worker.

    A model is compiled first, for `shapes` and `dims`, with `machine` and `tune` as for `compile`; of a bundle and a
    compiled program `dims` are sizes within their ranges, else the greatest. `threads` run it, 0: as many as it may use
    cores; a compiled program keeps those it has. Figures are medians of `rounds` calls. Inputs that `feeds` lacks are
    drawn, the same every time. The peak beside which steps stand is measured in the same process; operations of a step
    are known at the greatest sizes. Raises BundleError for a program that cannot be run or has parts in ONNX Runtime,
    OptionError for a request that does not fit, and what `compile` raises.
    """
    if rounds < 1:
        raise OptionError(f"{rounds} rounds give no median; ask for 1 at least.")
    progress = progress or silent
    found = open_profiled(
        source, threads=threads, shapes=shapes, dims=dims, machine=machine, tune=tune, progress=progress
    )
    given = dict(feeds or {})
    names = [one.name for one in found.program.inputs]
    for name in given:
        if name not in names:
            raise OptionError(f"there is no input '{name}'; {nearest(name, names)}.")
    progress("running")
    return ProfileReport(profile_record(found, found.feeds() | given, threads, rounds))


def open_profiled(
    source: Source | Compiled,
    *,
    threads: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    machine: MachineRecord | str | None = None,
    tune: float = 0.0,
    progress: Progress = silent,
) -> Profiled:
    """The program of a bundle's folder, of a compiled program, or of a model, which is compiled now."""
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        if shapes:
            raise OptionError(f"'{source}' is a bundle, whose shapes are fixed; profile its model for others.")
        manifest = read_manifest(source)
        manifest.require_one("profiled")
        program = Bundle(source, threads=threads)
        several = [manifest.kernels[use.several].name for use in manifest.uses if use.several is not None]
        forms = forms_of(manifest.runs, manifest.shared, several)
        return _at_sizes(Profiled(name_of(source), program, manifest.runs, manifest.claims, forms), dims or {})
    if isinstance(source, Compiled):
        compiled, name = source, source.linked.listing.name
    else:
        compiled = compile(
            source, shapes=shapes, dims=dims, threads=threads, machine=machine, tune=tune, progress=progress
        )
        name = name_of(source)
    listing = compiled.linked.listing
    steps = steps_of(listing, [region.nodes for region in compiled.lowered.regions])
    several = [run.kernel for run in listing.ticketed.runs] if listing.ticketed is not None else []
    forms = forms_of(steps, shared_of(listing), several)
    found = Profiled(name, compiled.program, steps, claims_of(listing), forms)
    return _at_sizes(found, dims or {}) if compiled is source else found


def _at_sizes(found: Profiled, sizes: Mapping[str, int]) -> Profiled:
    """At sizes within the program's ranges; below the greatest ones the operations of a step are not known."""
    ranges = found.program.ranges
    for name, size in sizes.items():
        if name not in ranges:
            free = nearest(name, list(ranges)) if ranges else "it has none"
            raise OptionError(f"'{found.name}' has no free dim '{name}': {free}; profile its model for other sizes.")
        least, most = ranges[name]
        if not least <= size <= most:
            raise OptionError(f"dim '{name}' is {size}; '{found.name}' was made for {least} to {most}.")
    if all(size == ranges[name][1] for name, size in sizes.items()):
        return found
    steps = tuple(structs.replace(one, flops=0) for one in found.steps)
    return replace(found, steps=steps, sizes=dict(sizes))


def profile_record(found: Profiled, feeds: Mapping[str, np.ndarray], threads: int, rounds: int) -> ProfileRecord:
    """Profile so many calls on the same inputs; all of them must be given."""
    program = found.program
    for _ in range(WARM_UP):
        program.run(None, feeds)
    workers = (threads or len(os.sched_getaffinity(0))) if program.is_shared else 1
    calls = [program.profile(feeds) for _ in range(rounds)]
    workers = max(workers, *(int(stamps["worker"].max(initial=0)) + 1 for stamps in calls))
    claims = found.claims if program.is_shared and found.claims else range(len(found.steps))
    return summarized(found, np.array(claims, np.int64), calls, workers, peak_flops(host(), workers) / 1e9)


def summarized(
    found: Profiled, claims: npt.NDArray[np.int64], calls: Sequence[Stamps], workers: int, peak: float
) -> ProfileRecord:
    """The medians of stamped calls; `claims` has the step of each row, `peak` is in operations a nanosecond."""
    walls = [_wall(stamps) for stamps in calls]
    middle = calls[int(np.argsort(walls, kind="stable")[(len(walls) - 1) // 2])]
    tables = [_by_step(stamps, claims[stamps["row"]], len(found.steps)) for stamps in calls]
    wall, work, waited = np.median(np.array(tables), axis=0)
    busy = np.array([np.bincount(one["worker"], one["end"] - one["begin"], workers) for one in calls])
    blocks = np.bincount(middle["worker"], minlength=workers)
    waiting = np.array(walls)[:, None] - busy
    lines = []
    for number, step in enumerate(found.steps):
        form = found.forms[number] if found.program.is_shared else step
        rate = step.flops / work[number] if work[number] else 0.0
        lines.append(
            StepLine(
                number, step.node, step.operators, step.kernel, form.candidate, form.blocks, step.flops, step.constants,
                float(wall[number]), float(work[number]), float(waited[number]), float(rate), float(rate / peak),
            )
        )  # fmt: skip
    start = int(middle["begin"].min(initial=2**63 - 1)) if len(middle) else 0
    columns = (
        claims[middle["row"]], middle["worker"], middle["block"], middle["begin"] - start, middle["end"] - start,
    )  # fmt: skip
    return ProfileRecord(
        found.name, workers, len(calls), float(np.median(walls)), float(peak), tuple(lines),
        tuple(
            WorkerLine(worker, int(blocks[worker]), float(np.median(busy[:, worker])),
                       float(np.median(waiting[:, worker])))
            for worker in range(workers)
        ),
        Blocks(*(tuple(column.tolist()) for column in columns)),
    )  # fmt: skip


def _wall(stamps: Stamps) -> int:
    return int(stamps["end"].max() - stamps["begin"].min()) if len(stamps) else 0


def _by_step(stamps: Stamps, step: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.float64]:
    """Wall, work and waiting of each step, in three rows."""
    first, last = np.full(steps, np.inf), np.full(steps, -np.inf)
    np.minimum.at(first, step, stamps["begin"])
    np.maximum.at(last, step, stamps["end"])
    wall = np.where(last >= first, last - first, 0.0)
    work = np.bincount(step, stamps["end"] - stamps["begin"], steps)
    waited = np.zeros(steps)
    for worker in np.unique(stamps["worker"]):
        own = stamps["worker"] == worker
        begins, ends = stamps["begin"][own], stamps["end"][own]
        before = np.concatenate([[stamps["begin"].min()], ends[:-1]])
        np.add.at(waited, step[own], begins - before)
    return np.stack([wall, work, waited])

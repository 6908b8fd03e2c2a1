"""Bars of the scheduler's policies: networks with branches on frozen devices, simulated with one cost model for all.

Inception-V3 is read from the inter-operator scheduler's file (`--data FOLDER` with inception_v3_batch1.json) or built
here; RandWire's wirings are those of the folder (ws-32-*.txt) or drawn here; NASNet-like is built here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from models.regions import Gathered
from models.taskgraphs import inception_v3, nasnet_like, randwire, read_operators, read_wiring
from scheduler.device import Device, device
from scheduler.policies.blocks import blocks
from scheduler.policies.choose import BASELINES, Scheduled, schedule
from scheduler.policies.problem import problem_of
from scheduler.policies.search import first_tries
from scheduler.tasks import TaskGraph

ISSUE = 7
DEVICES = ("v100", "h200")
OVER_LAUNCHES, OVER_WAVES = 1.6, 1.1
INCEPTION_GAP, RANDWIRE_GAP = 0.06, 0.05
WORK, QUICK_WORK = 45_000_000, 4_500_000  # blocks placed
SAME_TIMES = ("critical path", "work", "Fernandez-Bussell")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Each network on each device under all policies; what each part of the scheduler is worth."""
    work = QUICK_WORK if quick else WORK
    made: dict[tuple[str, str], Scheduled] = {}
    rows, ablation = [], []
    for name in DEVICES:
        at = device(name)
        for kind, graph in graphs(at, data).items():
            one = made[name, kind] = schedule(graph, at, work=work)
            rows.append((
                name, kind, len(graph.regions), *(_us(one.figures.get(each)) for each in _COLUMNS), one.policy,
                *(_us(one.bounds[each]) for each in (*SAME_TIMES, "any kernels")), 100 * gap(one), one.waits,
                len(one.program.launches),
            ))  # fmt: skip
            ablation.extend(_ablation(name, kind, graph, at, work))
    columns = (
        "device",
        "network",
        "regions",
        *_COLUMNS,
        "best",
        *SAME_TIMES,
        "any kernels",
        "gap %",
        "waits",
        "launches",
    )
    sheet.table("makespan by policy and bounds, us, simulated", columns, rows)
    sheet.table(
        "one launch: makespan without one part of it, us, simulated",
        ("device", "network", "what", "us", "over all of it"), ablation,
    )  # fmt: skip
    sheet.table(
        "Inception-V3 over one launch per region, by which convolutions have only convolutions' kernels, us, simulated",
        ("device", "which", "launches", "best", "launches / best", "gap %"),
        [row for name in DEVICES for row in _gathered(name, made[name, "inception_v3"], data, work)],
    )  # fmt: skip
    return _bars(made)


def _gathered(name: str, every: Scheduled, data: Path | None, work: int) -> list[tuple[object, ...]]:
    """The bar's figure as it is, and with other kernels: what a choice of the cost model is worth."""
    at = device(name)
    found = {"all, as in the bars": every}
    others: Mapping[str, Gathered] = {"those with windows": "windows", "none: depth cut, smallest tiles": "none"}
    for what, gathered in others.items():
        found[what] = schedule(_inception(at, data, gathered), at, work=work)
    return [
        (name, what, _us(one.figures["launches"]), _us(one.makespan), one.figures["launches"] / one.makespan,
         100 * gap(one))
        for what, one in found.items()
    ]  # fmt: skip


_COLUMNS = (*BASELINES, "wavefront", "blocks", "cutting", "batching")


def graphs(at: Device, data: Path | None) -> Mapping[str, TaskGraph]:
    """The networks; from files where the folder has them."""
    wirings = sorted(data.glob("ws-32-*.txt")) if data else []
    drawn = [read_wiring(wirings[stage % len(wirings)]) for stage in range(3)] if wirings else None
    return {"inception_v3": _inception(at, data), "nasnet_like": nasnet_like(at), "randwire": randwire(at, drawn)}


def _inception(at: Device, data: Path | None, gathered: Gathered = "all") -> TaskGraph:
    file = data / "inception_v3_batch1.json" if data else None
    return read_operators(file, at, gathered) if file is not None and file.exists() else inception_v3(at, gathered)


def gap(one: Scheduled) -> float:
    """By how much the makespan is over the best bound of the same block times."""
    return one.makespan / max(one.bounds[name] for name in SAME_TIMES) - 1


def _ablation(name: str, kind: str, graph: TaskGraph, at: Device, work: int) -> list[tuple[object, ...]]:
    """One launch of blocks, and the same with whole regions waited for, one choice of kernels, or few workers."""
    problem = problem_of(graph, at)
    tries = work // 9
    whole = TaskGraph(graph.name, graph.regions, tuple(type(need)(need.source, need.target) for need in graph.needs))
    plans = {
        "all of it": blocks(problem, tries),
        "waits for whole regions": blocks(problem_of(whole, at), tries),
        "kernels fastest alone": blocks(problem, 0, (0.0,)),
        "no local search": blocks(problem, 0),
    }
    found: dict[str, float] = {}
    for what, plan in plans.items():
        if plan is not None:
            found[what] = sum(one.makespan for one in plan.launches if not isinstance(one, int)) + at.launch_ns
    for workers in (1, 2, 4):
        tried = first_tries(problem, range(problem.count), workers)
        if tried is not None:
            found[f"no local search, {workers} workers per multiprocessor"] = tried.makespan + at.launch_ns
    least = found.get("all of it", float("nan"))
    return [(name, kind, what, _us(makespan), makespan / least) for what, makespan in found.items()]


def _us(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e3


def _bars(made: Mapping[tuple[str, str], Scheduled]) -> list[Bar]:
    over = {
        name: made[name, "inception_v3"].figures["launches"] / made[name, "inception_v3"].makespan for name in DEVICES
    }
    waves = {
        name: mean(
            made[name, kind].figures["waves"] / made[name, kind].makespan for kind in ("nasnet_like", "randwire")
        )
        for name in DEVICES
    }
    slower = sum(
        one.makespan > min(one.figures[baseline] for baseline in BASELINES) for one in made.values()
    )  # fmt: skip
    gaps = {kind: {name: gap(made[name, kind]) for name in DEVICES} for kind in ("inception_v3", "randwire")}
    return [
        Bar(ISSUE, 4, "simulated: Inception-V3 over one launch per region", f"{OVER_LAUNCHES} x", _times(over),
            min(over.values()) >= OVER_LAUNCHES),
        Bar(ISSUE, 4, "simulated: NASNet and RandWire over wave by wave", f"{OVER_WAVES} x", _times(waves),
            min(waves.values()) >= OVER_WAVES),
        Bar(ISSUE, 4, "simulated: slower than the best baseline", "0", str(slower), slower == 0),
        Bar(ISSUE, 5, "simulated: Inception-V3 over its bound", f"{INCEPTION_GAP:.0%}", _shares(gaps["inception_v3"]),
            max(gaps["inception_v3"].values()) <= INCEPTION_GAP),
        Bar(ISSUE, 5, "simulated: RandWire over its bound", f"{RANDWIRE_GAP:.0%}", _shares(gaps["randwire"]),
            max(gaps["randwire"].values()) <= RANDWIRE_GAP),
    ]  # fmt: skip


def _times(by_device: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} x" for name, value in by_device.items())


def _shares(by_device: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1%}" for name, value in by_device.items())


if __name__ == "__main__":
    main(measure)

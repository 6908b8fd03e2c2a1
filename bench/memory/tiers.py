"""Bar 9: placement in tiers on the machine of AutoTM (DRAM and persistent memory). All times of plans are simulated.

    python -m bench.memory.tiers [--quick]

Static placement of about 10,000 tensors and moves of about 2,000, on synthetic training graphs: a random forward pass
with branches and its mirror image. Then AutoTM's networks with 50 % and 80 % of their peak's DRAM taken away: how much
slower a training step is than with all in DRAM.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from memplan.graph import Graph, Operator, Value
from memplan.tiers.machine import Machine, machine
from memplan.tiers.placement import placement
from memplan.tiers.plan import Method, Mode, TierPlan, all_fast_time, plan_tiers
from memplan.verify.tiers import verify_tiers
from models.training_networks import BATCHES, training_graph

ISSUE = 6
MACHINE = "dram+pmem"
STATIC_LAYERS, MOVING_LAYERS = 2_550, 510  # about four tensors each
STATIC_SECONDS, MOVING_SECONDS = 20.0, 60.0
STATIC_WORK, MOVING_WORK = 14_000_000_000, 42_000_000_000  # steps of the integer program
STATIC_GAP, MOVING_GAP, HEURISTIC_GAP = 0.01, 0.02, 0.03
SHARES = (0.5, 0.2)  # of the peak that DRAM still holds
MODES: tuple[Mode, ...] = ("static", "sync", "async")
AUTOTM, AUTOTM_FIRST_TOUCH = 27.7, 71.9  # percent lost, geometric mean, as the paper reports it for its own machine


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """The synthetic graphs, then the networks."""
    plan_tiers(synthetic(20, 0), _with(synthetic(20, 0), 0.5), mode="async")  # numba compiles
    return [*_synthetic(sheet, quick), _networks(sheet, quick)]


def synthetic(layers: int, seed: int) -> Graph:
    """A training graph: every layer reads one to three of those before it and weights; the mirror reads them again."""
    rng = random.Random(seed)
    values = [Value("x", 1 << 26, "input")]
    operators: list[Operator] = []
    sizes = {"x": 1 << 26}
    reads: list[tuple[str, ...]] = []
    made = ["x"]
    for layer in range(layers):
        shrink = 2.0 ** (-4.0 * layer / layers)  # features become smaller with depth, weights larger
        sources = {made[-1]} | {rng.choice(made[-12:]) for _ in range(rng.choice((0, 0, 0, 1, 2)))}
        size = int((1 << 26) * shrink * math.exp(rng.gauss(0.0, 0.8))) + 1
        weights = int((1 << 14) / shrink * math.exp(rng.gauss(0.0, 1.5))) + 1
        name = f"f{layer}"
        values += [Value(f"w{layer}", weights, "constant"), Value(name, size)]
        sizes |= {name: size, f"w{layer}": weights}
        reads.append(tuple(sorted(sources)))
        operators.append(_operator(rng, name, (*reads[-1], f"w{layer}"), (name,), sizes, 1.0))
        made.append(name)
    gradients: dict[str, list[str]] = {}
    for layer in range(layers - 1, -1, -1):
        name, makes = f"f{layer}", [f"w{layer}.grad"]
        values.append(Value(makes[0], sizes[f"w{layer}"], "output"))
        sizes[makes[0]] = sizes[f"w{layer}"]
        for source in reads[layer]:
            if source != "x":
                makes.append(f"{source}.grad.{name}")
                values.append(Value(makes[-1], sizes[source]))
                sizes[makes[-1]] = sizes[source]
                gradients.setdefault(source, []).append(makes[-1])
        needs = (*gradients.get(name, ()), *reads[layer], f"w{layer}")
        operators.append(_operator(rng, f"{name}.backward", needs, tuple(makes), sizes, 2.0))
    return Graph(tuple(values), tuple(operators))


def _operator(
    rng: random.Random, name: str, reads: tuple[str, ...], makes: tuple[str, ...], sizes: dict[str, int], work: float
) -> Operator:
    """From bound by memory (1/4 of the time that its bytes take at 100 GB/s) to bound by compute (4 times)."""
    moved = sum(sizes[one] for one in (*reads, *makes))
    return Operator(name, reads, makes, work * moved / 100.0 * 2.0 ** rng.uniform(-2.0, 2.0))


def _with(graph: Graph, share: float) -> Machine:
    """The machine with a share of the graph's peak as DRAM."""
    target = machine(MACHINE)
    return target.with_capacity("dram", int(max(placement(graph, target).live()) * share))


def _planned(graph: Graph, target: Machine, mode: Mode, method: Method, work: int) -> tuple[TierPlan, float]:
    """A verified plan, and the seconds that planning took."""
    begun = time.perf_counter()
    plan = plan_tiers(graph, target, mode=mode, method=method, work=work)
    taken = time.perf_counter() - begun
    verify_tiers(graph, plan.memory, plan.capacities, plan.aliases, plan.alignment)
    return plan, taken


def _synthetic(sheet: Sheet, quick: bool) -> list[Bar]:
    rows = []
    worst: dict[str, tuple[float, float]] = {"static": (0.0, 0.0), "moves": (0.0, 0.0), "heuristic": (0.0, 0.0)}
    for mode in MODES:
        for share in SHARES[1:] if quick else SHARES:
            for seed in range(1 if quick else 2):
                static = mode == "static"
                graph = synthetic(STATIC_LAYERS if static else MOVING_LAYERS, seed)
                target = _with(graph, share)
                plan, taken = _planned(graph, target, mode, "ilp", STATIC_WORK if static else MOVING_WORK)
                quickly, quick_taken = _planned(graph, target, mode, "heuristic", 0)
                loss = quickly.time / plan.time - 1
                for name, gap, seconds in (
                    ("static" if static else "moves", plan.gap, taken),
                    ("heuristic", loss, quick_taken),
                ):
                    worst[name] = (max(worst[name][0], gap), max(worst[name][1], seconds))
                rows.append((
                    mode, share, seed, len(graph.values), plan.time / all_fast_time(graph, target), f"{plan.gap:.2%}",
                    taken, f"{loss:+.2%}", quick_taken, plan.solver,
                ))  # fmt: skip
    columns = (
        "mode", "DRAM / peak", "seed", "tensors", "time / all DRAM", "gap", "seconds", "heuristic / program",
        "heuristic seconds", "solver",
    )  # fmt: skip
    sheet.table("tiers: synthetic training graphs on dram+pmem (simulated)", columns, rows)
    texts = {
        "static": (
            "tiers: static placement of 10,000 tensors",
            f"{STATIC_GAP:.0%} of the bound in {STATIC_SECONDS:.0f} s",
        ),
        "moves": ("tiers: moves of 2,000 tensors", f"{MOVING_GAP:.0%} of the bound in {MOVING_SECONDS:.0f} s"),
        "heuristic": ("tiers: heuristic against the program", f"within {HEURISTIC_GAP:.0%}"),
    }
    limits = {
        "static": (STATIC_GAP, STATIC_SECONDS), "moves": (MOVING_GAP, MOVING_SECONDS),
        "heuristic": (HEURISTIC_GAP, math.inf),
    }  # fmt: skip
    return [
        Bar(
            ISSUE, 9, *texts[name], f"{gap:.2%}, {seconds:.1f} s", gap <= limits[name][0] and seconds <= limits[name][1]
        )
        for name, (gap, seconds) in worst.items()
    ]


def _networks(sheet: Sheet, quick: bool) -> Bar:
    """How much slower AutoTM's networks are than with all in DRAM, in percent."""
    lost: dict[str, list[float]] = {}
    rows: list[tuple[object, ...]] = []
    method: Method = "heuristic" if quick else "ilp"
    for name in BATCHES:
        graph = training_graph(name, machine(MACHINE).peak_flops or 0.0)
        for share in SHARES:
            target = _with(graph, share)
            fast = all_fast_time(graph, target)
            row: list[float] = []
            wanted: Sequence[tuple[str, Mode, Method]] = [
                ("first touch", "static", "first-touch"),
                *((f"{mode} heuristic", mode, "heuristic") for mode in MODES),
                *((mode, mode, method) for mode in MODES if not quick),
            ]
            for column, mode, how in wanted:
                plan, _ = _planned(graph, target, mode, how, MOVING_WORK)
                row.append(100.0 * (plan.time / fast - 1))
                lost.setdefault(f"{column} {share}", []).append(plan.time / fast)
            rows.append((name, BATCHES[name], target.tiers[0].capacity / 2**30, f"{1 - share:.0%}", *row))
    columns = ["network", "batch", "DRAM GiB", "replaced", "first touch %", *(f"{mode} heuristic %" for mode in MODES)]
    columns += [] if quick else [f"{mode} %" for mode in MODES]
    for share in SHARES:
        means = [100.0 * (_mean(times) - 1) for key, times in lost.items() if key.endswith(f" {share}")]
        rows.append(("geometric mean", "", "", f"{1 - share:.0%}", *means))
    sheet.table("tiers: AutoTM's networks on dram+pmem, percent slower than all DRAM (simulated)", columns, rows)
    best = "async heuristic" if quick else "async"
    ours = [100.0 * (_mean(lost[f"{best} {share}"]) - 1) for share in SHARES]
    both = 100.0 * (_mean([one for share in SHARES for one in lost[f"{best} {share}"]]) - 1)
    touch = 100.0 * (_mean([one for share in SHARES for one in lost[f"first touch {share}"]]) - 1)
    figure = f"{both:.1f} % ({ours[0]:.1f} to {ours[1]:.1f}); first touch {touch:.1f} %; simulated"
    text = "tiers: AutoTM's networks, 50 to 80 % replaced"
    return Bar(ISSUE, 9, text, f"{AUTOTM} %; first touch {AUTOTM_FIRST_TOUCH} %", figure, both <= AUTOTM)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


if __name__ == "__main__":
    main(measure)

"""Whether kernels are chosen well: by estimate alone, after 3 s of measuring, and by another core's figures.

The best that is known of a kernel is the least time of all candidates that a long search measured where they lie in
the program (`SECONDS` of it for each model; what earlier searches found is kept in build/bench/choices and goes on).
Three figures for each model, weighted by time: how much longer the chosen candidates take than the best known ones,
and which share of the time is in kernels whose choice is within 5 % of the best.
"""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import pin
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.flows.asked import optimized
from graphopt.flows.source import read, resize
from graphopt.program.core import with_core
from graphopt.program.deploy.session import Program
from graphopt.program.listing import link
from graphopt.program.order import in_best_order
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.tuning import Tuning, tuned, with_choices
from kernels.target import Target, TargetName, named
from kernels.tune import Choice, Database, key

ISSUE, NUMBER = 19, 2
NAMES = (
    "resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "densenet121", "inception_v3", "nasnet_a_mobile",
    "unet_own", "resnext29_8x64d", "convnext_tiny", "vit_s16_legacy", "bert_base", "bert_small_rawdynamo",
    "t5_small_encoder",
)  # fmt: skip
QUICK = ("squeezenet1_1", "mobilenet_v2", "bert_small_rawdynamo")
TARGETS: tuple[TargetName, ...] = ("host", "x86-64-v3")
SECONDS, QUICK_SECONDS, SHORT = 60.0, 20.0, 3.0
OTHERS = ("znver4", "skylake-avx512")  # cores whose figures are wrong on most machines; the first that is not this one
NEAR, OFTEN = 1.05, 0.9
NEAR_MEASURED = 1.02
FOLDER = Path("build/bench/choices")


@dataclass(frozen=True, slots=True)
class Found:
    """Of one way to choose: its time beside that of the best known, and the share of time that is near it."""

    longer: float
    near: float


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and target."""
    pin()
    machine, rows = graphopt.machine(), []
    other = next(one for one in OTHERS if one != named("host").cpu)
    figures: dict[str, list[tuple[float, Found]]] = {}
    for target_name in TARGETS[: 1 if quick else None]:
        target = with_core(named(target_name), machine)
        for name in QUICK if quick else NAMES:
            lowered = _lowered(name, target)
            known = _searched(lowered, FOLDER / f"{name}-{target_name}.json", QUICK_SECONDS if quick else SECONDS)
            counts = Counter(region.kernel.name for region in lowered.regions)
            with tempfile.TemporaryDirectory() as folder:
                short = _searched(lowered, Path(folder) / "short.json", SHORT)
            ways = {"estimates": lowered, "3 s": with_choices(lowered, short)}
            ways[other] = _lowered(name, with_core(named(target_name), other))
            found = {way: _found(made, known, counts) for way, made in ways.items()}
            weight = _best(lowered, known, counts)
            for way, one in found.items():
                figures.setdefault(f"{way} {target_name}", []).append((weight, one))
            rows.append((name, target_name, weight / 1e6, *map(_told, found.values())))
            gc.collect()
    sheet.table(
        "time beside the best known candidates, and the share of time within 5 % of them",
        ("model", "target", "best, ms", "estimates", "3 s", other), rows,
    )  # fmt: skip
    means = {way: _mean(some) for way, some in figures.items()}
    met = all(one.near >= OFTEN for way, one in means.items() if way.startswith("estimates"))
    met &= all(one.longer <= NEAR_MEASURED for way, one in means.items() if way.startswith("3 s"))
    own = {way.split()[1]: one.longer for way, one in means.items() if way.startswith("estimates")}
    met &= all(one.longer > own[way.split()[1]] for way, one in means.items() if way.startswith(other))
    figure = "; ".join(f"{way} {_told(one)}" for way, one in means.items())
    wanted = f"estimates: {OFTEN:.0%} of the time within 5 %; 3 s: {NEAR_MEASURED}; another core's figures: slower"
    return [Bar(ISSUE, NUMBER, "chosen beside the best known", wanted, figure, met)]


def _lowered(name: str, target: Target) -> Lowered:
    original, _ = read(model_file(name), None, fix_defaults=True)
    if models.sizes(name):
        resize(original, {}, models.sizes(name))
    return in_best_order(lower(optimized(original), target))


def _searched(lowered: Lowered, file: Path, seconds: float) -> Mapping[str, Choice]:
    """What was measured of a program's kernels, after so many seconds more."""
    linked, database = link(lowered, "model", threads=1), Database(file)
    program = Program(linked.listing, linked.weights, lowered.target, threads=1)
    tuned(lowered, linked.listing, program, Tuning(database, seconds))
    return database.choices()


def _best(lowered: Lowered, known: Mapping[str, Choice], counts: Mapping[str, int]) -> float:
    """Nanoseconds of the best known candidates of all kernels."""
    keys = {name: key(*lowered.problems[name], lowered.target) for name in counts if name in lowered.problems}
    return sum(min(known[one].measured.values()) * counts[name] for name, one in keys.items() if one in known)


def _found(made: Lowered, known: Mapping[str, Choice], counts: Mapping[str, int]) -> Found:
    """A choice held against what is known; a candidate that nobody measured counts as the slowest that was."""
    best = taken = near = 0.0
    for name, kernel in {region.kernel.name: region.kernel for region in made.regions}.items():
        choice = known.get(key(*made.problems[name], made.target)) if name in made.problems else None
        if choice is None:
            continue
        least = min(choice.measured.values())
        mine = choice.measured.get(kernel.choice, max(choice.measured.values()))
        best, taken = best + counts[name] * least, taken + counts[name] * mine
        near += counts[name] * least if mine <= NEAR * least else 0.0
    return Found(taken / best, near / best) if best else Found(1.0, 1.0)


def _told(one: Found) -> str:
    return f"{one.longer:.3f} ({one.near:.0%})"


def _mean(some: list[tuple[float, Found]]) -> Found:
    """Models weigh the same, however long they take."""
    return Found(sum(one.longer for _, one in some) / len(some), sum(one.near for _, one in some) / len(some))


if __name__ == "__main__":
    main(measure)

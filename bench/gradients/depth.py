"""Memory of a training step against depth: `python -m bench.gradients.depth [--quick] [--page FILE]`.

Residual networks of 50 to 1,000 layers (models/deep.py) become programs of their steps for one thread, with a budget
that grows with the square root of depth and without one. The deepest trains for some steps in a memory control group
of little more than what its process takes with the budget, and is asked to do the same without one. What is beyond
parameters, gradients and state is counted, as in `bench.gradients.budgets`: a program has these in the caller's memory.
Extra time of the others is by the kernels' estimates. A step of 1,000 layers takes minutes to make.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer

import graphopt
from bench.bar import Bar, Sheet, console
from bench.gradients.budgets import BATCH, MIB
from bench.peers import OURS
from bench.ram.group import group, why_none
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.verification import OFF
from graphopt.flows.asked import optimized
from graphopt.gradient.step import open_carried
from graphopt.model.load import load
from graphopt.program.clock import Clock
from graphopt.program.deploy.compiled import Compiled, Whole
from graphopt.program.make import make_listing
from graphopt.report.interactive import interactive_page
from kernels.target import host
from models import deep

ISSUE, NUMBER = 23, 4
TEXT = "a step of {} layers under a limit of {:.0f} MiB, arena against depth"
TARGET = "trains where it does not without a budget; c x sqrt(depth), 35 % more time"
DEPTHS, QUICK_DEPTHS = (50, 110, 236, 500, 1000), (20, 50)
SHARE = 0.4  # of the arena of the least depth: its budget, from which the others follow
MOST_EXTRA = 35.0  # percent
STEPS = 5
ROOM = 1.1  # of a limit: more than what the process took without one
NAME = "step"
FOLDER = Path(__file__).parent / "templates"
# A process that knows numpy and the bundle: it trains on one batch drawn anew for each step.
CHILD = """
import json, sys, time
folder, arrays, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, folder)
import numpy as np
import step
program = step.load(folder)
with open(sys.argv[4]) as given:
    pairs = json.load(given)
with np.load(arrays) as given:
    values = {name: given[name] for name in given.files}
generator, losses, seconds = np.random.default_rng(0), [], []
for _ in range(steps):
    values["image"] = generator.standard_normal(values["image"].shape, np.float32)
    values["target"] = generator.integers(0, 10, values["target"].shape)
    begun = time.perf_counter()
    loss, *after = program.run([sys.argv[5], *pairs.values()], values)
    seconds.append(time.perf_counter() - begun)
    values.update(zip(pairs, after))
    losses.append(float(np.asarray(loss).reshape(-1)[0]))
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
print(json.dumps({"losses": losses, "seconds": sorted(seconds)[len(seconds) // 2], "peak": peak}))
"""


@dataclass(frozen=True, slots=True)
class Depth:
    """A network's arenas in bytes, and what its plan costs."""

    depth: int
    alone: int
    kept: int
    budget: int
    extra: float  # percent, by estimate
    seconds: float  # of making the program within the budget


@dataclass(frozen=True, slots=True)
class Trained:
    """What the deepest network's processes gave; a peak in bytes, seconds of a step."""

    limit: int
    kept: Mapping[str, object]
    inside: Mapping[str, object] | None  # of the group
    plain: Mapping[str, object]
    is_killed: bool  # without a budget, in the group

    @property
    def is_met(self) -> bool:
        """Whether the budget makes the difference, and no bit."""
        inside = self.inside is not None and self.inside["losses"] == self.kept["losses"]
        return inside and self.is_killed and self.kept["losses"] == self.plain["losses"]


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS, page: Path | None = None
) -> list[Bar]:
    """Arenas by depth, and the steps of the deepest network."""
    depths = QUICK_DEPTHS if quick else DEPTHS
    found: list[Depth] = []
    trained: Trained | None = None
    with tempfile.TemporaryDirectory() as folder:
        for depth in depths:
            step = graphopt.train_step(deep.build(depth, BATCH), loss="cross-entropy")
            original = load(step.to_proto())
            model = optimized(original)
            plain = _compiled(model, None)
            alone = plain.linked.listing.arena_bytes
            first = found[0] if found else None
            budget = int(SHARE * alone if first is None else first.budget * sqrt(depth / first.depth))
            begun = time.perf_counter()
            kept = _compiled(model, budget)
            took = time.perf_counter() - begun
            clock = Clock()
            extra = 100 * (clock.of(kept.lowered) / clock.of(plain.lowered) - 1)
            found.append(Depth(depth, alone, kept.linked.listing.arena_bytes, budget, extra, took))
            sheet.console.print(found[-1])
            if depth == depths[-1] and why_none() is None:
                trained = _trained(step.to_proto(), step, plain, kept, Path(folder))
    rows = [
        (one.depth, one.alone / MIB, one.kept / MIB, one.kept / one.alone, one.budget / MIB, one.extra, one.seconds)
        for one in found
    ]
    columns = ("layers", "MiB without a budget", "MiB", "share", "budget", "extra time %, estimate", "s")
    sheet.table("memory of a step beyond parameters, gradients and state", columns, rows)
    if trained is not None:
        _tell(sheet, trained)
    if page is not None:
        page.write_bytes(depth_page(found))
    is_kept = all(one.kept <= one.budget and one.extra <= MOST_EXTRA for one in found)
    figure = f"depth^{power(found):.2f}; "
    figure += "no control group here" if trained is None else f"trains: {trained.is_met}"
    limit = 0.0 if trained is None else trained.limit / MIB
    met = None if trained is None else is_kept and trained.is_met
    return [Bar(ISSUE, NUMBER, TEXT.format(depths[-1], limit), TARGET, figure, met)]


def power(found: Sequence[Depth]) -> float:
    """The power of depth that the arenas with a budget grow with: the slope of a line through their logarithms."""
    depths, arenas = (np.log([getattr(one, key) for one in found]) for key in ("depth", "kept"))
    return float(np.polyfit(depths, arenas, 1)[0])


def depth_page(found: Sequence[Depth]) -> bytes:
    """Both arenas against depth, UTF-8; one file, no network."""
    data = [{"depth": one.depth, "alone": one.alone, "kept": one.kept, "budget": one.budget} for one in found]
    return interactive_page(
        "depth.html", data, ("depth.js",), {}, folder=FOLDER, record={"model": "depth"}, found=found, mib=MIB,
        power=power(found), extra=max(one.extra for one in found),
    )  # fmt: skip


def _compiled(model: object, budget: int | None) -> Compiled:
    """The program of an optimized step, which the caller compares himself."""
    lowered, linked = make_listing(model, host(), NAME, False, budget, 1)  # type: ignore[arg-type]
    return Compiled(Whole(None, lowered, linked), host(), 0.0, OFF, None, "by its caller", None, 0, "")


def _trained(
    proto: onnx.ModelProto, step: graphopt.StepResult, plain: Compiled, kept: Compiled, folder: Path
) -> Trained:
    """Steps of both programs, alone and in a group of little more than what the one with a budget takes."""
    opened = load(proto)
    open_carried(opened, required=True)
    arrays = folder / "feeds.npz"
    feeds = {name: np.asarray(one) for name, one in make_feed(inputs_of(opened), {}, "normal").items()}
    np.savez(arrays, **feeds)  # type: ignore[arg-type]
    pairs = folder / "pairs.json"  # of thousands of weights: more than an argument may be long
    pairs.write_text(json.dumps({one.input: one.output for one in step.step.carried}))
    commands = {}
    for name, compiled in (("plain", plain), ("kept", kept)):
        compiled.save(folder / name, unchecked=True)
        commands[name] = [
            sys.executable, "-c", CHILD, str(folder / name), str(arrays), str(STEPS), str(pairs), step.step.loss
        ]  # fmt: skip
    alone = {name: _ran(command) for name, command in commands.items()}
    if alone["kept"] is None or alone["plain"] is None:
        raise RuntimeError("a step did not run")
    limit = int(ROOM * int(str(alone["kept"]["peak"])))
    with group(limit) as small:
        inside = _ran(small.command(commands["kept"]))
    with group(limit) as small:
        refused = _ran(small.command(commands["plain"]))
        is_killed = refused is None
    return Trained(limit, alone["kept"], inside, alone["plain"], is_killed)


def _ran(command: list[str]) -> Mapping[str, object] | None:
    """What a process printed; None where it ended otherwise."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, object] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found


def _tell(sheet: Sheet, trained: Trained) -> None:
    rows: list[tuple[object, ...]] = []
    for name, one in (("without a budget", trained.plain), ("with", trained.kept), ("with, limited", trained.inside)):
        if one is None:
            rows.append((name, "ended", "", ""))
        else:
            losses = one["losses"]
            last = losses[-1] if isinstance(losses, list) else ""
            rows.append((name, int(str(one["peak"])) / MIB, one["seconds"], last))
    rows.append(("without, limited", "killed" if trained.is_killed else "ran", "", ""))
    columns = ("process", "peak MiB", "s a step", "last loss")
    sheet.table(f"{STEPS} steps of the deepest, limit {trained.limit / MIB:.0f} MiB", columns, rows)


def command(
    quick: Annotated[bool, typer.Option(help="Two small depths.")] = False,
    page: Annotated[Path | None, typer.Option(help="Draw memory against depth in this HTML file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Memory of training steps against depth."""
    sheet = Sheet(console())
    bars = measure(sheet, quick=quick, page=page)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)

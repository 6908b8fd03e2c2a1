"""BERT-base trains with Adam within less memory than its state takes: `python -m bench.gradients.mapped`.

The step is a program whose weights and state are mapped files, out of all caches at the beginning, in a process of
Python and NumPy alone; in control groups of so many MiB, and without one. Losses have to be the same everywhere, and
each group's process has to live. Needs a disk and a system that lets groups be made. Files are kept in build/mapped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import graphopt
import models
from bench.bar import Bar, Sheet, console
from bench.peers import OURS
from bench.ram.disk import Disk
from bench.ram.group import group, why_none
from bench.survey import BUILD
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.flows.fit import first_values
from graphopt.gradient.step import RATE, open_carried
from graphopt.model.load import load

ISSUE, NUMBER, MODEL = 23, 8, "bert_base"
TARGET = "alive, the same losses"
PLACE = BUILD / "mapped"
GROUPS = (700, 400, 250)  # MiB
STEPS = 5
FEW = 4096  # bytes: what is smaller stays in memory
CHILD = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import step
program = step.load(sys.argv[1])
with np.load(sys.argv[2]) as given:
    feeds = {name: given[name] for name in given.files}
with open(sys.argv[3]) as given:
    feeds.update({name: np.lib.format.open_memmap(file, "r+") for name, file in json.load(given).items()})
call = program.bind(feeds)
place = [one.name for one in program.outputs].index(sys.argv[5])
losses, seconds = [], []
for _ in range(int(sys.argv[4])):
    begun = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - begun)
    losses.append(float(np.asarray(call.outputs[place]).reshape(-1)[0]))
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
print(json.dumps({"losses": losses, "seconds": seconds, "peak": peak}))
"""


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS,
    limits: Sequence[int] = GROUPS,
) -> list[Bar]:  # fmt: skip
    """Steps without a group, and in one of each size."""
    text = f"{MODEL} trains with Adam within {limits[0]} MiB"
    if quick:
        return [Bar(ISSUE, NUMBER, text, TARGET, "not measured: compiles a large step; leave out --quick", None)]
    step = graphopt.train_step(models.load(MODEL), loss="mse", optimizer="adam")
    PLACE.mkdir(parents=True, exist_ok=True)
    bundle = PLACE / "bundle"
    if not (bundle / "manifest.json").exists():
        graphopt.compile(step.to_proto(), name="step", threads=1).save(bundle)
    rows, alive, losses = [], True, []
    why = why_none()
    for limit in (None, *(limits if why is None else ())):
        found = _trained(step, bundle, limit)
        alive = alive and found is not None
        if found is None:
            rows.append((f"{limit} MiB", None, None, None, None))
            continue
        losses.append(found["losses"])
        seconds, name = found["seconds"], "without" if limit is None else f"{limit} MiB"
        rows.append((name, found["peak"] / (1 << 20), min(seconds), max(seconds), found["losses"][-1]))
    sheet.table(
        f"{STEPS} steps of {MODEL} with Adam, weights and state in mapped files",
        ("group", "peak, MiB", "least s of a step", "most", "last loss"), rows,
    )  # fmt: skip
    same = all(one == losses[0] for one in losses)
    figure = why or f"alive: {alive}; the same losses: {same}"
    return [Bar(ISSUE, NUMBER, text, TARGET, figure, None if why else alive and same)]


def _trained(step: graphopt.StepResult, bundle: Path, limit: int | None) -> dict[str, Any] | None:
    """What a process says of some steps from the first values on; None where it was ended."""
    state = PLACE / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    model = load(step.to_proto())
    open_carried(model, required=True)
    feeds = {name: np.asarray(one) for name, one in make_feed(inputs_of(model), {}, "normal").items()}
    feeds |= {RATE: np.array(1e-3, np.float32)}
    files = {}
    for number, (name, array) in enumerate(first_values(step.to_proto(), step.step).items()):
        feeds[name] = array
        if array.nbytes >= FEW:
            files[name] = str(state / f"{number}.npy")
            np.save(files[name], feeds.pop(name))
    arrays, named = PLACE / "feeds.npz", PLACE / "files.json"
    np.savez(arrays, **feeds)  # type: ignore[arg-type]
    named.write_text(json.dumps(files))
    if left := Disk().forget(*map(Path, files.values())):
        raise RuntimeError(f"{left:,} bytes of the state stay in memory")
    command = [sys.executable, "-c", CHILD, str(bundle), str(arrays), str(named), str(STEPS), step.step.loss]
    with nullcontext() if limit is None else group(limit << 20) as inside:
        words = command if inside is None else inside.command(command)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        if limit is None:
            raise RuntimeError(done.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(limit: Annotated[list[int] | None, typer.Option(help="MiB of a group; repeatable.")] = None) -> None:
    """Measure, and print the table and the bar."""
    sheet = Sheet(console())
    sheet.bars(measure(sheet, limits=limit or GROUPS))


if __name__ == "__main__":
    typer.run(main)

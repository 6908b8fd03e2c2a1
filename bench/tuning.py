"""What measuring costs and gains: compile time beside ONNX Runtime's cold session, and programs tuned for long.

Each side is a process of its own that begins with nothing loaded, with a cache folder that holds this machine's record
and no choices; files are in the system's cache, and bytecode is there as it is of an installation, also where Python is
told to write none. The program is compiled as the command line does, measured for 3 s and
compared. Then a program without measuring and one that was measured for `LONG` seconds run by turns.
"""

from __future__ import annotations

import compileall
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import pin, ratio, readings, unpin
from bench.native import feed_of
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.machine.kept import keep
from graphopt.program.deploy.session import Bundle

ISSUE, NUMBER = 19, 5
NAMES = ("squeezenet1_1", "mobilenet_v2", "resnet18", "resnet50", "vit_s16_legacy", "bert_small_rawdynamo", "unet_own")
QUICK = NAMES[:2]
SHORT, LONG, QUICK_LONG = 3.0, 60.0, 20.0  # seconds
ROUNDS, QUICK_ROUNDS = 15, 7
TIMES, MORE, GAIN = 4.0, 3.0, 1.02
_ONNXRUNTIME = """
import sys, time
started = time.perf_counter()
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(time.perf_counter() - started)
"""
_GRAPHOPT = """
import json, sys, time
started = time.perf_counter()
import graphopt
dims, tune = json.loads(sys.argv[2]), float(sys.argv[3])
graphopt.compile(sys.argv[1], dims=dims, machine=graphopt.machine(), tune=tune).save(sys.argv[4])
print(time.perf_counter() - started)
"""


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model."""
    rows, slow, worse, gains = [], [], [], []
    _write_bytecode()
    for name in QUICK if quick else NAMES:
        unpin()
        file, dims = str(model_file(name)), json.dumps(models.sizes(name))
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            peer = _seconds(_ONNXRUNTIME, (file,), folder / "none")
            ours = _seconds(_GRAPHOPT, (file, dims, str(SHORT), str(folder / "short")), folder / "one")
            _seconds(_GRAPHOPT, (file, dims, "0", str(folder / "plain")), folder / "two")
            long = QUICK_LONG if quick else LONG
            _seconds(_GRAPHOPT, (file, dims, str(long), str(folder / "tuned")), folder / "three")
            pin()
            feed = feed_of(name)
            sides = {one: Bundle(folder / one, threads=1) for one in ("plain", "tuned")}
            taken = readings({one: side.bind(feed) for one, side in sides.items()}, QUICK_ROUNDS if quick else ROUNDS)
        found, most = ratio(taken["plain"], taken["tuned"]), TIMES * peer + MORE
        gains.append(found.median)
        slow += [name] if ours > most else []
        worse += [name] if found.high < 1.0 else []
        rows.append((name, peer, ours, most, found.median, found.low, found.high))
    columns = ("model", "ONNX Runtime, s", "compile, s", "allowed, s", "estimates / tuned", "from", "to")
    sheet.table("cold compile with 3 s of measuring; what a long search gains", columns, rows)
    gain = math.exp(sum(map(math.log, gains)) / len(gains))
    figure = f"slower: {', '.join(slow) or 'none'}; gain {gain:.3f}, worse: {', '.join(worse) or 'none'}"
    wanted = f"{TIMES:g} x ONNX Runtime's session + {MORE:g} s; gain {GAIN}, none worse"
    return [Bar(ISSUE, NUMBER, "compiling with measuring", wanted, figure, not slow and not worse and gain >= GAIN)]


def _write_bytecode() -> None:
    """Python's, of all packages of this project."""
    for package in ("graphopt", "kernels", "memplan", "scheduler"):
        compileall.compile_dir(Path(__file__).parent.parent / package, quiet=2)


def _seconds(script: str, words: Sequence[str], cache: Path) -> float:
    """What a script in a process of its own prints; `cache` is its folder of caches, with this machine's record."""
    (cache / "graphopt").mkdir(parents=True)
    keep(graphopt.machine(), cache / "graphopt")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *words], env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main(measure)

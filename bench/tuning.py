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
from bench.kernels.timing import Ratio, pin, ratio, readings, unpin
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
COLD = 2  # compiles
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
    """One row for each model; in the quick form few of them are searched for long."""
    rows, slow, worse, gains = [], [], [], []
    _write_bytecode()
    for name in NAMES:
        unpin()
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            peer, ours = _cold(name, folder)
            found = None if quick and name not in QUICK else _searched(name, folder, quick=quick)
        most = TIMES * peer + MORE
        slow += [name] if ours > most else []
        if found is not None:
            gains.append(found.median)
            worse += [name] if found.high < 1.0 else []
        gained = ("", "", "") if found is None else (found.median, found.low, found.high)
        rows.append((name, peer, ours, most, *gained))
    columns = ("model", "ONNX Runtime, s", "compile, s", "allowed, s", "estimates / tuned", "from", "to")
    sheet.table("cold compile with 3 s of measuring; what a long search gains", columns, rows)
    gain = math.exp(sum(map(math.log, gains)) / len(gains))
    figure = f"slower: {', '.join(slow) or 'none'}; gain {gain:.3f}, worse: {', '.join(worse) or 'none'}"
    wanted = f"{TIMES:g} x ONNX Runtime's session + {MORE:g} s; gain {GAIN}, none worse"
    return [Bar(ISSUE, NUMBER, "compiling with measuring", wanted, figure, not slow and not worse and gain >= GAIN)]


def _cold(name: str, folder: Path) -> tuple[float, float]:
    """Seconds of a session of ONNX Runtime and of a compile with measuring, by turns, each the least of a few."""
    file, dims = str(model_file(name)), json.dumps(models.sizes(name))
    peer, ours = [], []
    for turn in range(COLD):
        peer.append(_seconds(_ONNXRUNTIME, (file,), folder / f"none{turn}"))
        words = (file, dims, str(SHORT), str(folder / f"short{turn}"))
        ours.append(_seconds(_GRAPHOPT, words, folder / f"one{turn}"))
    return min(peer), min(ours)


def _searched(name: str, folder: Path, *, quick: bool) -> Ratio:
    """How much faster a long search makes a program."""
    file, dims = str(model_file(name)), json.dumps(models.sizes(name))
    _seconds(_GRAPHOPT, (file, dims, "0", str(folder / "plain")), folder / "two")
    long = QUICK_LONG if quick else LONG
    _seconds(_GRAPHOPT, (file, dims, str(long), str(folder / "tuned")), folder / "three")
    pin()
    feed = feed_of(name)
    sides = {one: Bundle(folder / one, threads=1) for one in ("plain", "tuned")}
    taken = readings({one: side.bind(feed) for one, side in sides.items()}, QUICK_ROUNDS if quick else ROUNDS)
    return ratio(taken["plain"], taken["tuned"])


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

"""Rows of the first minute beside onnxslim: `--help` and `import`, in seconds and peak memory of a fresh process.

The processes run by turns; figures are medians, ratios are peer over ours pair by pair (above 1 is quicker, or smaller)
with a 95 % bootstrap interval. And what an installation weighs.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.newcomer.place import PROJECT, ROOT, Place
from bench.newcomer.row import Row, Seen, Worse, better, level, require
from bench.peers import OURS
from bench.speed import ratio_interval

PEER = "onnxslim"
ROUNDS = 21
QUICK_ROUNDS = 5
LEVEL = 0.95  # the lower end of an interval that counts as level
PACKAGES = ("graphopt", "kernels", "memplan", "scheduler")
# What is asked, and the words behind the interpreter for a package.
ASKED = {"--help": ("-m", "{}", "--help"), "import": ("-c", "import {}")}

# A process that is started inherits the peak of the one that starts it: this one is small. Linux counts in KiB.
_STARTER = """
import json, os, sys, time
started = time.perf_counter()
sink = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ, file_actions=sink)
_, status, usage = os.wait4(child, 0)
print(json.dumps([time.perf_counter() - started, usage.ru_maxrss]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


@cache
def readings(rounds: int) -> dict[str, tuple[float, ...]]:
    """By "--help, s" and so on: our median, the peer's, and the ratio peer / ours with the ends of its interval."""
    found: dict[str, tuple[float, ...]] = {}
    for asked, words in ASKED.items():
        first: list[tuple[float, float]] = []
        second: list[tuple[float, float]] = []
        for turn in range(rounds + 1):
            ours, peer = (process([word.format(name) for word in words]) for name in (OURS, PEER))
            if turn:  # the first round reads from disk
                first.append(ours)
                second.append(peer)
        for at, unit in enumerate(("s", "MiB")):
            mine, theirs = ([reading[at] for reading in readings] for readings in (first, second))
            low, middle, high = ratio_interval(theirs, mine)
            found[f"{asked}, {unit}"] = (float(np.median(mine)), float(np.median(theirs)), middle, low, high)
    return found


def start_up(place: Place) -> Seen:
    """Seconds of --help and of import beside onnxslim's."""
    return _beside(place, "s")


def memory(place: Place) -> Seen:
    """Peak resident memory of --help and of import beside onnxslim's."""
    return _beside(place, "MiB")


def _beside(place: Place, unit: str) -> Seen:
    if importlib.util.find_spec(PEER) is None:
        raise Worse(f"{PEER} is not installed; run it in the environment of make bars")
    found = readings(QUICK_ROUNDS if place.quick else ROUNDS)
    text = ", ".join(f"{asked} {found[f'{asked}, {unit}'][0]:.2f} {unit} beside "
                     f"{found[f'{asked}, {unit}'][1]:.2f}" for asked in ASKED)  # fmt: skip
    lowest = min(found[f"{asked}, {unit}"][3] for asked in ASKED)
    require(lowest > LEVEL, text)
    return better(text) if lowest > 1 else level(text)


def installed(place: Place) -> Seen:
    """MiB of the base installation on disk, all that it requires included, beside onnxsim's."""
    if importlib.util.find_spec("onnxsim") is None:
        raise Worse("onnxsim is not installed; run it in the environment of make bars")
    ours, peer = (sum(map(_bytes_of, _closure(name))) / 2**20 for name in (OURS, "onnxsim"))
    text = f"{ours:.0f} MiB in {len(_closure(OURS))} distributions beside {peer:.0f} in {len(_closure('onnxsim'))}"
    require(ours <= peer, text)
    return level(text)


def _closure(name: str) -> set[str]:
    """What an installation without extras brings, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = canonicalize_name(waiting.pop())
        if current not in found:
            found.add(current)
            wanted = map(
                Requirement, PROJECT["dependencies"] if current == OURS else distribution(current).requires or ()
            )
            waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def _bytes_of(name: str) -> int:
    """The files of a distribution; of ours, which is installed in place, those of its packages."""
    if name == OURS:
        files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.*") if file.is_file()]
        return sum(file.stat().st_size for file in files if file.parent.name != "__pycache__")
    known = distribution(name)
    files = [Path(str(known.locate_file(file))) for file in known.files or ()]
    return sum(file.stat().st_size for file in files if file.is_file())


def process(words: list[str]) -> tuple[float, float]:
    """Seconds and peak resident MiB of the interpreter with these words; raises RuntimeError where it fails."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _STARTER, *words], capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"python {' '.join(words)} failed: {done.stderr.decode(errors='replace')}")
    seconds, kibibytes = json.loads(done.stdout)
    return seconds, kibibytes / 1024


ROWS = (
    Row(3, "size of the installation", "onnxsim needs onnx alone", installed),
    Row(4, "start-up", "onnxslim: 0.46 s", start_up),
    Row(5, "memory at the start", "onnxslim: 76 MB", memory),
)

"""The first minute beside onnxslim: `--help` and `import`, in seconds and peak memory of a fresh process.

The processes run by turns; figures are medians, ratios are peer over ours pair by pair (above 1 is quicker, or smaller)
with a 95 % bootstrap interval. The folder of the base installation on disk is measured by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from bench.speed import ratio_interval

PEER = "onnxslim"
ROUNDS = 21
QUICK_ROUNDS = 5
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


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Seconds and peak memory of `--help` and `import`; no bar, for the figures are a newcomer's impression."""
    rows = []
    for asked, words in ASKED.items():
        first: list[tuple[float, float]] = []
        second: list[tuple[float, float]] = []
        for turn in range((QUICK_ROUNDS if quick else ROUNDS) + 1):
            ours, peer = (process([word.format(name) for word in words]) for name in (OURS, PEER))
            if turn:  # the first round reads from disk
                first.append(ours)
                second.append(peer)
        for at, unit in enumerate(("s", "MiB")):
            mine, theirs = ([reading[at] for reading in readings] for readings in (first, second))
            low, middle, high = ratio_interval(theirs, mine)
            rows.append((f"{asked}, {unit}", float(np.median(mine)), float(np.median(theirs)), middle, low, high))
    sheet.table("the first minute", ("figure", OURS, PEER, "peer / ours", "from", "to"), rows)
    return []


def process(words: list[str]) -> tuple[float, float]:
    """Seconds and peak resident MiB of the interpreter with these words; raises RuntimeError where it fails."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _STARTER, *words], capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"python {' '.join(words)} failed: {done.stderr.decode(errors='replace')}")
    seconds, kibibytes = json.loads(done.stdout)
    return seconds, kibibytes / 1024


if __name__ == "__main__":
    main(measure)

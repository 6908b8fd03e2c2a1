"""The same bytes everywhere: plans made warm, and cold on one core beside busy processes.

`graphopt memory --json` and `graphopt optimize --memory-budget` run as commands of their own: once as they are, once
with nothing compiled (a new cache of numba's), on one core, beside processes that keep every core busy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.script import main
from bench.survey import BUILD
from bench.zoo import model_file

ISSUE = 14
MODELS = ("dscnn_kws", "mobilenet_v2", "squeezenet1_1", "light_shufflenet", "swin_tiny", "densenet121")
QUICK = MODELS[:2]
BUDGETS = {"dscnn_kws": "56KiB"}  # what can be kept; of the others 4 MiB
BUSY = 4  # processes


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = "") -> list[Bar]:
    """Memory plans and budgeted models: the same bytes warm and idle, and cold beside busy processes."""
    rows = []
    for name in QUICK if quick else MODELS:
        source = model_file(name)
        for what in ("memory --json", "optimize --memory-budget"):
            plain = _run(what, name, source, os.environ)
            with tempfile.TemporaryDirectory(dir=BUILD) as cache, _busy():
                cold = _run(what, name, source, {**os.environ, "NUMBA_CACHE_DIR": cache}, one_core=True)
            rows.append((name, what, plain, cold, plain == cold))
    sheet.table("plans under load", ("model", "command", "warm", "cold, beside busy processes", "the same"), rows)
    same = sum(row[4] for row in rows)
    return [Bar(ISSUE, 4, "plans: the same bytes cold and under load", f"{len(rows)}", f"{same}", same == len(rows))]


def _run(what: str, name: str, source: Path, environment: object, one_core: bool = False) -> str:
    """The start of a digest of what the command wrote, or of its refusal."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        output = Path(folder) / "out"
        command = [sys.executable, "-m", "graphopt", what.split()[0], str(source)]
        if what.startswith("memory"):
            command += ["--json"]
        else:
            command += [str(output), "--memory-budget", BUDGETS.get(name, "4MiB")]
        if one_core:
            command = ["taskset", "-c", "0", *command]
        done = subprocess.run(command, capture_output=True, check=False, env=environment)  # type: ignore[call-overload]
        if done.returncode:
            content = done.stderr.splitlines()[-1]
        else:
            content = output.read_bytes() if output.exists() else done.stdout
        return f"{'refused' if done.returncode else 'written'} {hashlib.sha256(content).hexdigest()[:12]}"


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()


if __name__ == "__main__":
    main(measure)

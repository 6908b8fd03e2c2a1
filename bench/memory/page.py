"""Whether the memory page works in a real browser: the test that opens it, run by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main

ISSUE = 6
TEST = "tests/report/test_memory_page.py"


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Charts drawn, hover works, no error on the console, nothing fetched; also with 5,000 operators."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", TEST], capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    sheet.table("the page's tests", ("said",), [(lines[-1] if lines else done.stderr[-200:],)])
    passed = done.returncode == 0 and "skipped" not in done.stdout
    what = "charts drawn, hover works, no error, no request" if passed else "see the table"
    return [Bar(ISSUE, 7, "memory: page in a browser", "works offline", what, passed)]


if __name__ == "__main__":
    main(measure)

"""Which tests of a room execute each of its lines: pytest with coverage, a context for every test.

As a plugin of pytest it does one of two things: with `--record FILE` it writes there what each test executes and how
long it took, with `--chosen FILE` it runs only the tests that the file names, in the file's order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

COMMAND = (sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bench.executed")


@dataclass(frozen=True, slots=True)
class Executed:
    """What the tests of a room execute."""

    seconds: dict[str, float]  # test -> how long it took
    lines: dict[str, dict[int, set[str]]]  # file -> line -> tests; "" stands for the import of modules

    def tests(self, file: str, first: int, last: int) -> list[str]:
        """The tests that execute one of these lines, the fastest first; all of them for what an import executes."""
        reached = set().union(*(tests for line, tests in self.lines.get(file, {}).items() if first <= line <= last))
        return sorted(self.seconds if "" in reached else reached, key=lambda test: (self.seconds[test], test))


def record(room: str, tests: Sequence[str], checkout: Path, workers: int) -> Executed:
    """Run the tests of a room in a checkout, dealt to processes by file; they must pass there."""
    files = sorted(str(path.relative_to(checkout)) for each in tests for path in (checkout / each).rglob("test_*.py"))
    with tempfile.TemporaryDirectory(prefix="graphopt-executed-") as folder:
        written = [Path(folder) / f"{number}.json" for number in range(workers)]
        running = [
            subprocess.Popen(
                [*COMMAND, "--record", path, "--room", room, *files[number::workers]],
                cwd=checkout, env=environment(checkout), stdout=subprocess.DEVNULL,
            )
            for number, path in enumerate(written)
        ]  # fmt: skip
        if [process.wait() for process in running] != [0] * workers:
            raise ChildProcessError(f"the tests of {room} fail without a fault")
        parts = [json.loads(path.read_text()) for path in written]
    seconds: dict[str, float] = {}
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for part in parts:
        seconds |= part["seconds"]
        for file, by_line in part["lines"].items():
            for line, names in by_line.items():
                lines[file][int(line)].update(names)
    return Executed(seconds, lines)


def environment(checkout: Path) -> dict[str, str]:
    """The process's own, with the packages of the checkout."""
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), *([inherited] if inherited else [])])}


class _Recorder:
    """Names the test that runs to coverage, and writes all of it at the end."""

    def __init__(self, file: Path, room: str) -> None:
        self.file = file
        self.seconds: dict[str, float] = defaultdict(float)
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=[str(Path(room).absolute() / "*")])
        sys.setrecursionlimit(5_000)  # coverage's own calls come on top of what deep expressions take
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """The test's own context, its fixtures included."""
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up setup, call and teardown."""
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write what was executed."""
        self.coverage.stop()
        data = self.coverage.get_data()
        here = Path.cwd()
        lines = {str(Path(file).relative_to(here)): data.contexts_by_lineno(file) for file in data.measured_files()}
        self.file.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))


def pytest_addoption(parser: pytest.Parser) -> None:
    """As a plugin of pytest: what to do."""
    parser.addoption("--record", help="A file for what each test executes.")
    parser.addoption("--room", help="With --record: the folder whose lines are meant.")
    parser.addoption("--chosen", help="A file with the tests to run, as JSON, in their order.")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """As a plugin: begin before anything of the checkout is imported."""
    options = early_config.known_args_namespace
    if options.record:
        early_config.pluginmanager.register(_Recorder(Path(options.record), options.room))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin: keep the chosen tests, in their order."""
    if chosen := config.getoption("--chosen"):
        place = {test: number for number, test in enumerate(json.loads(Path(chosen).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

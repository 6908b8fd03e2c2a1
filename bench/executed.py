"""Which tests of a room execute each of its statements, and how much time of the processor each test takes.

The room's files are written with a probe before every statement of a function: an assignment to a byte, where a tracer
would be called at every line of every library. A record is kept by the content of the room and of its tests. What
changes elsewhere can at most leave out a test, by which a fault survives that should not: survivors are judged by hand.

As a plugin of pytest this does one of two things. With `--record FILE --part N OF` it runs every so manieth test and
writes what each executes. With `--chosen FILE` it runs only the tests that the file names, in the file's order, and
ends the process where one hangs.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bench.hits import HITS, VARIABLE

COMMAND = (sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bench.executed")
KEPT = Path("build/bench/executed")
BLOCKS = ("body", "orelse", "finalbody")
# A test hangs that takes ten times its seconds and these. Those of the processor tell a loop, beside any neighbours; by
# the clock a process that waits for ever ends as well.
SECONDS = {signal.ITIMER_PROF: 60.0, signal.ITIMER_REAL: 600.0}


@dataclass(frozen=True, slots=True)
class Executed:
    """What the tests of a room execute."""

    tests: tuple[str, ...]
    seconds: np.ndarray  # [tests] of the processor
    places: tuple[tuple[str, int], ...]  # file and line where each statement of a function begins
    reached: np.ndarray  # [tests + 1, places] bool; the last row is what is executed outside of tests, by imports

    def chosen(self, file: str, line: int) -> list[tuple[str, float]]:
        """The tests that execute the statement which begins there, and their seconds; the fastest first.

        All of them for what an import executes and for what lies in no function.
        """
        columns = [number for number, place in enumerate(self.places) if place == (file, line)]
        hit = np.logical_or.reduce(self.reached[:, columns], axis=1)
        if not columns or hit[-1]:
            hit[:] = True
        order = sorted(np.flatnonzero(hit[:-1]), key=lambda test: (self.seconds[test], self.tests[test]))
        return [(self.tests[test], float(self.seconds[test])) for test in order]

    def unreached(self) -> dict[str, list[int]]:
        """File -> the lines of its statements that no test executes."""
        left: dict[str, list[int]] = {}
        for (file, line), hit in zip(self.places, np.logical_or.reduce(self.reached, axis=0), strict=True):
            if not hit:
                left.setdefault(file, []).append(line)
        return left


def recorded(room: str, tests: str, checkout: Path, workers: int) -> Executed:
    """The record of a room, out of its file where the room and its tests are as they were then."""
    digest = hashlib.sha256()
    for path in sorted(path for each in (room, tests) for path in (checkout / each).rglob("*") if path.is_file()):
        if path.suffix != ".pyc":
            digest.update(str(path.relative_to(checkout)).encode() + path.read_bytes())
    kept = KEPT / f"{room.replace('/', '-')}-{digest.hexdigest()[:16]}.npz"
    if not kept.exists():
        made = _record(room, tests, checkout, workers)
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            kept, tests=made.tests, seconds=made.seconds, reached=np.packbits(made.reached, axis=1),
            files=[file for file, _ in made.places], lines=[line for _, line in made.places],
        )  # fmt: skip
    with np.load(kept) as data:
        places = tuple(zip(data["files"].tolist(), data["lines"].tolist(), strict=True))
        reached = np.unpackbits(data["reached"], axis=1, count=len(places)).astype(bool)
        return Executed(tuple(data["tests"].tolist()), data["seconds"], places, reached)


def _record(room: str, tests: str, checkout: Path, workers: int) -> Executed:
    """Run the tests of a room in a checkout, dealt to processes; they must pass in it, comments or none."""
    places: list[tuple[str, int]] = []
    originals = {path: path.read_bytes() for path in sorted((checkout / room).rglob("*.py"))}
    try:
        for path, content in originals.items():
            changed, lines = probed(content.decode(), len(places))
            path.write_text(changed)
            places += [(str(path.relative_to(checkout)), line) for line in lines]
        with tempfile.TemporaryDirectory(prefix="graphopt-executed-") as folder:
            written = [Path(folder) / f"{number}.npz" for number in range(workers)]
            running = []
            for number, path in enumerate(written):
                hits = path.with_suffix(".hits")
                hits.write_bytes(bytes(max(len(places), 1)))
                running.append(subprocess.Popen(
                    [*COMMAND, "--tb=short", "--record", path, "--part", str(number), str(workers), tests],
                    cwd=checkout, env=environment(checkout) | {VARIABLE: str(hits)},
                    stdout=path.with_suffix(".log").open("w"), stderr=subprocess.STDOUT,
                ))  # fmt: skip
            failed = [path for path, process in zip(written, running, strict=True) if process.wait()]
            if failed:
                told = failed[0].with_suffix(".log").read_text()[-2000:]
                raise ChildProcessError(f"the tests of {room} fail without a fault:\n{told}")
            parts = [dict(np.load(path)) for path in written]
    finally:
        for path, content in originals.items():
            path.write_bytes(content)
    imports = np.logical_or.reduce([part["imports"] for part in parts], axis=0)
    return Executed(
        tuple(test for part in parts for test in part["tests"].tolist()),
        np.concatenate([part["seconds"] for part in parts]),
        tuple(places),
        np.concatenate([*(part["reached"] for part in parts), imports[np.newaxis]])[:, : len(places)],
    )


def probed(source: str, first: int) -> tuple[str, list[int]]:
    """A module with a probe before each statement of its functions, numbered from `first`; the statements' lines.

    A file that begins with its licence is copied into bundles, and stands alone there: it is left as it is.
    """
    if source.startswith("#"):
        return source, []
    tree = ast.parse(source)
    lines: list[int] = []
    blocks: list[list[ast.stmt]] = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in dict.fromkeys(part for function in functions for part in ast.walk(function)):
        blocks += [block for field in BLOCKS if isinstance(block := getattr(node, field, None), list) and block]
    documented = {id(function.body[0]) for function in functions if ast.get_docstring(function) is not None}
    for block in blocks:
        before, block[:] = list(block), []
        for statement in before:
            if id(statement) not in documented:
                block += ast.parse(f"__hits__[{first + len(lines)}] = 1").body
                lines.append(statement.lineno)
            block.append(statement)
    place = next(
        (number for number, statement in enumerate(tree.body)
         if not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")
         and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))), 0,
    )  # fmt: skip
    tree.body[place:place] = ast.parse("from bench.hits import HITS as __hits__").body
    return ast.unparse(tree), lines


def environment(checkout: Path) -> dict[str, str]:
    """The process's own, with the packages of the checkout."""
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), *([inherited] if inherited else [])])}


class _Recorder:
    """Takes down which bytes each test has set, and writes all of it at the end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tests: list[str] = []
        self.seconds: list[float] = []
        self.reached: list[np.ndarray] = []
        self.imports = np.zeros(len(HITS), bool)

    def _take(self) -> np.ndarray:
        hits = np.frombuffer(HITS[:], np.uint8).astype(bool)
        HITS[:] = bytes(len(HITS))
        return hits

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Setup, call and teardown of a test."""
        self.imports |= self._take()
        before = sum(os.times()[:4])  # of this process and of those that it has waited for
        result = yield
        self.tests.append(item.nodeid)
        self.seconds.append(sum(os.times()[:4]) - before)
        self.reached.append(self._take())
        return result

    def pytest_sessionfinish(self) -> None:
        """Write what was executed."""
        reached = np.array(self.reached, bool).reshape(len(self.tests), len(HITS))
        np.savez_compressed(
            self.file, tests=np.array(self.tests, str), seconds=self.seconds, reached=reached, imports=self.imports
        )


class _Chooser:
    """Runs the chosen tests and no other, and ends the process where one takes far too long, or the imports do."""

    def __init__(self, chosen: Sequence[tuple[str, float]]) -> None:
        self.seconds = dict(chosen)
        self._limit(0.0)

    def _limit(self, seconds: float) -> None:
        for timer, least in SECONDS.items():
            signal.setitimer(timer, least + 10 * seconds)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests, in their order."""
        place = {test: number for number, test in enumerate(self.seconds)}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Each test has time of its own."""
        self._limit(self.seconds[item.nodeid])
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    """As a plugin of pytest: what to do."""
    parser.addoption("--record", help="A file for what each test executes.")
    parser.addoption("--part", nargs=2, type=int, help="With --record: which part of the tests, and of how many.")
    parser.addoption("--chosen", help="A file with the tests to run and their seconds, as JSON, in their order.")


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: begin before anything of the checkout is imported by a test."""
    if file := config.getoption("--record"):
        config.pluginmanager.register(_Recorder(Path(file)))
    if file := config.getoption("--chosen"):
        config.pluginmanager.register(_Chooser(json.loads(Path(file).read_text())))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin: keep a part of the tests."""
    if part := config.getoption("--part"):
        number, of = part
        items[:] = items[number::of]

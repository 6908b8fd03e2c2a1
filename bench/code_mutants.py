"""Seeded faults in our own code, and whether the tests of the same room notice: `python -m bench.code_mutants`.

A fault turns a comparison, `and` and `or`, an operator of arithmetic, or a condition, or leaves out a call. Each is
tried in a copy of the tracked files, by those tests of its room that execute its statement, the fastest first, until
one fails; where none does, it has survived. Results go to a file line by line, and a run that was broken off goes on
where it stopped. What survives is listed, to be judged by hand: some faults change nothing that anybody could see.

`--uncovered` tries nothing: it lists the statements that no test of the room executes, in which every fault survives.
Either runs all tests of its rooms once, to see what they execute; that record is kept until a room or its tests change.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from queue import Queue
from typing import Annotated

import typer

from bench.executed import COMMAND, Executed, environment, recorded

ROOT = Path(__file__).parent.parent
# Room -> how many of a hundred faults are its own. Its tests lie in the folder of its name.
ROOMS = {"graphopt/passes": 30, "graphopt/rewrite": 10, "graphopt/memory": 15, "graphopt/program": 15, "kernels": 30}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
RESULTS = Path("build/bench/code_mutants.jsonl")
Place = ast.expr | ast.stmt
PASSED, NO_TESTS = 0, 5  # how pytest ends


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file."""

    room: str
    file: str
    line: int
    what: str
    statement: int  # the line where the innermost statement around it begins
    source: str  # of the whole file, changed


def faults(room: str, count: int, seed: int) -> list[Fault]:
    """Faults of a room drawn by `seed`, each from another place; files are drawn by how much there is to change."""
    places = [(file, number) for file in sorted((ROOT / room).rglob("*.py")) for number in range(len(_places(file)))]
    drawn = random.Random(f"{room} {seed}").sample(places, min(count, len(places)))
    return [_fault(room, file, number) for file, number in drawn]


def _places(file: Path) -> list[Place]:
    return list(_changeable(ast.parse(file.read_text())))


def _changeable(tree: ast.AST) -> Iterator[Place]:
    """What can be changed, in the order of the file; not in assertions, refusals' texts, and what only types need."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Assert, ast.Raise, ast.AnnAssign, ast.arguments, ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        turned = isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS
        counted = isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_type(node)
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        chosen = turned or counted or called or isinstance(node, (ast.BoolOp, ast.If))
        if chosen and isinstance(node, Place):
            yield node
        yield from _changeable(node)


def _is_type(node: ast.BinOp) -> bool:
    """Whether this joins texts: another order of words is no fault worth a test."""
    return any(isinstance(side, (ast.JoinedStr, ast.Constant)) and isinstance(getattr(side, "value", ""), str)
               for side in (node.left, node.right))  # fmt: skip


def _fault(room: str, file: Path, number: int) -> Fault:
    tree = ast.parse(file.read_text())
    node = list(_changeable(tree))[number]
    before = ast.unparse(copy.deepcopy(node)).splitlines()[0]
    statement = _statement(tree, node)
    match node:
        case ast.Compare():
            node.ops = [COMPARISONS[type(node.ops[0])]()]
        case ast.BinOp():
            node.op = ARITHMETIC[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If():
            node.test = ast.Constant(value=False)
        case ast.Expr():
            node.value = ast.Constant(value=None)
    after = ast.unparse(node).splitlines()[0]
    where = str(file.relative_to(ROOT))
    licence = "".join(takewhile(lambda line: line.startswith("#"), file.read_text().splitlines(keepends=True)))
    return Fault(room, where, node.lineno, f"{before}  -->  {after}", statement, licence + ast.unparse(tree))


def _statement(tree: ast.AST, node: Place) -> int:
    """Where the innermost statement around a node begins: `ast.walk` comes to the outer ones first."""
    around = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and node in ast.walk(each)]
    return around[-1].lineno


def outcome(fault: Fault, executed: Executed, checkout: Path) -> int:
    """How pytest ends with the tests that execute the fault; minus the number of the signal where one of them hangs."""
    tests = executed.chosen(fault.file, fault.statement)
    if not tests:
        return NO_TESTS
    file, chosen = checkout / fault.file, checkout / "chosen.json"
    kept = file.read_bytes()
    file.write_text(fault.source)
    chosen.write_text(json.dumps(tests))
    running = subprocess.Popen(
        [*COMMAND, "-x", "--chosen", chosen, *sorted({test.partition("::")[0] for test, _ in tests})],
        cwd=checkout, env=environment(checkout), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        return running.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):  # what a test has started hangs where the fault is in it
            os.killpg(running.pid, signal.SIGKILL)
        file.write_bytes(kept)


def _checkout(folder: Path) -> Path:
    """A copy of the tracked files, as they are now."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def _try(drawn: Sequence[Fault], executed: Mapping[str, Executed], checkouts: Sequence[Path], results: Path) -> None:
    """Try each fault in a checkout of its own, and write what came of it."""
    free: Queue[Path] = Queue()
    for checkout in checkouts:
        free.put(checkout)

    def tried(fault: Fault) -> dict[str, object]:
        checkout = free.get()
        try:
            ended = outcome(fault, executed[fault.room], checkout)
        finally:
            free.put(checkout)
        return {
            "room": fault.room, "file": fault.file, "line": fault.line, "what": fault.what, "ended": ended,
            "survived": ended in (PASSED, NO_TESTS),
        }  # fmt: skip

    with ThreadPoolExecutor(len(checkouts)) as pool:
        for trial in as_completed([pool.submit(tried, fault) for fault in drawn]):
            with results.open("a") as file:
                file.write(json.dumps(trial.result()) + "\n")


def _known(results: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def _print(lines: Sequence[dict[str, object]]) -> None:
    """How many faults of each room were noticed, and every one that was not."""
    rows = [(room, [line["survived"] for line in lines if line["room"] == room]) for room in ROOMS]
    for name, survived in [*rows, ("together", [each for _, part in rows for each in part])]:
        if survived:
            noticed = survived.count(False)
            share = 100 * noticed / len(survived)
            print(f"{name:<16} {noticed:>4} of {len(survived):>4} noticed {share:>6.1f} %")
    for line in lines:
        if line["survived"]:
            print(f"survived {line['file']}:{line['line']}  {line['what']}")


def main(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="Where results go, a line for each fault.")] = RESULTS,
    count: Annotated[int, typer.Option(min=1, help="Faults of all rooms together.")] = 100,
    seed: Annotated[int, typer.Option(help="What the faults are drawn by.")] = 1,
    room: Annotated[list[str] | None, typer.Option(help="Only these rooms; repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes at the same time.")] = os.cpu_count() or 1,
    only_uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Try none; print the statements that no test of their room executes.")
    ] = False,
) -> None:
    """Try seeded faults, and print by room how many were noticed, and every one that was not."""
    rooms = room or list(ROOMS)
    whole = sum(ROOMS[each] for each in rooms)
    known = {(line["file"], line["line"], line["what"]) for line in _known(results)}
    drawn = [
        fault for each in rooms for fault in faults(each, round(count * ROOMS[each] / whole), seed)
        if (fault.file, fault.line, fault.what) not in known
    ]  # fmt: skip
    results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="graphopt-mutants-") as folder:
        checkouts = [_checkout(Path(folder) / str(number)) for number in range(workers)]
        asked = rooms if only_uncovered else [each for each in rooms if any(fault.room == each for fault in drawn)]
        executed = {each: recorded(each, f"tests/{Path(each).name}", checkouts[0], workers) for each in asked}
        if only_uncovered:
            for each in executed.values():
                for file, lines in each.unreached().items():
                    print(f"{file}: {', '.join(map(str, lines))}")
            return
        _try(drawn, executed, checkouts, results)
    _print(_known(results))


if __name__ == "__main__":
    typer.run(main)

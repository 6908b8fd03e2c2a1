"""Seeded faults in our own code, and whether the tests of the same room notice: `python -m bench.code_mutants`.

A fault turns a comparison, `and` and `or`, an operator of arithmetic, or a condition, or leaves out a call. Each is
tried in a copy of the tracked files, by those tests of its room that execute its statement, the fastest first, until
one fails; where none does, it has survived. Results go to a file line by line, and a run that was broken off goes on
where it stopped. What survives is listed, to be judged by hand: some faults change nothing that anybody could see.

`--uncovered` tries nothing: it lists the lines that no test of the room executes, in which every fault survives.
"""

from __future__ import annotations

import ast
import copy
import json
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Annotated

import typer
from coverage.parser import PythonParser

from bench.executed import COMMAND, Executed, environment, record

ROOT = Path(__file__).parent.parent
# Room -> the tests of their own.
ROOMS = {
    "graphopt/passes": ("tests/passes",),
    "graphopt/rewrite": ("tests/rewrite",),
    "graphopt/memory": ("tests/memory",),
    "graphopt/program": ("tests/program",),
    "kernels": ("tests/kernels",),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
RESULTS = Path("build/bench/code_mutants.jsonl")
Place = ast.expr | ast.stmt
SECONDS = 60  # that a run may take and ten times what its tests took; one that takes longer hangs, and is noticed


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file."""

    room: str
    file: str
    line: int
    what: str
    statement: tuple[int, int]  # first and last line of the statement around it
    source: str  # of the whole file, changed


def faults(room: str, count: int, seed: int) -> list[Fault]:
    """Faults of a room drawn by `seed`, each from another place; files are drawn by how much there is to change."""
    places = [(file, number) for file in sorted((ROOT / room).rglob("*.py")) for number in range(len(_places(file)))]
    drawn = random.Random(f"{room} {seed}").sample(places, min(count, len(places)))
    return [_fault(room, file, number) for file, number in drawn]


def _places(file: Path) -> list[Place]:
    return list(_changeable(ast.parse(file.read_text())))


def _changeable(tree: ast.AST) -> Iterator[Place]:
    """What can be changed, in the order of the file; not in assertions, refusals' texts and annotations."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Assert, ast.Raise, ast.AnnAssign, ast.arguments, ast.Import, ast.ImportFrom)):
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
    return Fault(room, where, node.lineno, f"{before}  -->  {after}", statement, ast.unparse(tree))


def _statement(tree: ast.AST, node: Place) -> tuple[int, int]:
    """The lines of the simple statement around a node; within the head of a compound one, the node's own."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.stmt) or hasattr(each, "body") or hasattr(each, "cases"):
            continue
        if any(part is node for part in ast.walk(each)):
            return _lines(each)
    return _lines(node.test if isinstance(node, ast.If) else node)


def _lines(node: Place) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def survives(fault: Fault, executed: Executed, checkout: Path) -> bool:
    """Whether the tests that execute the fault pass with it."""
    tests = executed.tests(fault.file, *fault.statement)
    if not tests:
        return True
    file, chosen = checkout / fault.file, checkout / "chosen.json"
    kept = file.read_bytes()
    file.write_text(fault.source)
    chosen.write_text(json.dumps(tests))
    try:
        done = subprocess.run(
            [*COMMAND, "-x", "--chosen", chosen, *sorted({test.partition("::")[0] for test in tests})],
            cwd=checkout, env=environment(checkout), capture_output=True, check=False,
            timeout=SECONDS + 10 * sum(executed.seconds[test] for test in tests),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    finally:
        file.write_bytes(kept)
    return done.returncode == 0


def uncovered(room: str, executed: Executed) -> dict[str, list[int]]:
    """File -> the first lines of its statements that no test of the room executes."""
    left = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        parser = PythonParser(filename=str(path))
        parser.parse_source()
        reached = parser.first_lines(executed.lines.get(str(path.relative_to(ROOT)), {}))
        left[str(path.relative_to(ROOT))] = sorted(parser.statements - reached)
    return {file: lines for file, lines in left.items() if lines}


def _checkout(folder: Path) -> Path:
    """A copy of the tracked files, as they are now."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def _try(drawn: Sequence[Fault], executed: Executed, checkouts: Sequence[Path], results: Path) -> None:
    """Try each fault in a checkout of its own, and write what came of it."""
    free: Queue[Path] = Queue()
    for checkout in checkouts:
        free.put(checkout)

    def tried(fault: Fault) -> dict[str, object]:
        checkout = free.get()
        try:
            survived = survives(fault, executed, checkout)
        finally:
            free.put(checkout)
        return {"room": fault.room, "file": fault.file, "line": fault.line, "what": fault.what, "survived": survived}

    with ThreadPoolExecutor(len(checkouts)) as pool:
        for result in pool.map(tried, drawn):
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")


def _known(results: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def main(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="Where results go, a line for each fault.")] = RESULTS,
    count: Annotated[int, typer.Option(min=1, help="Faults of each room.")] = 20,
    seed: Annotated[int, typer.Option(help="What the faults are drawn by.")] = 1,
    room: Annotated[list[str] | None, typer.Option(help="Only these rooms; repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Faults that are tried at the same time.")] = 1,
    only_uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Try none; print the lines that no test of their room executes.")
    ] = False,
) -> None:
    """Try seeded faults, and print by room how many were noticed, and every one that was not."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="graphopt-mutants-") as folder:
        checkouts = [_checkout(Path(folder) / str(number)) for number in range(workers)]
        for each in room or list(ROOMS):
            known = {(line["file"], line["line"], line["what"]) for line in _known(results)}
            drawn = [fault for fault in faults(each, count, seed) if (fault.file, fault.line, fault.what) not in known]
            if only_uncovered:
                for file, lines in uncovered(each, record(each, ROOMS[each], checkouts[0], workers)).items():
                    print(f"{file}: {', '.join(map(str, lines))}")
            elif drawn:
                _try(drawn, record(each, ROOMS[each], checkouts[0], workers), checkouts, results)
    if only_uncovered:
        return
    tried = Counter(str(line["room"]) for line in _known(results))
    survived = [line for line in _known(results) if line["survived"]]
    left = Counter(line["room"] for line in survived)
    for each, number in tried.items():
        print(f"{each}: {number - left[each]} of {number} noticed ({100 * (number - left[each]) / number:.0f} %)")
    for line in survived:
        print(f"survived {line['file']}:{line['line']}  {line['what']}")


if __name__ == "__main__":
    typer.run(main)

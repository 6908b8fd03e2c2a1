"""Seeded faults in our own code, and whether the tests of the same room notice: `python -m bench.code_mutants`.

A fault turns a comparison, `and` and `or`, an operator of arithmetic, or a condition, or leaves out a call. Each is
tried in a copy of the tracked files, by the tests of the room that it is in; a run is stopped at the first test that
fails. Results go to a file line by line, and a run that was broken off goes on where it stopped. What survives is
listed, to be judged by hand: some faults change nothing that anybody could see.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parent.parent
# Room -> the tests of their own, those that take least time first.
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
SECONDS = 1800  # that a run of a room's tests may take; one that takes longer hangs, and the fault is noticed


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file."""

    room: str
    file: str
    line: int
    what: str
    source: str  # of the whole file, changed


def faults(room: str, count: int, seed: int) -> list[Fault]:
    """Faults of a room drawn by `seed`, each from another place; files are drawn by how much there is to change."""
    places = [(file, number) for file in sorted((ROOT / room).rglob("*.py")) for number in range(len(_places(file)))]
    drawn = random.Random(f"{room} {seed}").sample(places, min(count, len(places)))
    return [_fault(room, file, number) for file, number in drawn]


def _places(file: Path) -> list[ast.AST]:
    return list(_changeable(ast.parse(file.read_text())))


def _changeable(tree: ast.AST) -> Iterator[ast.AST]:
    """What can be changed, in the order of the file; not in assertions, refusals' texts and annotations."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Assert, ast.Raise, ast.AnnAssign, ast.arguments, ast.Import, ast.ImportFrom)):
            continue
        turned = isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS
        counted = isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_type(node)
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if turned or counted or called or isinstance(node, (ast.BoolOp, ast.If)):
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
    return Fault(room, where, getattr(node, "lineno", 0), f"{before}  -->  {after}", ast.unparse(tree))


def survives(fault: Fault, checkout: Path, workers: int) -> bool:
    """Whether the room's own tests pass with the fault."""
    file = checkout / fault.file
    kept = file.read_bytes()
    file.write_text(fault.source)
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-x", "-n", str(workers), "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *_nearest_first(fault)], cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)},
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    finally:
        file.write_bytes(kept)
    return done.returncode == 0


def _nearest_first(fault: Fault) -> list[str]:
    """The test files of the room; those whose name is in that of the changed file come first."""
    stem = Path(fault.file).stem
    files = [str(path.relative_to(ROOT)) for folder in ROOMS[fault.room] for path in (ROOT / folder).rglob("test_*.py")]
    return sorted(files, key=lambda name: (stem not in name, name))


def main(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="Where results go, a line for each fault.")],
    count: Annotated[int, typer.Option(min=1, help="Faults of each room.")] = 20,
    seed: Annotated[int, typer.Option(help="What the faults are drawn by.")] = 1,
    room: Annotated[list[str] | None, typer.Option(help="Only these rooms; repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes of a run of tests.")] = 1,
) -> None:
    """Try seeded faults, and print by room how many were noticed, and every one that was not."""
    known = {}
    if results.exists():
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        known = {(line["file"], line["line"], line["what"]): line for line in lines}
    with tempfile.TemporaryDirectory(prefix="graphopt-mutants-") as folder:
        checkout = Path(folder) / "checkout"
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.splitlines():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, checkout / name)
        for each in room or list(ROOMS):
            for fault in faults(each, count, seed):
                key = (fault.file, fault.line, fault.what)
                if key in known:
                    continue
                known[key] = {
                    "room": fault.room, "file": fault.file, "line": fault.line, "what": fault.what,
                    "survived": survives(fault, checkout, workers),
                }  # fmt: skip
                with results.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
    tried, survived = Counter(one["room"] for one in known.values()), [one for one in known.values() if one["survived"]]
    left = Counter(one["room"] for one in survived)
    for each, number in tried.items():
        print(f"{each}: {number - left[each]} of {number} noticed ({100 * (number - left[each]) / number:.0f} %)")
    for one in survived:
        print(f"survived {one['file']}:{one['line']}  {one['what']}")


if __name__ == "__main__":
    typer.run(main)

"""Which conditions of rules a test has refused: `python -m bench.refusals` runs the passes' tests and lists the others.

A condition is a call of `require` or `refuse` in graphopt/passes, of a match or of another question that rules ask, or
a refusal that is raised there.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from graphopt.passes import unrolling
from graphopt.rewrite.rule import Refused

ROOT = Path(__file__).parent.parent
PASSES = ROOT / "graphopt" / "passes"
TESTS = ("tests/passes",)
ASKING = ("require", "refuse")
RAISED = (Refused, unrolling._Unknown)
Place = tuple[str, int]  # file below graphopt/passes, line

_refused: set[Place] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """As a plugin of pytest: where to write the places that refused."""
    parser.addoption("--refusals", help="A file for the places of conditions that refused.")


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: listen to every refusal. Tests that listen too do so where it is initialised."""

    def made(kind: type[Exception], *reasons: str) -> Exception:
        _note()
        return Exception.__new__(kind, *reasons)

    for kind in RAISED:
        kind.__new__ = made  # type: ignore[method-assign, assignment]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """As a plugin: write the places."""
    Path(session.config.getoption("--refusals")).write_text(json.dumps(sorted(_refused)))


def _note() -> None:
    frame = sys._getframe(2)
    while frame.f_code.co_name in ASKING and frame.f_back is not None:
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    if file.is_relative_to(PASSES):
        _refused.add((str(file.relative_to(PASSES)), frame.f_lineno))


def conditions() -> dict[Place, tuple[int, str]]:
    """Every condition: where it begins -> the line where it ends, and its text."""
    found = {}
    kinds = [kind.__name__ for kind in RAISED]
    for file in sorted(PASSES.rglob("*.py")):
        tree = ast.parse(file.read_text())
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in ASKING
                  for part in ast.walk(node)}  # fmt: skip
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call | ast.Raise) or id(node) in inside:
                continue
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            asked = isinstance(call.func, ast.Attribute) and call.func.attr in ASKING
            raised = isinstance(node, ast.Raise) and isinstance(call.func, ast.Name) and call.func.id in kinds
            if asked or raised:
                found[str(file.relative_to(PASSES)), node.lineno] = (node.end_lineno or node.lineno, ast.unparse(node))
    return found


def main() -> None:
    """Run the tests and print the conditions that never refused."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "refused.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "bench.refusals", "--refusals", str(file), *TESTS]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        refused = {(name, line) for name, line in json.loads(file.read_text())}
    known = conditions()
    left = {
        (name, line): text for (name, line), (end, text) in known.items()
        if not any((name, at) in refused for at in range(line, end + 1))
    }  # fmt: skip
    for (name, line), text in left.items():
        print(f"{name}:{line}  {text}")
    print(f"{len(known) - len(left)} of {len(known)} conditions are refused in a test")


if __name__ == "__main__":
    main()

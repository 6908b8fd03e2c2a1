"""Which conditions of rules a test has refused: `python -m bench.refusals` runs the passes' tests and lists the others.

A condition is a call of `match.require` or `match.refuse` in graphopt/passes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from graphopt.rewrite.rule import Match

ROOT = Path(__file__).parent.parent
PASSES = ROOT / "graphopt" / "passes"
TESTS = ("tests/passes",)
Place = tuple[str, int]  # file below graphopt/passes, line

_refused: set[Place] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """As a plugin of pytest: where to write the places that refused."""
    parser.addoption("--refusals", help="A file for the places of conditions that refused.")


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: listen to every condition."""
    require, refuse = Match.require, Match.refuse

    def requiring(match: Match, condition: object, reason: str) -> None:
        if not condition:
            _note()
        require(match, condition, reason)

    def refusing(match: Match, reason: str) -> None:
        _note()
        refuse(match, reason)

    Match.require, Match.refuse = requiring, refusing  # type: ignore[method-assign, assignment]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """As a plugin: write the places."""
    Path(session.config.getoption("--refusals")).write_text(json.dumps(sorted(_refused)))


def _note() -> None:
    frame = sys._getframe(2)
    file = Path(frame.f_code.co_filename)
    if file.is_relative_to(PASSES):
        _refused.add((str(file.relative_to(PASSES)), frame.f_lineno))


def conditions() -> dict[Place, tuple[int, str]]:
    """Every condition: where it begins -> the line where it ends, and its text."""
    found = {}
    for file in sorted(PASSES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("require", "refuse")
                and isinstance(node.func.value, ast.Name) and node.func.value.id == "match"
            ):  # fmt: skip
                place = (str(file.relative_to(PASSES)), node.lineno)
                found[place] = (node.end_lineno or node.lineno, ast.unparse(node))
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

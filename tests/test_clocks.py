"""No test looks at a clock: what is tested does not depend on how busy the machine is, or on what is compiled already.

Forbidden are modules that tell the time, limits in seconds, and deadlines of drawn examples: `conftest.py` takes them
from all tests. A guard against hanging is allowed where it is so generous that only a hanging process meets it, and a
limit where the user's own is what is tested.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
CLOCKS = ("time", "timeit", "datetime")
LIMITS = ("seconds", "verify_seconds", "time_limit", "timeout", "deadline")
OPTIONS = ("--seconds", "--verify-seconds", "--time-limit")
GUARD = 300  # seconds, from which on a limit is a guard
GUARD_OF_PAGES = 300_000  # milliseconds: the unit of a browser's timeouts
NAMED_GUARD = "DEFAULT_VERIFY_SECONDS"
# By file: the user's own limit is what is tested.
ALLOWED = {
    "rewrite/test_optimizer.py": "seconds that the check of a rewrite may take, from none to a minute",
    "memplan/packing/test_solve.py": "a result that the user's time has ended says so",
    "memplan/packing/test_command.py": "a time limit that is none is refused",
    "scheduler/lists/test_solve.py": "a schedule that the user's time has ended says so",
    "test_clocks.py": "the names of what is forbidden",
}


def faults(source: str) -> Iterator[str]:
    """What a test's source has to do with clocks, with the line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name in CLOCKS]
            yield from (f"line {node.lineno} imports {name}" for name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            yield f"line {node.lineno} imports from {node.module}"
        elif isinstance(node, ast.Constant) and node.value in OPTIONS:
            yield f"line {node.lineno} gives {node.value}"
        elif isinstance(node, ast.Call):
            yield from _faults_of_call(node)


def _faults_of_call(call: ast.Call) -> Iterator[str]:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "set" and call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == "timeout":
        yield f"line {call.lineno} sets a timeout"
    for keyword in call.keywords:
        if keyword.arg in LIMITS and not _is_guard(keyword.value, name):
            yield f"line {call.lineno} gives {keyword.arg}"


def _is_guard(value: ast.expr, called: str) -> bool:
    if isinstance(value, (ast.Name, ast.Attribute)):
        return (value.id if isinstance(value, ast.Name) else value.attr) == NAMED_GUARD
    if not isinstance(value, ast.Constant):
        return False
    least = GUARD_OF_PAGES if called.startswith("wait_for") else GUARD
    return value.value is None or (isinstance(value.value, (int, float)) and value.value >= least)


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_no_test_looks_at_a_clock(path: Path) -> None:
    found = list(faults(path.read_text()))
    if path.relative_to(TESTS).as_posix() in ALLOWED:
        assert found, "needs no exception any more"
    else:
        assert not found, "; ".join(found)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import time", "imports time"),
        ("from time import perf_counter", "imports from time"),
        ("solve(x, time_limit=5)", "gives time_limit"),
        ("check(x, seconds=limit)", "gives seconds"),
        ("run(['a'], timeout=60)", "gives timeout"),
        ("page.wait_for_selector('a', timeout=20_000)", "gives timeout"),
        ("call('--time-limit')", "gives --time-limit"),
        ("solver.set('timeout', 5)", "sets a timeout"),
        ("settings(deadline=200)", "gives deadline"),
    ],
)
def test_a_clock_is_seen(source: str, fault: str) -> None:
    (found,) = faults(source)
    assert found.startswith("line 1") and fault in found


@pytest.mark.parametrize(
    "source",
    [
        "run(['a'], timeout=600)",
        "check(x, seconds=None)",
        "check(x, seconds=DEFAULT_VERIFY_SECONDS)",
        "solve(x, work=5)",
    ],
)
def test_a_guard_against_hanging_is_none(source: str) -> None:
    assert not list(faults(source))


def test_drawn_examples_have_no_deadline() -> None:
    assert settings.default is not None and settings.default.deadline is None

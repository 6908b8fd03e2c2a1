"""Numbers up to which rules look, follow, copy or compute, each exactly at what a graph of near misses takes.

`limits.txt` has a line for each number of a module and graph: from which number on, or up to which, the graph is
changed as it is with the module's own number. Modules are those of the passes, or are named in full.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from graphopt.rewrite.driver import BrokenRewrite
from tests.passes.near.test_taken_back import changed, graph_of

FILE = Path(__file__).parent / "limits.txt"


def outcome(name: str) -> list[str] | None:
    """The operators that are left, None where the rule breaks."""
    try:
        editor = changed(name, graph_of(name), frozenset())
    except BrokenRewrite:
        return None
    return [f"{len(editor.log)} changes", *(node.op_type for graph in editor.graphs() for node in graph)]


@pytest.mark.parametrize("line", FILE.read_text().splitlines())
def test_a_number_is_exactly_what_is_taken(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, name, limit = line.split(": ")
    where, _, number = what.rpartition(".")
    word, _, last = limit.rpartition(" ")
    module = importlib.import_module(where if where.startswith("graphopt.") else f"graphopt.passes.{where}")
    usual = outcome(name)
    monkeypatch.setattr(module, number, int(last))
    assert outcome(name) == usual
    monkeypatch.setattr(module, number, int(last) + (1 if word == "up to" else -1))
    assert outcome(name) != usual

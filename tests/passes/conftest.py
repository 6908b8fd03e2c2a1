"""`@pytest.mark.fires("rule")`: the test fails unless the rule or pass of that name changes a graph in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.rewrite.journal import Journal


@pytest.fixture(autouse=True)
def fired(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of the rules and passes that have changed a graph so far."""
    names: set[str] = set()
    write = Journal.write

    def noting(journal: Journal, pass_name: str, rule: str, *rest: object) -> None:
        names.update((pass_name, rule))
        write(journal, pass_name, rule, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "write", noting)
    yield names
    wanted = {name for mark in request.node.iter_markers("fires") for name in mark.args}
    assert wanted <= names, f"{sorted(wanted - names)} did not fire"

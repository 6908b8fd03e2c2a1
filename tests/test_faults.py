"""Seeded faults: which statements are executed, which tests are chosen by that, and what a fault changes."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from bench import code_mutants, hits
from bench.executed import Executed, probed

SOURCE = '''"""A module."""
from __future__ import annotations

SIZE = 3


def sign(number: int) -> int:
    """Minus one, nothing, or one."""
    if number < 0:
        return -1
    elif number > 0:
        found = 1
    else:
        try:
            found = 0 // number
        except ZeroDivisionError:
            found = 0
        finally:
            number = 0
    return found


def doubled(numbers):
    def twice(number):
        return 2 * number

    for number in numbers:
        yield twice(number)
'''


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("sign(-1)", {9, 10}), ("sign(2)", {9, 11, 12, 20}), ("sign(0)", {9, 11, 14, 15, 17, 19, 20}),
        ("doubled([])", set()), ("list(doubled([]))", {24, 27}), ("list(doubled([1]))", {24, 25, 27, 28}),
    ],
)  # fmt: skip
def test_a_probe_stands_before_each_statement(call: str, lines: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    changed, places = probed(SOURCE, 5)
    touched = bytearray(5 + len(places))
    monkeypatch.setattr(hits, "HITS", touched)
    names: dict[str, object] = {}
    exec(changed, names)
    assert not any(touched) and ast.get_docstring(ast.parse(changed)) == "A module."
    assert names["sign"].__doc__ == "Minus one, nothing, or one."
    eval(call, names)
    assert {line for line, hit in zip(places, touched[5:], strict=True) if hit} == lines


def test_what_stands_alone_elsewhere_is_left_as_it_is() -> None:
    assert probed(f"# SPDX-License-Identifier: Apache-2.0\n{SOURCE}", 0)[1] == []


def test_tests_that_execute_a_statement_are_chosen_the_fastest_first() -> None:
    reached = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1]], bool)  # the last row is that of imports
    executed = Executed(("a", "b", "c"), np.array([3.0, 2.0, 1.0]), (("f", 1), ("f", 2), ("f", 9)), reached)
    assert executed.chosen("f", 1) == [("c", 1.0), ("b", 2.0), ("a", 3.0)]
    assert executed.chosen("f", 2) == [("b", 2.0)]
    assert len(executed.chosen("f", 9)) == len(executed.chosen("f", 4)) == 3, "imports, and what is in no function"
    assert Executed(("a",), np.ones(1), (("f", 1),), np.zeros((2, 1), bool)).unreached() == {"f": [1]}


def test_a_fault_changes_one_place_and_keeps_the_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_mutants, "ROOT", tmp_path)
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "file.py").write_text(f"# SPDX\n{SOURCE}")
    found = code_mutants.faults("room", 99, 1)
    told = {fault.what for fault in found}
    assert {"number < 0  -->  number <= 0", "0 // number  -->  0 * number", "2 * number  -->  2 // number"} <= told
    assert len({fault.source for fault in found}) == len(found) == len(told)
    for fault in found:
        assert fault.source.startswith("# SPDX\n") and ast.parse(fault.source)
        assert fault.statement <= fault.line
    assert code_mutants.faults("room", 99, 1) == found

"""Modules that are imported when something of them is first asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.lazy import postponing

ROOT = Path(__file__).parent.parent


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported yet."""
    (tmp_path / "heavy_module.py").write_text("number = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "heavy_module", raising=False)
    return "heavy_module"


def test_what_is_postponed_is_imported_for_its_first_attribute(heavy: str) -> None:
    with postponing(heavy):
        stands_in = importlib.import_module(heavy)
    assert heavy not in sys.modules
    assert stands_in.number == 7
    assert sys.modules[heavy].number == 7


def test_what_is_asked_for_inside_is_there_for_who_comes_later(heavy: str) -> None:
    with postponing(heavy):
        assert importlib.import_module(heavy).number == 7
        assert importlib.import_module(heavy) is sys.modules[heavy]
    assert sys.modules[heavy].__file__ is not None


def test_what_is_there_already_stays_as_it_is(heavy: str) -> None:
    module = importlib.import_module(heavy)
    with postponing(heavy):
        assert importlib.import_module(heavy) is module
    assert sys.modules[heavy] is module


def test_models_of_numbers_need_no_symbols_and_those_with_names_have_them() -> None:
    code = """
import sys, onnx, graphopt
text = '<ir_version: 8, opset_import: ["" : 17]> g (float[%s, 4] x) => (float[%s, 4] y) { z = Add(x, x) y = Relu(z) }'
graphopt.compile(onnx.parser.parse_model(text % (2, 2)))
assert "sympy" not in sys.modules
import sympy
assert sympy.__version__ and sympy.Symbol("n") + 1 != 1
assert graphopt.compile(onnx.parser.parse_model(text % ("n", "n")), dims={"n": 3}).get_inputs()[0].shape == [3, 4]
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

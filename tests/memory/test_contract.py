"""The options under which a plan is what ONNX Runtime takes, wherever they are named."""

from __future__ import annotations

from graphopt.memory.budgeted import KEEPING
from graphopt.memory.contract import contract_options
from graphopt.memory.measured import _SCRIPT


def test_what_is_printed_is_what_is_set_and_measured() -> None:
    named = [text.partition("=")[0] for text in KEEPING.split(", ")]
    options = contract_options()
    for name in named:
        assert getattr(options, name) is False
        assert f"options.{name}" in _SCRIPT

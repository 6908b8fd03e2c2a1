"""Every command explains itself, and `python -m graphopt` is the console script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

from graphopt.cli.options import progress
from memplan.compiling import COMPILING, telling
from tests.cli.shell import Shell

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("command", ["optimize", "verify", "diff", "inspect", "explain"])
def test_help_of_each_command(shell: Shell, command: str) -> None:
    answer = shell.run(command, "--help")
    assert answer.status == 0
    assert f"Usage: graphopt {command}" in answer.out
    assert "--json" in answer.out


def test_no_command_shows_them_all(shell: Shell) -> None:
    answer = shell.run()
    assert answer.status == 2
    text = answer.out + answer.err
    assert all(command in text for command in ("optimize", "verify", "diff", "inspect", "explain"))


def test_as_a_module(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "graphopt", "inspect", str(shell.folder / "absent.onnx")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"error: '{shell.folder / 'absent.onnx'}' does not exist; check the path.\n"


def test_compiling_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """It is in the way of neither JSON on stdout nor the sentence of an error: tests leave it out by its text."""
    with progress("planning") as hear, telling(hear):
        assert njit(lambda x: x + 1)(1) == 2  # without a cache
        assert njit(lambda x: x + 2)(1) == 3
    assert tuple(capsys.readouterr()) == ("", f"{COMPILING}\n")

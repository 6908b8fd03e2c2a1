"""The shortest command lines, the forms that other optimizers have, pipes, and what an interrupt says."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

import graphopt
from graphopt.cli import COMMANDS
from tests import support
from tests.cli.shell import Shell, small_model

ROOT = Path(__file__).parent.parent.parent


def test_a_model_alone_is_shown_and_nothing_is_written(shell: Shell) -> None:
    for arguments in (("in.onnx",), ("optimize", "in.onnx")):
        answer = shell.run(*arguments)
        assert (answer.status, answer.err) == (0, "")
        assert answer.out.startswith("in.onnx\n")
        assert answer.out.endswith("nothing was written: add an output file, or --in-place.\n")
        assert shell.files() == {"in.onnx"}


@pytest.mark.parametrize(
    "arguments",
    [("in.onnx", "out.onnx"), ("in.onnx", "-o", "out.onnx"), ("optimize", "in.onnx", "--output", "out.onnx")],
)
def test_two_files_are_enough(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell.run(*arguments).status == 0
    assert support.op_types(shell.read("out.onnx")) == ["Gemm", "Relu"]


def test_the_output_is_given_once(shell: Shell) -> None:
    answer = shell.run("in.onnx", "a.onnx", "-o", "b.onnx")
    assert answer.status == 2 and "OUT is given twice, 'a.onnx' and 'b.onnx'" in answer.error
    assert shell.files() == {"in.onnx"}


@pytest.mark.parametrize("text", ["x=6x4", "x:6,4"])
def test_both_spellings_of_a_shape(shell: Shell, text: str) -> None:
    assert shell.run("in.onnx", "out.onnx", "--shape", text).status == 0
    dims = shell.read("out.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [6, 4]


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(shell: Shell, option: str) -> None:
    answer = shell.run(option)
    assert (answer.status, answer.out) == (0, f"graphopt, version {graphopt.__version__}\n")


def test_a_mistyped_command_gets_a_suggestion(shell: Shell) -> None:
    answer = shell.run("optimise", "in.onnx")
    assert answer.status == 2
    assert answer.error.startswith("There is no command 'optimise': the nearest name is 'optimize'; ")


def output_of(code: str, *heavy: str) -> str:
    """What code prints in a process of its own, which must have loaded none of these modules then."""
    checked = f"import sys; {code}; found = {set(heavy)} & set(sys.modules); sys.exit(str(found) if found else 0)"
    done = subprocess.run([sys.executable, "-c", checked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_lists_each_command_without_importing_any() -> None:
    heavy = ("onnx", "onnx_ir", "onnxruntime", "numpy", "llvmlite", "numba", "sympy", "networkx", "pulp")
    shown = output_of("from graphopt.cli import run_line; run_line(['--help'])", *heavy)
    assert all(f"\n  {name} " in shown for name in COMMANDS)


def test_optimize_imports_no_planner_compiler_or_page() -> None:
    heavy = ("llvmlite", "numba", "networkx", "pulp", "highspy", "jinja2", "plotly")
    assert output_of("import graphopt.cli.optimize", *heavy) == ""


def test_compile_imports_nothing_of_gpus() -> None:
    heavy = ("numba", "networkx", "pulp", "jinja2", "kernels.ptx", "graphopt.program.gpu")
    assert output_of("import graphopt.cli.compile, graphopt.flows.compile", *heavy) == ""


def test_a_model_through_pipes(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "graphopt", "-", "-"], input=small_model().SerializeToString(), capture_output=True,
        cwd=ROOT, check=True,
    )  # fmt: skip
    written = onnx.load_model_from_string(done.stdout)
    assert support.op_types(written) == ["Gemm", "Relu"]
    assert b"- -> stdout" in done.stderr and b"verified" in done.stderr, "the table goes to stderr"


def test_stdout_holds_the_model_or_the_object(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(small_model().SerializeToString())))
    answer = shell.run("-", "-", "--json")
    assert answer.status == 2 and "stdout can hold the model or the object" in answer.error


def test_an_interrupt_says_what_happened(shell: Shell) -> None:
    code = (
        "import signal, sys, graphopt; from graphopt.cli import run_line;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # which a parent may have had ignored
        "graphopt.optimize = lambda *_, **__: signal.raise_signal(signal.SIGINT);"
        "sys.exit(run_line(['in.onnx', 'out.onnx', '--json']))"
    )
    there = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=there)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted; nothing was written.\n"
    assert json.loads(done.stdout)["error"] == "interrupted; nothing was written."
    assert shell.files() == {"in.onnx"}


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion(shell: Shell, name: str) -> None:
    answer = shell.run("completion", name)
    assert answer.status == 0 and "_GRAPHOPT_COMPLETE" in answer.out


def test_help_of_a_command_begins_as_the_list_says(shell: Shell) -> None:
    """What is listed is known without the command; it must not promise another thing."""
    for name, text in COMMANDS.items():
        answer = shell.run(name, "--help")
        assert answer.status == 0 and f"Usage: graphopt {name}" in answer.out
        assert text.endswith(".") and len(text) <= 110


def test_first_figures_of_a_small_model_need_no_solver(shell: Shell) -> None:
    code = (
        "import sys, graphopt; graphopt.memory('in.onnx', dims={'batch': 2}, levers=None);"
        "heavy = {'numba', 'pulp', 'highspy', 'networkx'} & set(sys.modules);"
        "sys.exit(str(heavy or '') or 0)"
    )
    there = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=there)
    assert done.returncode == 0, done.stderr

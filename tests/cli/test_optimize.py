"""`graphopt optimize`: what it writes, prints and refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
from graphopt.check.verification import Verification
from graphopt.errors import VerificationError
from graphopt.flows import optimize
from graphopt.passes import pipeline
from graphopt.rewrite import optimizer
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, rule
from tests import support
from tests.cli.shell import Shell, small_model

KEYS = {
    "schema": str, "input": str, "output": str, "level": int, "nodes_before": int, "nodes_after": int,
    "bytes_before": int, "bytes_after": int, "parameters_before": int, "parameters_after": int, "types_before": dict,
    "types_after": dict, "seconds": float, "verify_seconds": float, "passes": list, "rolled_back": list,
    "verification": dict, "signature_unchanged": bool, "signature_changes": list,
    "opset_before": int, "opset_after": int,
    "kept_transposes": list, "memory": type(None), "inputs": list, "outputs": list,
}  # fmt: skip


def test_a_thousand_nodes_are_counted(shell: Shell) -> None:
    """Their number has a comma in it."""
    body = " ".join(f"v{number + 1} = Relu(v{number})" for number in range(1016))
    shell.write("long.onnx", support.model(f"g (float[2] v0) => (float[2] y) {{ {body} y = Neg(v1016) }}"))
    answer = shell.run("long.onnx", "out.onnx")
    assert (answer.status, answer.err) == (0, "")
    assert re.search(r"^nodes +1,017 +2 +-100%$", answer.out, re.MULTILINE)


def test_writes_a_verified_model_and_a_table(shell: Shell) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx")
    assert (answer.status, answer.err) == (0, "")
    assert shell.files() == {"in.onnx", "out.onnx"}
    assert support.op_types(shell.read("out.onnx")) == ["Gemm", "Relu"]
    support.assert_equal(small_model(), shell.read("out.onnx"), batch=2)
    rows = {tuple(line.split()) for line in answer.out.splitlines()}
    assert ("before", "after", "change") in rows
    assert ("nodes", "5", "2", "-60%") in rows
    assert {("Identity", "1", "0", "-1"), ("Gemm", "0", "1", "+1"), ("1", "other", "operator", "1", "1")} <= rows
    assert {line[0] for line in rows if line} >= {"bytes", "parameters", "time", "verification"}
    assert re.search(r"verification  verified \(1\d feeds, max error 0\)", answer.out)
    assert "allowed: 4e-06 (float32); beyond that 10 x the model's own rounding" in answer.out, "of its outputs' type"
    assert "input         x: float[batch, 4]" in answer.out and "output        y: float[batch, 3]" in answer.out


def test_json_is_one_object_alone_on_stdout(shell: Shell) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--json")
    record = answer.json
    assert list(record) == list(KEYS), "keys have a stable order"
    assert all(isinstance(record[key], kind) for key, kind in KEYS.items())
    assert record["schema"] == "graphopt.optimize/1"
    assert (record["nodes_before"], record["nodes_after"]) == (5, 2)
    # Empty fields that the writer of the input had spelled out make up the difference.
    assert abs(record["bytes_before"] - len(Path("in.onnx").read_bytes())) <= 16
    assert record["bytes_after"] == len(Path("out.onnx").read_bytes())
    assert record["verification"]["status"] == "verified" and record["verification"]["feeds"] > 10
    assert {"max_abs", "max_rel"} <= set(record["verification"])
    assert all(set(line) == {"name", "rewrites", "nodes_before", "nodes_after", "seconds"} for line in record["passes"])
    assert record["rolled_back"] == [] and record["signature_unchanged"] is True
    assert "verification  verified" in answer.err, "the table goes to stderr"


def test_report_file_is_the_object_and_every_rewrite(shell: Shell) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--json", "--report", "report.json")
    report = json.loads(Path("report.json").read_text())
    rewrites = report.pop("rewrites")
    assert report == answer.json
    assert [item["number"] for item in rewrites] == list(range(1, len(rewrites) + 1))
    (fused,) = [item for item in rewrites if item["rule"] == "matmul-add-to-gemm"]
    assert fused == {
        "number": fused["number"], "pass": "weights", "rule": "matmul-add-to-gemm", "site": "n",
        "before": ["Add 'n'", "MatMul 'm'"], "after": ["Gemm 'n/Gemm'"],
        "why": "Add(MatMul(a, b), c) --> Gemm(a, b, c); Add(Gemm(a, b), c) --> Gemm(a, b, c)", "reason": None,
    }  # fmt: skip
    assert {"identity", "matmul-add-to-gemm"} <= {item["rule"] for item in rewrites}
    assert shell.files() == {"in.onnx", "out.onnx", "report.json"}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--level", "0"), ["MatMul", "Add", "Relu"]),
        (("--level", "1"), ["MatMul", "Add", "Relu"]),
        (("--skip", "identity"), ["Identity", "Gemm", "Relu"]),
        (("--skip", "weights", "--skip", "flat-gemm"), ["MatMul", "Add", "Relu"]),
        (("--stop-after", "0"), ["Identity", "MatMul", "Constant", "Add", "Relu"]),
    ],
)
def test_level_skip_and_stop_after_limit_what_is_done(shell: Shell, options: tuple[str, ...], left: list[str]) -> None:
    assert shell.run("optimize", "in.onnx", "out.onnx", *options).status == 0
    assert support.op_types(shell.read("out.onnx")) == left


def _dims(model: onnx.ModelProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


@pytest.mark.parametrize(
    ("options", "dims"), [(("--dim", "batch=7"), [7, 4]), (("--shape", "x=6x4"), [6, 4]), ((), ["batch", 4])]
)
def test_dims_are_fixed_on_request_only(shell: Shell, options: tuple[str, ...], dims: list[int | str]) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--json", *options)
    assert answer.status == 0
    assert _dims(shell.read("out.onnx")) == dims
    assert answer.json["signature_unchanged"] is not bool(options)


def test_a_fixed_dim_is_freed(shell: Shell) -> None:
    shell.write("fixed.onnx", support.model("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"))
    answer = shell.run("optimize", "fixed.onnx", "out.onnx", "--dim", "batch=N")
    assert answer.status == 0
    assert _dims(shell.read("out.onnx")) == ["N", 4]
    assert "signature     input x: float[2, 4] -> float[N, 4], as asked" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "foo"), "--shape: 'foo' is not of the form NAME=1x3x224x224."),
        (("--shape", "x=1xQ"), "--shape: '1xQ' is not a shape; join sizes with x, such as 1x3x224x224."),
        (("--shape", "x=-1x4"), "--shape: '-1x4' is not a shape; join sizes with x, such as 1x3x224x224."),
        (("--dim", "batch"), "--dim: 'batch' is not of the form NAME=3 or NAME=N."),
        (("--dim", "batch=-1"), "--dim: '-1' is neither a size nor a name for a dim."),
        (("--dim", "batch=1", "--dim", "batch=2"), "--dim: 'batch' is given twice."),
        (("--skip", "identiti"), "--skip: there is no pass or rule 'identiti'; the nearest name is 'identity'"),
        (("--report", "in.onnx"), "--report: 'in.onnx' is a model; choose another file."),
        (("--report", "./out.onnx"), "--report: 'out.onnx' is a model; choose another file."),
    ],
)
def test_a_malformed_option_is_a_usage_error(shell: Shell, options: tuple[str, ...], message: str) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", *options)
    assert answer.status == 2
    assert message in answer.error
    assert shell.files() == {"in.onnx"}


@pytest.mark.parametrize("arguments", [(), ("in.onnx", "out.onnx", "--level", "4"), ("in.onnx", "out.onnx", "--wrong")])
def test_an_unknown_command_line_is_a_usage_error(shell: Shell, arguments: tuple[str, ...]) -> None:
    answer = shell.run("optimize", *arguments, "--json")
    assert answer.status == 2
    assert "levels are 0 to 3" in answer.error or "graphopt optimize --help" in answer.error
    assert answer.json["error"] == answer.error


def test_the_input_is_overwritten_only_on_request(shell: Shell) -> None:
    before = Path("in.onnx").read_bytes()
    answer = shell.run("optimize", "in.onnx", "in.onnx")
    assert answer.status == 2
    assert answer.error == "OUT: 'in.onnx' is the input itself; choose another output or pass --in-place."
    assert Path("in.onnx").read_bytes() == before
    assert shell.run("optimize", "in.onnx", "--in-place").status == 0
    assert support.op_types(shell.read("in.onnx")) == ["Gemm", "Relu"]
    assert shell.files() == {"in.onnx"}


def test_without_verification_the_status_is_off(shell: Shell) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--no-verify", "--json")
    assert answer.status == 0 and shell.files() == {"in.onnx", "out.onnx"}
    assert answer.json["verification"]["status"] == "off"
    assert "verification  off: nothing was checked" in answer.err


def test_what_cannot_be_verified_is_not_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Verification("not run", reason="ONNX Runtime has no kernel for Foo")
    honest = optimizer.optimize_verified

    def unlucky(*arguments: Any, **options: Any) -> optimizer.Outcome:
        return dataclasses.replace(honest(*arguments, **options), verification=result)

    monkeypatch.setattr(optimize, "optimize_verified", unlucky)
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--report", "r.json")
    assert answer.status == 1
    assert answer.error == (
        "'in.onnx' could not be verified, so nothing was written: ONNX Runtime has no kernel for Foo; "
        "pass --no-verify to write the result unchecked."
    )
    assert shell.files() == {"in.onnx"}


@pytest.mark.parametrize("status", ["not run", "different"])
def test_from_python_too_a_result_that_failed_its_check_is_saved_on_demand_only(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    verdict = Verification(status, reason="there is no kernel for Foo")
    result = dataclasses.replace(graphopt.optimize("in.onnx"), verification=verdict)
    with pytest.raises(VerificationError, match="no kernel for Foo; pass unchecked=True to save it all the same"):
        result.save("out.onnx")
    assert shell.files() == {"in.onnx"}
    result.save("out.onnx", unchecked=True)
    graphopt.optimize("in.onnx", verify=False).save("off.onnx")
    assert shell.files() == {"in.onnx", "out.onnx", "off.onnx"}


@rule(op("Relu", var("x")), level=0)
def relu_is_abs(match: Match) -> Replacement:
    """Relu(x)  -->  Abs(x), which is wrong"""
    return match.op("Abs", match["x"])


def test_rollbacks_are_listed_and_the_model_is_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "STANDARD", (Pass("wrong", 0, (relu_is_abs,)), *pipeline.STANDARD))
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--json")
    assert answer.status == 0
    (rollback,) = answer.json["rolled_back"]
    assert (rollback["rule"], rollback["site"]) == ("relu-is-abs", "y")
    assert "rolled back   relu-is-abs at 'y': output 'y': off by" in answer.err
    assert support.op_types(shell.read("out.onnx")) == ["Gemm", "Relu"]


def test_random_outputs_are_listed_as_excluded(shell: Shell) -> None:
    shell.write("random.onnx", support.model(
        """g (float[2] x) => (float[2] y, float[2] r) {
            a = Identity(x)
            y = Relu(a)
            r = RandomUniformLike(y)
        }"""
    ))  # fmt: skip
    answer = shell.run("optimize", "random.onnx", "out.onnx", "--json")
    assert answer.json["verification"]["excluded"] == ["r"]
    assert "not compared, because they are random: r" in answer.err


@pytest.mark.parametrize("name", ["write", "replace"])
def test_a_full_disk_leaves_nothing_behind(shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The report has been prepared; then a write of the model fails, or its rename does."""
    original, calls = getattr(os, name), 0

    def full(*arguments: Any) -> object:
        nonlocal calls
        calls += 1
        if name == "replace" or calls > 1:
            raise OSError(28, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(os, name, full)
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--report", "r.json")
    assert answer.status == 1
    assert answer.error == "'out.onnx' was not written: the disk is full; free some space or choose another folder."
    assert shell.files() == {"in.onnx"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no/out.onnx", "the folder 'no' does not exist; create it first."),
        (".", "'.' is a folder; give the name of the file to write."),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(shell: Shell, target: str, message: str) -> None:
    answer = shell.run("optimize", "absent.onnx", target)
    assert (answer.status, answer.error) == (1, message)


def test_a_fault_of_our_own_is_one_line_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(optimize, "optimize_verified", broken)
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--json")
    assert answer.status == 1
    assert "internal error (ZeroDivisionError at flows/optimize.py:" in answer.error
    assert answer.json["error"] == answer.error
    assert shell.files() == {"in.onnx"}


def test_a_lifted_opset_is_told(shell: Shell) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--opset", "21")
    assert answer.status == 0
    assert "-> 21, as asked" in answer.out
    assert shell.read("out.onnx").opset_import[0].version == 21

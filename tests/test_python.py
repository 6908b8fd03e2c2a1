"""The Python interface as people use it: in a notebook, with open files, in code that was written for other tools."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import graphopt
from tests import support
from tests.cli.shell import small_model

ROOT = Path(__file__).parent.parent


def _layers() -> onnx.ModelProto:
    return small_model().__class__.FromString(small_model().SerializeToString())


def _renamed(operator: str) -> onnx.ModelProto:
    proto = support.model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.node[0].name = operator
    return proto


def test_importing_it_loads_nothing() -> None:
    code = "import sys, graphopt; sys.exit(str({'numpy', 'onnx', 'onnx_ir'} & set(sys.modules) or '') or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="module 'graphopt' has no attribute 'optimise'"):
        graphopt.optimise  # type: ignore[attr-defined]  # noqa: B018
    assert set(graphopt.__all__) <= set(dir(graphopt))


def test_the_function_stays_the_function_where_its_room_is_imported() -> None:
    import graphopt.memory.plan

    assert callable(graphopt.memory)


def test_results_show_themselves_in_one_line() -> None:
    result = graphopt.optimize(_layers())
    assert repr(result) == "<OptimizeResult 5 -> 2 nodes, verified>"
    report = graphopt.memory(_layers(), dims={"batch": 2})
    assert repr(report).startswith("<MemoryReport model: arena ") and "\n" not in repr(report)
    scheduled = graphopt.schedule(_layers(), device="cpu:2", dims={"batch": 2}, work=1000)
    assert repr(scheduled).startswith("<ScheduleReport model on cpu:2: ") and repr(scheduled).endswith("simulated>")
    compiled = graphopt.compile(_layers(), dims={"batch": 2})
    assert repr(compiled).startswith("<Compiled program(x: tensor(float)[2, 4]) for ")
    for shown in (result, report, scheduled):
        assert shown._repr_html_().startswith("<table>") and len(shown._repr_html_()) < 3000
    rows = [[cell.text for cell in row] for row in ElementTree.fromstring(result._repr_html_()).iter("tr")]
    assert rows[0] == [None, "before", "after"] and rows[1] == ["nodes", "5", "2"]
    assert "<td>&lt;b&gt; (Relu)</td>" in graphopt.memory(_renamed("<b>"), levers=())._repr_html_()


def test_reports_are_written_by_the_ending_of_the_file(tmp_path: Path) -> None:
    result = graphopt.optimize(_layers(), details=True)
    report = graphopt.memory(_layers(), dims={"batch": 2}, levers=())
    for shown, schema in ((result, "graphopt.optimize/1"), (report, "graphopt.memory/1")):
        shown.write(tmp_path / "r.json")
        assert json.loads((tmp_path / "r.json").read_text())["schema"] == schema
        assert json.loads(shown.json())["schema"] == schema
        shown.write(tmp_path / "r.html")
        assert (tmp_path / "r.html").read_text() == shown.html()
        with pytest.raises(graphopt.OptionError, match=r"r.pdf' is neither \.html nor \.json"):
            shown.write(tmp_path / "r.pdf")
    report.save(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == json.loads(report.json())


def test_a_page_of_memory_compares_runs(tmp_path: Path) -> None:
    report = graphopt.memory(_layers(), dims={"batch": 2}, levers=())
    larger = graphopt.memory(_layers(), dims={"batch": 512}, levers=())
    larger.write(tmp_path / "larger.json")
    report.write(tmp_path / "r.html", beside=[larger, tmp_path / "larger.json"])
    page = (tmp_path / "r.html").read_text()
    assert page == report.html(beside=[larger, larger]) and page != report.html()
    with pytest.raises(graphopt.OptionError, match=r"absent.json' cannot be read"):
        report.html(beside=[tmp_path / "absent.json"])


def test_a_bundle_and_a_model_run(tmp_path: Path) -> None:
    onnx.save(_layers(), tmp_path / "m.onnx")
    graphopt.compile(_layers(), dims={"batch": 2}).save(tmp_path / "bundle")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (expected,) = support.session(_layers()).run(None, {"x": x})
    for program in (tmp_path / "m.onnx", tmp_path / "bundle"):
        # Sums of four products in float32.
        np.testing.assert_allclose(graphopt.run(program, {"x": x})["y"], expected, rtol=1e-6)
        first, second = graphopt.run(program, random=True), graphopt.run(str(program), random=True)
        np.testing.assert_array_equal(first["y"], second["y"])
        with pytest.raises(graphopt.OptionError, match="input 'x' is missing; give it in feeds, or random=True"):
            graphopt.run(program)
        with pytest.raises(graphopt.OptionError, match="there is no input 'X'; the nearest name is 'x'"):
            graphopt.run(program, {"X": x})


@pytest.mark.parametrize("arguments", [["run", "bundle", "--random"], ["bench", "m.onnx", "--bundle", "bundle"]])
def test_what_compiles_nothing_needs_no_solver(tmp_path: Path, arguments: list[str]) -> None:
    proto = support.model("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    onnx.save(proto, tmp_path / "m.onnx")
    graphopt.compile(proto).save(tmp_path / "bundle")
    code = (
        "import sys; sys.modules['numba'] = sys.modules['highspy'] = None;"  # importing them fails
        f"from graphopt.cli import run_line; sys.exit(run_line({arguments}))"
    )
    there = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=there)
    assert done.returncode == 0, done.stderr


def test_a_result_as_bytes_and_as_a_session() -> None:
    result = graphopt.optimize(_layers())
    assert support.op_types(onnx.load_model_from_string(result.to_bytes())) == ["Gemm", "Relu"]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (expected,) = support.session(_layers()).run(None, {"x": x})
    np.testing.assert_allclose(result.session().run(None, {"x": x})[0], expected, rtol=1e-6)


def test_a_program_describes_itself_like_a_session() -> None:
    compiled = graphopt.compile(_layers(), dims={"batch": 2})
    session = support.session(_layers())
    for ours, theirs in (
        (compiled.get_inputs(), session.get_inputs()),
        (compiled.get_outputs(), session.get_outputs()),
    ):
        assert [(one.name, one.type) for one in ours] == [(one.name, one.type) for one in theirs]
        assert [one.shape[1:] for one in ours] == [one.shape[1:] for one in theirs]
        assert [one.shape[0] for one in ours] == [2]


def test_a_program_in_parts_describes_itself_too() -> None:
    proto = support.model(
        "g (float[2,8] x, int64[3] e) => (float[l,m,n] y, float[2,8] r) { r = Relu(x) y = Expand(r, e) }", 20
    )  # fmt: skip
    compiled = graphopt.compile(proto)
    assert [(one.name, one.type, one.shape) for one in compiled.get_inputs()] == [
        ("x", "tensor(float)", [2, 8]), ("e", "tensor(int64)", [3])]  # fmt: skip
    assert [(one.name, one.type, one.shape) for one in compiled.get_outputs()] == [
        ("y", "tensor(float)", [-1, 2, 8]), ("r", "tensor(float)", [2, 8]),
    ]  # fmt: skip
    assert "operators in ONNX Runtime" in repr(compiled)


def test_open_files(tmp_path: Path) -> None:
    data = small_model().SerializeToString()
    assert graphopt.optimize(io.BytesIO(data)).after.nodes == 2
    (tmp_path / "m.onnx").write_bytes(data)
    with (tmp_path / "m.onnx").open("rb") as file:
        assert graphopt.optimize(file).after.nodes == 2
    with pytest.raises(graphopt.OptionError, match="open as text; open it with mode 'rb'"):
        graphopt.optimize(io.StringIO("text"))  # type: ignore[arg-type]


def test_wrong_types_are_named() -> None:
    with pytest.raises(graphopt.OptionError, match=r"a model is a path, bytes, .* not list"):
        graphopt.optimize([1, 2])  # type: ignore[arg-type]
    with pytest.raises(graphopt.OptionError, match="level '2' does not exist; levels are 0 to 3"):
        graphopt.optimize(_layers(), level="2")  # type: ignore[arg-type]
    with pytest.raises(graphopt.OptionError, match=r"'x' is a sequence of sizes such as \(1, 64\), not '2x4'"):
        graphopt.optimize(_layers(), shapes={"x": "2x4"})  # type: ignore[dict-item]
    with pytest.raises(graphopt.OptionError, match=r"skip is a sequence of names such as \('weights',\), not a text"):
        graphopt.optimize(_layers(), skip="weights")


def test_messages_speak_of_arguments() -> None:
    with pytest.raises(graphopt.OptionError, match=r"give 'batch' a value, dims=\{'batch': 1\} for example"):
        graphopt.memory(_layers())


def test_every_error_is_exported_and_one_of_ours() -> None:
    for name in graphopt.__all__:
        if name.endswith("Error") or name in ("BudgetNotKept", "NotLowered", "MissingExtra"):
            assert issubclass(getattr(graphopt, name), graphopt.GraphoptError)
    with pytest.raises(graphopt.BudgetNotKept) as refused:
        graphopt.memory(_layers(), dims={"batch": 2}, budget=16)
    assert refused.value.least > 16


class TestSimplify:
    """Code that was written for onnxsim."""

    def test_by_place_and_by_name(self) -> None:
        model, passed = graphopt.simplify(_layers(), 3, True, False, {"x": [2, 4]})
        assert passed and support.op_types(model) == ["Gemm", "Relu"]
        assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [2, 4]

    def test_unused_outputs_go_with_what_made_them(self) -> None:
        proto = support.model("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Exp(x) }")
        model, passed = graphopt.simplify(proto, unused_output=["z"])
        assert passed and support.op_types(model) == ["Relu"]
        with pytest.raises(graphopt.OptionError, match="there is no output 'w'; there are 'y', 'z'"):
            graphopt.simplify(proto, unused_output=["w"])
        with pytest.raises(graphopt.OptionError, match="a model needs an output; keep one of y, z"):
            graphopt.simplify(proto, unused_output=["y", "z"])

    def test_inputs_with_defaults_become_constants_unless_they_shall_stay(self) -> None:
        proto = small_model()
        proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 3]))
        for mutable, inputs in ((False, ["x"]), (True, ["x", "w"])):
            model, _ = graphopt.simplify(proto, mutable_initializer=mutable)
            assert [one.name for one in model.graph.input] == inputs

    def test_opset_and_file(self, tmp_path: Path) -> None:
        model, _ = graphopt.simplify(_layers(), target_opset_version=18, output_path=tmp_path / "o.onnx")
        assert model.opset_import[0].version == 18
        assert support.op_types(onnx.load(tmp_path / "o.onnx")) == support.op_types(model)
        with pytest.raises(graphopt.OptionError, match="target_opset_version is a number or 'latest', not 'newest'"):
            graphopt.simplify(_layers(), target_opset_version="newest")

    def test_what_is_skipped(self) -> None:
        model, _ = graphopt.simplify(
            _layers(), skip_fuse_bn=True, skipped_optimizers=["eliminate_nop_pad", "flat-gemm"]
        )
        assert support.op_types(model) == ["MatMul", "Add", "Relu"]
        model, _ = graphopt.simplify(_layers(), perform_optimization=False)
        assert "Gemm" not in support.op_types(model)

    @pytest.mark.parametrize(
        ("name", "value"), [("custom_lib", "x.so"), ("range_opt", True), ("initializers_as_constants", False)]
    )
    def test_what_is_not_done_here_is_refused(self, name: str, value: object) -> None:
        with pytest.raises(graphopt.OptionError, match=f"simplify cannot do what '{name}' asks for"):
            graphopt.simplify(_layers(), **{name: value})  # type: ignore[arg-type]

    def test_what_asks_for_nothing_is_taken(self) -> None:
        model, _ = graphopt.simplify(
            _layers(), range_opt=False, initializers_as_constants=True, providers=["CPUExecutionProvider"], certify=True
        )
        assert support.op_types(model) == ["Gemm", "Relu"]
        with pytest.raises(graphopt.OptionError, match="has no option 'ranges'; the nearest name is 'range_opt'"):
            graphopt.simplify(_layers(), ranges=True)


class TestSlim:
    """Code that was written for onnxslim."""

    def test_model_in_model_out(self) -> None:
        model = graphopt.slim(_layers())
        assert model is not None and support.op_types(model) == ["Gemm", "Relu"]

    @pytest.mark.parametrize("shapes", [{"x": [2, 4]}, ["x:2,4"]])
    def test_a_file_and_shapes(self, tmp_path: Path, shapes: graphopt.flows.simplify.Shapes) -> None:
        assert graphopt.slim(_layers(), tmp_path / "o.onnx", input_shapes=shapes) is None
        dims = onnx.load(tmp_path / "o.onnx").graph.input[0].type.tensor_type.shape.dim
        assert [dim.dim_value for dim in dims] == [2, 4]

    def test_outputs_that_are_kept(self) -> None:
        proto = support.model("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Exp(x) }")
        model = graphopt.slim(proto, outputs=["z:float32"])
        assert model is not None and [one.name for one in model.graph.output] == ["z"]

    def test_what_is_skipped_and_what_is_refused(self) -> None:
        model = graphopt.slim(
            _layers(), skip_optimizations=["weights"], skip_fusion_patterns=["flat-gemm", "FusionGemm"]
        )
        assert model is not None and support.op_types(model) == ["MatMul", "Add", "Relu"]
        with pytest.raises(graphopt.OptionError, match="slim cannot do what 'dtype' asks for"):
            graphopt.slim(_layers(), dtype="float16")
        with pytest.raises(graphopt.OptionError, match=r"'x=2' is not of the form x:1,3,224,224"):
            graphopt.slim(_layers(), input_shapes=["x=2"])

"""Bundles for GPUs: what `compile` makes and refuses, what a folder holds, and running one on the PTX machine."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.cli.compile import command as compile_command
from graphopt.cli.run import command as run_command
from graphopt.errors import BundleError, OptionError
from graphopt.program.deploy.cuda.runtime import CudaError, Device
from graphopt.program.gpu import LinkedTasks
from kernels.errors import KernelsError
from kernels.ptx.tables import NoDescription, TaskDescription
from kernels.target import UnknownTarget, cuda, named


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, on every machine."""
    known = ctypes.CDLL

    def load(name: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(name, str) and "libcuda" in name:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return known(name, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", load)


def small(batch: int | str = 2) -> onnx.ModelProto:
    """A product with a bias, its softmax, and the same beside it."""
    draw = np.random.default_rng(3)
    weights = {"w": draw.standard_normal((5, 7)), "v": draw.standard_normal((5, 7)), "b": draw.standard_normal(7)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["p"]), helper.make_node("Softmax", ["p"], ["s"]),
        helper.make_node("MatMul", ["x", "v"], ["q"]), helper.make_node("Add", ["s", "q"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 7])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def compiled() -> graphopt.Compiled:
    return graphopt.compile(small(), target="cuda:sm_80")


def test_a_small_program_is_compared_on_the_ptx_machine(compiled: graphopt.Compiled) -> None:
    assert compiled.not_compared is None and compiled.verification.passed
    assert isinstance(compiled.linked, LinkedTasks) and len(compiled.linked.lists) == 324
    assert "compute capability 8.0" in repr(compiled)


def test_a_bundle_runs_from_its_files_alone(compiled: graphopt.Compiled, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    compiled.save(folder)
    assert {one.name for one in folder.iterdir()} == {
        "manifest.json", "model_cuda.py", "program.json", "program.ptx", "weights.bin"
    }  # fmt: skip
    x = np.arange(10, dtype=np.float32).reshape(2, 5) / 7
    (y,) = graphopt.run(folder, {"x": x}, on="ptx-machine").values()
    model = small()
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    compiled.save(folder)  # in the place of the first


def test_without_a_driver_a_bundle_says_what_runs_it(compiled: graphopt.Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "bundle")
    with pytest.raises(BundleError, match=r"driver is not installed.*--on ptx-machine"):
        graphopt.run(tmp_path / "bundle", random=True)
    with pytest.raises(CudaError, match="driver"):
        Device()


def test_the_command_compiles_and_runs(tmp_path: Path) -> None:
    onnx.save(small(), tmp_path / "small.onnx")
    folder = tmp_path / "bundle"
    given = [str(tmp_path / "small.onnx"), str(folder), "--target", "cuda:sm_90", "--json"]
    done = CliRunner().invoke(compile_command, given)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["gpu_workers"] == 396 and record["level"] == "NVIDIA GPUs of compute capability 9.0"
    ran = CliRunner().invoke(run_command, [str(folder), "--random", "--on", "ptx-machine"])
    assert ran.exit_code == 0 and "the PTX machine, for sm_90" in ran.output


def test_where_a_bundle_of_a_processor_runs_is_not_asked(tmp_path: Path) -> None:
    onnx.save(small(), tmp_path / "small.onnx")
    with pytest.raises(OptionError, match="no bundle for a GPU"):
        graphopt.run(tmp_path / "small.onnx", random=True, on="ptx-machine")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": ["cuda:sm_80", "cuda:sm_90"]}, "code for one target"),
        ({"memory_budget": 1000}, "memory budget"),
        ({"ram": 1 << 20}, "memory budget"),
        ({"caches": True}, "caches"),
        ({"form": "onnxruntime"}, "custom operators of GPUs"),
        ({"dims": {"batch": (1, 4)}}, "one size of every dim"),
    ],
)
def test_what_programs_of_gpus_do_not_have_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        graphopt.compile(small("batch"), **({"target": "cuda:sm_80"} | options))


@pytest.mark.parametrize("use", [graphopt.certify, graphopt.profile, graphopt.check_bundle])
def test_what_needs_a_library_says_so(use: Any, compiled: graphopt.Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "bundle")
    with pytest.raises(BundleError, match="bundle for a GPU, which has no library"):
        use(tmp_path / "bundle")


def test_unknown_gpus_are_refused() -> None:
    with pytest.raises(UnknownTarget, match="sm_12"):
        cuda("sm_12")
    assert named("cuda:sm_100").capability == "10.0"


def test_a_description_is_written_and_read(compiled: graphopt.Compiled) -> None:
    assert isinstance(compiled.linked, LinkedTasks)
    found = TaskDescription.of(compiled.linked.listing, cuda("sm_80"), 3)
    assert TaskDescription.read(found.written()) == found
    counted = [found.tables.items[8 * one : 8 * one + 2] for one in range(found.items)]
    assert sorted(counted) == sorted(found.tables.pinned[8 * one : 8 * one + 2] for one in range(found.items))
    assert found.workers == 3 and found.tables.lists[-1] == found.items


def test_what_is_no_description_is_refused() -> None:
    with pytest.raises(NoDescription, match="describes no program"):
        TaskDescription.read(b'{"name": 3}')
    assert issubclass(NoDescription, KernelsError) and issubclass(TaskDescription, msgspec.Struct)

"""The benches can be started: each of their modules imports what is there."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import bench

# What they measure beside, or count with, is no dependency of the tests.
OPTIONAL = {"openvino", "onnxslim", "onnxsim", "onnxscript", "onnxoptimizer", "torch", "coverage", "onnx_tool"}
MODULES = sorted(one.name for one in pkgutil.walk_packages(bench.__path__, "bench."))


@pytest.mark.parametrize("name", MODULES)
def test_a_bench_imports_what_is_there(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert (error.name or "").partition(".")[0] in OPTIONAL, error

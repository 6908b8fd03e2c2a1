"""The onnx package's own operator tests hold after optimization, with inputs given and with all of them embedded.

The built-in check is off, so that a wrong rule shows here instead of being rolled back. Counted are the tests that ONNX
Runtime passes on the model as it is; bench/node_tests.py covers those with sequences and optionals too.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

import graphopt
from tests import support

GROUPS = 8
LEAST = {"given": 1100, "embedded": 1150}  # tests that must have been counted, over all groups


@lru_cache(maxsize=1)
def _cases() -> tuple[TestCase, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow on purpose
        return tuple(sorted(load_model_tests(kind="node"), key=lambda case: case.name))


def _arrays(values: object) -> list[np.ndarray] | None:
    """The values as arrays, None when one is a sequence, an optional or a type NumPy lacks."""
    found = []
    for value in values if isinstance(values, (list, tuple)) else []:
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        if not isinstance(value, (np.ndarray, np.generic)):
            return None
        found.append(np.asarray(value))
    return found


def _fault(model: onnx.ModelProto, feed: dict[str, np.ndarray], expected: list[np.ndarray], case: TestCase) -> str:
    try:
        outputs = support.session(model).run(None, feed)
    except Exception as error:  # ONNX Runtime's errors share no base class
        return str(error)
    for wanted, found in zip(expected, outputs, strict=True):
        found = np.asarray(found)
        if found.shape != wanted.shape or found.dtype.kind != wanted.dtype.kind:
            return "another shape or type"
        if wanted.dtype.kind in "OSUbiu":
            if not np.array_equal(found, wanted):
                return "another value"
        elif not np.allclose(found, wanted, rtol=case.rtol, atol=case.atol, equal_nan=True):
            return "another number"
    return ""


def _embedded(model: onnx.ModelProto, values: list[np.ndarray]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, 4)
    for value, array in zip(list(copy.graph.input), values, strict=True):
        copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
        copy.graph.input.remove(value)
    return copy


@pytest.mark.filterwarnings("ignore")  # of NumPy, in the onnx package's conversions
@pytest.mark.parametrize("mode", ["given", "embedded"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_operators(group: int, mode: str) -> None:
    faults, counted = {}, 0
    for case in _cases()[group::GROUPS]:
        if case.model is None or not case.data_sets:
            continue
        inputs, expected = (_arrays(values) for values in case.data_sets[0])
        if inputs is None or expected is None or len(inputs) != len(case.model.graph.input):
            continue
        feed = {value.name: array for value, array in zip(case.model.graph.input, inputs, strict=True)}
        model = case.model
        if mode == "embedded":
            try:
                model, feed = _embedded(case.model, inputs), {}
            except (ValueError, TypeError):
                continue  # a type that cannot be stored
        if _fault(model, feed, expected, case):
            continue  # ONNX Runtime does not pass it in the first place
        counted += 1
        optimized = graphopt.optimize(model, verify=False)
        fault = _fault(optimized.to_proto(), feed, expected, case)
        if fault or optimized.rolled_back or optimized.signature_changes:
            faults[case.name] = fault or str(optimized.rolled_back)
    assert faults == {}
    assert counted >= LEAST[mode] // GROUPS - 20

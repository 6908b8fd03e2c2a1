"""The onnx package's nine light networks: much smaller graphs, no larger files, the recorded outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
import models
from tests import support

# Nodes other than ConstantOfShape that may remain.
MOST = {
    "light_bvlc_alexnet": 22,
    "light_densenet121": 372,
    "light_inception_v1": 142,
    "light_inception_v2": 186,
    "light_resnet50": 130,
    "light_shufflenet": 154,
    "light_squeezenet": 65,
    "light_vgg19": 44,
    "light_zfnet512": 22,
}


@pytest.mark.parametrize("name", sorted(MOST))
def test_light_network(name: str) -> None:
    original = models.load(name)
    result = graphopt.optimize(original)
    optimized = result.to_proto()
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    onnx.checker.check_model(optimized)
    assert sum(node.op_type != "ConstantOfShape" for node in optimized.graph.node) <= MOST[name]
    assert optimized.ByteSize() <= original.ByteSize() + 4096  # weights of one repeated value are not written out
    recorded = models.recorded_io(name)
    outputs = support.session(optimized).run(None, recorded.inputs)
    for expected, found in zip(recorded.outputs.values(), outputs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-7)  # the tolerance of onnx's own model tests

"""Transposed convolution against ONNX Runtime without optimizations."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernels.target import host
from kernels.templates.convolution import ways
from kernels.templates.convolution.problem import InvalidConvolution
from kernels.templates.convolution.transposed import transposed
from tests.kernels.templates.convolution.oracle import Sample, run, sample

TOLERANCE = 2e-5  # a few hundred products near 1/sqrt(n), summed in another order


def by_onnxruntime(taken: Sample, attributes: dict[str, object], rank: int) -> np.ndarray:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    x, w = (array.reshape(*array.shape[:2], *array.shape[5 - rank :]) for array in (taken.x, taken.weights))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, one.shape) for name, one in (("x", x), ("w", w))]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, [output]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "w": w})[0]


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_any_transposed_convolution_is_what_onnxruntime_says(data):
    rank = data.draw(st.sampled_from((1, 2, 2)))

    def some(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(rank)]

    groups = data.draw(st.sampled_from((1, 1, 2, 3)))
    depth, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    kernel, strides, dilations, size = some(1, 4), some(1, 3), some(1, 2), some(1, 6)
    more = [data.draw(st.integers(0, stride - 1)) for stride in strides]
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    pads = [data.draw(st.integers(0, far // 2)) for far in (*reach, *reach)]
    order = data.draw(st.sampled_from(("NCHW", "NHWC", "NCHWc")))
    problem = transposed(
        2, depth * groups, width * groups, size, kernel, strides=strides, dilations=dilations, pads=pads,
        output_padding=more, groups=groups, order=order,
    )  # fmt: skip
    taken = sample(problem)
    attributes = {
        "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "output_padding": more,
        "group": groups,
    }  # fmt: skip
    expected = by_onnxruntime(taken, attributes, rank).reshape(2, width * groups, *problem.output.size)
    found = run(ways.build(problem, ways.candidates(problem, host())[0], host()), taken)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_pads_wider_than_the_kernel_are_refused():
    with pytest.raises(InvalidConvolution, match="wider than the kernel reaches"):
        transposed(1, 2, 2, (9,), (2,), pads=(2, 0))

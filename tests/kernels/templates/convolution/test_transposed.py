"""Convolutions with zeros in their input and mirrored weights against ONNX Runtime's ConvTranspose.

    y[n, o, s * i + d * t - pad] += x[n, c, i] * w[c, o, t]

is the convolution of stride 1 of x with s - 1 zeros between neighbours, with mirrored taps, and d * (k - 1) - pad zeros
before it.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernels.target import host
from kernels.templates.convolution import ways
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, whole
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
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "w": w})[0]


@given(st.data())
@settings(deadline=None, max_examples=20)
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
    first = [far - pad for far, pad in zip(reach, pads, strict=False)]
    out = [
        (s - 1) * stride + far + 1 + extra - before - after
        for s, stride, far, extra, before, after in zip(
            size, strides, reach, more, pads[:rank], pads[rank:], strict=True
        )
    ]
    assume(min(out) > 0)
    block = 16 if order == "NCHWc" else 0
    problem = Convolution(
        Layout(2, depth * groups, whole(size, 1), order, block), Layout(2, width * groups, whole(out, 1), order, block),
        whole(kernel, 1), dilations=whole(dilations, 1), pads=whole(first, 0), groups=groups,
        input_dilations=whole(strides, 1), transposed=True,
    )  # fmt: skip
    taken = sample(problem)
    attributes = {
        "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "output_padding": more,
        "group": groups,
    }  # fmt: skip
    expected = by_onnxruntime(taken, attributes, rank).reshape(2, width * groups, *problem.output.size)
    found = run(ways.build(problem, ways.candidates(problem, host())[0], host()), taken)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)

"""Running lowered graphs region by region, each buffer an array of its own; and what ONNX Runtime says."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.run import Executable, aligned
from kernels.target import Target, host


def run_lowered(lowered: Lowered, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, in order."""
    arrays: dict[Buffer, np.ndarray] = {one: _bytes(constant.packed()) for one, constant in lowered.constants.items()}
    outputs: dict[int | None, np.ndarray] = {}
    for buffer in lowered.buffers:
        if buffer.role == "input":
            arrays[buffer] = _bytes(feeds[lowered.inputs[buffer.argument or 0].name])
        elif buffer.role != "constant":
            arrays[buffer] = aligned(buffer.size, np.uint8)
        if buffer.role == "output":
            outputs[buffer.argument] = arrays[buffer]
    for region in lowered.regions:
        given = {
            operand.name: arrays[place.buffer][place.offset :]
            for operand, place in zip(region.kernel.operands, region.places, strict=True)
        }
        Executable([region.kernel])(given)
    return [
        outputs[number][: one.bytes].view(one.dtype.numpy).reshape(one.shape)
        for number, one in enumerate(lowered.outputs)
    ]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def compare(proto: onnx.ModelProto, seed: int = 0, target: Target | None = None, tolerance: float = 1e-5) -> Lowered:
    """Lower, run and compare with ONNX Runtime without optimizations; the regions, for further questions."""
    lowered = lower(ir.from_proto(proto), target or host())
    generator = np.random.default_rng(seed)
    feeds = {}
    for argument in lowered.inputs:
        drawn = generator.standard_normal(argument.shape) * (10 if not argument.dtype.is_float else 1)
        feeds[argument.name] = (drawn > 0) if argument.dtype.value == "bool" else drawn.astype(argument.dtype.numpy)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for got, wanted in zip(run_lowered(lowered, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(
            got, wanted, rtol=tolerance, atol=tolerance, err_msg=str([r.nodes for r in lowered.regions])
        )
    return lowered

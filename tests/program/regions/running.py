"""Running lowered graphs region by region, each buffer an array of its own; and what ONNX Runtime says."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.run import Executable, aligned
from kernels.target import Target, host


def run_lowered(lowered: Lowered, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, in order."""
    arrays: dict[str, np.ndarray] = dict(lowered.constants)
    for argument in lowered.inputs:
        arrays[f"input:{argument.name}"] = np.ascontiguousarray(feeds[argument.name])
    for argument in lowered.outputs:
        arrays[f"output:{argument.name}"] = aligned(argument.bytes, np.uint8)
    for name, size in lowered.temporaries.items():
        arrays[name] = aligned(size, np.uint8)
    for region in lowered.regions:
        given = {
            operand.name: arrays[buffer] for operand, buffer in zip(region.kernel.operands, region.buffers, strict=True)
        }
        Executable([region.kernel])(given)
    return [
        arrays[f"output:{one.name}"][: one.bytes].view(one.dtype.numpy).reshape(one.shape) for one in lowered.outputs
    ]


def compare(proto: onnx.ModelProto, seed: int = 0, target: Target | None = None, tolerance: float = 1e-5) -> Lowered:
    """Lower, run and compare with ONNX Runtime without optimizations; the regions, for further questions."""
    lowered = lower(ir.from_proto(proto), target or host())
    generator = np.random.default_rng(seed)
    feeds = {}
    for argument in lowered.inputs:
        drawn = generator.standard_normal(argument.shape) * (10 if not argument.dtype.is_float else 1)
        feeds[argument.name] = (drawn > 0) if argument.dtype.value == "bool" else drawn.astype(argument.dtype.numpy)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for got, wanted in zip(run_lowered(lowered, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(
            got, wanted, rtol=tolerance, atol=tolerance, err_msg=str([r.nodes for r in lowered.regions])
        )
    return lowered

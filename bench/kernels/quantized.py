"""Bar 9 of the kernels, convolution of bytes: beside ONNX Runtime's QLinearConv, one thread.

Both sides read and write channels side by side (com.microsoft.QLinearConv with channels_last, the form that ONNX
Runtime itself chooses where it optimizes a graph), add an int32 bias, requantize by channel and saturate. The results
are compared byte by byte before anything is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from bench.bar import Bar, Sheet
from bench.kernels.timing import Array, Peer, model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.run import Executable, aligned
from kernels.target import host
from kernels.templates.convolution.problem import convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER
from kernels.templates.quantized.linear import requantize
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.ways import QUANTIZED
from kernels.tensor.expression import Number

ISSUE = 4
ROUNDS, QUICK_ROUNDS = 15, 5
NOT_SLOWER = 0.95
COPIES = 4
X_ZERO, Y_ZERO = 3, 5
SCALES = np.float32(0.1), np.float32(0.01), np.float32(1.3)  # of x, weights and y


@dataclass(frozen=True, slots=True)
class Layer:
    """A square convolution from `channels` at `size`, padded so that a stride of 1 keeps the size."""

    channels: int
    output: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """As tables show it."""
        kind = "depthwise " if self.groups > 1 else ""
        stride = f" s{self.stride}" if self.stride > 1 else ""
        return f"{kind}{self.kernel}x{self.kernel}{stride} {self.channels}-{self.output} @ {self.size}"


RESNET = (
    Layer(3, 64, 224, 7, 2), Layer(64, 64, 56, 3), Layer(128, 128, 28, 3), Layer(256, 256, 14, 3),
    Layer(512, 512, 7, 3), Layer(64, 128, 56, 3, 2), Layer(64, 128, 56, 1, 2), Layer(128, 256, 28, 3, 2),
    Layer(256, 512, 14, 3, 2),
    Layer(64, 256, 56, 1), Layer(256, 64, 56, 1), Layer(128, 512, 28, 1), Layer(1024, 256, 14, 1),
    Layer(512, 2048, 7, 1),
)  # fmt: skip
DEPTHWISE = tuple(Layer(c, c, size, 3, 1, c) for c, size in ((32, 112), (144, 56), (192, 28), (384, 14), (960, 7)))
QUICK = (RESNET[0], RESNET[1], RESNET[4], RESNET[9], DEPTHWISE[1])


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, ONNX Runtime over ours."""
    pin()
    target, rows, missed = host(), [], []
    layers = QUICK if quick else (*RESNET, *DEPTHWISE)
    for layer in layers:
        problem = _problem(layer)
        weights = [_weights(layer, number) for number in range(COPIES)]
        x = np.random.default_rng(0).integers(0, 256, (1, layer.size, layer.size, layer.channels)).astype(np.uint8)
        kernel = QUANTIZED.kernel(problem, target)
        peer = _peer(layer, x, weights)
        outputs: list[Array] = []
        runs = []
        for one in weights:
            arrays = _arrays(layer, kernel, x, one)
            outputs.append(arrays["y"])
            runs.append((kernel, arrays))
        calls = Executable([kernel]).calls(runs)
        calls()
        for ours, theirs in zip(outputs, peer.outputs, strict=True):
            np.testing.assert_array_equal(ours, theirs.reshape(-1), layer.name)
        taken = readings({"peer": peer, "ours": calls}, QUICK_ROUNDS if quick else ROUNDS)
        against = ratio(taken["peer"], taken["ours"])
        if against.high < NOT_SLOWER:
            missed.append(layer.name)
        speed = COPIES * problem.geometry.flops / min(taken["ours"]) / 1e9
        rows.append((layer.name, speed, against.median, against.low, against.high, kernel.candidate))
    columns = ("layer", "Gop/s", "QLinearConv / ours", "from", "to", "candidate")
    sheet.table("int8 convolution, one thread", columns, rows)
    mean = float(np.exp(np.mean([np.log(row[2]) for row in rows])))
    figure = f"{len(layers) - len(missed)} of {len(layers)}, mean {mean:.2f}"
    figure += f" (not: {', '.join(missed)})" if missed else ""
    text = f"not slower than {NOT_SLOWER} on any layer"
    return [Bar(ISSUE, 9, "int8 convolution against QLinearConv", text, figure, not missed)]


def _problem(layer: Layer) -> QuantizedConvolution:
    pad, sides = layer.kernel // 2, (layer.kernel, layer.kernel)
    geometry = convolution(
        1, layer.channels, layer.output, (layer.size, layer.size), sides, strides=(layer.stride, layer.stride),
        pads=(pad,) * 4, groups=layer.groups, order="NHWC",
    )  # fmt: skip
    problem = QuantizedConvolution(geometry, DType.U8, DType.I8, X_ZERO)
    total = ACCUMULATED_INTEGER[()] + problem.per_channel("bias", DType.I32)
    multiplier = problem.per_channel("multiplier", DType.F32)
    return problem.with_epilogue(requantize(total, multiplier, Number(Y_ZERO, DType.U8), DType.U8))


def _weights(layer: Layer, number: int) -> Array:
    generator = np.random.default_rng([number, layer.channels])
    shape = (layer.output, layer.channels // layer.groups, layer.kernel, layer.kernel)
    return generator.integers(-127, 128, shape).astype(np.int8)


Floats = npt.NDArray[np.float32]


def _constants(layer: Layer) -> tuple[Array, Floats]:
    """Bias and scale of each output channel's weights."""
    generator = np.random.default_rng(layer.output)
    depth = layer.channels // layer.groups * layer.kernel**2
    scales = (SCALES[1] * generator.uniform(0.5, 1.5, layer.output) / np.sqrt(depth)).astype(np.float32)
    return generator.integers(-10_000, 10_000, layer.output).astype(np.int32), scales


def _arrays(layer: Layer, kernel: Kernel, x: Array, weights: Array) -> dict[str, Array]:
    bias, scales = _constants(layer)
    given: dict[str, Array] = {"x": x, "bias": bias, "multiplier": SCALES[0] * scales / SCALES[2]}
    found = {}
    for operand in kernel.operands:
        held = aligned(operand.elements, operand.dtype.numpy)
        if operand.packing is not None:
            held[:] = operand.packing.pack(weights)
        elif operand.name in given:
            held[:] = given[operand.name].reshape(-1)
        found[operand.name] = held
    return found


def _peer(layer: Layer, x: Array, weights: list[Array]) -> Peer:
    bias, scales = _constants(layer)
    constants: dict[str, Array] = {
        "xs": np.array(SCALES[0]), "xz": np.array(X_ZERO, np.uint8), "ws": scales,
        "wz": np.zeros(layer.output, np.int8), "ys": np.array(SCALES[2]), "yz": np.array(Y_ZERO, np.uint8), "b": bias,
    }  # fmt: skip
    nodes = []
    for number, one in enumerate(weights):
        constants[f"w{number}"] = one
        names = ["x", "xs", "xz", f"w{number}", "ws", "wz", "ys", "yz", "b"]
        nodes.append(
            helper.make_node(
                "QLinearConv",
                names,
                [f"y{number}"],
                domain="com.microsoft",
                channels_last=1,
                group=layer.groups,
                pads=[layer.kernel // 2] * 4,
                strides=[layer.stride] * 2,
            )
        )
    outputs = [f"y{number}" for number in range(len(weights))]
    return Peer(model(nodes, {"x": x}, outputs, constants, dtype=TensorProto.UINT8), {"x": x})


if __name__ == "__main__":
    main(measure)

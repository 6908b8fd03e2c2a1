"""Operators that are plain loops, one node at a time, beside ONNX Runtime on one thread, at usual sizes.

Each node is a program of its own, with what a run gives as inputs; both sides have everything bound beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, pin, ratio, readings, unpin
from bench.peers import OURS
from bench.script import main

ISSUE, NUMBER = 20, 6
ROUNDS, QUICK_ROUNDS = 11, 3
LEAST, SHARE = 0.5, 0.8  # of ONNX Runtime's speed, on this share of the cases

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A node: its operator, its inputs by place ("" where one is left out), and which of them are constants."""

    text: str
    op: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    known: tuple[int, ...] = ()
    outputs: int = 1
    opset: int = 20
    domain: str = ""
    skipped: tuple[int, ...] = ()  # outputs that are left out


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, ONNX Runtime over ours, one thread."""
    rows, slow = [], []
    for case in CASES:
        one, microseconds = compare(case, QUICK_ROUNDS if quick else ROUNDS)
        rows.append((case.text, *one, microseconds))
        if one[0] < LEAST:
            slow.append(case.text)
    sheet.table("operators as loops, one thread", ("operator", "ratio", "from", "to", "ours µs"), rows)
    share = 1 - len(slow) / len(rows)
    figure = f"{100 * share:.0f} % of {len(rows)} cases" + (f" (not: {', '.join(slow)})" if slow else "")
    wanted = f"half as fast as ONNX Runtime on {100 * SHARE:g} %"
    return [Bar(ISSUE, NUMBER, "operators as loops against ONNX Runtime", wanted, figure, share >= SHARE)]


def compare(case: Case, rounds: int) -> tuple[tuple[float, float, float], float]:
    """The ratio with its interval, and our microseconds."""
    unpin()
    source, feed = model_of(case)
    program = graphopt.compile(onnx.load_from_string(source), feeds=[feed], threads=1).program
    pin()
    taken = readings({"peer": Peer(source, feed), "ours": program.bind(feed)}, rounds)
    found = ratio(taken["peer"], taken["ours"])
    return (found.median, found.low, found.high), min(taken["ours"]) * 1e6


def model_of(case: Case) -> tuple[bytes, dict[str, Array]]:
    """A model of the node, its results with the dims that ONNX Runtime gives them, and a feed."""
    names = ["" if one is None else f"x{at}" for at, one in enumerate(case.inputs)]
    outputs = [f"y{at}" if at not in case.skipped else "" for at in range(case.outputs)]
    given = [(name, one) for name, one in zip(names, case.inputs, strict=True) if one is not None]
    constants = {names[at] for at in case.known}
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    feed = {name: one for name, one in given if name not in constants}

    def built(results: list[onnx.ValueInfoProto]) -> bytes:
        graph = helper.make_graph(
            [node], "g", [_described(name, one) for name, one in feed.items()], results,
            [onnx.numpy_helper.from_array(one, name) for name, one in given if name in constants],
        )  # fmt: skip
        imports = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
        proto: bytes = helper.make_model(graph, ir_version=10, opset_imports=imports).SerializeToString()
        return proto

    shown = [name for name in outputs if name]
    session = ort.InferenceSession(built([onnx.ValueInfoProto(name=name) for name in shown]))
    results = session.run(None, feed)
    return built([_described(name, one) for name, one in zip(shown, results, strict=True)]), feed


def _described(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def drawn(*shape: int) -> Array:
    """Numbers of a normal distribution, the same every time."""
    return np.random.default_rng([20, *shape]).standard_normal(shape).astype(np.float32)


def whole(*shape: int, below: int) -> Array:
    """Integers from 0 on."""
    return np.random.default_rng([20, *shape]).integers(0, below, shape)


def boxes(count: int) -> Array:
    """Boxes with corners in [0, 1]."""
    ends = np.sort(np.random.default_rng(count).random((1, count, 2, 2)), axis=2)
    return ends.reshape(1, count, 4).astype(np.float32)


def _resize(mode: str, size: int, **attributes: Any) -> Case:
    sizes = np.array([1, 3, size, size])
    text = f"Resize {mode} 3x256x256 -> {size}" + "".join(f", {name}" for name in attributes)
    return Case(text, "Resize", (drawn(1, 3, 256, 256), None, None, sizes), {"mode": mode, **attributes})


def _conv(text: str, x: Array, weights: Array, **attributes: Any) -> Case:
    return Case(f"Conv {text}, weights of a run", "Conv", (x, weights), attributes)


def levels(kind: type, *shape: int) -> Array:
    """Bytes over the whole of their type."""
    limits = np.iinfo(kind)
    return np.random.default_rng([20, *shape]).integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def single(value: float) -> Array:
    """A scale."""
    return np.array(value, np.float32)


def _bits(rows: int, depth: int, columns: int, bits: int, *, with_zeros: bool = False) -> Case:
    block, each = 32, 8 // bits
    packed, count = levels(np.uint8, columns, depth // block, block // each), depth // block
    zeros = levels(np.uint8, columns * -(-count // each)) if with_zeros else None
    given = (drawn(rows, depth), packed, abs(drawn(columns * count)) + 0.1, zeros)
    return Case(
        f"MatMulNBits {rows}x{depth}x{columns}, {bits} bits{', zero points' if with_zeros else ''}", "MatMulNBits",
        given if with_zeros else given[:3], {"K": depth, "N": columns, "bits": bits, "block_size": block},
        (1, 2, 3) if with_zeros else (1, 2), domain="com.microsoft",
    )  # fmt: skip


def _qlinear_conv(text: str, x: Array, weights: Array, *, known: bool = True, **attributes: Any) -> Case:
    scales = abs(drawn(len(weights))) * 0.01 + 0.001
    inputs = (x, single(0.02), np.array(7, np.uint8), weights, scales, np.zeros(len(weights), np.int8),
              single(0.5), np.array(9, np.uint8))  # fmt: skip
    return Case(f"QLinearConv {text}", "QLinearConv", inputs, attributes, tuple(range(1, 8)) if known else (1, 2, 6, 7))


def _conv_integer(text: str, x: Array, weights: Array, **attributes: Any) -> Case:
    return Case(f"ConvInteger {text}", "ConvInteger", (x, weights, np.array(7, np.uint8)), attributes, (1, 2))


_SAME: dict[str, Any] = {"pads": [1, 1, 1, 1]}
_BEFORE, _THREE = np.array([0]), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
CASES = (
    _resize("nearest", 512), _resize("linear", 512), _resize("cubic", 512), _resize("linear", 100, antialias=1),
    Case("Resize linear 64x56x56 -> 112", "Resize", (drawn(1, 64, 56, 56), None, None, np.array([1, 64, 112, 112])),
         {"mode": "linear"}),
    Case("GridSample 16x128x128", "GridSample",
         (drawn(1, 16, 128, 128), np.tanh(drawn(1, 128, 128, 2))), {"padding_mode": "border"}),
    Case("NonMaxSuppression 1,000 boxes", "NonMaxSuppression",
         (boxes(1000), abs(drawn(1, 1, 1000)), np.array([200]), np.array([0.5], np.float32))),
    Case("RoiAlign 256x50x50, 100 regions", "RoiAlign",
         (drawn(1, 256, 50, 50), boxes(100)[0] * 800, whole(100, below=1)),
         {"output_height": 7, "output_width": 7, "sampling_ratio": 2, "spatial_scale": 1 / 16}),
    Case("TopK 1,000 of 10,000", "TopK", (drawn(8, 10_000), np.array([1000])), outputs=2),
    Case("TopK 5 of 1,000", "TopK", (drawn(64, 1000), np.array([5])), outputs=2),
    Case("ArgMax 512x1,000", "ArgMax", (drawn(512, 1000),), {"axis": 1}),
    Case("ScatterND 1,000 rows of 64", "ScatterND",
         (drawn(4096, 64), whole(1000, 1, below=4096), drawn(1000, 64)), opset=18),
    Case("ScatterElements add 512x128", "ScatterElements",
         (drawn(1024, 128), whole(512, 128, below=1024), drawn(512, 128)), {"reduction": "add"}, opset=18),
    Case("Gather 512 rows of 768", "Gather", (drawn(30_000, 768), whole(512, below=30_000))),
    Case("GatherElements 512x512", "GatherElements", (drawn(512, 512), whole(512, 512, below=512)), {"axis": 1}),
    Case("CumSum 256x1,000", "CumSum", (drawn(256, 1000), np.array(1))),
    Case("NonZero 512x512", "NonZero", ((drawn(512, 512) > 1).astype(np.float32),)),
    Case("Compress 10,000 rows of 16", "Compress", (drawn(10_000, 16), drawn(10_000) > 0), {"axis": 0}),
    Case("Unique 20,000", "Unique", (whole(20_000, below=5_000),), outputs=4),
    Case("OneHot 512 of 1,000", "OneHot",
         (whole(512, below=1000), np.array([1000]), np.array([0, 1], np.float32)), known=(1,)),
    Case("Slice 64x112x112 by run", "Slice",
         (drawn(1, 64, 112, 112), _BEFORE, np.array([100]), np.array([3]), np.array([1]))),
    Case("Slice 64x112x112 backwards", "Slice",
         (drawn(1, 64, 112, 112), np.array([-1]), np.array([-999]), np.array([3]), np.array([-1])), known=(1, 2, 3, 4)),
    Case("Tile 256x256 by 4x4", "Tile", (drawn(256, 256), np.array([4, 4]))),
    Case("Trilu 12x512x512", "Trilu", (drawn(12, 512, 512),)),
    Case("DepthToSpace 64x112x112", "DepthToSpace", (drawn(1, 64, 112, 112),), {"blocksize": 2}),
    Case("SpaceToDepth 16x224x224", "SpaceToDepth", (drawn(1, 16, 224, 224),), {"blocksize": 2}),
    Case("ReverseSequence 128x32x64", "ReverseSequence", (drawn(128, 32, 64), whole(32, below=128))),
    Case("MaxPool 64x112x112 with places", "MaxPool", (drawn(1, 64, 112, 112),), _THREE, outputs=2),
    Case("MaxPool 64x112x112 of int8", "MaxPool", ((drawn(1, 64, 112, 112) * 50).astype(np.int8),), _THREE),
    Case("LpPool 64x112x112", "LpPool", (drawn(1, 64, 112, 112),), _THREE),
    _conv("64x56x56 3x3", drawn(1, 64, 56, 56), drawn(64, 64, 3, 3), pads=[1, 1, 1, 1]),
    _conv("256x14x14 1x1", drawn(1, 256, 14, 14), drawn(512, 256, 1, 1)),
    _conv("64x56x56 depthwise", drawn(1, 64, 56, 56), drawn(64, 1, 3, 3), pads=[1, 1, 1, 1], group=64),
    Case("ConvTranspose 64x28x28 2x2, weights of a run", "ConvTranspose",
         (drawn(1, 64, 28, 28), drawn(64, 32, 2, 2)), {"strides": [2, 2]}),
    Case("DeformConv 32x28x28 3x3", "DeformConv",
         (drawn(1, 32, 28, 28), drawn(32, 32, 3, 3), drawn(1, 18, 28, 28)), {"pads": [1, 1, 1, 1]}),
    Case("Col2Im 64 of 3x3 on 56x56", "Col2Im",
         (drawn(1, 576, 54 * 54), np.array([56, 56]), np.array([3, 3]))),
    Case("MaxUnpool 64x56x56", "MaxUnpool",
         (drawn(1, 64, 56, 56), np.arange(64 * 56 * 56).reshape(1, 64, 56, 56) * 4),
         {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("MatMul of float64 256x256x256", "MatMul",
         (drawn(256, 256).astype(np.float64), drawn(256, 256, 1)[..., 0].astype(np.float64))),
    Case("MatMul of float64 64x512x512, constant", "MatMul",
         (drawn(64, 512).astype(np.float64), drawn(512, 512).astype(np.float64)), known=(1,)),
    Case("MatMulInteger 128x768x768", "MatMulInteger",
         (levels(np.uint8, 128, 768), levels(np.int8, 768, 768), np.array(7, np.uint8)), known=(1,)),
    Case("MatMulInteger 128x768x768, weights of a run", "MatMulInteger",
         (levels(np.uint8, 128, 768), levels(np.int8, 768, 768))),
    Case("MatMulInteger 12x64x64x64, weights of a run", "MatMulInteger",
         (levels(np.uint8, 12, 64, 64), levels(np.int8, 12, 64, 64))),
    _bits(1, 1024, 1024, 4), _bits(1, 1024, 1024, 4, with_zeros=True), _bits(64, 1024, 1024, 4),
    _bits(1, 1024, 1024, 8),
    Case("Attention 8x128x64 with its scores", "Attention",
         (drawn(1, 8, 128, 64), drawn(1, 8, 128, 64) * 2, drawn(1, 8, 128, 64) * 3), {"qk_matmul_output_mode": 0},
         outputs=4, opset=23, skipped=(1, 2)),
    Case("GRU 32x1x128 with other activations", "GRU",
         (drawn(32, 1, 128), drawn(1, 384, 128) / 10, drawn(1, 384, 128, 1)[..., 0] / 10, drawn(1, 768) / 10),
         {"hidden_size": 128, "activations": ["HardSigmoid", "Softsign"]}, known=(1, 2, 3)),
    Case("ReduceMax 512x1,000 along an axis of a run, 0", "ReduceMax", (drawn(512, 1000), _BEFORE)),
    Case("ReduceSum 512x1,000 along an axis of a run, 0", "ReduceSum", (drawn(512, 1000), _BEFORE)),
    _qlinear_conv("64x56x56 1x1", levels(np.uint8, 1, 64, 56, 56), levels(np.int8, 256, 64, 1, 1)),
    _qlinear_conv("64x56x56 3x3", levels(np.uint8, 1, 64, 56, 56), levels(np.int8, 64, 64, 3, 3), **_SAME),
    _qlinear_conv("256x14x14 3x3", levels(np.uint8, 1, 256, 14, 14), levels(np.int8, 256, 256, 3, 3), **_SAME),
    _qlinear_conv("512x7x7 1x1", levels(np.uint8, 1, 512, 7, 7), levels(np.int8, 2048, 512, 1, 1)),
    _qlinear_conv("144x56x56 depthwise", levels(np.uint8, 1, 144, 56, 56), levels(np.int8, 144, 1, 3, 3), group=144,
                  **_SAME),
    _qlinear_conv("96x14x14 1x1", levels(np.uint8, 1, 96, 14, 14), levels(np.int8, 576, 96, 1, 1)),
    _qlinear_conv("64x56x56 3x3, weights of a run", levels(np.uint8, 1, 64, 56, 56), levels(np.int8, 64, 64, 3, 3),
                  known=False, **_SAME),
    _conv_integer("64x56x56 3x3", levels(np.uint8, 1, 64, 56, 56), levels(np.int8, 64, 64, 3, 3), **_SAME),
    _conv_integer("256x14x14 1x1", levels(np.uint8, 1, 256, 14, 14), levels(np.int8, 1024, 256, 1, 1)),
)  # fmt: skip


if __name__ == "__main__":
    main(measure)

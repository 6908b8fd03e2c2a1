"""Bar 10 of the kernels: numbers that lead to subnormal ones cost nothing.

Each case is a program of one operator or two, run on ordinary feeds and on feeds whose exponentials, products, sums or
elements are subnormal: the numbers that masks, SiLU of large negatives and faded activations make. Both runs are the
same code over the same memory, whose content is changed between readings. Weights are about 1e-20, so that products
with activations of 1e-20 are subnormal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main

ISSUE = 4
ROUNDS, QUICK_ROUNDS = 31, 9
LARGEST = 1.05  # times as long as with ordinary feeds
TINY = 1e-20

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, ordinary feeds, and feeds by what makes them hard."""

    text: str
    nodes: tuple[onnx.NodeProto, ...]
    ordinary: Feeds
    hard: Mapping[str, Feeds]
    constants: Feeds | None = None


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, hard feeds over ordinary ones, one thread, float32."""
    pin()
    rows, missed, worst = [], [], 0.0
    for case in cases():
        source = model(case.nodes, case.ordinary, ["y"], case.constants, opset=23)
        program = graphopt.compile(onnx.load_from_string(source)).program
        feeds = {"ordinary": case.ordinary, **case.hard}
        held = {name: array.copy() for name, array in case.ordinary.items()}
        bound = program.bind(held)

        def fill(side: str, feeds: Mapping[str, Feeds] = feeds, held: Feeds = held) -> None:
            for name, array in held.items():
                array[...] = feeds[side][name]

        taken = readings(dict.fromkeys(feeds, bound), QUICK_ROUNDS if quick else ROUNDS, before=fill)
        for name in case.hard:
            found = ratio(taken[name], taken["ordinary"])
            worst = max(worst, found.median)
            if found.low > LARGEST:
                missed.append(f"{case.text}, {name}")
            microseconds = 1e6 * float(np.median(taken["ordinary"]))
            rows.append((case.text, name, found.median, found.low, found.high, microseconds))
    columns = ("kernel", "feeds", "ratio", "from", "to", "ordinary µs")
    sheet.table("feeds that make subnormal numbers, one thread, CPU time over that of ordinary feeds", columns, rows)
    figure = f"worst {worst:.2f}" + (f" (not: {'; '.join(missed)})" if missed else "")
    return [Bar(ISSUE, 10, "subnormal numbers cost nothing", f"each <= {LARGEST}", figure, not missed)]


def cases() -> list[Case]:
    """All of them, with feeds from one seed."""
    return [*_softmaxes(), *_attentions(), *_elementwise(), *_rows(), *_products()]


def _generator() -> np.random.Generator:
    return np.random.default_rng(0)


def _normal(*shape: int, scale: float = 1.0) -> Floats:
    return (_generator().standard_normal(shape) * scale).astype(np.float32)


def _half(shape: tuple[int, ...], other: float) -> Floats:
    """Zeros, and `other` in a random half of the places, but never in the first of a row."""
    shut = np.random.default_rng(1).random(shape) < 0.5
    shut[..., 0] = False
    return np.where(shut, other, 0.0).astype(np.float32)


def _softmaxes() -> list[Case]:
    found = []
    for shape in ((1536, 128), (64, 2048)):
        x = _normal(*shape)
        hard = {
            "half at -inf": x + _half(shape, -np.inf), "half at -100": x + _half(shape, -100.0),
            "half near -90": x * 3 + _half(shape, -90.0),
        }  # fmt: skip
        node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
        found.append(
            Case(f"Softmax {shape[0]}x{shape[1]}", (node,), {"x": x}, {name: {"x": one} for name, one in hard.items()})
        )
    return found


def _attentions() -> list[Case]:
    heads, length, size = 12, 128, 64
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"])
    tensors = {name: _normal(1, heads, length, size) for name in "qkv"}
    shape = (1, 1, length, length)
    open_, lowest = np.zeros(shape, np.float32), float(np.finfo(np.float32).min)
    masks = {
        f"half at {text}": _half(shape, value) for text, value in (("-inf", -np.inf), ("-100", -100.0), ("min", lowest))
    }
    text = f"Attention {heads}x{length}x{size}"
    faded = {**tensors, "v": tensors["v"] * np.float32(1e-36)}
    return [
        Case(f"{text}, float mask", (node,), {**tensors, "m": open_},
             {**{name: {**tensors, "m": mask} for name, mask in masks.items()},
              "V of 1e-36": {**faded, "m": open_}}),
        Case(f"{text}, bool mask", (node,), {**tensors, "m": open_ == 0},
             {"half shut": {**tensors, "m": masks["half at -inf"] == 0}}),
    ]  # fmt: skip


def _elementwise() -> list[Case]:
    size = 98_304
    below = _generator().uniform(-110, -80, size).astype(np.float32)
    sigmoid, product = helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])
    ones = {"x": _normal(size)}
    chain = (helper.make_node("Mul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "x"], ["y"]))
    return [
        Case(f"SiLU {size:,}", (sigmoid, product), ones, {"-80 to -110": {"x": below}}),
        Case(f"Exp {size:,}", (helper.make_node("Exp", ["x"], ["y"]),), ones, {"-80 to -110": {"x": below}}),
        Case(f"Gelu {size:,}", (helper.make_node("Gelu", ["x"], ["y"]),), ones,
             {"1e-40": {"x": _normal(size, scale=1e-40)}}),
        Case(f"x w + x {size:,}", chain, {"x": _normal(size), "w": _normal(size)},
             {"1e-20 each": {"x": _normal(size, scale=TINY), "w": _normal(size, scale=TINY)},
              "1e-40 each": {"x": _normal(size, scale=1e-40), "w": _normal(size)}}),
    ]  # fmt: skip


def _rows() -> list[Case]:
    shape = (128, 768)
    x, faded = {"x": _normal(*shape)}, {"1e-40": {"x": _normal(*shape, scale=1e-40)}}
    normalization = helper.make_node("LayerNormalization", ["x", "w", "w"], ["y"], axis=-1)
    mean = helper.make_node("ReduceMean", ["x", "axis"], ["y"])
    pool = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    image = (1, 32, 56, 56)
    return [
        Case("LayerNormalization 128x768", (normalization,), x, faded, {"w": np.ones(768, np.float32)}),
        Case("ReduceMean 128x768", (mean,), x, faded, {"axis": np.array([-1])}),
        Case("AveragePool 3x3 32 @ 56", (pool,), {"x": _normal(*image)},
             {"1e-40": {"x": _normal(*image, scale=1e-40)}}),
    ]  # fmt: skip


def _products() -> list[Case]:
    found = []

    def add(text: str, node: onnx.NodeProto, shape: tuple[int, ...], weights: tuple[int, ...]) -> None:
        hard = {f"{scale:.0e}": {"x": _normal(*shape, scale=scale)} for scale in (TINY, 1e-40)}
        constants = {"w": _normal(*weights, scale=TINY)}
        found.append(Case(text, (node,), {"x": _normal(*shape)}, hard, constants))

    add("MatMul 128x768x768", helper.make_node("MatMul", ["x", "w"], ["y"]), (128, 768), (768, 768))
    add("MatMul 1x768x768", helper.make_node("MatMul", ["x", "w"], ["y"]), (1, 768), (768, 768))
    for text, channels, group, kernel in (("3x3", 64, 1, 3), ("1x1", 64, 1, 1), ("depthwise 3x3", 64, 64, 3)):
        node = helper.make_node("Conv", ["x", "w"], ["y"], group=group, pads=[kernel // 2] * 4)
        weights = (channels, channels // group, kernel, kernel)
        add(f"Conv {text} {channels} @ 56", node, (1, channels, 56, 56), weights)
    lengths = (1, 12, 128, 64)
    scores = helper.make_node("MatMul", ["x", "w"], ["y"])
    ordinary = {"x": _normal(*lengths), "w": _normal(1, 12, 64, 128, scale=TINY)}
    found.append(
        Case("MatMul 12x128x128x64", (scores,), ordinary,
             {"1e-20": {**ordinary, "x": _normal(*lengths, scale=TINY)}})
    )  # fmt: skip
    return found


if __name__ == "__main__":
    main(measure)

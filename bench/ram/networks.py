"""The models: two of the zoo, a net like VGG-16, and a decoder like llama of 2 GB, written once under build/ram.

The decoder computes one token behind keys and values of `PAST` others. All weights are seeded, and lie in a file of
their own, which ONNX Runtime can map; what is generated is written tensor by tensor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper

import graphopt
import models
from bench.survey import BUILD
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from models.families.network import Array, Network

PLACE = BUILD / "ram"
SEED = 0
VGG, LLAMA = "vgg16_like", "llama_like_2gb"
NAMES = ("bert_base", "gpt2_dyn", VGG, LLAMA)
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions (Simonyan, 2014)
VOCABULARY, WIDTH, HEADS, KEY_HEADS, HEAD, INNER, LAYERS = 16_000, 2048, 16, 4, 128, 5504, 10
PAST, LONGEST = 63, 256  # positions
ALIGNMENT = 4096  # bytes, of tensors in the file of weights
OUTSIDE_FROM = 1024  # bytes of a tensor, which the model's file does not hold from here on


@dataclass(frozen=True, slots=True)
class Given:
    """A model's file, the sizes of its free dims, and what it is run on."""

    name: str
    file: Path
    dims: Mapping[str, int]
    feed: Mapping[str, Array]


def given(name: str) -> Given:
    """One of `NAMES`, or any other model of the zoo."""
    file = _written(name)
    if name == LLAMA:
        rng = np.random.default_rng(SEED)
        cache = [1, KEY_HEADS, PAST, HEAD]
        feed = {"input_ids": np.array([[7]]), "position": np.array([PAST])}
        feed |= {
            f"past_{kind}_{layer}": rng.standard_normal(cache, np.float32)
            for layer in range(LAYERS)
            for kind in ("key", "value")
        }
        return Given(name, file, {}, feed)
    dims = {} if name in GENERATED else models.sizes(name)
    drawn = make_feed(inputs_of(graphopt.load(file)), dims, "normal")
    return Given(name, file, dims, {key: np.ascontiguousarray(value) for key, value in drawn.items()})


def _written(name: str) -> Path:
    """The file of a model with its data beside it, made where it is not there."""
    folder = PLACE / "models" / name
    file = folder / f"{name}.onnx"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")  # another process may want the file at the same time
        part.mkdir(parents=True)
        if name in GENERATED:
            with (part / data_of(file).name).open("wb") as stream:
                model = GENERATED[name](_Outside(name, SEED, stream, data_of(file).name))
            (part / file.name).write_bytes(model.SerializeToString())
        else:
            models.write(name, part / file.name, outside_from=OUTSIDE_FROM)
        part.replace(folder)
    return file


def data_of(file: Path) -> Path:
    """The file that a model's weights are in."""
    return file.with_name(f"{file.name}.data")


def _vgg(net: Network) -> onnx.ModelProto:
    x, inner = net.input("image", [1, 3, 224, 224]), 3
    for channels, convolutions in STAGES:
        for _ in range(convolutions):
            x, inner = net.op("Relu", net.conv(x, inner, channels, 3)), channels
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x, inner = net.op("Flatten", x, axis=1), 7 * 7 * inner
    for _ in range(2):
        x, inner = net.op("Relu", net.gemm(x, inner, 4096)), 4096
    return net.model(logits=(net.gemm(x, inner, 1000), [1, 1000]))


class _Outside(Network):
    """A network whose tensors go to a file as they are drawn."""

    def __init__(self, name: str, seed: int, stream: BinaryIO, location: str) -> None:
        super().__init__(name, seed)
        self._stream, self._location = stream, location

    def tensor(self, array: Array, kind: str = "weight") -> str:
        """An initializer, in the file if it is not small."""
        if array.nbytes < OUTSIDE_FROM:
            return super().tensor(array, kind)
        self._stream.write(bytes(-self._stream.tell() % ALIGNMENT))
        name, offset = f"{kind}_{len(self._weights)}", self._stream.tell()
        np.ascontiguousarray(array).tofile(self._stream)
        stored = TensorProto(
            name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        for key, value in (("location", self._location), ("offset", offset), ("length", array.nbytes)):
            stored.external_data.add(key=key, value=str(value))
        self._weights.append(stored)
        return name


def _llama(net: Network) -> onnx.ModelProto:
    ids, position = net.input("input_ids", [1, 1], np.int64), net.input("position", [1], np.int64)
    angles = np.outer(np.arange(LONGEST), 10_000.0 ** (-np.arange(0, HEAD, 2) / HEAD))
    turns = [
        net.op("Gather", net.tensor(np.tile(one(angles), 2).astype(np.float32)), position) for one in (np.cos, np.sin)
    ]
    cache: list[int | str] = [1, KEY_HEADS, PAST, HEAD]
    pasts = [[net.input(f"past_{kind}_{layer}", cache) for kind in ("key", "value")] for layer in range(LAYERS)]
    longer: list[int | str] = [1, KEY_HEADS, PAST + 1, HEAD]
    presents: dict[str, tuple[str, list[int | str]]] = {}
    x = net.op("Gather", net.normal([VOCABULARY, WIDTH], 1.0), ids)
    for layer, past in enumerate(pasts):
        normed = _norm(net, x)
        query, key, value = (
            net.heads(_product(net, normed, WIDTH, heads * HEAD), heads, HEAD)
            for heads in (HEADS, KEY_HEADS, KEY_HEADS)
        )
        key = net.op("Concat", past[0], _turned(net, key, turns), axis=2)
        value = net.op("Concat", past[1], value, axis=2)
        # The queries that share a head of keys are its rows: with one token there is no mask.
        query = net.op("Reshape", _turned(net, query, turns), net.ints(1, KEY_HEADS, HEADS // KEY_HEADS, HEAD))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
        shares = net.op("Softmax", net.op("Mul", scores, net.number(HEAD**-0.5)), axis=-1)
        attended = net.op("Reshape", net.op("MatMul", shares, value), net.ints(1, 1, WIDTH))
        x = net.op("Add", x, _product(net, attended, WIDTH, WIDTH))
        normed = _norm(net, x)
        gate = net.silu(_product(net, normed, WIDTH, INNER))
        inner = net.op("Mul", gate, _product(net, normed, WIDTH, INNER))
        x = net.op("Add", x, _product(net, inner, INNER, WIDTH))
        presents |= {f"present_key_{layer}": (key, longer), f"present_value_{layer}": (value, longer)}
    logits = _product(net, _norm(net, x), WIDTH, VOCABULARY)
    return net.model(logits=(logits, [1, 1, VOCABULARY]), **presents)


def _product(net: Network, x: str, inner: int, outer: int) -> str:
    return net.op("MatMul", x, net.normal([inner, outer], inner**-0.5))


def _norm(net: Network, x: str) -> str:
    """Divided by the root of the mean square."""
    square = net.op("ReduceMean", net.op("Mul", x, x), axes=[-1])
    root = net.op("Sqrt", net.op("Add", square, net.number(1e-5)))
    return net.op("Mul", net.op("Div", x, root), net.normal([WIDTH], 0.2, 1.0))


def _turned(net: Network, x: str, turns: list[str]) -> str:
    """Rotary positions: pairs of numbers, half a head apart, turned by an angle of the position."""
    first, second = net.ops("Split", x, net.ints(HEAD // 2, HEAD // 2), outputs=2, axis=-1)
    across = net.op("Concat", net.op("Neg", second), first, axis=-1)
    return net.op("Add", net.op("Mul", x, turns[0]), net.op("Mul", across, turns[1]))


GENERATED = {VGG: _vgg, LLAMA: _llama}

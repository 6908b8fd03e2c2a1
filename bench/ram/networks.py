"""The models: two of the zoo, a net like VGG-16, decoders like llama of 2 GB and of 7 billion weights of four bits.

They are written once under build/ram. A decoder computes one token behind keys and values of `PAST` others. All
weights are seeded, and lie in a file of their own, which ONNX Runtime can map; what is generated is written tensor by
tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
VGG, LLAMA, SEVEN = "vgg16_like", "llama_like_2gb", "llama_like_7b_int4"
NAMES = ("bert_base", "gpt2_dyn", VGG, LLAMA)
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions (Simonyan, 2014)
PAST, LONGEST = 63, 256  # positions
BITS, BITS_BLOCK = 4, 32  # of a weight; weights that share a scale and a zero point
MICROSOFT = "com.microsoft"
ALIGNMENT = 4096  # bytes, of tensors in the file of weights
OUTSIDE_FROM = 1024  # bytes of a tensor, which the model's file does not hold from here on


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a decoder."""

    vocabulary: int
    width: int
    heads: int
    key_heads: int
    head: int
    inner: int
    layers: int
    bits: int = 32  # of a product's weights


DECODERS: Mapping[str, Sizes] = {
    LLAMA: Sizes(16_000, 2048, 16, 4, 128, 5504, 10),
    SEVEN: Sizes(32_000, 4096, 32, 32, 128, 11_008, 32, BITS),  # Touvron et al., 2023
}


@dataclass(frozen=True, slots=True)
class Given:
    """A model's file, the sizes of its free dims, and what it is run on."""

    name: str
    file: Path
    dims: Mapping[str, int]
    feed: Mapping[str, Array]


def given(name: str) -> Given:
    """One of `NAMES`, `SEVEN`, or any other model of the zoo."""
    file = _written(name)
    if name in DECODERS:
        sizes, rng = DECODERS[name], np.random.default_rng(SEED)
        cache = [1, sizes.key_heads, PAST, sizes.head]
        feed = {"input_ids": np.array([[7]]), "position": np.array([PAST])}
        feed |= {
            f"past_{kind}_{layer}": rng.standard_normal(cache, np.float32)
            for layer in range(sizes.layers)
            for kind in ("key", "value")
        }
        return Given(name, file, {}, feed)
    dims = {} if name == VGG else models.sizes(name)
    drawn = make_feed(inputs_of(graphopt.load(file)), dims, "normal")
    return Given(name, file, dims, {key: np.ascontiguousarray(value) for key, value in drawn.items()})


def _written(name: str) -> Path:
    """The file of a model with its data beside it, made where it is not there."""
    folder = PLACE / "models" / name
    file = folder / f"{name}.onnx"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")  # another process may want the file at the same time
        part.mkdir(parents=True)
        if name == VGG:
            write_outside(part / file.name, vgg)
        elif name in DECODERS:
            write_outside(part / file.name, lambda net: llama(net, DECODERS[name]))
        else:
            models.write(name, part / file.name, outside_from=OUTSIDE_FROM)
        part.replace(folder)
    return file


def write_outside(file: Path, build: Callable[[Network], onnx.ModelProto]) -> None:
    """A network as `file`, its tensors beside it in a file that they are written to as they are drawn."""
    with data_of(file).open("wb") as stream:
        model = build(_Outside(file.stem, SEED, stream, data_of(file).name))
    file.write_bytes(model.SerializeToString())


def data_of(file: Path) -> Path:
    """The file that a model's weights are in."""
    return file.with_name(f"{file.name}.data")


def vgg(net: Network) -> onnx.ModelProto:
    """A net like VGG-16."""
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


def llama(net: Network, sizes: Sizes) -> onnx.ModelProto:
    """A decoder like llama that computes one token."""
    ids, position = net.input("input_ids", [1, 1], np.int64), net.input("position", [1], np.int64)
    heads, key_heads, head, width, inner = sizes.heads, sizes.key_heads, sizes.head, sizes.width, sizes.inner
    angles = np.outer(np.arange(LONGEST), 10_000.0 ** (-np.arange(0, head, 2) / head))
    turns = [
        net.op("Gather", net.tensor(np.tile(one(angles), 2).astype(np.float32)), position) for one in (np.cos, np.sin)
    ]
    cache: list[int | str] = [1, key_heads, PAST, head]
    pasts = [[net.input(f"past_{kind}_{layer}", cache) for kind in ("key", "value")] for layer in range(sizes.layers)]
    longer: list[int | str] = [1, key_heads, PAST + 1, head]

    def product(x: str, depth: int, columns: int) -> str:
        return _product(net, x, depth, columns, sizes.bits)

    presents: dict[str, tuple[str, list[int | str]]] = {}
    x = net.op("Gather", net.normal([sizes.vocabulary, width], 1.0), ids)
    for layer, past in enumerate(pasts):
        normed = _norm(net, x, width)
        query, key, value = (
            net.heads(product(normed, width, count * head), count, head) for count in (heads, key_heads, key_heads)
        )
        key = net.op("Concat", past[0], _turned(net, key, turns, head), axis=2)
        value = net.op("Concat", past[1], value, axis=2)
        # The queries that share a head of keys are its rows: with one token there is no mask.
        query = net.op("Reshape", _turned(net, query, turns, head), net.ints(1, key_heads, heads // key_heads, head))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
        shares = net.op("Softmax", net.op("Mul", scores, net.number(head**-0.5)), axis=-1)
        attended = net.op("Reshape", net.op("MatMul", shares, value), net.ints(1, 1, width))
        x = net.op("Add", x, product(attended, width, width))
        normed = _norm(net, x, width)
        gate = net.silu(product(normed, width, inner))
        x = net.op("Add", x, product(net.op("Mul", gate, product(normed, width, inner)), inner, width))
        presents |= {f"present_key_{layer}": (key, longer), f"present_value_{layer}": (value, longer)}
    logits = product(_norm(net, x, width), width, sizes.vocabulary)
    model = net.model(logits=(logits, [1, 1, sizes.vocabulary]), **presents)
    if sizes.bits < 32:
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model


def _product(net: Network, x: str, inner: int, outer: int, bits: int) -> str:
    """By drawn weights; those of few bits are codes of all values, with a scale and a zero point for each block."""
    if bits == 32:
        return net.op("MatMul", x, net.normal([inner, outer], inner**-0.5))
    blocks, rng = -(-inner // BITS_BLOCK), net.generator()
    codes = rng.integers(0, 256, [outer, blocks, BITS_BLOCK * bits // 8], np.uint8)
    spread = float(np.std(np.arange(1 << bits)))
    scales = (rng.random([outer * blocks], np.float32) + np.float32(0.5)) * np.float32(inner**-0.5 / spread)
    zeros = rng.integers(0, 256, [outer * -(-blocks * bits // 8)], np.uint8)
    zeros = (zeros & 0x11) + np.uint8(0x77)  # seven or eight: codes are around it
    return net.op(
        "MatMulNBits", x, *map(net.tensor, (codes, scales, zeros)), domain=MICROSOFT, K=inner, N=outer, bits=bits,
        block_size=BITS_BLOCK,
    )  # fmt: skip


def _norm(net: Network, x: str, width: int) -> str:
    """Divided by the root of the mean square."""
    square = net.op("ReduceMean", net.op("Mul", x, x), axes=[-1])
    root = net.op("Sqrt", net.op("Add", square, net.number(1e-5)))
    return net.op("Mul", net.op("Div", x, root), net.normal([width], 0.2, 1.0))


def _turned(net: Network, x: str, turns: list[str], head: int) -> str:
    """Rotary positions: pairs of numbers, half a head apart, turned by an angle of the position."""
    first, second = net.ops("Split", x, net.ints(head // 2, head // 2), outputs=2, axis=-1)
    across = net.op("Concat", net.op("Neg", second), first, axis=-1)
    return net.op("Add", net.op("Mul", x, turns[0]), net.op("Mul", across, turns[1]))

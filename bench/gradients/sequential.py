"""Networks as sequences of torch modules, with the weights of models of ours: what `checkpoint_sequential` cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn

from bench.gradients.beside import trained
from models import deep, trainable

MLP_DEPTH, MLP_BATCH, MLP_WIDTH = 64, 512, 256
DEEP_BATCH = 8
# A BERT of four layers and 256 channels (Turc et al., "Well-Read Students Learn Better", 2019, call it mini).
BERT_BATCH, BERT_LENGTH, BERT_WIDTH = 8, 128, 256
MOMENTUM = 0.1  # torch's word for ONNX's 0.9


@dataclass(frozen=True, slots=True)
class Network:
    """A model of ours, and how its weights become blocks of torch; the first block takes what the model takes."""

    build: Callable[[], onnx.ModelProto]
    blocks: Callable[[Weights], list[nn.Module]]

    def modules(self, model: onnx.ModelProto, dtype: torch.dtype) -> tuple[nn.Sequential, dict[str, nn.Parameter]]:
        """The network in training mode, and its parameters by their names in the model."""
        weights = Weights(model, dtype)
        blocks = nn.Sequential(*self.blocks(weights)).to(dtype).train()
        left = [name for name, _ in weights.left]
        assert not left, f"no module took {', '.join(left)}"
        return blocks, weights.taken


class Weights:
    """The weights that train, one after the other, as modules."""

    def __init__(self, model: onnx.ModelProto, dtype: torch.dtype) -> None:
        names = set(trained(model))
        self.taken: dict[str, nn.Parameter] = {}
        self.left: Iterator[tuple[str, np.ndarray]] = iter(
            [(one.name, numpy_helper.to_array(one)) for one in model.graph.initializer if one.name in names]
        )
        self._dtype = dtype

    def next(self) -> nn.Parameter:
        """The next weight."""
        name, array = next(self.left)
        self.taken[name] = nn.Parameter(torch.from_numpy(array.copy()).to(self._dtype))
        return self.taken[name]

    def conv(self, stride: int = 1) -> nn.Conv2d:
        """A convolution without bias that keeps its extent up to the stride."""
        weight = self.next()
        outer, inner, kernel, _ = weight.shape
        module = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False)
        module.weight = weight
        return module

    def norm(self) -> nn.BatchNorm2d:
        """A batch normalization whose statistics are as they begin."""
        weight = self.next()
        module = nn.BatchNorm2d(len(weight), 1e-5, MOMENTUM)
        module.weight, module.bias = weight, self.next()
        return module

    def linear(self) -> nn.Linear:
        """A layer whose weight is [outer, inner]."""
        weight = self.next()
        module = nn.Linear(weight.shape[1], weight.shape[0])
        module.weight, module.bias = weight, self.next()
        return module

    def layer_norm(self) -> nn.LayerNorm:
        """A layer normalization over the last dim."""
        weight = self.next()
        module = nn.LayerNorm(len(weight), 1e-5)
        module.weight, module.bias = weight, self.next()
        return module


class Before(nn.Module):
    """Two convolutions, each behind a normalization and a ReLU, and a way around them."""

    def __init__(self, weights: Weights, stride: int, *, is_wider: bool) -> None:
        super().__init__()
        self.first = weights.norm()
        self.short = weights.conv(stride) if is_wider else None
        self.wide = weights.conv(stride)
        self.second, self.narrow = weights.norm(), weights.conv()

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        ready = F.relu(self.first(x), inplace=True)
        short = x if self.short is None else self.short(ready)
        found: Tensor = self.narrow(F.relu(self.second(self.wide(ready)), inplace=True))
        return found.add_(short)


class Behind(nn.Module):
    """Two convolutions with normalizations behind them, and a way around them."""

    def __init__(self, weights: Weights, stride: int, *, is_wider: bool) -> None:
        super().__init__()
        self.short = nn.Sequential(weights.conv(stride), weights.norm()) if is_wider else None
        self.wide, self.first = weights.conv(stride), weights.norm()
        self.narrow, self.second = weights.conv(), weights.norm()

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        short = x if self.short is None else self.short(x)
        found: Tensor = self.second(self.narrow(F.relu(self.first(self.wide(x)), inplace=True)))
        return F.relu(found.add_(short), inplace=True)


class Embedding(nn.Module):
    """Words and places, normalized; with the mask that all layers add to their scores."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.words, self.places, self.norm = weights.next(), weights.next(), weights.layer_norm()

    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The first layer's operand, and the mask."""
        ids, mask = given
        x = self.norm(F.embedding(ids, self.words) + self.places)
        return x, ((1.0 - mask.to(x.dtype)) * -10000.0)[:, None, None, :]


class Attention(nn.Module):
    """Attention by torch's own fused operator, and the normalization of its sum."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.query, self.query_bias = weights.next(), weights.next()
        self.value, self.value_bias = weights.next(), weights.next()
        self.key, self.key_bias = weights.next(), weights.next()
        self.out, self.out_bias = weights.next(), weights.next()
        self.norm = weights.layer_norm()

    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The layer's first half."""
        x, mask = given
        query, key, value = (
            F.linear(x, weight.t(), bias).unflatten(-1, (trainable.HEADS, -1)).transpose(1, 2)
            for weight, bias in (
                (self.query, self.query_bias), (self.key, self.key_bias), (self.value, self.value_bias)
            )
        )  # fmt: skip
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.norm(F.linear(seen, self.out.t(), self.out_bias) + x), mask


class Forward(nn.Module):
    """The layer's second half: two products around a GELU, and the normalization of the sum."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.wide, self.wide_bias = weights.next(), weights.next()
        self.narrow, self.narrow_bias = weights.next(), weights.next()
        self.norm = weights.layer_norm()

    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The layer's result."""
        x, mask = given
        inner = F.linear(F.gelu(F.linear(x, self.wide.t(), self.wide_bias)), self.narrow.t(), self.narrow_bias)
        return self.norm(inner + x), mask


class First(nn.Module):
    """The first word's state, classified."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.pooled, self.classes = weights.linear(), weights.linear()

    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        """The logits."""
        found: Tensor = self.classes(torch.tanh(self.pooled(given[0][:, 0])))
        return found


def _deep(depth: int) -> Callable[[Weights], list[nn.Module]]:
    def blocks(weights: Weights) -> list[nn.Module]:
        found: list[nn.Module] = [weights.conv()]
        for stage in range(len(deep.CHANNELS)):
            for block in range((depth - 2) // 6):
                is_wider = bool(stage) and not block
                found.append(Before(weights, 2 if is_wider else 1, is_wider=is_wider))
        head = (weights.norm(), nn.ReLU(inplace=True), *_pooled(weights))
        return [*found, nn.Sequential(*head)]

    return blocks


def _resnet18(weights: Weights) -> list[nn.Module]:
    found: list[nn.Module] = [
        nn.Sequential(weights.conv(2), weights.norm(), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    ]
    for first in (1, 2, 2, 2):
        for stride in (first, 1):
            found.append(Behind(weights, stride, is_wider=stride > 1))
    return [*found, nn.Sequential(*_pooled(weights))]


def _pooled(weights: Weights) -> tuple[nn.Module, ...]:
    return (nn.AdaptiveAvgPool2d(1), nn.Flatten(), weights.linear())


def _perceptron(weights: Weights) -> list[nn.Module]:
    hidden = [nn.Sequential(weights.linear(), nn.ReLU(inplace=True)) for _ in range(MLP_DEPTH - 1)]
    return [*hidden, weights.linear()]


def _bert(weights: Weights) -> list[nn.Module]:
    found: list[nn.Module] = [Embedding(weights)]
    for _ in range(trainable.LAYERS):
        found += [Attention(weights), Forward(weights)]
    return [*found, First(weights)]


NETWORKS: Mapping[str, Network] = {
    "mlp64": Network(lambda: deep.perceptron(MLP_DEPTH, MLP_BATCH, MLP_WIDTH), _perceptron),
    "bert4": Network(lambda: trainable.encoder(BERT_BATCH, BERT_LENGTH, BERT_WIDTH), _bert),
    "resnet18": Network(trainable.resnet18, _resnet18),
    "deep50": Network(lambda: deep.build(50, DEEP_BATCH), _deep(50)),
    "deep200": Network(lambda: deep.build(200, DEEP_BATCH), _deep(200)),
}


def batch_of(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """A batch for a classifier, its target among them: normal numbers, words, and a mask of a few short sentences."""
    generator = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for one in model.graph.input:
        dims = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        if one.name == "input_ids":
            found[one.name] = generator.integers(0, trainable.VOCABULARY, dims)
        elif one.name == "attention_mask":
            lengths = generator.integers(dims[1] // 2, dims[1] + 1, dims[0])
            found[one.name] = (np.arange(dims[1]) < lengths[:, None]).astype(np.int64)
        else:
            found[one.name] = generator.standard_normal(dims).astype(np.float32)
    rows, classes = (dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim)
    return {**found, "target": generator.integers(0, classes, rows)}

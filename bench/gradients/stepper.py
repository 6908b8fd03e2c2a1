"""Torch's eager mode on a network of ours: its own optimizer, batch normalizations in training mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import torch

import graphopt
from bench.gradients.beside import trained
from bench.gradients.losses import Loss, loss_of
from bench.gradients.torch_graph import Graph, tensor


class Stepper:
    """Torch's eager mode and its own optimizer, step by step, on one thread.

    With `follow`, running statistics are carried from step to step; they enter no loss.
    """

    def __init__(
        self, model: onnx.ModelProto, loss: Loss, optimizer: graphopt.Optimizer, dtype: torch.dtype = torch.float32,
        *, follow: bool = False,
    ) -> None:  # fmt: skip
        torch.set_num_threads(1)
        self._graph, self._loss = Graph(in_training_mode(model, follow=follow), dtype), loss
        self._followed = statistics(model) if follow else ()
        self._output, self._dtype = model.graph.output[0].name, dtype
        weights = [self._graph.initializers[one].requires_grad_() for one in trained(model)]
        self._optimizer = _torch_optimizer(weights, optimizer)

    def run(self, batch: Mapping[str, np.ndarray]) -> float:
        """The loss of a batch; the weights are those after the step."""
        feed = {key: value for key, value in batch.items() if key != "target"}
        values = self._graph.evaluate(feed)
        total = loss_of(self._loss, values[self._output], tensor(batch["target"], self._dtype))
        self._optimizer.zero_grad()
        total.backward()
        self._optimizer.step()
        for name in self._followed:
            self._graph.initializers[name] = values[f"{name}_new"].detach()
        return float(total)

    def statistics(self) -> dict[str, np.ndarray]:
        """The running statistics after the last step, of the population as ONNX has them."""
        return {name: self._graph.initializers[name].numpy() for name in self._followed}


def in_training_mode(model: onnx.ModelProto, *, follow: bool = False) -> onnx.ModelProto:
    """The model with every BatchNormalization normalizing by its batch; with `follow` as NAME_new what it makes of
    its running statistics."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
            if follow:
                node.output.extend(f"{name}_new" for name in node.input[3:])
    return copy


def statistics(model: onnx.ModelProto) -> list[str]:
    """The running means and variances of a model."""
    return [name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]]


def _torch_optimizer(parameters: list[torch.Tensor], optimizer: graphopt.Optimizer) -> Any:
    rate, decay = optimizer.learning_rate, optimizer.weight_decay
    if optimizer.name in ("sgd", "momentum"):
        kept = optimizer.momentum if optimizer.name == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=rate, momentum=kept, weight_decay=decay)
    kind = torch.optim.Adam if optimizer.name == "adam" else torch.optim.AdamW
    betas = (optimizer.beta1, optimizer.beta2)
    return kind(parameters, lr=rate, betas=betas, eps=optimizer.epsilon, weight_decay=decay)

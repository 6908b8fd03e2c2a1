"""Losses on an output of a model, as torch computes them, and the targets that are drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from bench.gradients.torch_graph import Array

Loss = Literal["cross-entropy", "mse"]


def target_dims(loss: Loss, dims: Sequence[int]) -> tuple[int, ...]:
    """The dims of a target for an output of `dims`: those of the output, without its classes for a cross-entropy.

    Classes are the last dim of rows and sequences, and the second dim of images.
    """
    if loss == "mse":
        return tuple(dims)
    return (*dims[:1], *dims[2:]) if len(dims) > 3 else tuple(dims[:-1])


def draw_target(loss: Loss, dims: Sequence[int], seed: int) -> Array:
    """A target for an output of `dims`: normal numbers, or classes."""
    generator = np.random.default_rng(seed)
    if loss == "mse":
        return generator.standard_normal(tuple(dims)).astype(np.float32)
    classes = dims[1] if len(dims) > 3 else dims[-1]
    return generator.integers(0, classes, target_dims(loss, dims))


def loss_of(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    """The mean over all elements, or over all places that have a class."""
    if loss == "mse":
        return F.mse_loss(output, target)
    return F.cross_entropy(output if output.dim() > 3 else output.reshape(-1, output.shape[-1]), target.reshape(
        target.shape if output.dim() > 3 else [-1]
    ))  # fmt: skip

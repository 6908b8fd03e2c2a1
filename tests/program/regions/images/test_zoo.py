"""Whole networks of the zoo, optimized and lowered: how many regions, and equal to ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
import models
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

# Relative to the largest output. Sums of float32 in another order, through up to 50 layers, give 1e-6; the bound is the
# one that the issue states.
TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("name", "regions"),
    [
        ("dscnn_kws", 12),  # 9 convolutions, the pooling, the last layer, the softmax
        ("squeezenet1_1", 31),  # 26 convolutions, 4 poolings, the result; what is concatenated needs no copies
        (
            "resnet18",
            24,
        ),  # the image, its channels last, 20 convolutions with all that follows, 2 poolings, the last layer
        ("mobilenet_v2", 54),  # 52 convolutions, the pooling, the last layer
        ("unet_own", 31),  # 19 convolutions, 2 for each of 4 transposed ones, 4 poolings
    ],
)
def test_a_network_is_lowered_whole(name: str, regions: int) -> None:
    proto = models.load(name)
    lowered = lower(graphopt.optimize(proto, verify=False).model, host())
    assert len(lowered.regions) == regions
    feeds = support.feeds(proto, {})
    for got, wanted in zip(run_lowered(lowered, feeds), support.session(proto).run(None, feeds), strict=True):
        assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max()

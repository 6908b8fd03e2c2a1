"""The zoo, or those of its models that are quick: verified, nothing rolled back, no file larger than it may be."""

from __future__ import annotations

import pytest

import graphopt
import models
from tests.golden.files import FOLDER, compare
from tests.golden.texts import optimized_text

# Nodes that may remain: what the best other optimizer leaves (bench/zoo.py measures all of the zoo against them).
MOST = {
    "bert_small_dynquant": 174,
    "convnext_tiny": 289,
    "densenet121": 368,
    "dscnn_kws": 22,
    "gru_op": 6,
    "gru_unrolled": 811,
    "inception_v3": 215,
    "loop_if_script": 9,
    "lstm_bi_op": 9,
    "mobilenet_v2_legacy": 100,
    "nasnet_a_mobile": 649,
    "resnet18_fp16": 49,
    "resnet18_qdq": 140,
    "resnet50_legacy_keepbn": 122,
    "squeezenet1_1": 65,
    "swin_tiny": 599,
    "unet_own": 49,
    "vit_s16_legacy": 408,
}


@pytest.mark.parametrize("name", models.names())
def test_operators_after_optimization(name: str, request: pytest.FixtureRequest) -> None:
    """The operators that are left and how often each rule fired, beside the golden file."""
    compare(FOLDER / f"{name}.optimized.txt", optimized_text(name), request)


@pytest.mark.parametrize("name", sorted(MOST))
def test_zoo_model(name: str) -> None:
    original = models.load(name)
    result = graphopt.optimize(original)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    assert not result.signature_changes
    assert result.after.nodes <= MOST[name]
    assert result.after.bytes <= 1.02 * original.ByteSize() + 8000


def test_quantized_integers_are_bit_exact() -> None:
    result = graphopt.optimize(models.load("resnet18_qdq"))
    assert result.verification.max_abs == 0.0


def test_the_same_input_gives_the_same_bytes() -> None:
    for name in ("gru_op", "loop_if_script", "mobilenet_v2_legacy"):
        one, other = (graphopt.optimize(models.load(name), verify=False).to_proto() for _ in range(2))
        assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)

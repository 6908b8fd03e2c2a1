"""Rewrites for ONNX Runtime on a CPU alone: its com.microsoft operators, and what its own fusions make slower."""

from graphopt.passes.ort import activations, attention, normalization, products, quantization, skips
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (
    *quantization.RULES,
    *activations.RULES,
    *attention.RULES,
    *normalization.RULES,
    *products.RULES,
)
PASSES: tuple[Pass, ...] = (
    Pass(skips.RULE, 3, run=skips.skip_normalization),
    Pass("onnxruntime", 2, RULES),
)

"""Rewrites for ONNX Runtime on a CPU alone: its com.microsoft operators, and what its own fusions make slower."""

from graphopt.passes.ort import activations, attention, normalization, quantization
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (*quantization.RULES, *activations.RULES, *attention.RULES, *normalization.RULES)

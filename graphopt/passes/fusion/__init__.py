"""Fusion: several operators that spell out one operator of the standard become that operator."""

from graphopt.passes.fusion import activations, blocks, normalization
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (*normalization.RULES, *activations.RULES, *blocks.RULES)

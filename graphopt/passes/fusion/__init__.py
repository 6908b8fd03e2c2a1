"""Fusion: several operators that spell out one operator of the standard become that operator."""

from graphopt.passes.fusion import (
    activations,
    attention,
    attention_flat,
    blocks,
    channels,
    exponentials,
    heads,
    masks,
    normalization,
    rotary,
)
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (
    *normalization.RULES,
    *channels.RULES,
    *activations.RULES,
    *exponentials.RULES,
    *blocks.RULES,
    *rotary.RULES,
    *attention.RULES,
    *heads.RULES,
    *attention_flat.RULES,
    *masks.RULES,
)

"""Folding into weights: what stands next to a layer with constant weights becomes part of them."""

from graphopt.passes.weights import affine, batchnorm, branches, gemm, moved, numbers, pads, products
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (
    *batchnorm.RULES,
    *affine.RULES,
    *moved.RULES,
    *numbers.RULES,
    *gemm.RULES,
    *products.RULES,
    *pads.RULES,
    *branches.RULES,
)

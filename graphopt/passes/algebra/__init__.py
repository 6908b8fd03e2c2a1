"""Algebra: identities of arithmetic, logic and data movement that leave fewer or cheaper nodes."""

from __future__ import annotations

from graphopt.passes.algebra import (
    arithmetic,
    assignment,
    cast,
    clip,
    concat,
    einsum,
    log,
    logic,
    lookup,
    merged,
    reduction,
    regroup,
    reshape,
    slicing,
    transpose,
)
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (
    *arithmetic.RULES,
    *regroup.RULES,
    *logic.RULES,
    *cast.RULES,
    *clip.RULES,
    *log.RULES,
    *transpose.RULES,
    *merged.RULES,
    *reshape.RULES,
    *slicing.RULES,
    *lookup.RULES,
    *assignment.RULES,
    *concat.RULES,
    *reduction.RULES,
    *einsum.RULES,
)

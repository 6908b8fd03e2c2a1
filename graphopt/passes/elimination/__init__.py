"""Elimination: nodes whose output is one of their inputs, bit for bit."""

from __future__ import annotations

from graphopt.passes.elimination import elementwise, movement, recurrent, window
from graphopt.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (*elementwise.RULES, *movement.RULES, *window.RULES, *recurrent.RULES)

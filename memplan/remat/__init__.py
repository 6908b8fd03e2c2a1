"""Recomputation: less memory for more time."""

from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import Recomputed, pareto, recompute

__all__ = ["BudgetTooSmall", "Recomputed", "pareto", "recompute"]

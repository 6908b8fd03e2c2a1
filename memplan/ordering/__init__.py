"""The order of operators for least live peak."""

from memplan.ordering.solve import Ordered, order

__all__ = ["Ordered", "order"]

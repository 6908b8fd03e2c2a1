"""One launch for each region: what everything is compared with."""

from __future__ import annotations

from scheduler.policies.emit import Plan
from scheduler.policies.problem import Problem
from scheduler.policies.selection import fastest


def launches(problem: Problem) -> Plan:
    """Every region by itself with the kernel that is fastest alone."""
    return Plan("launches", fastest(problem), problem.order)

"""The losses of a training loop as a page: one file, no network."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.flows.records.gradient import FitRecord
from graphopt.report.interactive import interactive_page


def smoothed(losses: Sequence[float], share: float = 0.1) -> list[float]:
    """The running mean that forgets all but `share` at each run, of the runs so far."""
    found, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = total * (1 - share) + loss * share, weight * (1 - share) + share
        found.append(total / weight)
    return found


def fit_page(record: FitRecord) -> bytes:
    """The losses by run, UTF-8; one file, no network."""
    data = {"runs": list(range(1, len(record.losses) + 1)), "loss": record.losses, "mean": smoothed(record.losses)}
    return interactive_page("fit.html", data, ("fit.js",), {}, record={"model": record.model}, fit=record)

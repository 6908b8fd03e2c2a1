"""What became of the models of a folder, as a page: one table to be sorted and searched."""

from __future__ import annotations

from collections import Counter

from graphopt.flows.records.many import ManyRecord, Status
from graphopt.report.many import figure
from graphopt.report.page import ENVIRONMENT

COLOURS: dict[Status, str] = {"done": "good", "refused": "bad", "crashed": "bad"}  # classes of the style sheet


def many_page(record: ManyRecord) -> bytes:
    """The page, UTF-8; it stands alone."""
    rows = [(one, figure(one)) for one in record.results]
    counts = Counter(one.status for one in record.results)
    template = ENVIRONMENT.get_template("many.html")
    return template.render(record=record, rows=rows, counts=counts, colours=COLOURS).encode()

"""What became of the models of a folder, as a page: one table to be sorted and searched."""

from __future__ import annotations

from graphopt.flows.records.many import ManyRecord
from graphopt.report.many import figure
from graphopt.report.page import ENVIRONMENT


def many_page(record: ManyRecord) -> bytes:
    """The page, UTF-8; it stands alone."""
    rows = [(one, figure(one)) for one in record.results]
    return ENVIRONMENT.get_template("many.html").render(record=record, rows=rows).encode()

"""Results that show themselves: one line, a table in a notebook, JSON, a page, a file of either.

Pages are drawn above the flows; the package hands in what draws them.
"""

from __future__ import annotations

import html
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import OptionError
from graphopt.files.single import write_file
from graphopt.flows.records.encode import encode

# What draws the page of a result, by the name of its class. Filled by the package, from the floors above.
DRAWN: dict[str, Callable[..., bytes]] = {}
ENDINGS = (".html", ".json")


class Shown(ABC):
    """What a report has beside its figures; `_record()` is what `--json` prints, `_figures()` its table."""

    __slots__ = ()

    @abstractmethod
    def _record(self) -> Any: ...

    @abstractmethod
    def _figures(self) -> list[tuple[str, ...]]: ...

    def _headers(self) -> tuple[str, ...]:
        return ()

    def _repr_html_(self) -> str:
        """A notebook's table."""
        head = f"<thead>{_html_row('th', self._headers())}</thead>" if self._headers() else ""
        rows = "".join(_html_row("td", row) for row in self._figures())
        return f"<table>{head}<tbody>{rows}</tbody></table>"

    def json(self) -> str:
        """The record, as `--json` prints it."""
        return encode(self._record()).decode()

    def html(self) -> str:
        """The page; it stands alone. Raises MissingExtra where graphopt[report] is not installed."""
        return DRAWN[type(self).__name__](self).decode()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page (.html) or the record (.json). Raises OptionError for another ending, and SaveError."""
        write_file(path, (self.html() if is_page(path) else self.json()).encode())


def _html_row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{html.escape(cell)}</{kind}>' for cell in cells)}</tr>"


def is_page(path: str | os.PathLike[str]) -> bool:
    """Whether a file is to be a page, and no record. Raises OptionError for an ending that is neither."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise OptionError(f"'{path}' is neither {' nor '.join(ENDINGS)}; the ending says what is written.")
    return ending == ".html"

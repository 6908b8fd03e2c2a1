"""What pages with charts carry inside: libraries, scripts and data, so that one file opens without a network.

ECharts draws charts, Tabulator long tables; both lie in `vendor` with their licences. Data are JSON in columns, texts
by their number in one list, deflated; the browser inflates them. Short tables are plain HTML, read without scripts too.
"""

from __future__ import annotations

import base64
import lzma
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from graphopt.model.text import binary_size
from graphopt.report.page import ENVIRONMENT

VENDOR = Path(__file__).parent / "vendor"
LIBRARIES = ("echarts.min.js", "tabulator.min.js")
STYLES = ("tabulator.min.css",)
LEVEL = 9  # of deflating: pages are written once and kept


class Texts:
    """Texts by number, each once, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The text's place in `listed`."""
        return self._numbers.setdefault(text, len(self._numbers))

    def numbers(self, texts: Iterable[str]) -> list[int]:
        """The places of several."""
        return [self.number(text) for text in texts]

    @property
    def listed(self) -> list[str]:
        """All texts."""
        return list(self._numbers)


def interactive_page(
    template: str,
    data: object,
    scripts: tuple[str, ...],
    filters: dict[str, Callable[..., str]],
    *,
    folder: Path | None = None,
    **shown: object,
) -> bytes:
    """The page of a template, UTF-8; `data` is what its `scripts` read, `shown` what the template itself says.

    Template and scripts may lie in a `folder` of the caller's, and use those of this package.
    """
    environment = ENVIRONMENT.overlay()
    if folder is not None and ENVIRONMENT.loader is not None:
        environment.loader = jinja2.ChoiceLoader([jinja2.FileSystemLoader(folder), ENVIRONMENT.loader])
    environment.filters = {**ENVIRONMENT.filters, "bytes": binary_size, **filters}
    page = environment.get_template(template).render(
        data=_packed(data),
        libraries=[_vendored(name) for name in LIBRARIES],
        library_styles=[_vendored(name) for name in STYLES],
        scripts=[_script(environment, name) for name in ("charts.js", "page.js", *scripts)],
        **shown,
    )
    return page.encode()


def _packed(data: object) -> str:
    """The data as the page holds them: JSON, deflated, in base64."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(data), LEVEL)).decode("ascii")


def _vendored(name: str) -> Markup:
    """A library as it was published, kept compressed; what would end its element does not occur in it."""
    return Markup(lzma.decompress((VENDOR / f"{name}.xz").read_bytes()).decode())


def _script(environment: jinja2.Environment, name: str) -> Markup:
    """A script of our own, not a template: braces in it are its own."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])

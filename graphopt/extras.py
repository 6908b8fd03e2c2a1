"""What the base installation leaves out: libraries that only some commands need, and the extra that brings each."""

from __future__ import annotations

from graphopt.errors import MissingExtra

EXTRAS = {"numba": "plan", "highspy": "plan", "jinja2": "report", "markupsafe": "report", "dask": "dask"}


def missing(error: ModuleNotFoundError) -> MissingExtra | None:
    """The sentence for a library that an extra brings; None where the module is none of them."""
    library = (error.name or "").partition(".")[0]
    return MissingExtra(library, EXTRAS[library]) if library in EXTRAS else None

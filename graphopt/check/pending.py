"""A reference that is run when it is first asked for, so that others can work before, or at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import onnx_ir as ir

from graphopt.check.feeds import Contents
from graphopt.check.given import Given
from graphopt.check.heap import give_back
from graphopt.check.reference import Reference
from graphopt.check.runner import Workplace
from graphopt.model.mapped import rest


class Pending:
    """The original's runs to come; `seconds` is what they took so far."""

    def __init__(
        self, workplace: Workplace, model: ir.Model, limit: float, given: Sequence[Given], tolerance: float | None
    ) -> None:
        """`limit`, `given` and `tolerance` as for `Reference`."""
        self._workplace, self._model, self._limit = workplace, model, limit
        self._given, self._tolerance = given, tolerance
        self._reference: Reference | None = None
        self.seconds = 0.0

    def get(self, contents: Contents) -> Reference:
        """The reference, on inputs with the contents that were asked for first."""
        if self._reference is None:
            started = time.perf_counter()
            self._reference = Reference(
                self._workplace, self._model, self._limit, given=self._given, tolerance=self._tolerance,
                contents=contents,
            )  # fmt: skip
            rest(self._model)
            give_back()
            self.seconds += time.perf_counter() - started
        return self._reference

"""How long a run of the original may take. Where data end a loop, some data do not: then others are drawn soon."""

from __future__ import annotations

import time
from collections.abc import Sequence

import onnx_ir as ir

from graphopt.check.feeds import Feed
from graphopt.check.runner import CannotRun, OutOfTime, Runner
from graphopt.model.trips import has_open_loop

FIRST_SECONDS = 2.0  # that a run may take where a loop may not end
TIMES = 20  # so many times the longest run that ended


class Patience:
    """What the runs of one model may take."""

    def __init__(self, model: ir.Model) -> None:
        self._is_short = has_open_loop(model)
        self._longest = 0.0
        self._cut = False

    def run(self, runner: Runner, feed: Feed, left: float) -> Sequence[object]:
        """The outputs of a run; raises CannotRun and, once no second of all those that are `left` is, OutOfTime."""
        begun = time.monotonic()
        seconds = min(left, max(FIRST_SECONDS, TIMES * self._longest)) if self._is_short else left
        try:
            outputs = runner.run(feed, seconds)
        except OutOfTime:
            if seconds >= left:
                raise
            self._cut = True
            raise CannotRun(f"a loop of the model did not end within {seconds:.0f} s") from None
        self._longest = max(self._longest, time.monotonic() - begun)
        return outputs

    def renewed(self) -> bool:
        """Whether runs were cut; from now on they may take all the time there is."""
        cut, self._cut, self._is_short = self._cut, False, False
        return cut

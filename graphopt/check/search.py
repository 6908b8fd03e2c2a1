"""The search for feeds that a model accepts: sizes first, with plain values, then sizes and draws that reach further.

A wrong size fails with every draw, so sizes are looked for with one; the other draws have their turn with the likeliest
sizes only when the first finds none. What follows is bounded by the work of the runs: many feeds of a small model, two
or three of a large one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from graphopt.check.feeds import COUNT, COUNTS, LAST_COUNTS, Draw, Feed, make_feed
from graphopt.check.inputs import Input
from graphopt.check.sizes import Assignment, first_sizes, more_sizes

TRIES = 96  # how many sizes of the dims are tried to find some that the original accepts
FEW_TRIES = 8  # with draws that suit few models, and with other counts
FIRST: tuple[Draw, ...] = ("normal", "positive", "ones", "zeros")  # until one is accepted
# What follows: the purpose of the sizes (None: the first ones), and a draw; in this order while the work lasts.
FIXED: tuple[tuple[str | None, Draw], ...] = ((None, "wild"), (None, "flat"), (None, "grid"), (None, "large"))
DYNAMIC: tuple[tuple[str | None, Draw], ...] = (
    ("middle", "wild"), ("ones", "grid"), (None, "flat"), ("large", "normal"), ("odd", "normal"), (None, "large"),
)  # fmt: skip
REST: tuple[tuple[str | None, Draw], ...] = (
    ("large", "special"), (None, "special"), ("large", "wild"), (None, "unit"), (None, "zeros"), (None, "positive"),
    ("ones", "normal"), ("middle", "large"), ("large", "grid"), (None, "ones"), (None, "tiny"),
)  # fmt: skip
DEAR: tuple[tuple[str | None, Draw], ...] = (("ones", "wild"), (None, "wild"))  # one of them, where a run takes long
WORK = 1_000_000_000  # of all feeds beyond the second together, and of a run from which on it takes long: check.work


@dataclass(slots=True)
class Search:
    """Feeds for `inputs`. `accepts` runs the model on one and keeps it; `work` is that of a run with some sizes.

    `sizes` are those that were accepted, `failure` is the last refusal of a feed that could not be made.
    """

    inputs: tuple[Input, ...]
    accepts: Callable[[Feed, Draw], bool]
    work: Callable[[Assignment], int]
    sizes: list[Assignment] = field(default_factory=list)
    failure: str | None = None
    _dynamic: bool = False
    _again: int | None = None  # a count that the model accepts

    def run(self) -> bool:
        """Find all feeds; False where the model accepts none."""
        first = self._first()
        if first is None:
            return False
        accepted, draw = self.sizes[0], first
        purposes = more_sizes(self.inputs, accepted)
        self._dynamic = bool(purposes)
        work = max(self.work(accepted), 1)
        left, made = float(WORK), 0
        known: dict[str | None, list[Assignment]] = {None: [accepted]} | dict(purposes.items())
        plan = DEAR if work > WORK else (*(DYNAMIC if purposes else FIXED), *REST)
        for purpose, following in plan:
            if following == "large" and any(item.required for item in self.inputs):
                continue  # a training step: slopes of what saturates are rounding and nothing else
            if purpose not in known or (purpose is None and following == draw):
                continue
            for sizes in known[purpose]:
                if purpose is not None and sizes == accepted:
                    continue
                if made:
                    left -= work * self._grown(accepted, sizes)
                    if left < 0:
                        return True
                if self._try(sizes, following):
                    made += 1
                    known[purpose] = [sizes]
                    break
            else:
                if purpose is not None:
                    known[purpose] = []  # no size for this purpose is accepted
        return True

    @property
    def limited(self) -> bool:
        """Whether dims are dynamic and only one set of sizes was accepted."""
        return self._dynamic and len(self.sizes) < 2

    def refusal(self, failure: str | None) -> str:
        """Why no draw was accepted, of which the last one gave this failure, and what a user can do."""
        why = failure or self.failure or "no feed was found that the model accepts"
        return f"{why.rstrip('.')}; if no drawn data suit the model, give some that do: feeds='FILE.npz'"

    def _first(self) -> Draw | None:
        """The draw of the first feed that the model accepts."""
        counting = any(item.use.counts for item in self.inputs)
        passes = ((None, *COUNTS), LAST_COUNTS) if counting else ((None,),)
        for counts, draw in itertools.product(passes, FIRST):
            tries = TRIES if draw == FIRST[0] and None in counts else FEW_TRIES
            for number, sizes in enumerate(itertools.islice(first_sizes(self.inputs), tries)):
                for count in counts if number < FEW_TRIES else (None,):
                    if self._attempt(sizes, draw, count):
                        self._again = COUNT[draw] if count is None else count
                        return draw
        return None

    def _try(self, sizes: Assignment, draw: Draw) -> bool:
        """Try a feed with the draw's own counts, then with one that the model is known to accept."""
        if self._attempt(sizes, draw, None):
            return True
        return any(item.use.counts or item.use.factors for item in self.inputs) and self._attempt(
            sizes, draw, self._again
        )

    def _attempt(self, sizes: Assignment, draw: Draw, count: int | None) -> bool:
        try:
            feed = make_feed(self.inputs, sizes, draw, count)
        except (ValueError, TypeError, MemoryError, OverflowError) as error:
            self.failure = str(error)
            return False
        if not self.accepts(feed, draw):
            return False
        if sizes not in self.sizes:
            self.sizes.append(sizes)
        return True

    def _grown(self, accepted: Assignment, sizes: Assignment) -> float:
        """How many times the elements of the first feed the inputs have."""

        def elements(given: Assignment) -> float:
            shapes = ([dim if isinstance(dim, int) else given[dim] for dim in item.dims or ()] for item in self.inputs)
            return 1.0 + sum(float(np.prod(shape)) for shape in shapes)

        return max(elements(sizes) / elements(accepted), 0.5) if self._dynamic else 1.0

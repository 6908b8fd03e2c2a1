"""`verify`: whether two models compute the same, and where they part."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.check import divergence
from graphopt.check.divergence import Divergence
from graphopt.check.given import Feeds, read_feeds
from graphopt.check.reference import Reference
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.verification import Verification
from graphopt.errors import OptionError, VerificationError
from graphopt.flows.optimize import DEFAULT_VERIFY_SECONDS
from graphopt.model.load import Source, load
from graphopt.model.signature import port_of
from graphopt.model.text import Progress


def verify(
    first: Source,
    second: Source,
    *,
    seconds: float = DEFAULT_VERIFY_SECONDS,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Compare two models with the same inputs and outputs on seeded feeds.

    `feeds` and `tolerance` are those of `optimize`.
    """
    one, other = _comparable(first, second)
    with Workplace() as workplace:
        given = read_feeds(one, feeds)
        return Reference(workplace, one, seconds, given=given, tolerance=tolerance).check(other)


def first_divergence(
    first: Source,
    second: Source,
    *,
    seconds: float = DEFAULT_VERIFY_SECONDS,
    progress: Progress | None = None,
) -> Divergence | None:
    """The first value named in both models, in the order of `first`, that differs; None when there is none."""
    try:
        return divergence.first_divergence(*_comparable(first, second), seconds, progress)
    except CannotRun as error:
        raise VerificationError(
            f"the values inside the two models cannot be compared: {error}; compare the models without them."
        ) from error


def _comparable(first: Source, second: Source) -> tuple[ir.Model, ir.Model]:
    """Both models, after a look at whether they take and give the same."""
    one, other = load(first), load(second)
    for kind, left, right in (
        ("inputs", one.graph.inputs, other.graph.inputs),
        ("outputs", one.graph.outputs, other.graph.outputs),
    ):
        names, other_names = [value.name for value in left], [value.name for value in right]
        if names != other_names:
            raise OptionError(f"the models cannot be compared: their {kind} are {names} and {other_names}.")
    for mine, theirs in zip(map(port_of, one.graph.inputs), map(port_of, other.graph.inputs), strict=True):
        if not mine.meets(theirs):
            both = f"'{mine.name}' is {mine.shape} and {theirs.shape}"
            raise OptionError(f"the models take different inputs: {both}; no value suits both.")
    return one, other

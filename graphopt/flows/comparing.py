"""A program held to the model that it was made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import NOTHING, Contents
from graphopt.check.given import Given
from graphopt.check.reference import Comparison, Reference
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.verification import Verification
from graphopt.errors import VerificationError
from graphopt.model.rooms import let_go
from graphopt.program.deploy import session
from graphopt.program.make import COMPARE_SECONDS, Program

ACCEPTED = 0.1  # relative: a program that is further off than this is wrong, and no tolerance is advised


def way_on(difference: float) -> str:
    """How to accept a relative difference, if it is one of a last digit; the tolerance is rounded up."""
    if not 0 < difference < ACCEPTED:
        return ""
    power = 10.0 ** math.floor(math.log10(difference))
    return f"; tolerance={math.ceil(difference / power) * power:.0e} accepts a difference of this size"


def reference_of(
    workplace: Workplace, original: ir.Model, given: Sequence[Given], tolerance: float | None,
    contents: Contents = NOTHING,
) -> Reference:  # fmt: skip
    """The original's runs, on inputs with these contents; raises VerificationError where it has none."""
    return accepted(
        Reference(workplace, original, COMPARE_SECONDS, given=given, tolerance=tolerance, contents=contents)
    )


def accepted(reference: Reference) -> Reference:
    """A reference that programs can be held to; raises VerificationError for another one."""
    if reference.problem is not None or reference.foreign:
        why = reference.problem or f"nothing here runs {', '.join(reference.foreign)}"
        raise VerificationError(f"the program cannot be compared, as its model does not run as it should: {why}")
    return reference


def compared(reference: Reference, original: ir.Model, program: Program | session.Bundle) -> Verification:
    """A program held to what the model gives; the same with one thread, bit for bit. Raises VerificationError."""
    comparison = Comparison(reference, [value.name or "" for value in original.graph.outputs], program=True)
    held = reference.held
    alone = program.another(threads=1) if isinstance(program, session.Program) and program.is_shared else None
    for case in comparison.cases:
        feed = {name: np.asarray(value) for name, value in case.feed.items()}
        try:
            held.make_room()
            outputs = held.all(program.run(None, feed))
            for array in feed.values():
                let_go(array)
        except CannotRun as error:
            comparison.fail(case, error)
            break
        if not comparison.take(case, outputs):
            break
        if alone is not None:
            pairs = zip(outputs, alone.run(None, feed), strict=True)
            if any(np.asarray(one).tobytes() != other.tobytes() for one, other in pairs):
                raise VerificationError("several threads do not give what one gives; nothing was written.")
    return comparison.verification

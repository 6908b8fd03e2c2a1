"""A program held to the model that it was made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.check.comparison import Comparison
from graphopt.check.feeds import NOTHING, Contents
from graphopt.check.given import Given
from graphopt.check.held import Held
from graphopt.check.noise import Case
from graphopt.check.reference import Reference
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.verification import Verification
from graphopt.errors import VerificationError
from graphopt.model.rooms import let_go
from graphopt.program.deploy import runtime, session
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
        try:
            held.make_room()
            outputs = held.all(_run(program, case, held))
        except CannotRun as error:
            comparison.fail(case, error)
            break
        if not comparison.take(case, outputs):
            break
        if alone is not None and not all(map(_are_same, outputs, _run(alone, case, held))):
            raise VerificationError("several threads do not give what one gives; nothing was written.")
    return comparison.verification


def _run(program: Program | session.Bundle | runtime.Program, case: Case, held: Held) -> list[runtime.Array]:
    """The outputs for a case, which lie in copies of the inputs that the program changes."""
    known = program.inputs if isinstance(program, runtime.Program) else ()
    changed = {one.name for one in known if one.is_changed}
    feed = {name: np.asarray(value) for name, value in case.feed.items()}
    given = {name: held.copy(array) if name in changed else array for name, array in feed.items()}
    outputs = program.run(None, given)
    for array in (*given.values(), *outputs):
        let_go(array)
    return outputs


def _are_same(one: object, other: runtime.Array) -> bool:
    """Whether two outputs have the same bits."""
    left, right = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
    is_same = np.array_equal(left, right)
    let_go(one)
    let_go(other)
    return is_same

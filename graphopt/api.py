"""The Python interface: each use case, raising nothing but GraphoptError for what cannot be served."""

from __future__ import annotations

import onnx

from graphopt.errors import GraphoptError, OptionError, VerificationError
from graphopt.flows import compile as compile_flow
from graphopt.flows import explain as explain_flow
from graphopt.flows import memory as memory_flow
from graphopt.flows import optimize as optimize_flow
from graphopt.flows import schedule as schedule_flow
from graphopt.flows import verify as verify_flow
from graphopt.flows.memory import MemoryReport
from graphopt.flows.optimize import DEFAULT_LEVEL
from graphopt.flows.result import OptimizeResult
from graphopt.flows.schedule import ScheduleReport
from graphopt.model.census import Census, census
from graphopt.model.load import Source, load
from graphopt.refusals import with_our_errors

optimize = with_our_errors(optimize_flow.optimize)
verify = with_our_errors(verify_flow.verify)
first_divergence = with_our_errors(verify_flow.first_divergence)
compile = with_our_errors(compile_flow.compile)  # the builtin of this name is not used here
memory = with_our_errors(memory_flow.memory)
schedule = with_our_errors(schedule_flow.schedule)
explain_rule = with_our_errors(explain_flow.explain_rule)
explain_node = with_our_errors(explain_flow.explain_node)


def simplify(model: Source, **options: object) -> tuple[onnx.ModelProto, bool]:
    """What `onnxsim.simplify` gives: the optimized ModelProto and whether it was checked equal.

    Takes onnxsim's `check_n` (0 is the default there; here the check is always made), `overwrite_input_shapes` and
    `test_input_shapes`; other options of onnxsim are refused by name.
    """
    allowed = {"check_n", "overwrite_input_shapes", "test_input_shapes", "perform_optimization", "skip_fuse_bn"}
    unknown = set(options) - allowed
    if unknown:
        raise OptionError(f"simplify does not take {sorted(unknown)}; use graphopt.optimize for everything else.")
    shapes = options.get("overwrite_input_shapes")
    skip = ("weights",) if options.get("skip_fuse_bn") else ()
    level = 1 if options.get("perform_optimization") is False else DEFAULT_LEVEL
    result = optimize(model, shapes=shapes if isinstance(shapes, dict) else None, skip=skip, level=level)
    return result.to_proto(), result.verification.passed


__all__ = [
    "Census",
    "GraphoptError",
    "MemoryReport",
    "OptimizeResult",
    "ScheduleReport",
    "VerificationError",
    "census",
    "compile",
    "explain_node",
    "explain_rule",
    "first_divergence",
    "load",
    "memory",
    "optimize",
    "schedule",
    "simplify",
    "verify",
]

"""graphopt: a better ONNX model, checked equal to the first."""

from graphopt.api import (
    Census,
    MemoryReport,
    OptimizeResult,
    ScheduleReport,
    compile,
    explain_node,
    explain_rule,
    first_divergence,
    load,
    memory,
    optimize,
    schedule,
    simplify,
    verify,
)
from graphopt.errors import (
    BundleError,
    GraphoptError,
    ModelError,
    NotLowered,
    OptionError,
    SaveError,
    VerificationError,
)
from graphopt.program.deploy.compiled import Compiled

__version__ = "0.1.0"

__all__ = [
    "BundleError",
    "Census",
    "Compiled",
    "GraphoptError",
    "MemoryReport",
    "ModelError",
    "NotLowered",
    "OptimizeResult",
    "OptionError",
    "SaveError",
    "ScheduleReport",
    "VerificationError",
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

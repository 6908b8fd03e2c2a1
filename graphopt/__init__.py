"""graphopt: a better ONNX model, checked equal to the first."""

from graphopt.api import (
    Census,
    MemoryReport,
    OptimizeResult,
    ScheduleReport,
    compile,
    load,
    memory,
    optimize,
    schedule,
    simplify,
    verify,
)
from graphopt.errors import BundleError, GraphoptError, ModelError, OptionError, SaveError, VerificationError
from graphopt.program.deploy.compiled import Compiled

__version__ = "0.1.0"

__all__ = [
    "BundleError",
    "Census",
    "Compiled",
    "GraphoptError",
    "MemoryReport",
    "ModelError",
    "OptimizeResult",
    "OptionError",
    "SaveError",
    "ScheduleReport",
    "VerificationError",
    "compile",
    "load",
    "memory",
    "optimize",
    "schedule",
    "simplify",
    "verify",
]

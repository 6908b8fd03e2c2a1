"""graphopt: a better ONNX model, checked equal to the first."""

from graphopt.api import Census, OptimizeResult, load, optimize, simplify, verify
from graphopt.errors import GraphoptError, ModelError, OptionError, SaveError, VerificationError

__version__ = "0.1.0"

__all__ = [
    "Census",
    "GraphoptError",
    "ModelError",
    "OptimizeResult",
    "OptionError",
    "SaveError",
    "VerificationError",
    "load",
    "optimize",
    "simplify",
    "verify",
]

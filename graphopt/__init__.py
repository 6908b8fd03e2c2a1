"""graphopt: a better ONNX model, checked equal to the first."""

from graphopt.api import Census, OptimizeResult, compile, load, optimize, simplify, verify
from graphopt.deploy.compiled import Compiled
from graphopt.errors import BundleError, GraphoptError, ModelError, OptionError, SaveError, VerificationError

__version__ = "0.1.0"

__all__ = [
    "BundleError",
    "Census",
    "Compiled",
    "GraphoptError",
    "ModelError",
    "OptimizeResult",
    "OptionError",
    "SaveError",
    "VerificationError",
    "compile",
    "load",
    "optimize",
    "simplify",
    "verify",
]

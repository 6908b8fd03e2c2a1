"""What the libraries and engines refuse, as this package's errors: wrapped once, around every use case.

A model that onnx itself calls invalid is at fault for whatever it makes fail, and the sentence says what onnx says. An
exception on a valid model is a fault of ours and passes as it is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import onnx
import onnx_ir as ir

from graphopt.check.runner import CannotRun, Workplace
from graphopt.errors import GraphoptError, ModelError, OptionError, VerificationError
from graphopt.extras import missing
from graphopt.model.load import load
from kernels.errors import KernelsError
from memplan.errors import MemplanError
from scheduler.errors import SchedulerError

P = ParamSpec("P")
R = TypeVar("R")


def with_our_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The use case, raising nothing but GraphoptError for a model or request that cannot be served.

    Its first arguments are models.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except GraphoptError:
            raise
        except (MemplanError, SchedulerError, KernelsError) as error:
            raise OptionError(str(error)) from error
        except CannotRun as error:
            raise VerificationError(f"the model cannot be run for comparison: {error}; nothing was written.") from error
        except ModuleNotFoundError as error:
            raise missing(error) or error from error
        except MemoryError as error:
            raise ModelError("the model needs more memory than this machine has; fix smaller dims.") from error
        except Exception as error:
            fault = next((found for one in args if (found := _fault_of(one)) is not None), None)
            if fault is None:
                raise
            raise ModelError(f"the model is not valid: {fault}; export it again.") from error

    return wrapped


def _fault_of(source: object) -> str | None:
    """What onnx objects to in a model; None when it is content, or `source` is none."""
    if not isinstance(source, (str, os.PathLike, bytes, onnx.ModelProto, ir.Model)):
        return None
    model = source if isinstance(source, ir.Model) else load(source)
    with Workplace() as workplace:
        return workplace.checker_error(model, full=True)

"""graphopt: a better ONNX model, checked against the original; how much memory it needs; a native program of it.

What a name stands for is imported when it is first used: `import graphopt` by itself loads nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import graphopt.gradient
import graphopt.machine
import graphopt.memory  # noqa: F401
from graphopt.errors import (
    BudgetNotKept,
    BundleError,
    GraphoptError,
    MissingExtra,
    ModelError,
    NotLowered,
    OptionError,
    SaveError,
    VerificationError,
)
from graphopt.extras import missing
from graphopt.lazy import SYMBOLIC, Lazy, postponing
from graphopt.model.collection import importing
from graphopt.version import VERSION

refusals, shown = Lazy("graphopt.refusals"), Lazy("graphopt.flows.shown")
_pages, _profile_pages = Lazy("graphopt.report.page"), Lazy("graphopt.report.profile.page")
_memory_pages, _schedule_pages = Lazy("graphopt.report.memory.page"), Lazy("graphopt.report.schedule.page")
_training_pages = Lazy("graphopt.report.training_page")
# What draws the page of a result.
_DRAWN = {
    "OptimizeResult": lambda result: _pages.page_of(result),
    "MemoryReport": lambda report, *beside: _memory_pages.memory_page(report.record, beside),
    "ProfileReport": lambda report: _profile_pages.profile_page(report.record),
    "ScheduleReport": lambda report: _schedule_pages.schedule_page(report.record),
    "FitResult": lambda result: _training_pages.fit_page(result.record),
}

if TYPE_CHECKING:
    from graphopt.check.divergence import Divergence
    from graphopt.check.verification import Verification
    from graphopt.flows.bench import measure
    from graphopt.flows.certify import certify
    from graphopt.flows.check_bundle import check_bundle
    from graphopt.flows.compile import compile
    from graphopt.flows.explain import explain_node, explain_rule
    from graphopt.flows.fit import FitResult, fit
    from graphopt.flows.gradient import GradientResult, gradient
    from graphopt.flows.machine import machine
    from graphopt.flows.memory import MemoryReport, memory
    from graphopt.flows.optimize import optimize
    from graphopt.flows.profile import ProfileReport, profile
    from graphopt.flows.quantize import QuantizeResult, quantize
    from graphopt.flows.records.certificate import Certificate
    from graphopt.flows.result import OptimizeResult
    from graphopt.flows.run import run
    from graphopt.flows.scenario import serve
    from graphopt.flows.schedule import ScheduleReport, schedule
    from graphopt.flows.simplify import simplify, slim
    from graphopt.flows.train_step import StepResult, train_step
    from graphopt.flows.verify import first_divergence, verify
    from graphopt.gradient.optimizers import Optimizer
    from graphopt.machine.record import MachineRecord
    from graphopt.model.census import Census
    from graphopt.model.load import Source, load
    from graphopt.program.deploy.compiled import Compiled
else:
    del (
        globals()["gradient"],
        globals()["machine"],
        globals()["memory"],
    )  # packages; `__getattr__` has the functions

__version__ = VERSION

# Name -> the module that has it.
_USE_CASES = {
    "optimize": "graphopt.flows.optimize",
    "compile": "graphopt.flows.compile",
    "gradient": "graphopt.flows.gradient",
    "fit": "graphopt.flows.fit",
    "train_step": "graphopt.flows.train_step",
    "quantize": "graphopt.flows.quantize",
    "machine": "graphopt.flows.machine",
    "memory": "graphopt.flows.memory",
    "schedule": "graphopt.flows.schedule",
    "verify": "graphopt.flows.verify",
    "first_divergence": "graphopt.flows.verify",
    "explain_rule": "graphopt.flows.explain",
    "explain_node": "graphopt.flows.explain",
    "certify": "graphopt.flows.certify",
    "check_bundle": "graphopt.flows.check_bundle",
    "measure": "graphopt.flows.bench",
    "profile": "graphopt.flows.profile",
    "run": "graphopt.flows.run",
    "serve": "graphopt.flows.scenario",
    "simplify": "graphopt.flows.simplify",
    "slim": "graphopt.flows.simplify",
}
_HOMES = {
    **_USE_CASES,
    "load": "graphopt.model.load",
    "Source": "graphopt.model.load",
    "Census": "graphopt.model.census",
    "Certificate": "graphopt.flows.records.certificate",
    "Compiled": "graphopt.program.deploy.compiled",
    "FitResult": "graphopt.flows.fit",
    "GradientResult": "graphopt.flows.gradient",
    "Optimizer": "graphopt.gradient.optimizers",
    "StepResult": "graphopt.flows.train_step",
    "Divergence": "graphopt.check.divergence",
    "MachineRecord": "graphopt.machine.record",
    "MemoryReport": "graphopt.flows.memory",
    "OptimizeResult": "graphopt.flows.result",
    "QuantizeResult": "graphopt.flows.quantize",
    "ProfileReport": "graphopt.flows.profile",
    "ScheduleReport": "graphopt.flows.schedule",
    "Verification": "graphopt.check.verification",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'graphopt' has no attribute '{name}'")
    _refuse_strangers()
    try:
        with postponing(*SYMBOLIC), importing():
            found = getattr(importlib.import_module(_HOMES[name]), name)
            if name in _USE_CASES:
                shown.DRAWN.update(_DRAWN)
                found = refusals.with_our_errors(found)
    except ModuleNotFoundError as error:
        raise missing(error) or error from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def _refuse_strangers() -> None:
    """Raise ImportError where a package of another project has the name of one of ours.

    Python finds it in our place, or the two are installed into one folder and share their files.
    """
    for name in ("kernels", "memplan", "scheduler"):
        spec = importlib.util.find_spec(name)
        place = None if spec is None or spec.origin is None else Path(spec.origin)
        if place is None or "Part of graphopt" not in place.read_text(encoding="utf-8", errors="replace"):
            raise ImportError(
                f"graphopt needs its own package '{name}', and {place or 'nothing'} is found under this name; "
                "install graphopt into an environment without the other project."
            )


__all__ = [
    "BudgetNotKept",
    "BundleError",
    "Census",
    "Certificate",
    "Compiled",
    "Divergence",
    "FitResult",
    "GradientResult",
    "GraphoptError",
    "MachineRecord",
    "MemoryReport",
    "MissingExtra",
    "ModelError",
    "NotLowered",
    "OptimizeResult",
    "OptionError",
    "Optimizer",
    "ProfileReport",
    "QuantizeResult",
    "SaveError",
    "ScheduleReport",
    "Source",
    "StepResult",
    "Verification",
    "VerificationError",
    "certify",
    "check_bundle",
    "compile",
    "explain_node",
    "explain_rule",
    "first_divergence",
    "fit",
    "gradient",
    "load",
    "machine",
    "measure",
    "memory",
    "optimize",
    "profile",
    "quantize",
    "run",
    "schedule",
    "serve",
    "simplify",
    "slim",
    "train_step",
    "verify",
]

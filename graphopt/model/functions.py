"""Model-local functions in place of their calls."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphopt.errors import ModelError
from graphopt.model import nodes


def inline(model: ir.Model, wanted: Callable[[ir.Function], bool] | None = None) -> None:
    """Put functions in place of all their calls: those that are wanted, by default every one.

    Raises ModelError for a wanted function whose operators mean something else in the model's graph.
    """
    for function in model.functions.values():
        if wanted is not None and not wanted(function):
            continue
        domain = _other_domain(function, model)
        if domain is not None:
            own, outer = function.opset_imports.get(domain, 1), model.opset_imports[domain]
            way = "" if domain else f"; 'graphopt optimize --opset {max(own, outer)}' makes them alike"
            raise ModelError(
                f"the function '{function.name}' has operators of version {own} of the domain "
                f"'{domain or 'ai.onnx'}', the model of version {outer}{way}."
            )
        # Versions of domains of functions, and of domains that nothing is of, say nothing; the pass refuses them.
        used = _domains(function, model)
        for other in [name for name in function.opset_imports if name not in used]:
            del function.opset_imports[other]
    InlinePass(wanted)(model)


def inlined(model: ir.Model) -> ir.Model:
    """A copy in which functions stand in place of their calls, as far as their operators mean the same there."""
    copy = model.clone()
    if copy.functions:
        inline(copy, lambda function: means_the_same(function, copy))
    return copy


def means_the_same(function: ir.Function, model: ir.Model) -> bool:
    """Whether every domain that the function's operators are of has one version in function and model."""
    return _other_domain(function, model) is None


def _other_domain(function: ir.Function, model: ir.Model) -> str | None:
    own, outer = function.opset_imports, model.opset_imports
    differ = (one for one in sorted(_domains(function, model)) if own.get(one, 1) != outer.get(one, own.get(one, 1)))
    return next(differ, None)


def _domains(function: ir.Function, model: ir.Model) -> set[str]:
    """Those of its operators that are no functions of the model: these have no version."""
    return {node.domain for node in nodes.nodes_of(function) if node.op_identifier() not in model.functions}

"""What golden files say: operators after optimization, and listings for named targets."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

import graphopt
import models
from graphopt.deploy.compiled import _optimized
from graphopt.lowering.elementwise import NotLowered
from graphopt.lowering.lower import lower
from graphopt.model.dimensions import change_dims
from graphopt.planning.link import link
from graphopt.planning.regions import in_best_order
from kernels.listing import Place
from kernels.target import named

TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64")
_SPACES = {"arena": "a", "weights": "w"}


def optimized_text(name: str) -> str:
    """The operators that are left of a model of the zoo, and how often each rule fired."""
    result = graphopt.optimize(models.load(name), verify=False)
    rules = Counter(rewrite.rule for rewrite in result.rewrites)
    lines = [f"nodes {result.after.nodes} of {result.before.nodes}, parameters {result.after.parameters:,}", ""]
    lines += [f"{operator} {count}" for operator, count in result.after.by_type]
    return "\n".join([*lines, "", *(f"{rule} x {count}" for rule, count in sorted(rules.items())), ""])


def ready_to_lower(name: str) -> ir.Model:
    """A model of the zoo as `compile` lowers it, its dynamic dims fixed."""
    model = graphopt.load(models.load(name))
    if models.sizes(name):
        change_dims(model, {}, models.sizes(name))
    return _optimized(model)


def listing_text(model: ir.Model, target: str) -> str:
    """Kernels with their candidates, the place of every operand in every step, and the bytes of arena and weights."""
    try:
        linked = link(in_best_order(lower(model, named(target))), "model")
    except NotLowered as error:
        return f"not lowered: {error}\n"
    listing = linked.listing
    lines = [
        f"arena {listing.arena_bytes:,} (bound {linked.plan.lower_bound:,}), weights {listing.weights_bytes:,}, "
        f"scratch {listing.scratch_bytes:,}",
        "",
        *(
            f"{kernel.name}: {kernel.candidate}; blocks {kernel.blocks}, {kernel.flops:,} flops, "
            f"{kernel.traffic:,} bytes"
            for kernel in listing.kernels
        ),
        "",
        *(f"{run.kernel} {' '.join(map(_place, run.operands))}" for run in listing.runs),
        "",
    ]
    return "\n".join(lines)


def _place(place: Place) -> str:
    if place.space in _SPACES:
        return f"{_SPACES[place.space]}{place.offset}"
    return f"{place.space}{place.argument}" + (f"+{place.offset}" if place.offset else "")

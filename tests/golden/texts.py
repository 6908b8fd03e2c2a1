"""What golden files say: operators after optimization, and listings for named targets."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

import graphopt
import models
from graphopt.errors import NotLowered
from graphopt.flows.asked import optimized
from graphopt.model.dimensions import change_dims
from graphopt.program.listing import link
from graphopt.program.order import in_best_order
from graphopt.program.quantizing import in_integers
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Region
from kernels.kernel import Kernel
from kernels.listing import Argument, Place, Ticketed
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
    return in_integers(optimized(model))


def listing_text(model: ir.Model, target: str) -> str:
    """What planning decides: kernels with their operands, the memory, and the place of every operand in every step.

    The columns of a buffer are its offset, its bytes and the steps that it lives in; a step ends with the operators
    that it computes, none for a copy. What several workers claim follows.
    """
    try:
        lowered = in_best_order(lower(model, named(target)))
    except NotLowered as error:
        return f"not lowered: {error}\n"
    linked = link(lowered, "model")
    listing = linked.listing
    runs = zip(listing.runs, lowered.regions, strict=True)
    lines = [
        f"arena {listing.arena_bytes:,} (bound {linked.plan.lower_bound:,}), weights {listing.weights_bytes:,}, "
        f"scratch {listing.scratch_bytes:,}",
        "",
        *(f"input{number} {_argument(one)}" for number, one in enumerate(listing.inputs)),
        *(f"output{number} {_argument(one)}" for number, one in enumerate(listing.outputs)),
        "",
        *(line for kernel in listing.kernels for line in _kernel(kernel)),
        "",
        *(f"a{linked.plan.offsets[one.name]} {one.size} {one.begin}-{one.end - 1}" for one in linked.problem.buffers),
        "",
        *(f"{run.kernel} {' '.join(map(_place, run.operands))}{_operators(region)}" for run, region in runs),
        "",
        *_claims(listing.ticketed),
    ]
    return "\n".join(lines)


def _claims(ticketed: Ticketed | None) -> list[str]:
    """The runs of several workers in the order in which they are claimed, with those that are waited for before."""
    if ticketed is None:
        return ["one worker", ""]
    marks = {run: "follows " if run in ticketed.following else "whole " for run in ticketed.whole}
    places = (
        f"{run} {marks.get(run, '')}{ticketed.runs[run].kernel} "
        f"{' '.join(_place(one) for one in ticketed.runs[run].operands)}"
        f"{''.join(f' {number}' for number in ('after', *before)) if before else ''}"
        for run, before in ticketed.waits
    )
    return [f"several workers: arena {ticketed.arena_bytes:,}", *places, ""]


def _argument(argument: Argument) -> str:
    return f"{argument.dtype.value}[{','.join(map(str, argument.shape))}]"


def _kernel(kernel: Kernel) -> tuple[str, str]:
    operands = (
        f"{one.name} {one.role} {one.dtype.value}[{one.elements}]{'' if one.packing is None else ' packed'}"
        for one in kernel.operands
    )
    return (
        f"{kernel.name}: {kernel.candidate}; blocks {kernel.blocks}, {kernel.flops:,} flops, {kernel.traffic:,} bytes, "
        f"scratch {kernel.scratch_bytes:,}",
        f"  {', '.join(operands)}",
    )


def _operators(region: Region) -> str:
    return "".join(f" {node.operator}" for node in region.nodes)


def _place(place: Place) -> str:
    if place.space in _SPACES:
        return f"{_SPACES[place.space]}{place.offset}"
    return f"{place.space}{place.argument}" + (f"+{place.offset}" if place.offset else "")

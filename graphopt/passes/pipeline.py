"""The order of the passes, one tuple per stage, read from top to bottom.

PREPARE   what the caller asks for before anything else: inlined functions, a newer opset
STANDARD  in rounds until nothing changes
TARGETS   what only one target may use; in rounds
LAYOUT    the layout that the caller asks for; in rounds
FINISH    once
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from graphopt.passes import (
    algebra,
    cleanup,
    conditionals,
    elimination,
    flat_gemm,
    folding,
    functions,
    fusion,
    inlining,
    loops,
    ort,
    quantization,
    sequences,
    shapes,
    sharing,
    unrolling,
    weights,
)
from graphopt.passes.algebra import expand
from graphopt.passes.batching import pieces, products
from graphopt.passes.fusion import attention_cache
from graphopt.passes.layout import push, turn
from graphopt.passes.recurrent import stack, unrolled
from graphopt.passes.versions import lift
from graphopt.passes.weights import projections, shares
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.rule import Rule

# Repeated until nothing changes.
STANDARD: tuple[Pass, ...] = (
    Pass("lift-constants", 0, run=cleanup.lift_constants, why=cleanup.why_not_lifted),
    Pass("remove-dead-nodes", 0, run=cleanup.remove_dead_nodes, why=cleanup.why_not_removed),
    Pass("elimination", 0, elimination.RULES),
    Pass("share-equal-initializers", 0, run=sharing.share_equal_initializers),
    # Before folding: it would take the products with the first state, which is zero, out of the first cell.
    Pass("roll-up-cells", 2, run=unrolled.roll_up_cells),
    Pass("stack-of-steps", 1, stack.RULES),
    Pass("bind-attributes", 1, run=functions.bind_attributes, why=functions.why_not_bound),
    Pass("shape-arithmetic", 1, shapes.RULES),
    Pass("sequences", 1, sequences.RULES),
    Pass("split-into-tensors", 1, run=sequences.split_into_tensors, why=sequences.why_not_split),
    # Before folding: what is expanded last need not be written out expanded.
    Pass("expand-last", 1, expand.RULES),
    Pass("fold-constants", 1, run=folding.fold_constants, why=folding.why_not_folded),
    Pass("resolve-constant-if", 1, run=conditionals.resolve_constant_if, why=conditionals.why_not_resolved),
    Pass("hoist-loop-invariants", 1, run=loops.hoist_loop_invariants, why=loops.why_not_hoisted),
    Pass("loop-of-one-trip", 1, run=unrolling.loop_of_one_trip),
    # Faster, and more nodes: asked for.
    Pass("unroll-loops", 3, run=unrolling.unroll_loops, why=unrolling.why_not_unrolled),
    Pass("merge-common-subexpressions", 1, run=sharing.merge_common_subexpressions, why=sharing.why_not_merged),
    Pass("merge-equal-contents", 1, run=shapes.merge_equal_contents),
    # Before algebra: it sees two Transposes at a time, this one sees them all.
    Pass("push-transposes", 1, run=push.push_transposes, why=push.why_not_pushed),
    Pass("algebra", 1, algebra.RULES),
    Pass("quantization", 1, quantization.RULES),
    # Before the weights: they would take the 0.5 of a Gelu, and the Gelu would not be recognised any more.
    Pass("fusion", 2, fusion.RULES),
    Pass("attention-with-cache", 2, run=attention_cache.attention_with_cache),
    Pass("weights", 2, weights.RULES),
    Pass("merge-small-projections", 2, run=projections.merge_small_projections, why=projections.why_not_merged),
    Pass("merge-projections-of-attention", 2, run=projections.merge_projections_of_attention),
    # One product and a Split are fewer nodes than three products, and 1 to 2.5 % slower in ONNX Runtime on a CPU
    # (swin_tiny, bert_base, vit_s16, clip_text, t5_small, gpt2_kv; bench/ort_latency.py), so they must be asked for.
    Pass("merge-projections", 3, run=projections.merge_projections, why=projections.why_not_merged),
    Pass("batch-equal-products", 2, run=products.batch_equal_products, why=products.why_not_batched),
    Pass("batch-pieces", 2, run=pieces.batch_pieces),
    Pass("number-through-split", 2, run=shares.number_through_split, why=shares.why_not_moved),
    Pass("flat-gemm", 2, flat_gemm.RULES),
)

# Once, at the end.
FINISH: tuple[Pass, ...] = (
    Pass("write-out-small-splats", 1, run=cleanup.write_out_small_splats),
    Pass("drop-unused-outputs", 0, run=cleanup.drop_unused_outputs),
    Pass("share-equal-initializers-at-the-end", 0, run=sharing.share_equal_initializers),
    Pass("reuse-initializer-inputs", 2, run=cleanup.reuse_initializer_inputs),
    Pass("remove-unused-definitions", 0, run=cleanup.remove_unused_definitions),
)

# Nothing here asks how large a tensor is: what one run of them does to a model is right for the sizes of all copies.
TIDY: tuple[Pass, ...] = tuple(
    step
    for step in STANDARD
    if step.name
    in (
        "lift-constants", "remove-dead-nodes", "share-equal-initializers", "shape-arithmetic", "fold-constants",
        "merge-common-subexpressions", "merge-equal-contents",
    )
)  # fmt: skip

Target = Literal["standard", "ort"]
TARGET_NAMES: tuple[Target, ...] = get_args(Target)
Layout = Literal["nhwc", "nchw"]
LAYOUT_NAMES: tuple[Layout, ...] = get_args(Layout)

# Standard operators only is what every runtime reads; ort may also use com.microsoft.
TARGETS: Mapping[Target, tuple[Pass, ...]] = {"standard": (), "ort": ort.PASSES}


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants done to a model, beyond being equal and better."""

    level: int = 2
    skip: frozenset[str] = frozenset()
    target: Target = "standard"
    opset: int | None = None  # lift to this opset first; None: the model keeps its own
    inline: bool = False  # inline model-local functions
    layout: Layout | None = None  # what images at the inputs and outputs shall be; None: as they are
    layout_functions: bool = True  # whether operators of the wanted layout may be model-local functions


def stages(request: Request) -> tuple[tuple[Pass, ...], ...]:
    """The stages of a request, each cut to its level and without what is skipped."""
    found = (_prepare(request), STANDARD, TARGETS[request.target], _layout(request), FINISH)
    return tuple(select(stage, request.level, request.skip) for stage in found if stage)


def _prepare(request: Request) -> tuple[Pass, ...]:
    """What must come before everything else."""
    lifted = () if request.opset is None else (lift.lifting(request.opset),)
    # Lifted first: then functions import the version that the model does, and can be inlined.
    return (*lifted, Pass("inline-functions", 0, run=inlining.inline_functions)) if request.inline else lifted


def _layout(request: Request) -> tuple[Pass, ...]:
    """What turns the graph's layout. Afterwards the standard passes have their turn with what has come together."""
    if request.layout == "nhwc" and request.layout_functions:
        return (Pass("turn-to-channels-last", 0, run=turn.turn_to_channels_last), *STANDARD)
    return (
        ()
        if request.layout is None
        else (Pass("push-transposes", 0, run=push.push_transposes, why=push.why_not_pushed),)
    )


def every_pass() -> tuple[Pass, ...]:
    """Every pass that some request runs, in order."""
    everything = Request(opset=1, inline=True, layout="nhwc")
    targets = (step for target in TARGET_NAMES for step in TARGETS[target])
    return tuple(dict.fromkeys((*_prepare(everything), *STANDARD, *targets, *_layout(everything), *FINISH)))


def names() -> tuple[str, ...]:
    """The names that `--skip` takes, in order."""
    return tuple(dict.fromkeys(step.name for step in every_pass()))


def select(stage: tuple[Pass, ...], level: int, skip: frozenset[str]) -> tuple[Pass, ...]:
    """The passes of a stage up to a level, without the skipped ones; their rules are cut to the level too."""
    return tuple(
        Pass(
            step.name,
            step.level,
            tuple(rule for rule in step.rules if rule.level <= level and rule.name not in skip),
            step.run,
            step.why,
        )
        for step in stage
        if step.level <= level and step.name not in skip
    )


def rules() -> tuple[Rule, ...]:
    """Every rule of every pass."""
    return tuple(dict.fromkeys(rule for step in every_pass() for rule in step.rules))


def passes_named(name: str) -> tuple[Pass, ...]:
    """The passes of that name."""
    return tuple(step for step in every_pass() if step.name == name)

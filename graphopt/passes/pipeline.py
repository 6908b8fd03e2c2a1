"""The order of the passes, one tuple per stage, read from top to bottom."""

from __future__ import annotations

from graphopt.passes import (
    algebra,
    cleanup,
    conditionals,
    elimination,
    flat_gemm,
    folding,
    functions,
    fusion,
    quantization,
    sequences,
    shapes,
    sharing,
    weights,
)
from graphopt.passes.algebra import expand
from graphopt.passes.weights import projections, shares
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.rule import Rule

# Repeated until nothing changes.
STANDARD: tuple[Pass, ...] = (
    Pass("lift-constants", 0, run=cleanup.lift_constants),
    Pass("remove-dead-nodes", 0, run=cleanup.remove_dead_nodes),
    Pass("elimination", 0, elimination.RULES),
    Pass("share-equal-initializers", 0, run=sharing.share_equal_initializers),
    Pass("bind-attributes", 1, run=functions.bind_attributes),
    Pass("shape-arithmetic", 1, shapes.RULES),
    Pass("sequences", 1, sequences.RULES),
    Pass("split-into-tensors", 1, run=sequences.split_into_tensors),
    # Before folding: what is expanded last need not be written out expanded.
    Pass("expand-last", 1, expand.RULES),
    Pass("fold-constants", 1, run=folding.fold_constants),
    Pass("resolve-constant-if", 1, run=conditionals.resolve_constant_if),
    Pass("merge-common-subexpressions", 1, run=sharing.merge_common_subexpressions),
    Pass("merge-equal-contents", 1, run=shapes.merge_equal_contents),
    Pass("algebra", 1, algebra.RULES),
    Pass("quantization", 1, quantization.RULES),
    # Before the weights: they would take the 0.5 of a Gelu, and the Gelu would not be recognised any more.
    Pass("fusion", 2, fusion.RULES),
    Pass("weights", 2, weights.RULES),
    # One product and a Split are fewer nodes than three products, and 1 to 2.5 % slower in ONNX Runtime on a CPU
    # (swin_tiny, bert_base, vit_s16, clip_text, t5_small, gpt2_kv; bench/latency.py), so they must be asked for.
    Pass("merge-projections", 3, run=projections.merge_projections),
    Pass("number-through-split", 2, run=shares.number_through_split),
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


def names() -> tuple[str, ...]:
    """The names that `--skip` takes, in order."""
    return tuple(step.name for step in (*STANDARD, *FINISH))


def select(stage: tuple[Pass, ...], level: int, skip: frozenset[str]) -> tuple[Pass, ...]:
    """The passes of a stage up to a level, without the skipped ones; their rules are cut to the level too."""
    return tuple(
        Pass(
            step.name,
            step.level,
            tuple(rule for rule in step.rules if rule.level <= level and rule.name not in skip),
            step.run,
        )
        for step in stage
        if step.level <= level and step.name not in skip
    )


def rules() -> tuple[Rule, ...]:
    """Every rule of every pass."""
    return tuple(rule for step in (*STANDARD, *FINISH) for rule in step.rules)

"""A model as it runs while it trains: statistics of the batch, elements dropped by a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.errors import ModelError
from graphopt.gradient.maker import GradientMaker
from graphopt.model import constants, dims, nodes
from graphopt.model.operators.gradients.terms import NoGradient, Term

SEED = "seed"
PRIME = (1 << 31) - 1  # products of two remainders fit into int64
# Two rounds of x -> x^5 (a permutation, as 5 does not divide PRIME - 1) with an affine map between them.
STEP, SEED_STEP, STREAM_STEP = 48271, 1103515245, 1664525
FACTOR, SHIFT = 1597334677, 715225741


@dataclass(slots=True)
class Training:
    """The changes that training mode made."""

    seed: ir.Value | None = None  # the input that decides what is dropped
    running: dict[ir.Value, Term] = field(default_factory=dict)  # statistics, and their values after the step
    first: dict[ir.Value, ir.Value] = field(default_factory=dict)  # the statistic that a followed value began as


def train(maker: GradientMaker, *, batch_statistics: bool) -> Training:
    """Let every BatchNormalization of the main graph normalize by its batch, and every Dropout drop by a seed.

    The running statistics follow with the node's momentum, as ONNX says: r momentum + (1 - momentum) of the batch's
    mean and variance (of the population); those that several nodes share follow their batches one after the other.
    Without `batch_statistics` nodes keep the statistics that they are given. The seed is a new input, int64; equal
    seeds drop equal elements. Raises ModelError for dims that are not known.
    """
    done = Training()
    stream = 0
    for node in list(maker.graph):
        if not nodes.is_standard(node):
            continue
        maker.serve(node)
        try:
            if node.op_type == "BatchNormalization" and batch_statistics:
                _normalize_by_batch(maker, node, done)
            elif node.op_type == "Dropout" and _drops(maker, node):
                stream += 1
                _drop_by_seed(maker, node, done, stream)
        except NoGradient as reason:
            raise ModelError(f"{nodes.describe(node)} cannot train: {reason}.") from None
    maker.graph.sort()
    return done


def _normalize_by_batch(maker: GradientMaker, node: ir.Node, done: Training) -> None:
    x = maker.term(nodes.given_input(node, 0))
    axes = (0, *range(2, x.rank))
    if all(x.shape[axis] == 1 for axis in axes):
        raise NoGradient(
            "its batch has one number for each channel, so that all become 0; give more, or keep its statistics with "
            "--keep-statistics (batch_statistics=False)"
        )
    mean = x.mean(*axes, keep=False)
    wide = mean.unsqueeze(*range(1, x.rank - 1))
    variance = (x - wide).squared().mean(*axes, keep=False)
    momentum = nodes.float_attribute(node, "momentum", 0.9)
    for position, new in ((3, mean), (4, variance)):
        given = nodes.given_input(node, position)
        start = done.first.get(given, given)
        old = done.running.get(start, maker.term(given))
        followed = old * momentum + new * (1 - momentum)
        if constants.of_initializer(start) is not None:
            done.running[start] = followed
            done.first[followed.value] = start
        if len(node.outputs) > position - 2:
            maker.replace(node.outputs[position - 2], followed)
        node.replace_input_with(position, new.value)
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)


def _drops(maker: GradientMaker, node: ir.Node) -> bool:
    if maker.opset < 12:
        return bool(nodes.float_attribute(node, "ratio", 0.5))
    ratio = nodes.input_at(node, 1)
    array = maker.facts.array(ratio) if ratio is not None and maker.facts.is_constant(ratio) else None
    return array is None or bool(array.reshape(-1)[0])


def _drop_by_seed(maker: GradientMaker, node: ir.Node, done: Training, stream: int) -> None:
    """x where a number of the element's place is above the ratio, by the share that is kept; else 0."""
    x = maker.term(nodes.given_input(node, 0))
    if done.seed is None:
        done.seed = ir.Value(name=maker.unique(SEED), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        maker.graph.inputs.append(done.seed)
    given = nodes.input_at(node, 1)
    if maker.opset < 12 or given is None:
        ratio = x.number(nodes.float_attribute(node, "ratio", 0.5))
    else:
        ratio = maker.term(given).cast(x.dtype)
    kept = maker.op("Not", _numbers(maker, x, maker.term(done.seed), stream) < ratio)
    scaled = x * (1.0 - ratio).apply("Reciprocal")
    made = scaled.where(kept)
    maker.replace(node.outputs[0], made)
    if len(node.outputs) > 1:
        maker.replace(node.outputs[1], kept)


def _numbers(maker: GradientMaker, x: Term, seed: Term, stream: int) -> Term:
    """A number between 0 and 1 for each element, of x's type, decided by its place, the seed and the stream."""
    known = dims.static(x.shape)
    zero, one = (maker.array(np.array(number, np.int64)) for number in (0, 1))
    count = maker.array(np.array(prod(known), np.int64)) if known is not None else maker.op("Size", x)
    places = maker.op("Range", zero, count, one)

    def remainder(term: Term) -> Term:
        return maker.op("Mod", term, maker.array(np.array(PRIME, np.int64)))

    def mixed(term: Term) -> Term:
        fourth = remainder(remainder(term.squared()).squared())
        return remainder(fourth * term)

    start = remainder(remainder(seed) * SEED_STEP + stream * STREAM_STEP)
    first = mixed(remainder(places * STEP + start))
    second = mixed(remainder(first * FACTOR + SHIFT))
    return (second.cast(ir.DataType.DOUBLE) * (1 / PRIME)).cast(x.dtype).reshape(x.dims())

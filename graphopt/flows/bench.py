"""`bench`: a model's program, or a bundle, beside other runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphopt.check.given import Feeds, read_feeds
from graphopt.check.lineage import STEPS
from graphopt.check.plain import plain_feed
from graphopt.flows.compile import compile
from graphopt.flows.records.bench import BenchRecord
from graphopt.flows.source import resize
from graphopt.machine.record import MachineRecord
from graphopt.model.load import load
from graphopt.model.nodes import graphs_of
from graphopt.model.session import readable
from graphopt.model.settling import settle
from graphopt.model.tensors import tensors_of
from graphopt.model.text import Progress
from graphopt.program.deploy.benchmark import AS_GIVEN, COMPILED, SIDES, Side, compare_sides
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle


def measure(
    source: Path,
    peers: Sequence[str],
    *,
    bundle: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    feeds: Feeds | None = None,
    rounds: int = 15,
    threads: int = 1,
    machine: MachineRecord | str | None = None,
    tune: float = 0.0,
    progress: Progress | None = None,
) -> list[BenchRecord]:
    """A model's program beside each of `peers`, by turns, each on so many threads; `bundle` was compiled before.

    `machine` and `tune` as for `compile`.

    Raises what `compile` raises, and OptionError for a peer that is not installed.
    """
    model = load(source)
    if shapes or dims:
        resize(model, shapes or {}, dims or {})
    settle(model)
    if bundle is None:
        program: Compiled | Bundle = compile(
            source,
            shapes=shapes,
            dims=dims,
            feeds=feeds,
            threads=threads,
            machine=machine,
            tune=tune,
            progress=progress,
        )
    else:
        read_manifest(bundle)  # of a program that has a library
        program = Bundle(bundle, threads=threads)
    own = read_feeds(model, feeds)
    drawn = own[0].feed if own else plain_feed(model)
    feed = {name: np.asarray(value) for name, value in drawn.items()}
    precision = _precision_of(model) if bundle is None else COMPILED
    ours = Side("graphopt", precision, partial(program.run, None, feed))
    with readable(model) as read:
        sides = [SIDES[name](read, feed, threads) for name in peers]
    found = compare_sides(ours, sides, rounds=rounds, threads=threads)
    return [BenchRecord(str(source), threads, ours.precision, one) for one in found]


def _precision_of(model: ir.Model) -> str:
    """Float32 where the model has no other floats, and rounds nothing to steps."""
    values = [*model.graph.inputs, *model.graph.outputs]
    kinds = {tensor.dtype for tensor in tensors_of(model)} | {
        value.dtype for value in values if value.dtype is not None
    }
    floats = {kind for kind in kinds if kind.is_floating_point()}
    steps = any(node.op_type in STEPS for graph in graphs_of(model) for node in graph)
    return "f32" if floats == {ir.DataType.FLOAT} and not steps else AS_GIVEN

"""Operators along sides that a run sets, spelled out with operators that have kernels of any size.

Kernels of convolutions, poolings and resizing are made for the sides of images that they have, but for some that take
these from the run: nodes with such kernels are marked, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import OF_ANY_SIDES, required_input
from graphopt.program.free_sides.attention import attention
from graphopt.program.free_sides.convolution import convolution, transposed
from graphopt.program.free_sides.pooling import average, largest, whole
from graphopt.program.free_sides.resizing import resized
from graphopt.program.free_sides.writer import Sides, Writer
from graphopt.program.steps import Formula
from kernels.size import Size
from kernels.target import Target

RULES: dict[str, Callable[[Writer, Sides], None]] = {
    "Conv": convolution, "ConvTranspose": transposed, "GlobalAveragePool": whole, "GlobalMaxPool": whole,
    "MaxPool": largest, "AveragePool": average, "Resize": resized, "Attention": attention,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spelled:
    """What was spelled out."""

    kinds: frozenset[str]  # of operators
    steps: tuple[Size | int, ...]  # numbers of what sides were cut into
    kept: bool  # whether some convolutions have kernels of any sides instead


def spell_out_free_sides(
    model: ir.Model, sized: Sequence[ir.Model], formula: Formula, *, exact: bool, target: Target | None = None
) -> Spelled:
    """Spell out what a model computes along sides that a run sets, and say what. The model is changed.

    `sized` are copies of it at sizes of which every one is another: sides that differ among them are free, and
    `formula` gives their dims. Nodes that have no such form here stay as they are. `exact` leaves out forms that round
    otherwise than a plain sum does. Convolutions with kernels for a `target` that take sides from the run are marked.
    """
    facts, known = Facts(model), [Facts(one) for one in sized]
    dims_of = {  # before anything is spelled out
        node: None if node.inputs[0] is None else facts.shape(node.inputs[0])
        for node in model.graph
        if node.op_type in RULES
    }
    kinds, steps = set[str](), list[Size | int]()
    for node, *copies in zip(tuple(model.graph), *map(tuple, (one.graph for one in sized)), strict=True):
        if node.domain or node.op_type not in RULES or node.inputs[0] is None:
            continue
        given = [there.static_shape(required_input(one, 0)) for there, one in zip(known, copies, strict=True)]
        made = [there.static_shape(one.outputs[0]) for there, one in zip(known, copies, strict=True)]
        dims = [shape for shape in given if shape is not None]
        results = [shape for shape in made if shape is not None]
        is_known = len(dims) == len(given) and len(results) == len(made)
        if is_known and (len({shape[2:] for shape in dims}) > 1 or len({shape[2:] for shape in results}) > 1):
            writer = Writer(model, facts, node, dims_of[node], formula, exact=exact, target=target)
            RULES[node.op_type](writer, Sides(tuple(dims), tuple(results)))
            kinds |= {node.op_type} if node.graph is None else set()
            steps += writer.steps
    kept = any(OF_ANY_SIDES in node.metadata_props for node in model.graph)
    return Spelled(frozenset(kinds), tuple(steps), kept)

"""The record of an operator: all that graphopt knows of it beside its ONNX schema, said once.

Every room reads these records: inference asks for `shape` and `content`, folding for `evaluate`, costs for `flops` and
`reads`, memory plans for `storage`, tiling for `axes` and `part`, layouts for `axes` and `images`, programs for
`formula`, `storage` and `epilogue`, training graphs for `gradient`. A field that is left out says that nothing more is
known than the schema tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Literal

import onnx_ir as ir

from graphopt.model.dims import Dim
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators.arrays import Evaluator
from graphopt.model.operators.axes import AxesRule
from graphopt.model.operators.formulas import Formula
from graphopt.model.operators.gradients.backward import GradientRule
from graphopt.model.operators.parameters import Parameter
from graphopt.model.operators.parts import PartRule, Shape

ShapeRule = Callable[[ir.Node, Knowledge], tuple[Known, ...] | None]  # one for each output; None: ask the schema
Flops = Callable[[ir.Node, list[Shape], list[Shape]], int]  # of the dims of all inputs, and of the first output

# Where the first result's bytes are.
# own:      in memory of their own.
# in place: where an operand of equal size was, if nothing reads that any more.
# same:     the first operand's, in the same order: only a description changes.
# strides:  the first operand's, in another order or only some of them, or each several times.
# joined:   the operands', one block after the other (Concat), where every dim in front of the axis is 1.
# pieces:   each result is such a block of the first operand (Split).
# dims:     in memory of their own, made from the operand's dims alone: none of its bytes is read.
Storage = Literal["own", "in place", "same", "strides", "joined", "pieces", "dims"]

# pure:     two runs on equal inputs give equal outputs.
# random:   they do not.
# training: pure unless the node trains (Dropout, BatchNormalization).
Purity = Literal["pure", "random", "training"]


@dataclass(frozen=True, slots=True)
class Counting:
    """A dim of an operator's results that data decides: it is the same in all results that have it."""

    axes: tuple[int | None, ...]  # by result: the axis along which it lies; None: the result has it nowhere
    most: Dim  # how large it can be


CountingRule = Callable[[ir.Node, Knowledge], tuple[Counting, ...]]  # none where the operands' dims do not tell


def per_element(count: int) -> Flops:
    """`count` operations for each element of the first result."""
    return lambda node, inputs, outputs: count * prod(outputs[0]) if outputs else 0


one_per_element = per_element(1)


def per_operand_element(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """One operation for each element of the first operand, as a reduction takes."""
    return prod(inputs[0]) if inputs else 0


def no_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """None: the operator only moves or describes data."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator."""

    name: str
    domain: str = ""
    shape: ShapeRule | None = None
    content: Evaluator | None = None  # of small integer tensors whose elements may be symbols
    counted: CountingRule | None = None  # of results that have a dim which data decides
    evaluate: Evaluator | None = None  # only where NumPy's result is the operator's, bit by bit
    flops: Flops = one_per_element
    reads: Literal["all", "selected"] = "all"  # of the first operand; selected: as many bytes as are written
    storage: Storage = "own"
    purity: Purity = "pure"
    commutative: bool = False  # two operands may change places
    broadcasts: int | None = None  # since which opset its operands broadcast in both directions; None: they do not
    moves: bool = False  # every element of its result is one of the first operand's
    not_negative: bool = False  # no element of its result is below 0, for any operand; -0.0 may be
    formula: Formula | None = None  # the element of its result from those of its operands
    along: bool = False  # operands after the first that have one dim lie along the attribute "axis"
    epilogue: bool = False  # whether its kernel computes an expression of each element that it stores
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # attributes that became inputs
    axes: AxesRule | None = None
    part: PartRule | None = None  # where a range of its result asks for more than `axes` says
    gradient: GradientRule | None = None  # those of its operands from those of its results
    images: tuple[int, ...] = ()  # inputs that are [N, C, ...] by definition; so is the first output then


# An operator that only moves elements.
mover = partial(Operator, flops=no_flops, moves=True)

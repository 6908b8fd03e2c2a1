"""Records of models: what optimize, verify, diff, inspect and explain print, keys in the order written here.

Each carries its schema's name and version first. A number that JSON cannot hold (an infinite error) is written as null.
"""

from __future__ import annotations

import msgspec

from graphopt.check.divergence import Divergence
from graphopt.check.verification import Verification
from graphopt.memory.budgeted import BudgetRecord
from graphopt.rewrite.record import PassRecord, Rollback


class RewriteLine(msgspec.Struct, frozen=True, rename={"pass_name": "pass"}):
    """One change of the graph."""

    number: int
    pass_name: str
    rule: str
    site: str
    before: tuple[str, ...]  # the nodes, as "Op 'name'"
    after: tuple[str, ...]
    why: str  # what the rule does, as `before --> after`
    reason: str | None  # what the rule says of this one place


class OptimizeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt optimize` did."""

    schema: str = "graphopt.optimize/1"
    input: str
    output: str
    level: int
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    parameters_before: int
    parameters_after: int
    types_before: dict[str, int]
    types_after: dict[str, int]
    seconds: float  # of the passes
    verify_seconds: float
    passes: tuple[PassRecord, ...]
    rolled_back: tuple[Rollback, ...]
    verification: Verification
    signature_unchanged: bool
    signature_changes: tuple[str, ...]
    opset_before: int
    opset_after: int  # another one only where the caller asked for it
    kept_transposes: tuple[str, ...]  # with --layout: those left in the main graph, each with what keeps it
    memory: BudgetRecord | None  # with --memory-budget
    inputs: tuple[str, ...] = ()  # of what is written: x: float[batch, 64]
    outputs: tuple[str, ...] = ()


class OptimizeFile(OptimizeRecord, frozen=True, kw_only=True):
    """What `--report` writes: the same, and every rewrite."""

    rewrites: tuple[RewriteLine, ...]


class VerifyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt verify` found."""

    schema: str = "graphopt.verify/1"
    a: str
    b: str
    equal: bool
    verification: Verification
    divergence: Divergence | None  # only with --bisect, and only when the models differ


class NodeLine(msgspec.Struct, frozen=True):
    """One node of one model."""

    outputs: tuple[str, ...]
    op_type: str
    name: str


class NodeChange(msgspec.Struct, frozen=True):
    """A node that computes a value of the same name differently."""

    output: str
    op_type_a: str
    op_type_b: str
    changes: tuple[str, ...]


class TypeCount(msgspec.Struct, frozen=True):
    """How often an operator occurs in either model."""

    op_type: str
    a: int
    b: int


class TensorLine(msgspec.Struct, frozen=True):
    """An initializer."""

    name: str
    type: str  # such as float32[3,224]
    bytes: int


class DiffRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt diff` found."""

    schema: str = "graphopt.diff/1"
    a: str
    b: str
    identical: bool
    signature: tuple[str, ...]
    header: tuple[str, ...]  # differences of opsets, IR version and functions
    types: tuple[TypeCount, ...]  # those whose counts differ
    only_in_a: tuple[NodeLine, ...]
    only_in_b: tuple[NodeLine, ...]
    changed: tuple[NodeChange, ...]
    initializers_removed: tuple[TensorLine, ...]
    initializers_added: tuple[TensorLine, ...]
    initializers_changed: tuple[TensorLine, ...]


class PortLine(msgspec.Struct, frozen=True):
    """An input or output."""

    name: str
    type: str
    dims: tuple[int | str | None, ...] | None
    default: bool  # whether an initializer gives the input a value


class TypeLine(msgspec.Struct, frozen=True):
    """All nodes of one operator."""

    op_type: str
    nodes: int
    flops: int
    bytes: int
    unknown: int  # nodes whose dims are not known, not counted in flops and bytes


class ParameterLine(msgspec.Struct, frozen=True):
    """All initializers of one element type."""

    type: str
    tensors: int
    parameters: int
    bytes: int


class InspectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt inspect` shows."""

    schema: str = "graphopt.inspect/1"
    model: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    nodes: int
    bytes: int
    parameters: int
    inputs: tuple[PortLine, ...]
    outputs: tuple[PortLine, ...]
    dynamic_dims: tuple[str, ...]
    assumed: dict[str, int]  # the sizes under which flops and bytes were counted
    flops: int
    moved_bytes: int  # read and written by all nodes
    operators: tuple[TypeLine, ...]
    initializers: tuple[ParameterLine, ...]
    notes: tuple[str, ...]  # what the counts leave out


class ReasonLine(msgspec.Struct, frozen=True):
    """Why a rule did not fire, and where."""

    reason: str
    count: int
    nodes: tuple[str, ...]


class RuleReasons(msgspec.Struct, frozen=True):
    """One rule and why it did not fire."""

    rule: str
    level: int
    doc: str
    reasons: tuple[ReasonLine, ...]


class ExplainRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt explain` tells of a rule, a pass or a node."""

    schema: str = "graphopt.explain/1"
    model: str
    subject: str  # "rule", "pass" or "node"
    name: str
    level: int
    text: str  # what the rule or pass does, or what became of the node
    fired: tuple[RewriteLine, ...]
    rolled_back: tuple[Rollback, ...]
    missed: tuple[RuleReasons, ...]

"""The records that `--json` prints: one class per command, keys in the order written here.

Each carries its schema's name and version first. A number that JSON cannot hold (an infinite error) is written as null.
"""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """Printed in place of a result when there is none."""

    error: str
    schema: str = "graphopt.error/1"


class VerificationRecord(msgspec.Struct, frozen=True):
    """The verdict on two models."""

    status: str  # "verified", "different", "not run", "off"
    feeds: int
    max_abs: float
    max_rel: float
    reason: str | None
    excluded: tuple[str, ...]  # outputs not compared, because they are random
    sizes: tuple[dict[str, int], ...]  # the values that the dynamic dims took
    engine: str
    tolerance: dict[str, float]  # relative difference that is allowed whatever the model's rounding, by element type
    limited: str | None  # what kept the check from being complete
    rounding: float  # the largest difference beyond that, as a multiple of the model's own rounding
    draws: tuple[str, ...]  # kinds of values in the feeds
    branches: tuple[int, int]  # of the main graph's Ifs: those that the feeds took, and all
    shut_rows: bool | None  # whether a row of a mask was false throughout; null where no input may be a mask


class PassLine(msgspec.Struct, frozen=True):
    """What one pass did over all rounds."""

    name: str
    rewrites: int
    nodes_before: int
    nodes_after: int
    seconds: float


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


class RollbackLine(msgspec.Struct, frozen=True):
    """A rewrite that was taken back."""

    rule: str
    site: str
    reason: str


class BudgetRecord(msgspec.Struct, frozen=True):
    """What `--memory-budget` took; sizes in bytes, of an arena for temporaries and outputs in file order."""

    budget: int
    sharing: bool  # results in place and slices are counted as such; without, every result has bytes of its own
    arena_given: int  # in the order that the passes left
    arena_best: int  # in the best order that computes nothing again
    arena: int
    added_nodes: int
    tiled_regions: int
    extra_time_percent: float  # estimated
    bit_equal: bool  # compared with the model before the budget; false: the check is off
    keeping: str  # ONNX Runtime's options under which the plan survives
    measured_before: int | None  # growth of ONNX Runtime's process in several runs with them
    measured_after: int | None


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
    passes: tuple[PassLine, ...]
    rolled_back: tuple[RollbackLine, ...]
    verification: VerificationRecord
    signature_unchanged: bool
    signature_changes: tuple[str, ...]
    opset_before: int
    opset_after: int  # another one only where the caller asked for it
    kept_transposes: tuple[str, ...]  # with --layout: those left in the main graph, each with what keeps it
    memory: BudgetRecord | None  # with --memory-budget


class OptimizeFile(OptimizeRecord, frozen=True, kw_only=True):
    """What `--report` writes: the same, and every rewrite."""

    rewrites: tuple[RewriteLine, ...]


class DivergenceRecord(msgspec.Struct, frozen=True):
    """The first value at which two models part."""

    name: str
    node_a: str  # the node that computes it in the first model
    node_b: str
    reason: str
    max_abs: float
    max_rel: float
    compared: int  # values found equal on the way there


class VerifyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt verify` found."""

    schema: str = "graphopt.verify/1"
    a: str
    b: str
    equal: bool
    verification: VerificationRecord
    divergence: DivergenceRecord | None  # only with --bisect, and only when the models differ


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
    rolled_back: tuple[RollbackLine, ...]
    missed: tuple[RuleReasons, ...]

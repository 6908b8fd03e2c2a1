"""The record of a quantized model."""

from __future__ import annotations

import msgspec

from graphopt.check.verification import Verification


class FormLine(msgspec.Struct, frozen=True, kw_only=True):
    """A node alone in one form."""

    form: str
    error: float | None  # root mean square at the outputs, in shares of theirs; None: it costs more than float32
    cost: float  # milliseconds of a run, or bytes of weights


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A node that may be quantized, and what was chosen for it."""

    name: str
    op_type: str
    chosen: str  # a form, or float32
    error: float  # alone in the chosen form; 0 in float32
    cost: float  # in the chosen form
    cost_before: float  # in float32
    forms: tuple[FormLine, ...]  # all that were measured


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `graphopt quantize` wrote."""

    schema: str = "graphopt.quantize/1"
    input: str
    output: str  # empty: nothing was written
    engine: str  # in which latencies were measured
    minimized: str  # latency or size
    threads: int
    budget_error: float
    error: float  # root mean square at the outputs, in shares of theirs
    largest_error: float  # the largest difference, in shares of an output's largest element
    calibration_feeds: int
    error_feeds: int
    milliseconds_before: float  # of the optimized model in float32
    milliseconds: float
    bytes_before: int  # of weights, of the input
    bytes: int
    nodes: tuple[NodeLine, ...]
    in_bytes: int  # other operators between quantized nodes, which compute in bytes too
    optimized: Verification  # of the model that was quantized, against the input

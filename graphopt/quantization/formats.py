"""The forms that a product or a convolution may take, and what is known of it in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

FormatName = Literal["static", "dynamic", "int8-weights", "int4-weights"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
RangeName = Literal["minmax", "percentile"]
RANGES: tuple[RangeName, ...] = get_args(RangeName)
BITS: Mapping[FormatName, int] = {"int8-weights": 8, "int4-weights": 4}  # of weights in blocks


@dataclass(frozen=True, slots=True)
class Form:
    """A format; `ranges` says by which calibration the activations of a static one are scaled."""

    format: FormatName
    ranges: RangeName | None = None

    def __str__(self) -> str:
        return self.format if self.ranges is None else f"{self.format} ({self.ranges})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node of constant weights that may be quantized: names of it and of its tensors."""

    name: str
    op_type: str
    x: str
    weights: str
    y: str  # its result, or that of the Relu or Clip behind
    tail: str | None  # that Relu or Clip, which a quantized node takes into its bounds
    formats: tuple[FormatName, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A node alone in a form: its error at the outputs, and its cost."""

    form: Form
    error: float | None  # root mean square, in shares of the output's; None: not measured, as float32 costs less
    cost: float  # seconds of a run, or bytes


@dataclass(frozen=True, slots=True)
class Options:
    """What a node may be, and what it costs as it is."""

    candidate: Candidate
    cost: float  # in float32
    measured: tuple[Measured, ...]


Choice = Mapping[str, Form]  # by the name of a node; those that are not named stay in float32

"""All measurements of the kernels, one after the other, each with its tables: `make bench-kernels`."""

from __future__ import annotations

from pathlib import Path

from bench.bar import Bar, Sheet
from bench.kernels import (
    attention,
    choosing,
    compile_time,
    convolution,
    filtering,
    gemm,
    low_precision,
    narrow,
    routines,
    rowwise,
    short,
    subnormals,
    threads,
)
from bench.peers import OURS
from bench.script import Measure, main

MEASURES: dict[str, Measure] = {
    "k1": gemm.measure,
    "k2": convolution.measure,
    "k3": rowwise.measure,
    "k3-attention": attention.measure,
    "k5": compile_time.measure,
    "k6": threads.measure,
    "k7": choosing.measure,
    "k8": narrow.measure,
    "k9": low_precision.measure,
    "k10": subnormals.measure,
    "k11": filtering.measure,
    "o5": short.measure,
    "o6": routines.measure,
}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Kernels beside ONNX Runtime and the machine's own peak. Needs a quiet machine: about 15 minutes."""
    return [bar for one in MEASURES.values() for bar in one(sheet, data=data, quick=quick)]


if __name__ == "__main__":
    main(measure)

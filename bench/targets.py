"""Programs for architectures that this machine is not: equal to ONNX Runtime in QEMU, and in node.

One row for each model and target, compiled as the command line compiles it and compared there. `build/qemu` of `make
qemu` is looked into, too. Of libraries for microcontrollers it says how much flash and memory they take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.errors import GraphoptError
from graphopt.program.deploy.micro.files import micro_files
from kernels.target import TargetName

ISSUE = 21
TARGETS: tuple[TargetName, ...] = ("aarch64", "riscv64", "wasm32", "thumbv7em")
NAMES = ("mlp_tiny", "dscnn_kws", "lstm_bi_op", "bert_small_rawdynamo", "resnet18")
LEFT_OUT: Mapping[TargetName, tuple[str, ...]] = {"wasm32": ("bert_small_rawdynamo",)}  # not asked for
ONLY: Mapping[TargetName, tuple[str, ...]] = {"thumbv7em": ("mlp_tiny", "dscnn_kws")}  # others fit no such flash
QEMU = Path(__file__).parent.parent / "build" / "qemu" / "usr" / "bin"


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model on each target."""
    os.environ["PATH"] += f":{QEMU}"
    rows, bars = [], []
    for target in TARGETS:
        wrong = []
        for name in ONLY.get(target, NAMES)[: 2 if quick else None]:
            said, difference, seconds, taken = compared(name, target)
            rows.append((target, name, said, f"{difference:.0e}", seconds, taken))
            if said != "equal" and name not in LEFT_OUT.get(target, ()):
                wrong.append(name)
        bars.append(
            Bar(ISSUE, 4, f"programs for {target}", "all equal", f"others: {', '.join(wrong) or 'none'}", not wrong)
        )
    head = ("target", "model", "result", "difference", "seconds", "flash and memory, bytes")
    sheet.table("programs elsewhere", head, rows)
    return bars


def compared(name: str, target: TargetName) -> tuple[str, float, float, str]:
    """Whether a model's program is equal, its largest relative difference, the seconds that all took, and what it
    takes of a microcontroller."""
    started = time.perf_counter()
    try:
        compiled = graphopt.compile(model_file(name), dims=models.sizes(name), target=target, threads=1)
    except GraphoptError as error:
        return str(error), float("nan"), time.perf_counter() - started, ""
    said = "equal" if compiled.not_compared is None else f"not compared: {compiled.not_compared}"
    seconds, taken = time.perf_counter() - started, ""
    if compiled.target.architecture.is_bare:
        _, footprint, _ = micro_files(compiled.linked.listing, compiled.linked.weights, compiled.target)
        taken = f"{footprint.flash:,} and {footprint.memory:,}"
    return said, compiled.max_rel, seconds, taken


if __name__ == "__main__":
    main(measure)

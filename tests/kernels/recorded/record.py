"""Kernels as text: what was chosen, what it costs, what it asks of its caller, and the code in numbers."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

from kernels.kernel import Kernel
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.template import Candidate, Problem, Template

LISTED, BUILT = 4, 2  # candidates of a problem


def template_lines(
    template: Template[Problem, Candidate], problem: Problem, target: Target, weights: tuple[int, ...] | None
) -> list[str]:
    """The likeliest candidates with their estimate, the kernels of the first few, and what several workers share."""
    candidates = template.candidates(problem, target)
    lines = [f"  {len(candidates)} candidates"]
    for candidate in candidates[:LISTED]:
        taken = f", {template.estimate(problem, candidate, target):,.1f} ns" if template.estimate else ""
        lines.append(f"    {candidate}{taken}")
    for candidate in candidates[:BUILT]:
        lines += kernel_lines(template.build(problem, candidate, target, template.name), weights)
    if template.share is not None:
        chosen = template.kernel(problem, target)
        lines.append(f"  {chosen.blocks} blocks of {chosen.candidate} for one worker, and for several:")
        lines += kernel_lines(chosen.shared, weights) if chosen.shared is not None else ["  the same"]
        for candidate in candidates[:LISTED]:
            cut = template.share(problem, candidate, target)
            lines.append(f"    {candidate} as {template.build(problem, cut, target, template.name).blocks} blocks")
    return lines


def kernel_lines(kernel: Kernel, weights: tuple[int, ...] | None) -> list[str]:
    """A kernel's record; `weights` are the dims of its packed constant, which holds 1, 2, 3, ... here."""
    operands = []
    for operand in kernel.operands:
        packed = ""
        if operand.packing is not None and weights is not None:
            given = np.arange(1, 1 + np.prod(weights, dtype=int)).astype(operand.dtype.numpy)
            packed = f" packed {zlib.crc32(operand.packing.pack(given.reshape(weights)).tobytes()):08x}"
        operands.append(f"{operand.role} {operand.name} {operand.elements} {operand.dtype.value}{packed}")
    return [
        f"  {kernel.candidate or 'one way'}: {kernel.blocks} blocks, {kernel.scratch_bytes:,} bytes of scratch, "
        f"{kernel.flops:,} flops, {kernel.traffic:,} bytes of traffic",
        f"    {'; '.join(operands)}",
        *(f"    {line}" for line in code_lines(kernel.module)),
    ]


def code_lines(module: Module) -> list[str]:
    """How often each instruction stands in a module's text, and the text's checksum."""
    text = module.text()
    counts = Counter(_instructions(text.splitlines()))
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    functions = sum(line.startswith("define") for line in text.splitlines())
    return [f"{functions} functions, text {zlib.crc32(text.encode()):08x}: {kinds}"]


def _instructions(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        found = re.match(r"\s+(?:%\S+ = )?(?:tail )?(\w+)", line)
        if found is None:
            continue
        called = re.search(r"@(llvm\.[a-z_0-9]+(?:\.[a-z_]+)*)", line) if found[1] == "call" else None
        yield called[1] if called else found[1]

"""Bar 8 of the kernels: the same templates for x86-64-v3, against the peak of 256-bit fused multiply-adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.kernels.gemm import Shape, prepare
from bench.kernels.timing import pin, readings
from bench.peers import OURS
from bench.script import main
from kernels.peak import peak_call
from kernels.target import host, x86_64_v3

ISSUE = 4
SIZES = (256, 384, 512, 768, 1024)
ROUNDS, QUICK_ROUNDS = 15, 5
LEAST = 0.85


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Shares of the peak, float32, one thread."""
    text, goal = "x86-64-v3: GEMM from 256^3, share of the 256-bit peak", f">= {LEAST:.0%}"
    if host().architecture.name != "x86_64":
        return [Bar(ISSUE, 8, text, goal, "not an x86 machine", None)]
    pin()
    rows = []
    for size in SIZES:
        shape, generator = Shape(size, size, size), np.random.default_rng(0)
        x, weight = (generator.standard_normal((size, size)).astype(np.float32) for _ in range(2))
        ours, _ = prepare(shape, x, [weight], np.zeros(size, np.float32), x86_64_v3())
        peak, peak_flops = peak_call(x86_64_v3())
        taken = readings({"ours": ours, "peak": peak}, QUICK_ROUNDS if quick else ROUNDS)
        shares = [
            2 * size**3 / one / (peak_flops / other) for one, other in zip(taken["ours"], taken["peak"], strict=True)
        ]
        rows.append((f"{size}^3", 100 * float(np.median(shares))))
    sheet.table("x86-64-v3 on this machine, float32, one thread", ("product", "% of the 256-bit peak"), rows)
    least = min(share for _, share in rows)
    return [Bar(ISSUE, 8, text, goal, f"{least:.0f}% at least", least >= 100 * LEAST)]


if __name__ == "__main__":
    main(measure)

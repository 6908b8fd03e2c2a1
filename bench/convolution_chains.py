"""Random chains of convolutions, other ones each time: compiled for one to three threads, and checked as any program.

The tests draw the same chains in every run; this draws new ones, from a seed that it prints.
"""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path

import onnx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import graphopt
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.errors import GraphoptError
from tests.convolution_chains import chains

ISSUE = 18
COUNT, QUICK_COUNT = 1_000, 100


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Chains whose program gives what ONNX Runtime gives."""
    chosen, faults, kinds = secrets.randbelow(1 << 32), [], Counter[str]()

    @seed(chosen)
    @settings(
        max_examples=QUICK_COUNT if quick else COUNT,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(chains(), st.integers(1, 3))
    def one(model: onnx.ModelProto, threads: int) -> None:
        try:
            program = graphopt.compile(model, threads=threads)
        except GraphoptError as error:
            faults.append((kinds.total(), str(error)))
            kinds["refused"] += 1
            return
        choices = [region.kernel.choice for region in program.lowered.regions]
        kinds["filtered" if any(choice.startswith("winograd") for choice in choices) else "direct"] += 1

    one()
    sheet.table(f"chains from seed {chosen}", ("kind", "chains"), sorted(kinds.items()))
    if faults:
        sheet.table("not right", ("chain", "message"), faults)
    total = kinds.total()
    return [Bar(ISSUE, 15, "random chains of convolutions", f"{total}", f"{total - len(faults)}", not faults)]


if __name__ == "__main__":
    main(measure)

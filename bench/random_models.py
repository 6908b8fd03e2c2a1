"""Bar 7: random models, other ones each time: the optimized model equals the original with the built-in check off.

The tests draw the same models in every run; this draws new ones, from a seed that it prints.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import onnx
from hypothesis import HealthCheck, Phase, given, seed, settings

import graphopt
from bench.bar import ISSUE, Bar, Sheet
from bench.feeds import taken, working_feeds
from bench.judge import difference
from bench.peers import OURS, OURS_ORT
from bench.script import main
from tests.random_graphs import models
from tests.support import session

COUNT = 2000
QUICK_COUNT = 200
LIMIT = 1e-2  # the judge's limit for float32


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Random models whose optimized form gives the original's outputs."""
    count, chosen = QUICK_COUNT if quick else COUNT, secrets.randbelow(1 << 32)
    faults: list[tuple[int, str]] = []
    nodes = [0, 0]
    drawn = 0

    @seed(chosen)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def one(model: onnx.ModelProto) -> None:
        nonlocal drawn
        drawn += 1
        result = graphopt.optimize(model, verify=False, target="ort" if optimizer == OURS_ORT else "standard")
        nodes[0] += result.before.nodes
        nodes[1] += result.after.nodes
        fault = "rolled back" if result.rolled_back else _fault(model, result.to_proto())
        if fault:
            faults.append((drawn, fault))

    one()
    sheet.table(
        f"random models from seed {chosen}",
        ("models", "nodes before", "nodes after", "not right"),
        [(drawn, nodes[0], nodes[1], len(faults))],
    )
    return [Bar(ISSUE, 7, "random models: equal to the original", f"{drawn}", f"{drawn - len(faults)}", not faults)]


def _fault(model: onnx.ModelProto, optimized: onnx.ModelProto) -> str:
    first, second = session(model), session(optimized)
    feeds = working_feeds(model, lambda feed: taken(first, feed))  # a drawn constant may fit one size only
    if not feeds:
        return "the original runs with nothing that was tried"
    for feed in feeds:
        for one, other in zip(first.run(None, feed), second.run(None, feed), strict=True):
            error = difference([one], [other])
            if error > LIMIT:
                return f"error {error:.1g}"
    return ""


if __name__ == "__main__":
    main(measure)

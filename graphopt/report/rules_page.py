"""The page docs/rules.md, from the docstrings of all rules and passes: `python -m graphopt.report.rules_page`."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterator, Sequence

from graphopt.passes import pipeline
from graphopt.passes.meaning import doc_of, meaning
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.rule import Rule

HEAD = """# Rules and passes

Everything that graphopt may do to a graph, in the order in which it is tried. Each entry draws what is found and what
is put in its place. `graphopt explain MODEL --rule NAME` tells where a rule fired and why it did not elsewhere, and
`graphopt optimize MODEL OUT --skip NAME` leaves a rule or a pass out.

This page is printed by `python -m graphopt.report.rules_page` from the docstrings in `graphopt/passes`; a test compares
the two.
"""
LEVELS = (
    "clean-up: what has no effect goes",
    "folding and algebra: what can be computed now, and equal expressions with fewer nodes",
    "weights and fusion: constants take in their neighbours, spelled-out operators become one",
    "what may change rounding, and what was not measured to be faster",
)
WIDTH = 120
SHOWN = 8  # operator types named for one rule


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    passes = pipeline.every_pass()
    yield HEAD
    yield from _table(("level", "what it adds"), [(str(level), text) for level, text in enumerate(LEVELS)])
    yield "## Targets\n"
    yield from _table(("target", "passes of its own", "rules"), [_target_row(name) for name in pipeline.TARGET_NAMES])
    yield "## Passes in order\n"
    yield from _table(("pass", "level", "when", "rules"), [_pass_row(step) for step in passes])
    for step in passes:
        yield from _pass(step)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _target_row(name: pipeline.Target) -> tuple[str, str, str]:
    steps = pipeline.TARGETS[name]
    links = ", ".join(_link(step) for step in steps)
    return f"`{name}`", links or "none", str(sum(len(step.rules) for step in steps))


def _pass_row(step: Pass) -> tuple[str, str, str, str]:
    return _link(step), _levels(step), _when(step), str(len(step.rules)) if step.rules else "a function"


def _link(step: Pass) -> str:
    return f"[{step.name}](#{step.name})"


def _levels(step: Pass) -> str:
    """The level from which on the pass does something; of its rules where these differ."""
    found = sorted({max(step.level, rule.level) for rule in step.rules}) or [step.level]
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _when(step: Pass) -> str:
    targets = [f"`{name}`" for name in pipeline.TARGET_NAMES if step in pipeline.TARGETS[name]]
    if step in pipeline.STANDARD:
        return "in rounds"
    if step in pipeline.FINISH:
        return "once, at the end"
    return f"for the target {' or '.join(targets)}" if targets else "on request"


def _pass(step: Pass) -> Iterator[str]:
    yield f"## {step.name}\n"
    if step.run is not None:
        yield f"Level {step.level}, {_when(step)}.\n"
        yield from _text(doc_of(step))
        return
    count = "one rule" if len(step.rules) == 1 else f"{len(step.rules)} rules"
    yield f"Level {_levels(step)}, {_when(step)}; {count}.\n"
    for doc, alike in itertools.groupby(step.rules, key=lambda rule: rule.doc):
        yield from _rules(doc, list(alike))


def _rules(doc: str, alike: Sequence[Rule]) -> Iterator[str]:
    """Rules that share one docstring, in one entry."""
    yield f"### {', '.join(rule.name for rule in alike)}\n"
    kinds = list(dict.fromkeys(kind for rule in alike for kind in rule.anchors))
    if kinds == ["*"]:
        places = "at every operator"
    else:
        more = f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else ""
        places = f"at {', '.join(kinds[:SHOWN])}{more}"
    since = meaning(doc).since
    needs = f"; from opset {since} on" if since else ""
    yield f"Level {alike[0].level}, tried {places}{needs}.\n"
    yield from _text(doc)


def _text(doc: str) -> Iterator[str]:
    said = meaning(doc)
    if said.drawing:
        yield f"```text\n{said.drawing}\n```\n"
    if said.prose:
        for paragraph in said.prose.split("\n\n"):
            yield f"{textwrap.fill(paragraph, WIDTH, break_on_hyphens=False)}\n"


if __name__ == "__main__":
    sys.stdout.write(page())

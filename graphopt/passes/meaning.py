"""What a rule or a pass says of itself: the drawing in its docstring, and the sentences below."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.passes import pipeline
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.record import Rewrite

ARROW = "-->"
SINCE = re.compile(r"opset (\d+) on\b")


@dataclass(frozen=True, slots=True)
class Meaning:
    """A docstring, read."""

    drawing: str  # the paragraphs that draw `before  -->  after`, their lines as they are
    prose: str  # the other paragraphs, each on one line, a blank line between two

    @property
    def short(self) -> str:
        """The first paragraph of the drawing on one line."""
        return re.sub(r"\s+", " ", self.drawing.split("\n\n")[0]).strip()

    @property
    def since(self) -> int | None:
        """The opset from which on it works, where the docstring states one."""
        found = SINCE.search(self.drawing) or SINCE.search(self.prose)
        return int(found.group(1)) if found else None


def meaning(doc: str) -> Meaning:
    """A docstring in its two parts."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    drawn = [paragraph for paragraph in paragraphs if ARROW in paragraph]
    told = [re.sub(r"\s+", " ", paragraph) for paragraph in paragraphs if ARROW not in paragraph]
    return Meaning("\n\n".join(drawn), "\n\n".join(told))


def doc_of(step: Pass) -> str:
    """What a pass says of itself: its function's text, or the names of its rules."""
    if step.run is not None:
        return inspect.getdoc(step.run) or ""
    return f"The rules {', '.join(rule.name for rule in step.rules)}."


def why(said: Mapping[str, Meaning], rewrite: Rewrite) -> Meaning:
    """What is said of a rewrite's rule; of its pass, where a pass gives its changes names of their own."""
    return said.get(rewrite.rule) or said.get(rewrite.pass_name) or Meaning("", "")


def meanings() -> dict[str, Meaning]:
    """The meaning of every rule and of every pass that is a function, by name; rules before passes."""
    passes = pipeline.every_pass()
    found = {step.name: meaning(doc_of(step)) for step in passes if step.run is not None}
    found.update({rule.name: meaning(rule.doc) for step in passes for rule in step.rules})
    return found

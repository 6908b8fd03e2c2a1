"""A lever: one way to keep a memory budget, with the words that reports have for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.memory.plan import Planned
from graphopt.memory.tensors import ModelMemory
from graphopt.model.text import Progress


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan, and the model it is for: the one that was given, or a copy with tiles. The order is not written yet."""

    model: ir.Model
    memory: ModelMemory
    planned: Planned
    uses: Mapping[str, int]  # how often each lever was used, by its name, in the order of `fit.LEVERS`


@dataclass(frozen=True, slots=True)
class Task:
    """A model that is to keep a budget."""

    model: ir.Model
    memory: ModelMemory  # of the model; it says what shares bytes
    budget: int  # bytes of the arena
    start: Planned  # the best order that computes nothing again
    work: Mapping[str, int]  # steps of searching by lever; 0 leaves one out
    columns: int  # tiles of convolutions have at least so many
    progress: Progress


@dataclass(frozen=True, slots=True)
class Lever:
    """One way to keep a budget."""

    name: str
    doing: str  # what a plan with it does, as in "order recomputing"
    unit: str  # what is counted, in the singular
    done: str  # what is done to so many units
    search: str  # what is told while it is tried
    work: int  # steps of searching, unless the caller says otherwise
    fit: Callable[[Task], Fitted | None]  # None where it has nothing to take hold of; raises BudgetNotKept

"""Rules that change parameters by their gradients. Each has the arithmetic of PyTorch's optimizer of that name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from graphopt.errors import OptionError
from graphopt.model.operators.gradients.terms import Term

OptimizerName = Literal["sgd", "momentum", "adam", "adamw"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer and its numbers."""

    name: OptimizerName = "sgd"
    learning_rate: float = 1e-2  # the default of the step's input
    weight_decay: float = 0.0  # added to the gradient; adamw takes it off the parameter
    momentum: float = 0.9  # of momentum
    beta1: float = 0.9  # of adam and adamw
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise OptionError(f"there is no optimizer '{self.name}'; there are {', '.join(OPTIMIZERS)}.")
        for field in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise OptionError(f"{field} is {getattr(self, field)}; it lies between 0 and 1, without 1.")
        for field in ("learning_rate", "weight_decay", "epsilon"):
            if getattr(self, field) < 0:
                raise OptionError(f"{field} is {getattr(self, field)}; it is not negative.")

    @property
    def slots(self) -> tuple[str, ...]:
        """The state that each parameter has, of its dims, zeros at first."""
        return STATES[self.name]

    @property
    def counts(self) -> bool:
        """Whether the step counts its runs."""
        return self.name in ("adam", "adamw")


STATES: Mapping[OptimizerName, tuple[str, ...]] = {
    "sgd": (), "momentum": ("momentum",), "adam": ("m", "v"), "adamw": ("m", "v"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One parameter before a step, its gradient, its state, and what all parameters share."""

    optimizer: Optimizer
    parameter: Term
    gradient: Term
    state: tuple[Term, ...]
    rate: Term  # of rank 0, of the parameter's type
    first: Term | None  # 1 - beta1^t, of runs t counted from 1
    second: Term | None  # the root of 1 - beta2^t


Changed = tuple[Term, tuple[Term, ...]]  # the parameter and its state after the step


def _decayed(change: Change) -> Term:
    decay = change.optimizer.weight_decay
    return change.gradient + change.parameter * decay if decay else change.gradient


def sgd(change: Change) -> Changed:
    """p - rate g"""
    return change.parameter - _decayed(change) * change.rate, ()


def momentum(change: Change) -> Changed:
    """b = momentum b + g, p - rate b: Polyak, Some methods of speeding up the convergence of iterations (1964)."""
    velocity = change.state[0] * change.optimizer.momentum + _decayed(change)
    return change.parameter - velocity * change.rate, (velocity,)


def adam(change: Change) -> Changed:
    """Kingma and Ba, Adam: a method for stochastic optimization (arXiv 1412.6980), algorithm 1."""
    return _adaptive(change, change.parameter, _decayed(change))


def adamw(change: Change) -> Changed:
    """Loshchilov and Hutter, Decoupled weight decay regularization (arXiv 1711.05101), algorithm 2."""
    shrunk = change.parameter * (1.0 - change.rate * change.optimizer.weight_decay)
    return _adaptive(change, shrunk, change.gradient)


def _adaptive(change: Change, parameter: Term, gradient: Term) -> Changed:
    assert change.first is not None and change.second is not None, "the step counts its runs"
    beta1, beta2 = change.optimizer.beta1, change.optimizer.beta2
    mean = change.state[0] * beta1 + gradient * (1 - beta1)
    square = change.state[1] * beta2 + gradient.squared() * (1 - beta2)
    denominator = square.apply("Sqrt") / change.second + change.optimizer.epsilon
    return parameter - mean / denominator * (change.rate / change.first), (mean, square)


RULES: Mapping[OptimizerName, Callable[[Change], Changed]] = {
    "sgd": sgd, "momentum": momentum, "adam": adam, "adamw": adamw,
}  # fmt: skip

"""The activations of RNN, GRU and LSTM as expressions, by ONNX's names for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphopt.model.operators.formulas import log_of_more
from kernels.routine.writer import ge, maximum, minimum, number, pick
from kernels.tensor.expression import Expression, Unary

Activation = Callable[[Expression], Expression]
USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# Which of alpha and beta an activation has, with their usual values.
_ALPHA = {
    "affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0,
}  # fmt: skip
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}
_KNOWN = {*_ALPHA, "relu", "tanh", "sigmoid", "softsign", "softplus"}


class UnknownActivation(ValueError):
    """A name that is none of ONNX; it is the error's text."""


def activations(
    op_type: str, names: Sequence[str] | None, alphas: Sequence[float], betas: Sequence[float], directions: int
) -> list[list[Activation]]:
    """Those of each direction of a layer, the usual ones where `names` is None.

    Alphas and betas are taken in order by those that have one. Raises UnknownActivation.
    """
    usual = USUAL[op_type]
    given = [name.lower() for name in (usual * directions if names is None else names)]
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise UnknownActivation(unknown[0])
    alpha, beta = iter(alphas), iter(betas)
    found = [_activation(name, _next(alpha, _ALPHA.get(name)), _next(beta, _BETA.get(name))) for name in given]
    return [found[at * len(usual) : (at + 1) * len(usual)] for at in range(directions)]


def _next(given: Iterator[float], usual: float | None) -> float:
    return 0.0 if usual is None else next(given, usual)


def _activation(name: str, alpha: float, beta: float) -> Activation:
    """A function by its name in small letters."""

    def of(x: Expression) -> Expression:
        zero, one = number(0, x.dtype), number(1, x.dtype)
        match name:
            case "relu":
                return maximum(x, 0)
            case "tanh" | "sigmoid":
                return Unary(name, x)
            case "affine":
                return x * alpha + beta
            case "leakyrelu":
                return pick(ge(x, 0), x, x * alpha)
            case "thresholdedrelu":
                return pick(ge(x, alpha), x, zero)
            case "scaledtanh":
                return Unary("tanh", x * beta) * alpha
            case "hardsigmoid":
                return minimum(maximum(x * alpha + beta, 0), 1)
            case "elu":
                return pick(ge(x, 0), x, (Unary("exp", x) - 1.0) * alpha)
            case "softsign":
                return x / (Unary("abs", x) + one)
            case "softplus":
                return maximum(x, 0) + log_of_more(Unary("exp", -Unary("abs", x)))
        raise AssertionError(f"no rule for {name}")

    return of

"""Which rule is proved by what, and which rules z3's theories do not decide, with the reason."""

from __future__ import annotations

from tests.proofs import casts, floats, integers, movement, reals
from tests.proofs.statement import Proof

PROOFS: tuple[Proof, ...] = (
    *floats.PROOFS,
    *integers.PROOFS,
    *casts.PROOFS,
    *movement.PROOFS,
    *reals.PROOFS,
)

# Rules whose two sides are one term, or whose operators no theory of z3 has. Tests run them in ONNX Runtime.
UNDECIDED: dict[str, str] = {
    "pow-one": "the theory of floats has no power; ONNX defines x ^ 1 as x",
    "pow-half": "the theory of floats has no power; the rule is of level 3 for its special values",
    "log-of-softmax": "logarithm and exponential belong to no decidable theory",
    "einsum-of-one": "an Einsum is by definition the sum or the order that takes its place: one term on both sides",
    "einsum-of-two": "an Einsum is by definition the sum of products that MatMul or Mul is: one term on both sides",
    "reshape-of-reshape": "a Reshape is by definition the same places in memory: one term on both sides",
    "chain-to-reshape": "a Reshape is by definition the same places in memory: one term on both sides",
    "chain-to-own-shape": "a Reshape is by definition the same places in memory: one term on both sides",
    "reshape-to-own-shape": "a Reshape is by definition the same places in memory: one term on both sides",
    "ones-before-broadcast": "broadcasting is defined by putting dims of 1 in front: one term on both sides",
    "unsqueeze-of-lookup": "dims of 1 change no place, of indices nor of results: one term on both sides",
    "identity": "by definition the same value, there is nothing to compute",
    "dropout-at-inference": "by definition the identity when it does not train, there is nothing to compute",
    "concat-of-one": "by definition the only operand, there is nothing to compute",
    "split-into-one": "by definition the only part, there is nothing to compute",
    "scatter-of-nothing": "by definition no element is written, there is nothing to compute",
    "zero-initial-state": "ONNX defines an absent initial state as zeros: one term on both sides",
}


def covered() -> set[str]:
    """The rules that have a proof."""
    return {name for found in PROOFS for name in found.rules}

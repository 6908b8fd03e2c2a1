"""Attention by its definition, in float64: what tests of kernels hold theirs against."""

from __future__ import annotations

import numpy as np

from kernels.templates.attention.problem import Attention


def exact_attention(
    one: Attention, q: np.ndarray, k: np.ndarray, v: np.ndarray,
    mask: np.ndarray | None = None, lengths: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The definition, head by head; a row without any key is 0."""
    found = np.zeros((one.batch, one.heads, one.queries, one.value_size))
    for b in range(one.batch):
        for h in range(one.heads):
            group = h // one.shared
            scores = q[b, h].astype(np.float64) @ k[b, group].T * one.scale
            if one.softcap:
                scores = one.softcap * np.tanh(scores / one.softcap)
            if mask is not None:
                scores = np.where(mask[b, h], scores, -np.inf) if mask.dtype == bool else scores + mask[b, h]
            seen = np.arange(one.keys) < (one.keys if lengths is None else lengths[b])
            allowed = np.broadcast_to(seen, scores.shape)
            if one.causal:
                allowed = allowed & (np.arange(one.keys) <= np.arange(one.queries)[:, None] + one.past)
            scores = np.where(allowed, scores, -np.inf)
            with np.errstate(invalid="ignore"):
                weights = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
                weights /= weights.sum(axis=1, keepdims=True)
            weights[np.all(scores == -np.inf, axis=1)] = 0
            found[b, h] = weights @ v[b, group]
    return found


def attention_inputs(one: Attention, seed: int) -> dict[str, np.ndarray]:
    """Queries, keys and values as [batch, head, row, element]."""
    generator = np.random.default_rng(seed)
    shapes = {
        "q": (one.batch, one.heads, one.queries, one.size), "k": (one.batch, one.groups, one.keys, one.size),
        "v": (one.batch, one.groups, one.keys, one.value_size),
    }  # fmt: skip
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

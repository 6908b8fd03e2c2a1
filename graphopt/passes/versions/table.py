"""Which operator is written anew with which opset. What only gained types, inputs or attributes is not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.passes.versions import images, inputs, normalization, softmax
from graphopt.rewrite.rule import Match, Replacement

Adapter = Callable[[Match], Replacement | None] | Callable[[Match], None]  # None: the node stays as it is


def _scan(match: Match) -> Replacement:
    """A Scan of opset 8 runs over a batch; there is no such operator any more."""
    match.refuse("it runs over a batch of sequences")


def _scatter(match: Match) -> Replacement:
    """Scatter(x, i, u)  -->  ScatterElements(x, i, u)"""
    return match.op("ScatterElements", *match.root.inputs, like=match.root)


_CHANGED: Mapping[int, Mapping[str, Adapter]] = {
    9: {
        "BatchNormalization": normalization.batch_norm_per_activation,
        "Scan": _scan,
        "Upsample": images.upsample_scales,
    },
    10: {
        "Dropout": normalization.dropout_mask,
        "TopK": inputs.top_count,
        "Upsample": images.upsample,
    },
    11: {
        "Clip": inputs.clip_bounds,
        "Pad": inputs.pads,
        "Resize": images.resize_of_opset_10,
        "Scatter": _scatter,
    },
    12: {"Dropout": inputs.dropout_ratio},
    13: {
        "Hardmax": softmax.softmax,
        "LogSoftmax": softmax.softmax,
        "Resize": images.resize_of_opset_11,
        "Softmax": softmax.softmax,
    },
    14: {"BatchNormalization": normalization.batch_norm_in_training},
    16: {"RoiAlign": images.roi_align},
    18: {"Split": inputs.split_count},
    20: {"DFT": inputs.transform_axis, "GridSample": images.grid_sample},
    21: {"GroupNormalization": normalization.group_norm},
}
# With what the operators' records say: attributes that become inputs and change in nothing else.
ADAPTERS: Mapping[int, Mapping[str, Adapter]] = {
    opset: {**dict.fromkeys(inputs.parameters_of(opset), inputs.parameters), **changed}
    for opset, changed in _CHANGED.items()
}

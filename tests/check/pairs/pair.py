"""Pairs of models for the check: wrong ones with an input that shows it, and right ones that tempt it to say no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
from onnx import helper

from tests import support

Class = Literal[
    "equal dims", "few lengths", "small integers", "tables", "magnitude", "special values", "epsilons",
    "branches and trips", "ties", "precision", "mixed magnitudes", "defaults",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrong:
    """A model, edits of its text or other tensors that make it wrong, and an input on which the two differ."""

    name: str
    kind: Class
    text: str
    edits: tuple[tuple[str, str], ...]
    feed: Mapping[str, object]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    wrong_tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    opset: int = 17

    def original(self) -> onnx.ModelProto:
        """The model as it should be."""
        return support.model(self.text, self.opset, **self.tensors)

    def wrong(self) -> onnx.ModelProto:
        """The model with the fault."""
        text = self.text
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.name}: {old!r} stands {text.count(old)} times in the text"
            text = text.replace(old, new)
        return support.model(text, self.opset, **{**self.tensors, **self.wrong_tensors})

    def arrays(self) -> dict[str, object]:
        """The input that shows the fault, in the types of the model."""
        found: dict[str, object] = {}
        for value in self.original().graph.input:
            if value.name not in self.feed:
                continue  # it has a default
            given = self.feed[value.name]
            if value.type.HasField("sequence_type"):
                dtype = helper.tensor_dtype_to_np_dtype(value.type.sequence_type.elem_type.tensor_type.elem_type)
                found[value.name] = [np.array(item, dtype) for item in given]  # type: ignore[attr-defined]
            else:
                dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                found[value.name] = np.asarray(given).astype(dtype)
        return found


@dataclass(frozen=True, slots=True)
class Right:
    """Two models that compute the same, with the reason why they do."""

    name: str
    why: str
    text: str
    other_text: str
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    other_tensors: Mapping[str, np.ndarray] | None = None  # None: the same
    opset: int = 17
    other_opset: int | None = None  # None: the same
    step: float = 0.0  # of a quantization, as a share of the largest result: ties may fall to either side

    def original(self) -> onnx.ModelProto:
        """The first model."""
        return support.model(self.text, self.opset, **self.tensors)

    def other(self) -> onnx.ModelProto:
        """The model that takes its place."""
        tensors = self.tensors if self.other_tensors is None else self.other_tensors
        return support.model(self.other_text, self.other_opset or self.opset, **tensors)


def ramp(*dims: int) -> np.ndarray:
    """Numbers 0, 1, 2 ... in that shape."""
    return np.arange(np.prod(dims, dtype=int), dtype=np.float32).reshape(dims)


def weights(seed: int, *dims: int) -> np.ndarray:
    """Seeded normal numbers."""
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)

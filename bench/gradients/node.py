"""One node of a graph as the function of its operator sees it: tensors of torch, attributes, the opset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import Tensor

Results = Sequence[Tensor | None]


class UnsupportedError(NotImplementedError):
    """The oracle has no such operator, or not this form of it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with the values of its inputs; `dtype` is that of every float tensor."""

    operator: str
    inputs: tuple[Tensor, ...]  # None: left out
    attributes: Mapping[str, Any]  # texts are decoded
    outputs: int
    opset: int
    dtype: torch.dtype
    run: Callable[[onnx.GraphProto, Sequence[Tensor | None]], list[Tensor]]  # a body on its inputs

    def get(self, name: str, otherwise: Any = None) -> Any:
        """An attribute, or what takes its place."""
        return self.attributes.get(name, otherwise)

    def input(self, position: int) -> Tensor:
        """An input, None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def ints(self, position: int, name: str | None = None) -> list[int] | None:
        """The integers of an input, or of the attribute that older opsets have in its place."""
        given = self.input(position)
        if given is not None:
            return [int(one) for one in given.detach().reshape(-1).tolist()]
        attribute = None if name is None else self.get(name)
        return None if attribute is None else [int(one) for one in attribute]

    def refuse(self, form: str) -> UnsupportedError:
        """The error for a form that the oracle does not compute."""
        return UnsupportedError(f"{self.operator} {form}")


Function = Callable[[Node], Results]

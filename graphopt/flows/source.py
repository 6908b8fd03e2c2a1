"""What every use case begins with: the model of a caller's source, its inputs fixed as asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from graphopt.model.fixing import fix_inputs
from graphopt.model.load import Source, load


def read(
    source: Source, values: Mapping[str, object] | None = None, *, fix_defaults: bool = False
) -> tuple[ir.Model, tuple[str, ...]]:
    """The model with the inputs that the caller fixes as constants, and a sentence for each of them.

    `values` by input name; `fix_defaults` fixes the inputs that have defaults. Raises ModelError and OptionError.
    """
    model = load(source)
    return model, fix_inputs(model, values or {}, defaults=fix_defaults)


def name_of(source: Source) -> str:
    """The file's name; "model" for what is no file."""
    return Path(source).name if isinstance(source, (str, os.PathLike)) else "model"

"""Modules that are imported when something of them is first asked for: what is heavy and seldom needed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, cast

# What dims with names need, and models of numbers do not: a fifth of the time of all imports.
SYMBOLIC = ("sympy", "onnx_ir._symbolic_shapes")


class Lazy:
    """Stands for a module; its attributes are those of the module, which is imported for the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


class _StandIn(Lazy):
    """What others import as well, in the module's place; it keeps what it was asked for."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__spec__":  # every import looks at it
            raise AttributeError(attribute)
        _step_back(self._name, self)
        found = super().__getattr__(attribute)
        self.__dict__[attribute] = found
        return found


@contextlib.contextmanager
def postponing(*names: str) -> Iterator[None]:
    """Inside, who imports these modules has them later: when something of them is first asked for.

    So libraries are imported without what is heavy of the libraries that they import. Modules that are there already
    stay as they are.
    """
    modules = cast("dict[str, object]", sys.modules)
    stand_ins = {name: _StandIn(name) for name in names if name not in modules}
    modules.update(stand_ins)
    try:
        yield
    finally:
        for name, one in stand_ins.items():
            _step_back(name, one)


def _step_back(name: str, stand_in: object) -> None:
    """Leave the module's place to the module."""
    if sys.modules.get(name) is stand_in:
        del sys.modules[name]

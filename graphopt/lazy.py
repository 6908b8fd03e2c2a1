"""Modules that are imported when something of them is first asked for: what is heavy and seldom needed."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module; its attributes are those of the module, which is imported for the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)

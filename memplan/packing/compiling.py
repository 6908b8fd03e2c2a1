"""How functions are compiled that only compiled functions call."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

_P = ParamSpec("_P")
_R = TypeVar("_R")


def inner(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile without the wrappers for calls from outside, which take a third of the time of compiling.

    Python must not call the result; mypy sees the function as it stands.
    """
    without = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # two that its stub lacks
    compiled: Callable[_P, _R] = njit(**without)(function)  # type: ignore[call-overload]
    return compiled

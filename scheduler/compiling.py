"""Functions that numba compiles, the cache of what it compiled, and word of it where it has to compile.

Numba takes a cached function for fresh while the text of its own file is the same. What was compiled holds the code of
every compiled function that it calls, and the value of every constant that it reads, wherever these stand. So here a
function is fresh while its file and all files of its package are the same that this file imports, directly or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

COMPILING = "compiling solvers, once per installation"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_IMPORT = re.compile(r"^from +([\w.]+) +import +(?:\(([^)]*)\)|(.*))|^import +([\w., ]+)", re.MULTILINE)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function when it is first called, or read what an earlier process has compiled."""
    made: Callable[_P, _R] = _cached(njit(function))
    return made


def inner(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile without the wrappers for calls from outside, which take a third of the time of compiling.

    Python must not call the result; mypy sees the function as it stands.
    """
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # two that numba's stub lacks
    made: Callable[_P, _R] = _cached(njit(**without)(function))  # type: ignore[call-overload]
    return made


def sources_of(module: str) -> tuple[Path, ...]:
    """The file of a module and those of its package that it imports, one through another; sorted."""
    package = module.partition(".")[0]
    root = Path(str(sys.modules[package].__file__)).parent.parent
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        for file in _files(root, waiting.pop()):
            if file not in found:
                found.add(file)
                waiting += [name for name in _imports(file) if name.partition(".")[0] == package]
    return tuple(sorted(found))


@contextlib.contextmanager
def telling(progress: Callable[[str], None]) -> Iterator[None]:
    """Inside, `progress` hears COMPILING once, when the first function has to be compiled."""
    with event.install_listener("numba:compile", _Teller(progress)):
        yield


class Stopwatch(event.Listener):
    """Seconds since it began to run, those that numba compiled in left out."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._depth = 0
        self._compiling = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the watch runs."""
        self._begun = time.monotonic()
        with event.install_listener("numba:compile", self):
            yield

    def passed(self) -> float:
        """Seconds since it began to run, compiling included."""
        return time.monotonic() - self._begun

    def seconds(self) -> float:
        """How long it has run."""
        return self.passed() - self._compiling

    def on_start(self, _: object) -> None:
        """Numba begins to compile; it may begin a function while it compiles another."""
        if not self._depth:
            self._since = time.monotonic()
        self._depth += 1

    def on_end(self, _: object) -> None:
        """Numba has compiled a function."""
        self._depth -= 1
        if not self._depth:
            self._compiling += time.monotonic() - self._since


class _Teller(event.Listener):
    def __init__(self, progress: Callable[[str], None]) -> None:
        self._tell: Callable[[str], None] | None = progress

    def on_start(self, _: object) -> None:
        if self._tell is not None:
            progress, self._tell = self._tell, None
            progress(COMPILING)

    def on_end(self, _: object) -> None:
        pass


class _Cache(FunctionCache):
    """Numba's cache of a function, under another stamp."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        stamp = _stamp(function.__module__)
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            self.cache_path, self._impl.filename_base, stamp
        )


def _cached(made: Any) -> Any:
    if isinstance(made, Dispatcher):  # with NUMBA_DISABLE_JIT it is the function itself
        setattr(made, "_cache", _Cache(made.py_func))  # noqa: B010  (numba's stub lacks it)
    return made


@cache
def _stamp(module: str) -> str:
    content = hashlib.sha256()
    for file in sources_of(module):
        content.update(_text(file).encode())
    return content.hexdigest()


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """What a file imports at the margin; of `from a import b` both `a` and `a.b`, which may be a module."""
    found: list[str] = []
    for source, several, single, plain in _IMPORT.findall(_text(file)):
        if plain:
            found += [name.split()[0] for name in plain.split(",")]
            continue
        names = re.findall(r"(\w+)(?: +as +\w+)?", several or single)
        found += [source, *(f"{source}.{name}" for name in names)]
    return tuple(found)


def _files(root: Path, module: str) -> tuple[Path, ...]:
    path = root.joinpath(*module.split("."))
    return tuple(file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())

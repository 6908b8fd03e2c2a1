"""Functions that numba compiles, the cache of what it compiled, and word of it where it has to compile.

Numba takes a cached function for fresh while the text of its own file is the same. What was compiled holds the code of
every compiled function that it calls, and the value of every constant that it reads, wherever these stand. So here a
function is fresh while its file and all files of its package are the same that this file imports, directly or not.

Numba takes a third of a second to be imported, and as long again to read what it has compiled. So functions wait until
one of them is called; then all of them are handed to numba, and stand in the modules that have their names. Before,
they can be run as they are written (`plainly`), which is faster for what is small.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

COMPILING = "compiling solvers, once per installation"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_IMPORT = re.compile(r"^from +([\w.]+) +import +(?:\(([^)]*)\)|(.*))|^import +([\w., ]+)", re.MULTILINE)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function when it is first called, or read what an earlier process has compiled."""
    return cast("Callable[_P, _R]", _waiting(function, {}))


def inner(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile without the wrappers for calls from outside, which take a third of the time of compiling.

    Python must not call the result; mypy sees the function as it stands.
    """
    return cast("Callable[_P, _R]", _waiting(function, {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}))


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Inside, functions that still wait run as they are written; those that are compiled stay so."""
    before = getattr(_plain, "on", False)
    _plain.on = True
    try:
        yield
    finally:
        _plain.on = before


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
    with _heard(_Teller(progress)):
        yield


class Stopwatch:
    """Seconds since it began to run, those that numba compiled in left out."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._depth = 0
        self._compiling = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the watch runs."""
        self._begun = time.monotonic()
        with _heard(self):
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


class _Teller:
    def __init__(self, progress: Callable[[str], None]) -> None:
        self._tell: Callable[[str], None] | None = progress

    def on_start(self, _: object) -> None:
        if self._tell is not None:
            progress, self._tell = self._tell, None
            progress(COMPILING)

    def on_end(self, _: object) -> None:
        pass


class _Relay:
    """What numba tells, to all who listen now."""

    def __init__(self) -> None:
        self.listeners: list[_Teller | Stopwatch] = []
        self.there = False

    def on_start(self, event: object) -> None:
        for one in tuple(self.listeners):
            one.on_start(event)

    def on_end(self, event: object) -> None:
        for one in tuple(self.listeners):
            one.on_end(event)


@contextlib.contextmanager
def _heard(listener: _Teller | Stopwatch) -> Iterator[None]:
    if "numba" in sys.modules:  # somebody else's functions may be compiled too
        _listen()
    _relay.listeners.append(listener)
    try:
        yield
    finally:
        _relay.listeners.remove(listener)


def _listen() -> None:
    with _lock:
        if not _relay.there:
            events = importlib.import_module("numba.core.event")
            told = {
                "on_start": lambda _, event: _relay.on_start(event),
                "on_end": lambda _, event: _relay.on_end(event),
            }
            events.register("numba:compile", type("Told", (events.Listener,), told)())
            _relay.there = True


class _Waiting:
    """A function until one like it is called; then all are handed to numba."""

    def __init__(self, function: Callable[..., Any], flags: dict[str, bool]) -> None:
        self.function = function
        self.flags = flags
        self.made: Any = None

    def __call__(self, *given: Any) -> Any:
        if self.made is None and getattr(_plain, "on", False):
            return self.function(*given)
        if self.made is None:
            _make_all()
        return self.made(*given)


_lock = threading.RLock()
_plain = threading.local()
_relay = _Relay()
_waiters: list[_Waiting] = []


def _waiting(function: Callable[..., Any], flags: dict[str, bool]) -> Any:
    """The function, compiled where others of its package are already."""
    one = _Waiting(function, flags)
    with _lock:
        if not _relay.there or "numba" not in sys.modules or any(other.made is None for other in _waiters):
            _waiters.append(one)
            return one
        _waiters.append(one)
        one.made = _handed(one)
        return one.made


def _make_all() -> None:
    """Hand all functions to numba, and put what it gives in the place of each, in every module that has it."""
    with _lock:
        _listen()
        for one in _waiters:
            if one.made is None:
                one.made = _handed(one)
        for module in tuple(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if isinstance(names, dict):
                for name, value in tuple(names.items()):
                    if type(value) is _Waiting:
                        names[name] = value.made


def _handed(one: _Waiting) -> Any:
    """Numba's function, with the cache of ours; with NUMBA_DISABLE_JIT it is the function itself."""
    made = importlib.import_module("numba").njit(**one.flags)(one.function)
    if hasattr(made, "py_func"):
        made._cache = _cache_of(made.py_func)
    return made


def _cache_of(function: Any) -> Any:
    """Numba's cache of a function, under another stamp."""
    caching = importlib.import_module("numba.core.caching")
    found = caching.FunctionCache(function)
    stamp = _stamp(function.__module__)
    found._cache_file = caching.IndexDataCacheFile(found.cache_path, found._impl.filename_base, stamp)
    return found


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

"""A counter in front of every call that changes files: the process dies at one of them, or the system refuses it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CALLS = (
    "mkdir", "open", "write", "fsync", "chmod", "rename", "replace", "link", "symlink", "unlink", "remove", "rmdir",
)  # fmt: skip
FREEING = ("unlink", "remove", "rmdir")  # what a full disk still allows
KILLED = 77  # the exit status of a process that died at its call


@contextmanager
def counted(at: Callable[[str, int], None]) -> Iterator[None]:
    """Inside, `at(name, number)` is called before each call of CALLS, numbered from 0; what it raises is raised."""
    originals = {name: getattr(os, name) for name in CALLS}
    number = 0

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal number
            at(name, number)
            number += 1
            return originals[name](*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, wrapped(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def killed_at(number: int, job: Callable[[], object]) -> bool:
    """Run `job` in a process of its own that dies before call `number`; False when it ended before."""

    def at(name: str, now: int) -> None:
        if now == number:
            os._exit(KILLED)

    child = os.fork()
    if child == 0:
        gc.disable()  # it would touch, and so copy, all memory of the parent
        status = 1
        try:
            with counted(at):
                job()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), f"the job failed with status {code}"
    return code == KILLED


def refused_from(number: int, error: int, job: Callable[[], object]) -> bool:
    """Run `job` while the system refuses every call from `number` on; False when it ended before.

    A full disk (ENOSPC) still lets files be removed.
    """
    reached = False

    def at(name: str, now: int) -> None:
        nonlocal reached
        if now >= number and not (error == 28 and name in FREEING):
            reached = True
            raise OSError(error, os.strerror(error))

    with counted(at):
        job()
    return reached


def content(folder: Path) -> dict[str, bytes]:
    """The regular files of a folder, as a reader finds them; hidden ones are not the user's."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file()
    }


def leftovers(folder: Path) -> list[str]:
    """Hidden entries, and links, which a finished save leaves none of."""
    return [path.name for path in sorted(folder.iterdir()) if path.name.startswith(".") or path.is_symlink()]

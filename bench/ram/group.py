"""A memory control group for one process: cgroup version 1 or 2, below the group that this process is in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MOUNTS, OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Group:
    """A group with a limit; `folder` is where the system shows it."""

    folder: Path
    events: str  # the file that counts the processes that it killed

    def command(self, words: list[str]) -> list[str]:
        """A command that runs in the group from its first page on."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *words]

    def killed(self) -> bool:
        """Whether the limit has ended a process."""
        found = re.search(r"^oom_kill (\d+)$", (self.folder / self.events).read_text(), re.MULTILINE)
        return found is not None and int(found[1]) > 0


@contextmanager
def group(limit: int) -> Iterator[Group]:
    """A group of at most `limit` bytes, page cache and kernel's included, without swap; removed at the end.

    Raises OSError where none can be made.
    """
    parent, first = _parent()
    folder = parent / f"graphopt-ram-{os.getpid()}"
    folder.mkdir()
    try:
        # The second file of each kind is there only where swap is counted.
        limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if first else ("memory.max",)
        for name in limits:
            if name == limits[0] or (folder / name).exists():
                (folder / name).write_text(str(limit))
        if not first and (folder / "memory.swap.max").exists():
            (folder / "memory.swap.max").write_text("0")
        yield Group(folder, "memory.oom_control" if first else "memory.events")
    finally:
        folder.rmdir()


def why_none() -> str | None:
    """Why no group can be made here, None where one can."""
    try:
        with group(1 << 30):
            return None
    except OSError as error:
        return f"no memory control group can be made: {error}"


def _parent() -> tuple[Path, bool]:
    """The folder of this process's own group, and whether it is one of version 1."""
    mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    own = {entry[1]: entry[2] for entry in (line.split(":", 2) for line in OWN.read_text().splitlines())}
    for _, place, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            return Path(place) / own["memory"].lstrip("/"), True
    for _, place, kind, *_ in mounts:
        if kind == "cgroup2" and "" in own:
            return Path(place) / own[""].lstrip("/"), False
    raise OSError("no control groups are mounted")

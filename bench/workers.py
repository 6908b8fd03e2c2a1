"""A worker: a process that calls functions for us, with a time and a memory limit, and may crash without harm.

It lives from call to call, because importing an optimizer takes seconds, and is started anew after a crash or a
timeout. Functions are named `module:function`; arguments and results travel as JSON, one line each.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO, Any, Literal, cast

MEMORY_LIMIT = 12 * 2**30  # bytes of address space of one worker


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back of one call."""

    kind: Literal["value", "exception", "crash", "timeout"]
    value: Any  # the function's result; None unless kind is "value"
    text: str  # what went wrong; empty if kind is "value"
    seconds: float  # inside the worker where it answered, outside otherwise


class Worker:
    """One such process; use it in a `with` block."""

    def __init__(self, memory_limit: int | None = MEMORY_LIMIT) -> None:
        self._memory_limit = memory_limit
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def call(self, function: str, *arguments: Any, limit: float) -> Reply:
        """Call `function` (`module:name`) with JSON-able `arguments`, for at most `limit` seconds."""
        process = self._started()
        requests, replies = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        started = time.monotonic()
        try:
            requests.write(json.dumps([function, arguments]).encode() + b"\n")
            requests.flush()
            line = _line(replies, limit)
        except BrokenPipeError:
            line = b""
        outside = time.monotonic() - started
        if line is None:
            self._stop()
            return Reply("timeout", None, f"no answer within {limit:g} s", outside)
        if not line:
            code = process.wait()
            self._stop()
            return Reply("crash", None, f"the process ended with code {code}", outside)
        answer = json.loads(line)
        kind = "exception" if answer["text"] else "value"
        return Reply(cast(Any, kind), answer["value"], answer["text"], answer["seconds"])

    def pid(self) -> int:
        """The process, started if it is not; to watch it from outside."""
        return self._started().pid

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "bench.workers", str(self._memory_limit or 0)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # bytes of a request that the process never read
                cast(IO[bytes], pipe).close()
        self._process = None


def _line(pipe: IO[bytes], limit: float) -> bytes | None:
    """The next line of `pipe`, without its end; empty if the pipe closed, None if `limit` seconds passed."""
    deadline = time.monotonic() + limit
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not received.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                return b""
            received += chunk
    return received


def _serve(memory_limit: int) -> None:
    """Answer calls until the pipe closes."""
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    # What an optimizer prints, from Python or from C++, must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        function, arguments = json.loads(line)
        module, _, name = function.partition(":")
        value, text, started = None, "", time.monotonic()
        try:
            called = getattr(importlib.import_module(module), name)
            started = time.monotonic()  # an import is not the function's time
            value = called(*arguments)
        except BaseException as error:  # a peer may raise anything, SystemExit included
            text = f"{type(error).__name__}: {error}"[:2000]
        answer = {"value": value, "text": text, "seconds": time.monotonic() - started}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

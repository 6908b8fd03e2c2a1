"""One step on one model, inside a worker of its own: its result as JSON, with the CPU seconds that it took."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from bench import peers
from bench.judge import first_feed

Result = dict[str, Any]


def ours(source: str, output: str) -> Result:
    """Optimize with verification, and write what comes out, also where nothing could compare it."""
    import graphopt

    started = _cpu()
    result = graphopt.optimize(source)
    result.save(output, unchecked=True)
    verification = result.verification
    return {
        "cpu": _cpu() - started,
        "verify_seconds": result.verify_seconds,
        "status": verification.status,
        "reason": verification.reason,
        "limited": verification.limited,
        "feeds": verification.feeds,
        "sizes": list(verification.sizes),
        "taken_back": [f"{one.rule} at {one.site}: {one.reason}" for one in result.rolled_back],
    }


def again(source: str, output: str, verify: bool) -> Result:
    """Optimize what was optimized: which rules still find something; what a check took back, it takes back again."""
    import graphopt

    result = graphopt.optimize(source, verify=verify)
    result.save(output)
    same = Path(source).read_bytes() == Path(output).read_bytes()
    return {"rules": sorted({one.rule for one in result.rewrites}), "same": same}


def peer(name: str, source: str, output: str) -> Result:
    """Optimize with a peer, which checks nothing."""
    started = _cpu()
    peers.run(name, source, output)
    return {"cpu": _cpu() - started}


def shapes(source: str) -> Result:
    """The shapes of inputs with which the model runs; empty if none was found."""
    feed = first_feed(source)
    return {name: list(value.shape) for name, value in feed.items() if hasattr(value, "shape")}


def planned(source: str, sizes: dict[str, list[int]]) -> Result:
    """Plan the memory."""
    import graphopt

    started = _cpu()
    record = graphopt.memory(source, shapes=_ranked(sizes)).record
    return {"cpu": _cpu() - started, "arena": record.arena}


def compiled(source: str, sizes: dict[str, list[int]]) -> Result:
    """Compile; the operators that are left to ONNX Runtime."""
    import graphopt

    started = time.monotonic()
    program = graphopt.compile(source, shapes=_ranked(sizes))
    return {"seconds": time.monotonic() - started, "fallback": list(program.fallback), "error": program.max_rel}


def _ranked(sizes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Without scalars, which have no dims to fix."""
    return {name: shape for name, shape in sizes.items() if shape}


def _cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)

"""Bundles of the models, with and without a budget, and what their steps read: made in a process of its own each."""

from __future__ import annotations

import hashlib
import inspect
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import graphopt
from bench.ram.networks import PLACE, given
from bench.ram.pipeline import Panel
from bench.workers import Worker
from graphopt.program.deploy.manifest import Manifest, read_manifest

SOURCES = ("graphopt", "kernels", "memplan", "scheduler")
THREADS = 2  # that the bundle without a budget is planned for; any number runs it, with the same bits
LIMIT = 1800.0  # seconds of one compilation or profile
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MIB = 1 << 20


class Refused(Exception):
    """What `compile` said to a budget."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle's folder and its manifest."""

    folder: Path
    manifest: Manifest


def takes_budgets() -> bool:
    """Whether `compile` knows a budget of the process yet."""
    return "ram" in inspect.signature(graphopt.compile).parameters


def without_budget(name: str) -> Bundle:
    """The bundle without a budget, kept until the sources change."""
    folder = PLACE / "bundles" / f"{name}-{_digest()}"
    if not (folder / "manifest.json").exists():
        for old in folder.parent.glob(f"{name}-*"):
            shutil.rmtree(old)
        _called("bench.ram.programs:make", name, str(folder), None, THREADS)
    return Bundle(folder, read_manifest(folder))


def with_budget(name: str, budget: int, threads: int) -> tuple[Bundle, int]:
    """A bundle of at most `budget` bytes, or of the least that the refusal names; and its budget.

    The folder is the one of the model's bundles with budgets: the next takes its place.
    """
    folder = PLACE / "bundles" / f"{name}-budget"
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _called("bench.ram.programs:make", name, str(folder), budget, threads)
        except Refused as error:
            least = least_of(str(error))
            if least is None or least <= budget:
                raise
            budget = -(-least // MIB) * MIB  # sizes are printed rounded
            continue
        return Bundle(folder, read_manifest(folder)), budget
    raise Refused(f"the least that refusals name is refused too, at last {budget:,} bytes")


def least_of(refusal: str) -> int | None:
    """The greatest size that a refusal names: the least that is possible is above what was asked for."""
    sizes = re.findall(r"(\d[\d,]*(?:\.\d+)?) (bytes|KiB|MiB|GiB)", refusal)
    return max((round(float(one.replace(",", "")) * UNITS[unit]) for one, unit in sizes), default=None)


def make(name: str, folder: str, budget: int | None, threads: int) -> None:
    """Inside the worker: write a bundle."""
    known = given(name)
    more: dict[str, Any] = {} if budget is None else {"ram": budget}
    made = graphopt.compile(known.file, dims=known.dims, feeds=[known.feed], threads=threads, name=name, **more)
    Path(folder).parent.mkdir(parents=True, exist_ok=True)
    made.save(folder)


def steps(name: str, bundle: Bundle, threads: int, rounds: int) -> list[Panel]:
    """The steps of a program in the order in which workers come to them: bytes of weights that each is the first to
    read, and its nanoseconds, measured with all weights in memory.

    Several workers run steps at the same time. A step's nanoseconds are then those from the end of all before it to its
    own end, so that all of them make the wall.
    """
    ends = _called("bench.ram.programs:profiled", name, str(bundle.folder), threads, rounds)
    order = range(len(ends)) if threads == 1 or not bundle.manifest.claims else bundle.manifest.claims
    found, done = [], 0.0
    seen: set[tuple[int, int]] = set()
    for step in order:
        read = 0
        for place, size in _weights(bundle.manifest, step, several=threads > 1):
            read += 0 if (place, size) in seen else size
            seen.add((place, size))
        found.append(Panel(read, max(0.0, ends[step] - done)))
        done = max(done, ends[step])
    return found


def profiled(name: str, folder: str, threads: int, rounds: int) -> list[float]:
    """Inside the worker: when each step of a call ended, in nanoseconds from its begin; of the median call."""
    record = graphopt.profile(folder, threads=threads, rounds=rounds, feeds=dict(given(name).feed)).record
    ends = [0.0] * len(record.steps)
    for step, end in zip(record.blocks.step, record.blocks.end, strict=True):
        ends[step] = max(ends[step], float(end))
    return ends


def _weights(manifest: Manifest, step: int, *, several: bool) -> list[tuple[int, int]]:
    """Where in the weights a step reads, and how many bytes; of a table that is gathered from, as many as it gives."""
    use = manifest.uses[step]
    code = manifest.kernels[use.several] if several and use.several is not None else None
    code = code or next(one for one in manifest.kernels if one.name == manifest.runs[step].kernel)
    given_out = sum(operand.bytes for operand in code.operands if operand.role == "output")
    found = []
    for operand, place in zip(code.operands, use.operands, strict=True):
        if place.space == "weights":
            gathers = "Gather" in manifest.runs[step].operators
            found.append((place.offset, min(operand.bytes, given_out) if gathers else operand.bytes))
    return found


def _called(function: str, *arguments: Any) -> Any:
    with Worker(memory_limit=None) as worker:
        reply = worker.call(function, *arguments, limit=LIMIT)
    if reply.kind == "exception":
        raise Refused(reply.text)
    if reply.kind != "value":
        raise RuntimeError(f"{function} {arguments}: {reply.kind} {reply.text}")
    return reply.value


def _digest() -> str:
    """Of all sources of the product: a bundle of others has other kernels."""
    found = hashlib.sha256()
    root = Path(graphopt.__file__).parent.parent
    for file in sorted(file for package in SOURCES for file in (root / package).rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:12]

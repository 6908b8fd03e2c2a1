"""Bundles of the models, with and without a budget, and what their steps read: made in a process of its own each.

They are kept under build/ram until the sources change.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import graphopt
from bench.ram.networks import PLACE, given
from bench.ram.pipeline import Panel
from bench.workers import Worker
from graphopt.program.deploy.example import BYTES
from graphopt.program.deploy.manifest import Manifest, read_manifest

SOURCES = ("graphopt", "kernels", "memplan", "scheduler")
THREADS = 2  # that the bundle without a budget is planned for; any number runs it, with the same bits
LIMIT = 1800.0  # seconds of one compilation or profile
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MIB = 1 << 20


class Refused(Exception):
    """What came of a function in a process of its own instead of its result: what `compile` said to a budget."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle's folder and its manifest."""

    folder: Path
    manifest: Manifest


def without_budget(name: str) -> Bundle:
    """The bundle without a budget, kept until the sources change."""
    return _kept(name, "whole", None, THREADS)


def with_budget(name: str, budget: int, threads: int) -> tuple[Bundle, int]:
    """A bundle of at most `budget` bytes, or of the least that the refusal names; and its budget.

    It is kept as well, and so is what was refused. Raises Refused where no least is named, or that is refused too.
    """
    for _ in range(3):
        word = f"{budget // MIB}x{threads}"
        refused = _folder(name) / f"{word}.refused"
        if not refused.exists():
            try:
                return _kept(name, word, budget, threads), budget
            except Refused as error:
                if least_of(str(error)) is None:
                    raise
                refused.write_text(str(error))
        least = least_of(refused.read_text()) or 0
        if least <= budget:
            break
        budget = -(-least // MIB) * MIB
    raise Refused(refused.read_text())


def _kept(name: str, word: str, budget: int | None, threads: int) -> Bundle:
    folder = _folder(name) / word
    if not (folder / "manifest.json").exists():
        shutil.rmtree(folder, ignore_errors=True)  # what was left half made
        _called("bench.ram.programs:make", name, str(folder), budget, threads)
    return Bundle(folder, read_manifest(folder))


def _folder(name: str) -> Path:
    """Of a model's bundles; those of other sources are removed, because they have other kernels."""
    digest = _digest()
    for old in (PLACE / "bundles").glob("*"):
        if old.name != digest:
            shutil.rmtree(old)
    folder = PLACE / "bundles" / digest / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def least_of(refusal: str) -> int | None:
    """The greatest size that a refusal names: the least that is possible is above what was asked for."""
    sizes = re.findall(r"(\d[\d,]*(?:\.\d+)?) ?(bytes|KiB|MiB|GiB)", refusal)
    return max((round(float(one.replace(",", "")) * UNITS[unit]) for one, unit in sizes), default=None)


def make(name: str, folder: str, budget: int | None, threads: int) -> None:
    """Inside the worker: write a bundle."""
    known = given(name)
    more: dict[str, Any] = {} if budget is None else {"ram": budget}
    made = graphopt.compile(known.file, dims=known.dims, feeds=[known.feed], threads=threads, name=name, **more)
    made.save(folder)


def steps(name: str, bundle: Bundle, threads: int, rounds: int) -> list[Panel]:
    """The steps of a program in the order in which workers come to them: bytes of the file that each is the first to
    need, and its nanoseconds, measured with all weights in memory.

    Several workers run steps at the same time. A step's nanoseconds are then those from the end of all before it to its
    own end, so that all of them make the wall.
    """
    ends = _called("bench.ram.programs:profiled", name, str(bundle.folder), threads, rounds)
    order = range(len(ends)) if threads == 1 or not bundle.manifest.claims else bundle.manifest.claims
    sizes = _read(bundle.manifest, order, threads)
    found, done = [], 0.0
    for step, size in zip(order, sizes, strict=True):
        found.append(Panel(size, max(0.0, ends[step] - done)))
        done = max(done, ends[step])
    return found


def needed(bundle: Bundle, threads: int) -> int:
    """Bytes that a run needs: of the file, and beside it arena, scratch of all workers, inputs and outputs."""
    return sum(_read(bundle.manifest, range(len(bundle.manifest.runs)), threads)) + beside(bundle, threads)


def beside(bundle: Bundle, threads: int) -> int:
    """Bytes that a run needs beside weights; code is not counted."""
    program = bundle.manifest.program
    arena = program.arena_bytes if threads == 1 else program.shared_arena_bytes or program.arena_bytes
    ends = sum(prod(one.shape) * BYTES[one.code] for one in (*program.inputs, *program.outputs))
    return arena + threads * program.scratch_bytes + ends


def _read(manifest: Manifest, order: Sequence[int], threads: int) -> list[int]:
    """Bytes of the file that steps in this order are the first to need, each."""
    seen: set[tuple[int, int]] = set()
    found = []
    for step in order:
        places = set(_weights(manifest, step, several=threads > 1)) - seen
        found.append(sum(size for _, size in places))
        seen |= places
    return found


def profiled(name: str, folder: str, threads: int, rounds: int) -> list[float]:
    """Inside the worker: when each step of a call ended, in nanoseconds from its begin; of the median call."""
    record = graphopt.profile(folder, threads=threads, rounds=rounds, feeds=dict(given(name).feed)).record
    ends = [0.0] * len(record.steps)
    for step, end in zip(record.blocks.step, record.blocks.end, strict=True):
        ends[step] = max(ends[step], float(end))
    return ends


def _weights(manifest: Manifest, step: int, *, several: bool) -> list[tuple[int, int]]:
    """Where in the weights a step reads, and how many bytes of the file that takes.

    Of a table that is gathered from these are the rows that are given out, of transformed weights their nine taps.
    """
    use = manifest.uses[step]
    code = manifest.kernels[use.several] if several and use.several is not None else None
    code = code or next(one for one in manifest.kernels if one.name == manifest.runs[step].kernel)
    given_out = sum(operand.bytes for operand in code.operands if operand.role == "output")
    transformed = re.search(r"F\((\d+),3\)", manifest.runs[step].candidate)
    found = []
    for operand, place in zip(code.operands, use.operands, strict=True):
        if place.space != "weights":
            continue
        size = operand.bytes
        if "Gather" in manifest.runs[step].operators:
            size = min(size, given_out)
        elif transformed and place.offset >= manifest.program.weights_bytes:
            size = size * 9 // (int(transformed[1]) + 2) ** 2
        found.append((place.offset, size))
    return found


def _called(function: str, *arguments: Any) -> Any:
    with Worker(memory_limit=None) as worker:
        reply = worker.call(function, *arguments, limit=LIMIT)
    if reply.kind != "value":
        raise Refused(reply.text if reply.kind == "exception" else f"{reply.kind}: {reply.text}")
    return reply.value


@cache
def _digest() -> str:
    """Of all sources of the product."""
    found = hashlib.sha256()
    root = Path(graphopt.__file__).parent.parent
    for file in sorted(file for package in SOURCES for file in (root / package).rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:12]

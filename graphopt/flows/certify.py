"""`certify`: a bundle is proved by what its library executes, then run with several numbers of threads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from graphopt.check.given import read_feeds
from graphopt.check.runner import Workplace
from graphopt.check.verification import Verification
from graphopt.errors import OptionError, VerificationError
from graphopt.flows.comparing import compared, reference_of
from graphopt.flows.records.certificate import Certificate
from graphopt.flows.source import read, resize
from graphopt.model.load import Source
from graphopt.program.certify.calls import check_no_allocation
from graphopt.program.certify.elf import SharedLibrary
from graphopt.program.certify.proof import Proved, prove
from graphopt.program.certify.statement import Refused
from graphopt.program.certify.tables import read_statement
from graphopt.program.deploy.checking import checked_files
from graphopt.program.deploy.manifest import Manifest, read_manifest
from graphopt.program.deploy.runtime import Tensor
from graphopt.program.deploy.session import Bundle
from kernels.emit.description import Description

THREADS = (1, 2, 3, 5)
Feed = Mapping[str, np.ndarray]


def certify(
    bundle: str | os.PathLike[str], *, model: Source | None = None, feeds: int = 3, seed: int = 0
) -> Certificate:
    """Prove a bundle from the tables in its library, then run it on `feeds` fresh feeds drawn by `seed`.

    Proved: no byte outside of its space; every value that a run reads comes from the run that the program means, for
    one worker and for any number of them; no race and no deadlock; no call that takes or gives memory in a run. Tried:
    the outputs are equal in bits for 1, 2, 3 and 5 threads, and of a second call. With `model` the bundle is also
    compared with ONNX Runtime without optimizations, on the fresh feeds and on those that `compile` has. Raises
    BundleError naming the run, its bytes and what is missing, and VerificationError where outputs differ.
    """
    if feeds < 1:
        raise OptionError(f"{feeds} feeds try nothing; ask for one at least.")
    folder = Path(bundle)
    manifest = read_manifest(folder)
    manifest.require_one("certified")
    contents = checked_files(folder, manifest)
    held = len(contents[f"{manifest.name}.weights"])
    if held != manifest.program.weights_bytes:
        raise Refused(f"the weights have {held:,} bytes; the program reads {manifest.program.weights_bytes:,}.")
    proved, outside = prove_library(manifest, contents[f"lib{manifest.name}.so"])
    threads = THREADS if manifest.program.shared_arena_bytes is not None else (1,)
    drawn = _try(folder, manifest, threads, feeds, seed)
    verdict = None if model is None else _against(model, folder, drawn)
    return Certificate(
        str(folder), manifest.producer, len(contents), proved.runs, proved.places, proved.values,
        manifest.program.shared_arena_bytes is not None, proved.waits, proved.pairs, manifest.program.arena_bytes,
        manifest.program.shared_arena_bytes, outside, seed, feeds, threads,
        None if verdict is None else verdict.max_rel, 0 if verdict is None else verdict.feeds,
        {} if verdict is None else dict(verdict.tolerance),
    )  # fmt: skip


def prove_library(manifest: Manifest, content: bytes) -> tuple[Proved, tuple[str, ...]]:
    """What is proved of a library, and the outside functions that its runs may call; nothing of it is run."""
    library = SharedLibrary(content)
    proved = prove(read_statement(manifest, library))
    entries = [
        f"{manifest.name}_run",
        f"{manifest.name}_run_raw",
        *(f"{manifest.name}.{code.name}" for code in manifest.kernels),
    ]
    if manifest.program.shared_arena_bytes is not None:
        entries += [f"{manifest.name}.walk", f"{manifest.name}.pool_worker"]
    return proved, tuple(sorted(check_no_allocation(library, entries)))


def _try(folder: Path, manifest: Manifest, threads: Sequence[int], feeds: int, seed: int) -> list[Feed]:
    """Fresh feeds, on which all numbers of threads gave the same bits, in two calls."""
    generator = np.random.default_rng(seed)
    programs = {count: Bundle(folder, threads=count) for count in threads}
    first = programs[threads[0]]
    if msgspec.convert(first.description, Description) != manifest.program:
        raise Refused("the library describes another program than the manifest.")
    drawn: list[Feed] = []
    expected: list[list[bytes]] = []
    for _ in range(feeds):
        drawn.append({one.name: _values(generator, one) for one in first.inputs})
        expected.append([output.tobytes() for output in first.run(None, drawn[-1])])
    for count, program in programs.items():
        for number in (*range(feeds), *reversed(range(feeds))):  # what one call leaves, another one finds
            for output, wanted, array in zip(
                first.outputs, expected[number], program.run(None, drawn[number]), strict=True
            ):
                if array.tobytes() != wanted:
                    raise VerificationError(
                        f"output '{output.name}' of feed {number} (seed {seed}) has other bits with {count} threads "
                        f"than in the first call with {threads[0]}."
                    )
        program.close()
    return drawn


def _values(generator: np.random.Generator, given: Tensor) -> np.ndarray:
    """Floats of a normal distribution; integers are 0 or 1, as a bundle does not say what its indices may be."""
    if given.dtype.kind == "f":
        return generator.standard_normal(given.shape).astype(given.dtype)
    array = generator.integers(0, 2, given.shape).astype(given.dtype)
    array.reshape(-1)[list(given.held)] = list(given.held.values())
    return array


def _against(source: Source, folder: Path, drawn: Sequence[Feed]) -> Verification:
    """The bundle beside its model in ONNX Runtime; raises VerificationError where they differ too much."""
    original, _ = read(source, fix_defaults=True)
    program = Bundle(folder)
    resize(original, {one.name: one.shape for one in program.inputs}, {})
    with Workplace() as workplace:
        given = read_feeds(original, [dict(feed) for feed in drawn])
        contents = {one.name: one.held for one in program.inputs if one.held}
        verdict = compared(reference_of(workplace, original, given, None, contents), original, program)
    program.close()
    if not verdict.passed:
        raise VerificationError(f"the bundle does not give what ONNX Runtime gives for the model: {verdict.reason}.")
    return verdict

"""One trial, inside a worker: draw a model and a change, find an input that shows it, and ask the check."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from bench.mutants import changes, differ
from bench.mutants.feeds import STEADY, Shown, freely, moved, shown
from bench.mutants.sources import FREED, Feed, Source, draw, session, source

TRIES = 8  # changes of one model until one loads and shows
LARGE_TRIES = 3
LARGE = 20_000_000  # bytes


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong model, with an input that shows it."""

    number: int
    group: str
    model: str
    kind: str
    text: str
    shown_by: str  # the kind of input
    seen: str  # how the result changed


class Original:
    """A good model, its sessions and what it gave. Raises what ONNX Runtime raises for a model that it refuses."""

    def __init__(self, group: str, name: str) -> None:
        self.source: Source = source(group, name)
        self.valid = _valid(self.source.model)
        self.session = session(self.source.model)
        self._optimized: ort.InferenceSession | None = None
        self.size = self.source.model.ByteSize()
        if group in FREED and not freely(self.source, self.run):
            raise ValueError(f"the dims of {name} depend on one another")
        self.common = list(shown(self.source, self.run, 1))

    def run(self, feed: Feed) -> list[object] | None:
        """What the model gives; None where it refuses the input."""
        return outputs(self.session, feed)

    def around(self, change: changes.Change, number: int) -> Iterator[Shown]:
        """The common inputs, and those that are made for a change."""
        yield from self.common
        if change.hints:
            yield from shown(self.source, self.run, number, change.hints)

    def noisy(self, found: Shown) -> list[list[object]] | None:
        """The original's results with the noise of another order of computing, and of inputs that are rounded."""
        if self._optimized is None:
            self._optimized = session(self.source.model, optimized=True)
        results = [outputs(self._optimized, found.feed)]
        if found.kind not in STEADY:
            results += [self.run(moved(found.feed, seed)) for seed in (1, 2)]
        return None if any(one is None for one in results) else [one for one in results if one is not None]


pending: dict[int, tuple[Original, onnx.ModelProto, Shown]] = {}


def attempt(seed: int, number: int) -> dict[str, object] | None:
    """A wrong model for `judged`, as a JSON object; None where the draw led to none."""
    rng = random.Random(f"{seed}:{number}")
    (group, name), kinds = draw(rng), rng.sample(sorted(changes.KINDS), len(changes.KINDS))
    try:
        original = _original(group, name)
    except Exception:  # its dims are not free, or ONNX Runtime has no kernel; its errors share no base class
        return None
    for _ in range(TRIES if original.size < LARGE else LARGE_TRIES):
        model = onnx.ModelProto()
        model.CopyFrom(original.source.model)
        try:
            change = changes.apply(model, kinds[0], rng)
        except (onnx.defs.SchemaError, ValueError, TypeError, OverflowError, StopIteration):
            continue  # the opset has no such operator, or the type no such number
        if change is None:
            kinds = [*kinds[1:], kinds[0]]  # a model without constants has other things
            continue
        found = _shown_by(original, model, change, number)
        if found is not None:
            where, seen = found
            pending.clear()
            pending[number] = (original, model, where)
            return asdict(Wrong(number, group, name, change.kind, change.text, where.kind, seen))
    return None


def judged(number: int, folder: str) -> str:
    """The check's status of the wrong model; both models and the input are saved unless it is "different"."""
    import graphopt

    original, model, where = pending[number]
    try:
        status: str = graphopt.verify(original.source.model, model).status
    except graphopt.GraphoptError as error:
        status = f"refused: {error}"[:200]
    if folder and status != "different":
        _save(Path(folder) / f"{number}", original.source.model, model, where.feed)
    return status


def _shown_by(
    original: Original, model: onnx.ModelProto, change: changes.Change, number: int
) -> tuple[Shown, str] | None:
    """The first input on which the results differ clearly; None where the model does not load or none does."""
    if original.valid and not _valid(model):
        return None
    try:
        running = session(model)
    except Exception:  # refused by ONNX Runtime
        return None
    for one in original.around(change, number):
        results = outputs(running, one.feed)
        if results is None:
            return one, "does not run"
        if differ.change(one.results, results):
            noisy = original.noisy(one)
            seen = differ.change(one.results, results, noisy) if noisy is not None else ""
            if seen and not differ.change(one.results, original.run(one.feed)):
                return one, seen
    return None


@lru_cache(maxsize=4)
def _original(group: str, name: str) -> Original:
    return Original(group, name)


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # onnx.checker and shape inference raise several
        return False
    return True


def outputs(running: ort.InferenceSession, feed: Feed) -> list[object] | None:
    """What a session gives; None where it refuses the input."""
    try:
        results: list[object] = running.run(None, feed)
    except Exception:  # ONNX Runtime's errors share no base class
        return None
    return results


def _save(stem: Path, original: onnx.ModelProto, model: onnx.ModelProto, feed: Feed) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(original, f"{stem}.original.onnx")
    onnx.save(model, f"{stem}.wrong.onnx")
    arrays = {name: value for name, value in feed.items() if isinstance(value, np.ndarray)}
    for name, value in feed.items():
        if isinstance(value, list):
            arrays.update({f"{name}.{place}": item for place, item in enumerate(value)})
    np.savez(f"{stem}.feed.npz", **arrays)  # type: ignore[arg-type]

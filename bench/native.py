"""The record of speed: native programs beside ONNX Runtime and OpenVINO, on one thread and on all, by family.

Every float model of the zoo and of `models.families` that compiles whole, as the command line compiles it: by this
machine's record, kernels measured for 3 s. One thread is read in CPU time, pinned; all cores on the clock on the wall.
All sides take turns; a ratio is the median of pairs with its 95 % bootstrap interval. Families weigh the same,
whatever they hold; models below `SHORT` milliseconds have a line of their own. A whole run adds what was found to
docs/benchmarks/PROCESSOR.json, beside what was found before; `python -m bench.native_page` draws the page of all. With
`--data FOLDER` the models are its files, `NAME.onnx`, all of one family, and nothing is kept.
"""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.cores import by_name
from bench.kept import processor
from bench.kernels.timing import Call, Peer, pin, ratio, readings, unpin
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.errors import GraphoptError
from graphopt.flows.source import resize
from graphopt.flows.tune import kept_choices
from graphopt.machine.record import MachineRecord
from graphopt.program.deploy.benchmark import openvino_side

ISSUE = 19
Array = npt.NDArray[np.generic]
FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
# Models of one family are alike in what decides their speed.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "residual": ("resnet18", "resnet18_legacy", "resnet50", "resnet50_dynbatch", "resnet50_legacy_keepbn"),
    "odd groups": ("resnext29_8x64d",),
    "concatenating": ("densenet121", "inception_v3", "squeezenet1_1"),
    "mobile": ("mobilenet_v2", "mobilenet_v2_legacy", "nasnet_a_mobile", "dscnn_kws"),
    "segmenting": ("unet_own",),
    "vision transformers": ("vit_s16_legacy", "swin_tiny", "convnext_tiny"),
    "encoders": ("bert_base", "bert_base_dyn_legacy", "bert_small_rawdynamo", "t5_small_encoder", "clip_text"),
    "decoders": ("gpt2_dyn", "llama_small_prefill"),
    "recurrent": ("lstm_bi_op", "gru_op", "gru_unrolled"),
    "perceptrons": ("mlp_tiny",),
}
QUICK = ("resnet18", "squeezenet1_1", "mobilenet_v2", "vit_s16_legacy", "bert_small_rawdynamo", "unet_own")
ROUNDS, QUICK_ROUNDS = 15, 5
TUNE = 3.0  # seconds
SHORT = 1.0  # milliseconds of one thread
ONE_ORT, ONE_OPENVINO, ALL_ORT = 1.45, 1.3, 1.3  # what programs must give, on the geometric mean
LEAST_ORT, LEAST_OPENVINO = 1.0, 0.95  # no interval wholly below
KEPT_SHARE = 0.95  # of the ratio of one thread, with all cores
OUTSIDE = "from outside"  # the family of files in a folder
PEERS = ("onnxruntime", "openvino f32", "openvino default")


@dataclass(frozen=True, slots=True)
class Line:
    """One model on so many threads: milliseconds of ours, and how many times longer each peer takes."""

    model: str
    family: str
    threads: int
    ours_ms: float
    ratios: dict[str, tuple[float, float, float]]  # low, median, high


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and number of threads."""
    rounds, machine = QUICK_ROUNDS if quick else ROUNDS, graphopt.machine()
    cores = len(os.sched_getaffinity(0))
    # All cores first: OpenVINO counts them once, and one thread is measured pinned.
    found: list[Line] = []
    failed: list[tuple[str, int]] = []  # models and their threads
    order = [*FAMILIES, OUTSIDE]
    for threads in dict.fromkeys((cores, 1)):
        for family, name, file in _files(data, quick=quick):
            lines = _measured(sheet, name, file, family, threads, rounds, machine)
            found += lines
            failed += [] if lines else [(name, threads)]
            gc.collect()
    found.sort(key=lambda line: (order.index(line.family), line.model, line.threads))
    columns = ("model", "family", "threads", "ms", *(f"{peer} / ours" for peer in PEERS))
    sheet.table("native programs, batch 1, float32; peers by turns", columns, [_cells(line) for line in found])
    sheet.table("by family, geometric means", ("family", "threads", *PEERS), by_family(found))
    if not quick and data is None:
        _keep(found)
    return _bars(found, cores, failed)


def _files(data: Path | None, *, quick: bool) -> Iterator[tuple[str, str, Path]]:
    """Family, name and file of each model: of a folder, or those that we know."""
    if data is not None:
        yield from ((OUTSIDE, path.stem, path) for path in sorted(data.glob("*.onnx")))
        return
    for family, names in FAMILIES.items():
        yield from ((family, name, model_file(name)) for name in names if not quick or name in QUICK)


def _measured(
    sheet: Sheet, name: str, file: Path, family: str, threads: int, rounds: int, machine: MachineRecord
) -> list[Line]:
    """A model on so many threads; nothing where it does not compile whole or differs, which no bar forgives."""
    unpin()
    sizes = {} if family == OUTSIDE else models.sizes(name)
    try:
        compiled = graphopt.compile(file, dims=sizes, machine=machine, tune=TUNE, threads=threads)
        program = compiled.program
    except GraphoptError as error:
        sheet.console.print(f"{name}: {error}")
        return []
    feed = _feed(file, sizes)
    sides = {"ours": program.bind(feed)} | _peers(file.read_bytes(), feed, threads)
    if threads > 1:
        return [_line(name, family, threads, by_name(sides, rounds))]
    pin()
    return [_line(name, family, threads, readings(sides, rounds))]


def feed_of(name: str) -> dict[str, Array]:
    """Values for a model's inputs, the same every time."""
    return _feed(model_file(name), models.sizes(name))


def _feed(file: Path, sizes: Mapping[str, int]) -> dict[str, Array]:
    model = graphopt.load(file)
    if sizes:
        resize(model, {}, sizes)
    return {key: np.asarray(value) for key, value in make_feed(inputs_of(model), {}, "normal").items()}


def _peers(source: bytes, feed: Mapping[str, Array], threads: int) -> dict[str, Call]:
    sides: dict[str, Call] = {"onnxruntime": Peer(source, feed, threads=threads)}
    if find_spec("openvino") is not None:
        for name, precision in (("openvino f32", "f32"), ("openvino default", None)):
            try:
                sides[name] = openvino_side(source, feed, threads, precision).call
            except RuntimeError:  # a model that OpenVINO cannot read
                continue
    return sides


def _line(name: str, family: str, threads: int, taken: Mapping[str, list[float]]) -> Line:
    ratios = {peer: ratio(times, taken["ours"]) for peer, times in taken.items() if peer != "ours"}
    return Line(
        name, family, threads, 1e3 * float(np.median(taken["ours"])),
        {peer: (one.low, one.median, one.high) for peer, one in ratios.items()},
    )  # fmt: skip


def _cells(line: Line) -> tuple[str | float | int, ...]:
    def cell(peer: str) -> str:
        if peer not in line.ratios:
            return "-"
        low, middle, high = line.ratios[peer]
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    return (line.model, line.family, line.threads, line.ours_ms, *map(cell, PEERS))


def _mean(lines: Sequence[Line], peer: str) -> float | None:
    """The geometric mean over families of the geometric means of their models; None without any."""
    by_family: dict[str, list[float]] = {}
    for line in lines:
        if peer in line.ratios:
            by_family.setdefault(line.family, []).append(math.log(line.ratios[peer][1]))
    means = [sum(logs) / len(logs) for logs in by_family.values()]
    return math.exp(sum(means) / len(means)) if means else None


def by_family(found: Sequence[Line]) -> list[tuple[str | int, ...]]:
    """Rows of family, threads and the geometric mean beside each peer; models that take little are apart."""
    rows: list[tuple[str | int, ...]] = []
    long = [line for line in found if not _is_short(line, found)]
    groups = {family: [line for line in long if line.family == family] for family in (*FAMILIES, OUTSIDE)}
    groups |= {"all families": long, f"below {SHORT:g} ms": [line for line in found if line not in long]}
    for title, members in groups.items():
        for threads in sorted({line.threads for line in found}):
            lines = [line for line in members if line.threads == threads]
            if lines:
                means = (_mean(lines, peer) for peer in PEERS)
                rows.append((title, threads, *("-" if mean is None else f"{mean:.2f}" for mean in means)))
    return rows


def _is_short(line: Line, found: Sequence[Line]) -> bool:
    """Whether one thread takes so little that calls decide."""
    alone = (one.ours_ms for one in found if one.model == line.model and one.threads == 1)
    return next(alone, line.ours_ms) < SHORT


def _bars(found: Sequence[Line], cores: int, failed: Sequence[tuple[str, int]]) -> list[Bar]:
    alone = [line for line in found if line.threads == 1 and not _is_short(line, found)]
    together = [line for line in found if line.threads == cores and not _is_short(line, found)]
    ort, openvino = _mean(alone, "onnxruntime") or 0.0, _mean(alone, "openvino f32")
    slow = [line.model for line in alone if line.ratios["onnxruntime"][2] < LEAST_ORT]
    slow += [name for name, threads in failed if threads == 1]
    slow += [line.model for line in alone if line.ratios.get("openvino f32", (2.0, 2.0, 2.0))[2] < LEAST_OPENVINO]
    beside = "not installed" if openvino is None else f"{openvino:.2f}"
    met = ort >= ONE_ORT and (openvino is None or openvino >= ONE_OPENVINO) and not slow
    own = {line.model: line.ratios["onnxruntime"][1] for line in alone}
    lost = [line.model for line in together if line.ratios["onnxruntime"][2] < KEPT_SHARE * own.get(line.model, 0.0)]
    lost += [name for name, threads in failed if threads == cores]
    several = _mean(together, "onnxruntime") or 0.0
    return [
        Bar(
            ISSUE, 1, "one thread, beside ONNX Runtime and OpenVINO f32", f"{ONE_ORT}, {ONE_OPENVINO}, none below",
            f"{ort:.2f}, {beside}; below: {', '.join(dict.fromkeys(slow)) or 'none'}", met,
        ),
        Bar(
            ISSUE, 4, f"{cores} threads, beside ONNX Runtime", f"{ALL_ORT}, no ratio 5 % below that of one thread",
            f"{several:.2f}; below: {', '.join(lost) or 'none'}", several >= ALL_ORT and not lost,
        ),
    ]  # fmt: skip


def _keep(found: Sequence[Line]) -> None:
    """Add to the processor's file."""
    unpin()  # its name tells the cores
    place = FOLDER / f"{processor()}.json"
    known: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    records = known.get("records", [])
    peers = {name: version(name) for name in ("onnxruntime", "openvino") if find_spec(name) is not None}
    entries = {name: [one.value, one.unit] for name, one in graphopt.machine().entries.items()}
    records.append({
        "date": date.today().isoformat(), "graphopt": graphopt.__version__, "peers": peers,
        "tuned": len(kept_choices().choices()), "machine": entries, "lines": [asdict(line) for line in found],
    })  # fmt: skip
    FOLDER.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"processor": processor(), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main(measure)

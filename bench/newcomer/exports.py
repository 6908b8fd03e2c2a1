"""Rows of exporters' models: what is taken, how it is checked, what is said of it, and what a large one costs."""

from __future__ import annotations

import importlib.util
import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from bench.newcomer.place import Place, model
from bench.newcomer.row import Row, Seen, Worse, better, level, require
from bench.newcomer.starting import process
from bench.zoo import model_file

PEER = "onnxslim"
MODELS = ("mlp_tiny", "mobilenet_v2", "bert_small_rawdynamo", "vit_s16_legacy", "swin_tiny", "gru_unrolled")
ROUNDS = 3
LARGE_WIDTH, LARGE_LAYERS = 5_000, 23  # 100 MB of weights each: 2.3 GB
PEER_LARGE = (63.0, 7.7 * 1000**3 / 2**20)  # seconds and MiB of onnxslim on 2.47 GB, as it was measured once


def torch_export(place: Place) -> Seen:
    """A model of two files, as torch writes it: optimize, verify, compile, memory, in place."""
    for words in (
        "split.onnx whole.onnx", "verify split.onnx whole.onnx", "compile split.onnx split-bundle --dim batch=1",
        "memory split.onnx --dim batch=1 --levers none", "split.onnx --in-place",
    ):  # fmt: skip
        done = place.graphopt(*words.split())
        require(done.status == 0, f"{words}: {done.err}")
    return level("a pair of files goes through every command, in place too")


def scikit_learn(place: Place) -> Seen:
    """A classifier with ZipMap is optimized, and its maps are compared."""
    done = place.graphopt("classifier.onnx", "c.onnx", "--json")
    require(done.status == 0 and done.json["verification"]["feeds"] > 0, done.err)
    require(len(onnx.load(place / "c.onnx").graph.node) == 2, "the Identity stayed")
    return better("taken, and its maps are compared; the peers take it unchecked")


def checked(place: Place) -> Seen:
    """Every result is compared by default; a model that differs is found; the tolerance can be set."""
    verification = place.graphopt("layers.onnx", "v.onnx", "--json").json["verification"]
    require(verification["status"] == "verified" and verification["feeds"] >= 10, verification)
    done = place.graphopt("verify", "chain.onnx", "other.onnx")
    require(done.status == 1 and "different" in done.out, done.out)
    require(place.graphopt("layers.onnx", "t.onnx", "--tolerance", "1e-3").status == 0, "--tolerance")
    return better(f"{verification['feeds']} feeds by default, held to the model's own rounding; onnxsim's check_n is 0")


def explained(place: Place) -> Seen:
    """Why a rule did not fire, with the names of the nodes."""
    said = place.graphopt("explain", "image.onnx", "--rule", "add-zero").out
    require("did not fire at 1 place:" in said and "is not a constant" in said and "at Add 'y'" in said, said)
    return better("for every rule and every node, also on the page; onnxscript tells it for one match at a time")


def bisected(place: Place) -> Seen:
    """The first value that differs is named, and a run can stop after any rewrite."""
    found = place.graphopt("verify", "chain.onnx", "other.onnx", "--bisect", "--json").json["divergence"]
    require(found["name"] == "d", found)
    require(place.graphopt("layers.onnx", "s.onnx", "--stop-after", "1").status == 0, "--stop-after")
    return better("verify --bisect names the value, --stop-after N the rewrite; tract has step numbers")


def processor_time(place: Place) -> Seen:
    """Processor time of whole commands, verification included on our side only; geometric mean beside onnxslim."""
    if importlib.util.find_spec(PEER) is None:
        raise Worse(f"{PEER} is not installed; run it in the environment of make bars")
    ratios = {}
    for name in MODELS[1:3] if place.quick else MODELS:
        source, output = str(model_file(name)), str(place / "cpu.onnx")
        ours = [sys.executable, "-W", "ignore", "-m", "graphopt", source, output]
        theirs = [str(Path(sys.executable).parent / PEER), source, output]
        ratios[name] = min(_processor(ours) for _ in range(ROUNDS)) / min(_processor(theirs) for _ in range(ROUNDS))
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    text = f"{mean:.2f} times its processor time ({', '.join(f'{name} {one:.2f}' for name, one in ratios.items())})"
    require(mean <= 1.05, text)
    return better(text) if mean < 0.95 else level(text)


def _processor(words: list[str]) -> float:
    """Seconds of processor time of a command; raises Worse where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    require(done.returncode == 0, f"{words[-2]}: {done.stderr.decode(errors='replace')}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def large(place: Place) -> Seen:
    """A model of more than 2 GB is optimized and checked, in less time and memory than onnxslim needs."""
    folder = place / "large"
    folder.mkdir()
    try:
        source = folder / "large.onnx"
        _write_large(source, 2 if place.quick else LARGE_LAYERS)
        seconds, mebibytes = process(["-W", "ignore", "-m", "graphopt", str(source), str(folder / "out.onnx")])
        size = os.path.getsize(source.with_suffix(".data"))
    finally:
        shutil.rmtree(folder)
    text = f"{size / 1e9:.1f} GB, no two weights equal: {seconds:.0f} s, {mebibytes / 1024:.1f} GiB, checked"
    require(seconds < PEER_LARGE[0] and mebibytes < PEER_LARGE[1], text)
    return better(f"{text}; onnxslim {PEER_LARGE[0]:.0f} s, {PEER_LARGE[1] / 1024:.1f} GiB on 2.5 GB")


def _write_large(file: Path, layers: int) -> None:
    draw = np.random.default_rng(0)
    body = " ".join(f"i{n} = Identity(v{n}) v{n + 1} = MatMul(i{n}, w{n})" for n in range(layers))
    kind = f"float[1,{LARGE_WIDTH}]"
    proto = model(f"g ({kind} v0) => ({kind} y) {{ {body} y = Relu(v{layers}) }}")
    offset, length = 0, 4 * LARGE_WIDTH**2
    with file.with_suffix(".data").open("wb") as data:
        for number in range(layers):
            array = draw.random((LARGE_WIDTH, LARGE_WIDTH), dtype=np.float32)
            data.write(((array - np.float32(0.5)) / np.float32(LARGE_WIDTH / 8)).data)
            tensor = proto.graph.initializer.add(name=f"w{number}", data_type=1, dims=[LARGE_WIDTH] * 2)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", f"{file.stem}.data"), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            offset += length
    file.write_bytes(proto.SerializeToString())


ROWS = (
    Row(7, "torch's default export", "onnxslim, onnxsim take it", torch_export),
    Row(8, "scikit-learn's export", "onnxslim, onnxsim take it", scikit_learn),
    Row(13, "checked result", "onnxsim check_n (0 by default), check_rtol, certify", checked),
    Row(14, "why a rule did not fire", "onnxscript's MatchInfo", explained),
    Row(15, "bisection", "tract's step numbers", bisected),
    Row(16, "speed of the optimizer", "onnxslim", processor_time),
    Row(17, "a model of more than 2 GB", "onnxslim: 63 s, 7.7 GB", large),
)

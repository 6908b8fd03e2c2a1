"""Programs as WebAssembly beside onnxruntime-web, both in node on one thread, by turns.

`--data FOLDER` has node_modules with onnxruntime-web (`npm install onnxruntime-web` in it). Each model is compiled for
wasm32, compared in node as `compile` does it, and read `ROUNDS` times on the clock on the wall, both sides after each
other; the figure is the median of the ratios with its 95 % bootstrap interval.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import graphopt
import models
from bench.bar import NEEDS_DATA, Bar, Sheet
from bench.kernels.timing import ratio
from bench.native import feed_of
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file

ISSUE = 21
NAMES = ("mlp_tiny", "dscnn_kws", "lstm_bi_op", "resnet18")
ROUNDS, QUICK_ROUNDS = 15, 5
AIM = 1.0  # of onnxruntime-web's time over ours, on the geometric mean
_SCRIPT = """\
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const [, , folder, modules, rounds] = process.argv;
const ort = createRequire(modules + "/")("onnxruntime-web");
ort.env.wasm.numThreads = 1;
const { Program, arrayOf, description } = await import(`file://${folder}/out/model.mjs`);
const program = await Program.load();
const source = readFileSync(`${folder}/source.onnx`);
const session = await ort.InferenceSession.create(source, { executionProviders: ["wasm"] });
const TYPES = { f32: "float32", i64: "int64" }, feeds = {}, tensors = {};
for (const one of description.inputs) {
  const data = readFileSync(`${folder}/${one.name}.bin`);
  feeds[one.name] = new (arrayOf(one))(new Uint8Array(data).buffer);
  tensors[one.name] = new ort.Tensor(TYPES[one.dtype], feeds[one.name], one.shape);
}
const sides = { ours: async () => program.run(feeds), theirs: () => session.run(tensors) };
const times = { ours: [], theirs: [] }, repeats = {};
for (const [name, call] of Object.entries(sides)) {
  for (let warm = 0; warm < 3; warm++) await call();
  const begun = performance.now();
  await call();
  repeats[name] = Math.max(1, Math.ceil(20 / (performance.now() - begun)));
}
for (let round = 0; round < Number(rounds); round++) {
  for (const [name, call] of Object.entries(sides)) {
    const begun = performance.now();
    for (let number = 0; number < repeats[name]; number++) await call();
    times[name].push((performance.now() - begun) / repeats[name]);
  }
}
console.log(JSON.stringify(times));
"""


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model."""
    text, target = "WebAssembly beside onnxruntime-web", f"{AIM:.2f} x on the geometric mean"
    if data is None or not (data / "node_modules" / "onnxruntime-web").is_dir() or shutil.which("node") is None:
        return [Bar(ISSUE, 9, text, target, NEEDS_DATA, None)]
    rows, ratios = [], []
    for name in NAMES[: 2 if quick else None]:
        times, difference = timed(name, data, QUICK_ROUNDS if quick else ROUNDS)
        found = ratio(times["theirs"], times["ours"])
        ratios.append(found.median)
        ours, theirs = (float(np.median(times[side])) for side in ("ours", "theirs"))
        rows.append((name, ours, theirs, found.median, found.low, found.high, difference))
    columns = ("model", "ms", "onnxruntime-web, ms", "ratio", "from", "to", "difference")
    sheet.table("WebAssembly in node, one thread", columns, rows)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return [Bar(ISSUE, 9, text, target, f"{mean:.2f}", mean >= AIM)]


def timed(name: str, data: Path, rounds: int) -> tuple[dict[str, list[float]], float]:
    """Milliseconds of either side by round, and the largest difference of the program from ONNX Runtime."""
    feed = feed_of(name)
    with tempfile.TemporaryDirectory() as folder:
        compiled = graphopt.compile(model_file(name), dims=models.sizes(name), target="wasm32", name="model")
        compiled.save(Path(folder) / "out")
        shutil.copyfile(model_file(name), Path(folder) / "source.onnx")
        for key, array in feed.items():
            (Path(folder) / f"{key}.bin").write_bytes(array.tobytes())
        script = Path(folder) / "run.mjs"
        script.write_text(_SCRIPT)
        words = ["node", str(script), folder, str(data.absolute()), str(rounds)]
        done = subprocess.run(words, capture_output=True, check=True, text=True)
    times: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times, compiled.max_rel


if __name__ == "__main__":
    main(measure)

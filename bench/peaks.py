"""How much memory it takes to compile and to optimize models: `python -m bench.peaks [--optimize] [NAME ...]`.

A process loads the file, compiles or optimizes it and saves what it made; from outside its resident pages and those of
its children are added up every few milliseconds. Pages of files that are only read, such as the model's own, can be
dropped by the system at any moment; they count, and are also shown apart. Sizes are those of the model's files; of a
training step, those of the parameters and the state, which are inputs. Models are kept in build/peaks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer

import graphopt
import models
from bench.bar import Bar, Sheet, console
from bench.peers import OURS
from bench.ram.networks import Sizes, llama, vgg, write_outside
from bench.survey import BUILD
from models.families.network import Network
from models.trainable import encoder

ISSUE, NUMBER = 21, 3
PLACE = BUILD / "peaks"
SHARE, CONSTANT = 2.5, 250_000_000  # of the size, and bytes beside it, that a command may take
EVERY = 0.005  # seconds
QUICK = ("adam_perceptron",)
LLAMA = Sizes(16_000, 2048, 16, 4, 128, 5504, 3)
LLAMA_INT4 = Sizes(8_000, 4096, 32, 32, 128, 11_008, 3, 4)
CHILD = """
import sys
from pathlib import Path
import graphopt
def progress(text):
    print(text, flush=True)
verb, file, out = sys.argv[1:]
if verb == "optimize":
    graphopt.optimize(file, progress=progress).save(Path(out) / "out.onnx")
else:
    made = graphopt.compile(file, progress=progress)
    print("saving", flush=True)
    made.save(Path(out) / "bundle")
"""


def _bytes(net: Network) -> onnx.ModelProto:
    """Products of numbers in bytes by weights in bytes, with a scale for each column."""
    width, layers, rng = 4096, 30, np.random.default_rng(0)
    x = net.input("x", [4, width])
    steps = (net.number(0.05), net.small(np.array(3, np.int8)))
    for _ in range(layers):
        x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, *steps), *steps)
        codes = net.tensor(rng.integers(-127, 128, [width, width], np.int8))
        scales = net.tensor((rng.random(width, np.float32) + np.float32(0.5)) * np.float32(width**-0.5 / 73))
        weight = net.op("DequantizeLinear", codes, scales, net.tensor(np.zeros(width, np.int8)), axis=1)
        x = net.op("MatMul", x, weight)
    return net.model(y=(x, [4, width]))


def _step(file: Path, model: onnx.ModelProto, loss: str) -> None:
    """A training step with Adam."""
    step = graphopt.train_step(model, loss=loss, optimizer="adam")
    onnx.save_model(
        step.to_proto(), file, save_as_external_data=True, location=f"{file.name}.data", size_threshold=1024
    )


def _perceptron() -> onnx.ModelProto:
    """Three layers of 2,048 features."""
    net, width = Network("perceptron", 0), 2048
    x = net.input("x", [8, width])
    for _ in range(3):
        x = net.op("Tanh", net.gemm(x, width, width, 1.0))
    return net.model(y=(x, [8, width]))


MADE: Mapping[str, Callable[[Path], None]] = {
    "bert_base": lambda file: models.write("bert_base", file),
    "vgg16_like": lambda file: write_outside(file, vgg),
    "llama": lambda file: write_outside(file, lambda net: llama(net, LLAMA)),
    "llama_int4": lambda file: write_outside(file, lambda net: llama(net, LLAMA_INT4)),
    "bytes": lambda file: write_outside(file, _bytes),
    "adam_perceptron": lambda file: _step(file, _perceptron(), "mse"),
    "adam_step": lambda file: _step(file, encoder(2, 16, 640), "cross-entropy"),
    "adam_bert_base": lambda file: _step(file, models.load("bert_base"), "mse"),
}


@dataclass(frozen=True, slots=True)
class Peak:
    """Of one phase: bytes that were resident at once, those of them that are no file's, and their processes' share."""

    resident: int
    anonymous: int
    seconds: float


def file_of(name: str) -> Path:
    """The model's file, made where it is not there, in a process of its own."""
    folder = PLACE / name
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        part.mkdir(parents=True)
        MADE[name](part / f"{name}.onnx")
        part.replace(folder)
    return folder / f"{name}.onnx"


def size_of(name: str) -> int:
    """Bytes of the model's files; of a training step those of parameters and state."""
    file = file_of(name)
    found = sum(one.stat().st_size for one in file.parent.iterdir())
    if name.startswith("adam_"):
        found *= 3  # the file has the parameters, and two tensors of each one's size are inputs
    return found


def peaks_of(verb: str, file: Path) -> dict[str, Peak]:
    """What a command takes at most, by phase."""
    with tempfile.TemporaryDirectory(dir=PLACE) as out:
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, verb, str(file), out], stdout=subprocess.PIPE, text=True
        )
        phases: list[str] = ["loading"]

        def read() -> None:
            assert child.stdout is not None, "it is a pipe"
            phases.extend(line.strip() for line in child.stdout)

        reader = threading.Thread(target=read)
        reader.start()
        found: dict[str, Peak] = {}
        last = time.perf_counter()
        while child.poll() is None:
            phase = phases[-1]
            known = found.get(phase, Peak(0, 0, 0.0))
            resident, anonymous = _taken(child.pid)
            now = time.perf_counter()
            found[phase] = Peak(
                max(known.resident, resident), max(known.anonymous, anonymous), known.seconds + now - last
            )
            last = now
            time.sleep(EVERY)
        reader.join()
    if child.returncode:
        raise RuntimeError(f"{verb} of {file} ended with {child.returncode}")
    return found


def _taken(pid: int) -> tuple[int, int]:
    """Resident and anonymous bytes of a process and those below it."""
    resident = anonymous = 0
    seen = set()
    for one in _tree(pid):
        try:
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{one}/status").read_text().splitlines())
        except OSError:  # it has just ended
            continue
        if "VmRSS" not in lines or lines["VmSize"] in seen:  # a child that still has its parent's memory
            continue
        seen.add(lines["VmSize"])
        resident += int(lines["VmRSS"].split()[0]) << 10
        anonymous += int(lines["RssAnon"].split()[0]) << 10
    return resident, anonymous


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in file.read_text().split():
                yield from _tree(int(child))


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS, verb: str = "compile",
    names: Sequence[str] = (), phases: bool = False,
) -> list[Bar]:  # fmt: skip
    """A line for each model, and the bar of all of them."""
    names = names or (QUICK if quick else tuple(MADE))
    target = f"at most {CONSTANT // 10**6} MB and {SHARE} x the size"
    text = f"memory to {verb}, {len(names)} models"
    if sys.platform != "linux":
        return [Bar(ISSUE, NUMBER, text, target, "not measured: reads /proc", None)]
    rows, beyond = [], dict[str, float]()
    for one in names:
        file, size = file_of(one), size_of(one)
        found = peaks_of(verb, file)
        if phases:
            sheet.table(
                f"{verb} {one}", ("phase", "MiB", "of them anonymous", "s"),
                [(key, each.resident >> 20, each.anonymous >> 20, each.seconds) for key, each in found.items()],
            )  # fmt: skip
        most, anonymous = (max(getattr(each, key) for each in found.values()) for key in ("resident", "anonymous"))
        beyond[one] = (most - CONSTANT) / size
        rows.append((
            one, size >> 20, most >> 20, anonymous >> 20, most / size, beyond[one],
            sum(each.seconds for each in found.values()), beyond[one] <= SHARE,
        ))  # fmt: skip
    sheet.table(
        f"{verb}: {target}",
        ("model", "size, MiB", "peak", "anonymous", "peak / size", "beyond the constant", "s", "kept"), rows,
    )  # fmt: skip
    worst = max(beyond, key=beyond.__getitem__)
    figure = f"{beyond[worst]:.2f} x beyond the constant ({worst})"
    return [Bar(ISSUE, NUMBER, text, target, figure, beyond[worst] <= SHARE)]


def main(
    name: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(MADE)}.")] = None,
    optimize: Annotated[bool, typer.Option(help="Optimize instead of compiling.")] = False,
    phases: Annotated[bool, typer.Option(help="A table for each model's phases.")] = False,
) -> None:
    """A line for each model, and what it may take."""
    sheet = Sheet(console())
    sheet.bars(measure(sheet, verb="optimize" if optimize else "compile", names=name or (), phases=phases))


if __name__ == "__main__":
    typer.run(main)

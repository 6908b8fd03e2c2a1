"""Rows of compiled programs: what is in a bundle, for which processors, and how it refuses."""

from __future__ import annotations

import json
import shutil
import struct
import threading
from pathlib import Path

import numpy as np
import onnxruntime

import graphopt
from bench.newcomer.place import Place
from bench.newcomer.row import Row, Seen, better, level, require
from bench.zoo import model_file
from graphopt.program.deploy.bundle import write_bundle
from graphopt.program.deploy.session import Bundle
from kernels.emit.processor import Requirement
from kernels.target import host

ARM = 183  # the machine in the header of an ELF file
CONVOLUTIONS = "resnet18"
ROOMY = 1.1  # times the bytes of the model
CALLS = 200  # of each of two threads


def _bundle(place: Place, name: str, *words: str) -> Path:
    folder = place / name
    if not folder.exists():
        done = place.graphopt("compile", "image.onnx", name, *words)
        require(done.status == 0, done.err)
    return folder


def to_c(place: Place) -> Seen:
    """A header, a library, weights, and an example in C that compiles without a warning and runs."""
    folder = _bundle(place, "bundle")
    header = (folder / "image.h").read_text()
    require("image_run" in header and 'input 0: "x" f32 [1, 16, 16, 16]' in header, header[:300])
    compiler = shutil.which("cc")
    if compiler is None:
        return level("header, example and library are there; no C compiler here to build the example")
    np.zeros((1, 16, 16, 16), np.float32).tofile(folder.parent / "x.raw")
    example = [compiler, "-Wall", "-Wextra", "-Werror", "-O2", str(folder / "example.c"), "-o", "example"]
    done = place.run(*example, f"-L{folder}", "-limage", "-lm", f"-Wl,-rpath,{folder}")
    require(done.status == 0, done.err)
    done = place.run("./example", str(folder / "image.weights"), "x.raw")
    require(done.status == 0, done.err)
    return level("one folder: library, header, weights, example in C; it compiles with -Wall -Wextra and runs")


def named(place: Place) -> Seen:
    """--name names the library, its functions and its constants."""
    folder = _bundle(place, "named", "--name", "second")
    header = (folder / "second.h").read_text()
    require((folder / "libsecond.so").exists() and "second_run" in header and "SECOND_OK" in header, header[:300])
    require("image_run" not in header, "a name of the default is left")
    return level("compile --name")


def cross(place: Place) -> Seen:
    """A program for 64-bit ARM is written, and asking for it from Python ends nothing."""
    folder = _bundle(place, "arm", "--target", "aarch64", "--unchecked")
    machine = struct.unpack_from("<H", (folder / "libimage.so").read_bytes(), 18)[0]
    require(machine == ARM, f"machine {machine}")
    done = place.python("import graphopt; print(graphopt.compile('image.onnx', target='aarch64').target.level)")
    require(done.status == 0, done.err)
    return level("--target aarch64 and three levels of x86-64; compared in QEMU where it is installed")


def sizes(place: Place) -> Seen:
    """The weights of a convolutional network's bundle are about as large as its model."""
    source = model_file(CONVOLUTIONS)
    done = place.graphopt("compile", str(source), "sized", "--json")
    require(done.status == 0, done.err)
    ratio = done.json["weights_bytes"] / source.stat().st_size
    shutil.rmtree(place / "sized")
    text = f"{CONVOLUTIONS}: {ratio:.2f} times the model's file"
    require(ratio <= ROOMY, f"{text}; with --exact as large as it")
    return level(text)


def refusal(place: Place) -> Seen:
    """A program that asks for what this processor lacks is refused by a sentence."""
    compiled = graphopt.compile(place / "image.onnx")
    needed = (Requirement("of9000", 0x7FFF, 0, 0, 3) if host().architecture.name == "x86_64"
              else Requirement("of9000", 16, 0, 0, 63))  # fmt: skip
    write_bundle(place / "wrong", compiled.linked.listing, compiled.linked.weights, host(), needed=(needed,))
    done = place.graphopt("run", "wrong", "--random")
    require(done.status == 1 and "this processor lacks 'of9000'" in done.err, done.err)
    return better("this processor lacks '...', which the code was compiled for; glibc's way is a crash")


def threads(place: Place) -> Seen:
    """Two threads that share a program get right results; none is wrong in silence."""
    program = Bundle(_bundle(place, "bundle"))
    draw = np.random.default_rng(0)
    feeds = [{"x": draw.standard_normal((1, 16, 16, 16)).astype(np.float32)} for _ in range(2)]
    wanted = [program.run(None, feed)[0].copy() for feed in feeds]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(CALLS):
            if not np.array_equal(program.run(None, feeds[number])[0], wanted[number]):
                wrong.append(number)

    running = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    require(not wrong, f"{len(wrong)} of {2 * CALLS} results are wrong")
    require("IMAGE_MODEL_BUSY" in (place / "bundle" / "image.h").read_text(), "C has no word for it")
    return level("from Python threads wait for one another; in C a call that meets another returns MODEL_BUSY")


def partial(place: Place) -> Seen:
    """From Python operators without a kernel run in ONNX Runtime; the refusal of a bundle names that way."""
    program = graphopt.compile(place / "partly.onnx")
    x = np.arange(-8, 8, dtype=np.float32).reshape(2, 8)
    session = onnxruntime.InferenceSession(place / "partly.onnx", providers=["CPUExecutionProvider"])
    for mine, theirs in zip(program.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
        require(np.array_equal(mine, theirs), "the results differ")
    done = place.graphopt("compile", "partly.onnx", "partly")
    require(
        done.status == 1 and "NonZero 'y' has no kernel yet" in done.err and "graphopt.compile" in done.err, done.err
    )
    require((place / "partly").exists(), "from Python only: a bundle is refused with the operators' names")
    return level("a bundle holds the rest too")


def tolerance(place: Place) -> Seen:
    """--tolerance of optimize, verify and compile; a refusal says which one would do."""
    for words in ("optimize layers.onnx t2.onnx", "verify chain.onnx chain.onnx", "compile image.onnx tolerant"):
        require(place.graphopt(*words.split(), "--tolerance", "1e-2").status == 0, words)
    done = place.graphopt("compile", "image.onnx", "strict", "--tolerance", "1e-12")
    require(done.status == 1 and "--tolerance " in done.err, done.err)
    return level("--tolerance, and by default the model's own rounding; Polygraphy has --atol and --rtol")


def random_run(place: Place) -> Seen:
    """A bundle and a model run on drawn inputs, as often as asked, with times."""
    _bundle(place, "bundle")
    for program in ("bundle", "image.onnx"):
        done = place.graphopt("run", program, "--random", "--repeat", "5", "--json")
        require(done.status == 0 and len(done.json["milliseconds"]) == 5, done.err)
    return level("run --random --repeat N, of bundles and models")


def licence(place: Place) -> Seen:
    """Every generated text begins with its licence; the version stands in header, example and manifest."""
    folder = _bundle(place, "bundle")
    maker = f"graphopt {graphopt.__version__}"
    for name in ("image.h", "example.c", "model.py"):
        require("SPDX-License-Identifier" in (folder / name).read_text().splitlines()[0], name)
    require(maker in (folder / "image.h").read_text(), "the header has no version")
    require(json.loads((folder / "manifest.json").read_text())["producer"] == maker, "the manifest has no version")
    return level("SPDX in each text; version in header and manifest, and a hash of every file")


ROWS = (
    Row(29, "compile to C", "TVM --output-format mlf, IREE", to_c),
    Row(30, "name of a bundle", "TVM --module-name", named),
    Row(31, "cross compilation", "IREE --iree-llvmcpu-target-triple", cross),
    Row(33, "size of a bundle", "TFLite: that of the weights", sizes),
    Row(34, "refusal at run time", "glibc: a crash", refusal),
    Row(35, "threads that misuse a model", "ONNX Runtime's sessions are safe", threads),
    Row(38, "operators without a kernel", "ONNX Runtime partitions, TFLite has flex", partial),
    Row(39, "control of the tolerance", "Polygraphy --atol --rtol", tolerance),
    Row(40, "a run on random inputs", "trtexec, benchmark_model", random_run),
    Row(48, "licence and version in generated files", "TVM, protobuf", licence),
)

"""Rows of the command line: what it takes, prints and refuses."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import onnx

import graphopt
from bench.newcomer.place import ROOT, Place
from bench.newcomer.row import Row, Seen, better, level, require

NARROW = 40  # columns
PATIENCE = 60.0  # seconds for a command to say what it does


def one_line(place: Place) -> Seen:
    """Two files are enough."""
    done = place.graphopt("layers.onnx", "one.onnx")
    require(done.status == 0 and (place / "one.onnx").exists(), done.err)
    return level("graphopt layers.onnx one.onnx")


def dry_run(place: Place) -> Seen:
    """One file: a table of what would change, and nothing is written."""
    before = set(os.listdir(place.folder))
    done = place.graphopt("layers.onnx")
    require(done.status == 0 and "nodes" in done.out and "nothing was written" in done.out, done.err)
    require(set(os.listdir(place.folder)) == before, "something was written")
    return better("graphopt MODEL: before and after, checked; onnxslim --inspect shows the model as it is")


def version(place: Place) -> Seen:
    """--version and -V print it."""
    for option in ("--version", "-V"):
        require(graphopt.__version__ in place.graphopt(option).out, option)
    return level("--version, -V")


def shapes(place: Place) -> Seen:
    """Both spellings of a shape."""
    for number, text in enumerate(("x=2x64", "x:2,64")):
        done = place.graphopt("layers.onnx", f"shape{number}.onnx", "--shape", text)
        require(done.status == 0, done.err)
        dims = onnx.load(place / f"shape{number}.onnx").graph.input[0].type.tensor_type.shape.dim
        require([dim.dim_value for dim in dims] == [2, 64], text)
    return better("x=2x64 and x:2,64")


def table(place: Place) -> Seen:
    """Operators, bytes and parameters before, after, and what changed."""
    said = place.graphopt("layers.onnx").out
    for words in (r"before +after +change", r"nodes +5 +3", r"Identity +1 +0 +-1", r"bytes", r"parameters"):
        require(re.search(words, said), f"'{words}' is not in the table")
    return better("the counts that changed with the change; onnxslim's has no column for it")


def signature(place: Place) -> Seen:
    """Inputs and outputs with their shapes, changed or not."""
    said = place.graphopt("layers.onnx").out
    require("x: float[batch, 64]" in said and "y: float[batch, 64]" in said, said)
    return level("input x: float[batch, 64]")


def costs(place: Place) -> Seen:
    """Flops and bytes moved, by operator."""
    said = place.graphopt("inspect", "image.onnx").out
    require(re.search(r"operator +nodes +flops +share +bytes moved", said) and "Conv" in said, said)
    return level("inspect: flops and bytes moved for each operator")


def pipes(place: Place) -> Seen:
    """A model through stdin and stdout, the table on stderr."""
    words = [sys.executable, "-W", "ignore", "-m", "graphopt", "-", "-"]
    there = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, input=(place / "layers.onnx").read_bytes(), capture_output=True, check=False, env=there
    )
    require(done.returncode == 0 and len(onnx.load_from_string(done.stdout).graph.node) == 3, done.stderr)
    return level("graphopt - - < layers.onnx")


def interrupt(place: Place) -> Seen:
    """Ctrl-C: one line, status 130, an object with --json."""
    done = place.python(
        "import signal, sys, graphopt; from graphopt.cli import run_line;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "graphopt.optimize = lambda *_, **__: signal.raise_signal(signal.SIGINT);"
        "sys.exit(run_line(['layers.onnx', 'c.onnx', '--json']))"
    )
    require(done.status == 130 and done.err == "error: interrupted; nothing was written.\n", done.err)
    require("error" in done.json, done.out)
    return better("one line on stderr, one object on stdout; uv and ruff have the line")


def progress(place: Place) -> Seen:
    """On a terminal: the phase and the seconds, in a moving line."""
    code = (
        "import time, graphopt; from graphopt.cli import run_line; real = graphopt.optimize\n"
        "def slow(*words, progress, **options):\n"
        "    progress('checking'); time.sleep(1.5); return real(*words, **options)\n"
        "graphopt.optimize = slow; run_line(['layers.onnx'])"
    )
    parent, child = pty.openpty()
    there = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=place.folder, env=there, stderr=child, stdout=child)
    os.close(child)
    said, ends = b"", time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < ends:
        if select.select([parent], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # the other end is closed
                said += os.read(parent, 65536)
    process.wait()
    os.close(parent)
    require(re.search(rb"optimizing layers.onnx: checking, 1 s", said), said)
    return level("what is done and for how long; rich's bars say so too")


def plain_terminals(place: Place) -> Seen:
    """No colour where it is not wanted, ASCII where nothing else can be written, tables in 40 columns."""
    narrow = place.graphopt("layers.onnx", COLUMNS=str(NARROW)).out
    table = narrow.partition("\n\n")[2].partition("\n\n")[0].splitlines()
    require(table and max(map(len, table)) <= NARROW, narrow)
    ascii_only = place.graphopt("layers.onnx", PYTHONIOENCODING="ascii", LC_ALL="C")
    require(ascii_only.status == 0 and ascii_only.out.isascii(), ascii_only.out)
    require("\x1b" not in narrow, "colours in a pipe")
    return level(f"tables in {NARROW} columns, ASCII and pipes without colour")


def suggestions(place: Place) -> Seen:
    """A name that does not exist gets the nearest: commands, options, rules, inputs, dims, devices."""
    for words, wanted in (
        ("optimise layers.onnx", "'optimize'"),
        ("optimize layers.onnx --levle 1", "--level"),
        ("explain layers.onnx --rule identiti", "'identity'"),
        ("layers.onnx --shape xx=1x64", "'x'"),
        ("layers.onnx --dim bacth=1", "'batch'"),
        ("schedule layers.onnx --device h20", "h200"),
    ):
        done = place.graphopt(*words.split())
        require(done.status != 0 and wanted in done.err, f"{words}: {done.err}")
    return better("commands, options, rules, inputs, dims, devices; git suggests commands")


def objects(place: Place) -> Seen:
    """--json is a flag of every command that reads a model, and prints one object with a schema."""
    folder = "json-bundle"
    for words in (
        "optimize image.onnx", "inspect image.onnx", "diff chain.onnx other.onnx", "verify chain.onnx chain.onnx",
        "explain image.onnx --rule identity", "memory image.onnx --levers none", f"compile image.onnx {folder}",
        "schedule image.onnx --device cpu:2 --work 1000", f"run {folder} --random", "optimize absent.onnx",
    ):  # fmt: skip
        done = place.graphopt(*words.split(), "--json")
        require(done.json["schema"].startswith("graphopt."), words)
    return level("one flag, one object, a schema with its version, for errors too")


def completion(place: Place) -> Seen:
    """Completion for bash, zsh and fish."""
    for shell in ("bash", "zsh", "fish"):
        require("_GRAPHOPT_COMPLETE" in place.graphopt("completion", shell).out, shell)
    return level("graphopt completion bash, zsh, fish")


def notes(place: Place) -> Seen:
    """--report FILE.html: every rewrite drawn before and after, and why others did not fire; FILE.json beside it."""
    for ending in ("html", "json"):
        done = place.graphopt("layers.onnx", "n.onnx", "--report", f"r.{ending}")
        require(done.status == 0, done.err)
    page, record = (place / "r.html").read_text(), json.loads((place / "r.json").read_text())
    require(page.count("<svg") >= len(record["rewrites"]) > 0, "a rewrite is not drawn")
    require("http://" not in page.replace("http://www.w3.org", "") or "src=" not in page, "it asks for other files")
    return better(f"{len(record['rewrites'])} rewrites drawn; no other optimizer has such a page")


ROWS = (
    Row(1, "one-line use", "onnxslim a b, onnxsim a b", one_line),
    Row(2, "dry run", "onnxslim --inspect", dry_run),
    Row(6, "version", "--version everywhere", version),
    Row(9, "shape option", "onnxslim, onnxsim: x:1,3,224,224", shapes),
    Row(10, "table of before and after", "onnxslim", table),
    Row(11, "shapes of inputs and outputs are shown", "onnxslim", signature),
    Row(12, "flops and bytes moved", "onnxsim prints them", costs),
    Row(18, "stdin and stdout", "trtexec, jq", pipes),
    Row(19, "Ctrl-C", "uv, ruff: one line", interrupt),
    Row(20, "progress", "rich: phase and time", progress),
    Row(21, "no colour, ASCII, narrow", "rich", plain_terminals),
    Row(22, "help with typos", "git", suggestions),
    Row(23, "JSON", "an object with a schema", objects),
    Row(24, "page of rewrites", "none has one", notes),
    Row(52, "shell completion", "typer gives it", completion),
)

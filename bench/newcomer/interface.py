"""Rows of the Python interface, of what is installed, and of what a contributor finds."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime

import graphopt
from bench.newcomer.place import PROJECT, ROOT, Place
from bench.newcomer.row import Row, Seen, Worse, better, level, require

SHORT = 120  # characters of a repr
THREADS = 4


def notebook(place: Place) -> Seen:
    """The repr of a result is a line; a notebook shows a table; the page is one call away."""
    report = graphopt.memory(place / "image.onnx", levers=())
    for shown in (graphopt.optimize(place / "layers.onnx"), report, graphopt.compile(place / "image.onnx")):
        require(len(repr(shown)) < SHORT and "\n" not in repr(shown), repr(shown))
    require(report._repr_html_().startswith("<table>") and report.html().startswith("<!"), "no table, no page")
    return level("<OptimizeResult 5 -> 3 nodes, verified>; a table in notebooks; write('page.html')")


def drop_in(place: Place) -> Seen:
    """simplify takes every option of the installed onnxsim at its default, slim those of onnxslim."""
    if importlib.util.find_spec("onnxsim") is None or importlib.util.find_spec("onnxslim") is None:
        raise Worse("onnxsim or onnxslim is not installed; run it in the environment of make bars")
    taken = 0
    for name, parameter in inspect.signature(importlib.import_module("onnxsim").simplify).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            _, passed = graphopt.simplify(place / "layers.onnx", **{name: parameter.default})
            require(passed, name)
            taken += 1
    _, passed = graphopt.simplify(place / "layers.onnx", 3, overwrite_input_shapes={"x": [2, 64]})
    slimmed = graphopt.slim(str(place / "layers.onnx"), str(place / "slim.onnx"), input_shapes=["x:2,64"])
    require(passed and slimmed is None and (place / "slim.onnx").exists(), "slim wrote nothing")
    return level(f"simplify with onnxsim's {taken} options, slim(path, out)")


def session_like(place: Place) -> Seen:
    """A program and a result have what code for ONNX Runtime's sessions asks for."""
    program = graphopt.compile(place / "image.onnx")
    x = np.ones((1, 16, 16, 16), np.float32)
    for ours in (program, graphopt.optimize(place / "image.onnx").session()):
        require([one.name for one in ours.get_inputs()] == ["x"], "get_inputs")
        require([one.name for one in ours.get_outputs()] == ["y"], "get_outputs")
        require(ours.run(None, {"x": x})[0].shape == (1, 16, 16, 16), "run")
    return level("get_inputs, get_outputs, run; session() of a result")


def as_bytes(place: Place) -> Seen:
    """to_bytes of a model with external data runs anywhere; bytes and open files are taken."""
    onnx.save(onnx.load(place / "layers.onnx"), place / "pair.onnx", save_as_external_data=True, location="pair.data")
    data = graphopt.optimize(place / "pair.onnx").to_bytes()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    require(session.run(None, {"x": np.ones((1, 64), np.float32)})[0].shape == (1, 64), "it does not run")
    require(graphopt.optimize(io.BytesIO(data)).verification.passed and graphopt.optimize(data).verification.passed, "")
    return level("to_bytes() holds external data; SerializeToString does not")


def exceptions(place: Place) -> Seen:
    """Every refusal is one exported tree, foreign libraries' refusals too."""
    names = [name for name in graphopt.__all__ if name.endswith(("Error", "Kept", "Lowered", "Extra"))]
    require(all(issubclass(getattr(graphopt, name), graphopt.GraphoptError) for name in names), names)
    image = place / "image.onnx"
    for wrong in (
        lambda: graphopt.compile(image, target="arm"),  # type: ignore[arg-type]
        lambda: graphopt.schedule(image, device="a100"),
        lambda: graphopt.memory(image, budget=16),
        lambda: graphopt.optimize(b"no model"),
        lambda: graphopt.run(image),
    ):
        try:
            wrong()
        except graphopt.GraphoptError:
            continue
        raise Worse("something was not refused")
    return level(f"{len(names)} exported classes below GraphoptError, each with a sentence")


def parallel(place: Place) -> Seen:
    """Threads that optimize at once get the same bytes."""
    with ThreadPoolExecutor(THREADS) as pool:
        found = set(pool.map(lambda _: graphopt.optimize(place / "layers.onnx").to_bytes(), range(3 * THREADS)))
    require(len(found) == 1, f"{len(found)} different results")
    return level(f"{THREADS} threads, {3 * THREADS} runs, the same bytes")


def same_bytes(place: Place) -> Seen:
    """Two processes write the same model and the same bundle."""
    for turn in "ab":
        require(place.graphopt("layers.onnx", f"same-{turn}.onnx").status == 0, "optimize")
        require(place.graphopt("compile", "image.onnx", f"same-{turn}").status == 0, "compile")
    require((place / "same-a.onnx").read_bytes() == (place / "same-b.onnx").read_bytes(), "the models differ")
    for file in sorted((place / "same-a").iterdir()):
        require(file.read_bytes() == (place / "same-b" / file.name).read_bytes(), f"{file.name} differs")
    return better("models and bundles, byte for byte; no anchor promises it")


def wheel(place: Place) -> Seen:
    """The metadata have an author, a licence, keywords, and the address of the project."""
    require(all(PROJECT.get(name) for name in ("authors", "license", "keywords", "classifiers", "readme")), PROJECT)
    require(PROJECT.get("urls"), "author, licence, keywords, but no URL: the project has no public address")
    return level("author, licence, keywords, URLs")


def import_names(place: Place) -> Seen:
    """One import name, which no other project has."""
    done = place.python("import graphopt; graphopt.load; import kernels, memplan, scheduler")
    names = [name for name in ("kernels", "memplan", "scheduler") if importlib.util.find_spec(name) is not None]
    require(done.status == 0, done.err)
    require(not names, f"{', '.join(names)} are top-level names, two of which others have; a clash is refused by name")
    return level("one name")


def contributing(place: Place) -> Seen:
    """A page that leads to a first rule, and says how a fault is reported."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for head in ("## Write a rule in ten minutes", "## Report a fault", "## Add an operator", "make test"):
        require(head in text, head)
    return level("CONTRIBUTING.md: a rule in ten minutes, an operator, a lever, a report of a fault")


def site(place: Place) -> Seen:
    """A site of all pages, by task, with a search that finds what is on them."""
    named = re.findall(r"^  - [^:]+: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    require("README.md" in named and "docs/examples/README.md" in named, named)
    if importlib.util.find_spec("mkdocs") is None:
        return level(f"make site: {len(named)} pages with a search; mkdocs is not installed here, so it was not made")
    source = place / "source"
    for name in named:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    words = (ROOT / "mkdocs.yml").read_text().replace("build/site/source", "source").replace("build/site/", "")
    (place / "mkdocs.yml").write_text(words)
    done = place.run(sys.executable, "-m", "mkdocs", "build")
    require(done.status == 0, done.err)
    found = json.loads((place / "pages" / "search" / "search_index.json").read_text())["docs"]
    require(any("Winograd" in one["text"] for one in found), "the search does not find a word")
    return level(f"make site: {len(named)} pages, {len(found)} sections in the search")


ROWS = (
    Row(41, "repr in a notebook", "pandas, rich", notebook),
    Row(42, "drop-in functions", "onnxslim.slim(path, out), onnxsim.simplify", drop_in),
    Row(43, "objects like a session", "ONNX Runtime's get_inputs", session_like),
    Row(44, "a model as bytes", "SerializeToString", as_bytes),
    Row(45, "exceptions", "httpx: one tree", exceptions),
    Row(46, "threads", "ONNX Runtime", parallel),
    Row(47, "the same output every time", "nobody promises it", same_bytes),
    Row(49, "metadata of the wheel", "URLs, author", wheel),
    Row(50, "import names", "one package", import_names),
    Row(51, "a guide for contributors", "onnxscript, attrs", contributing),
    Row(53, "documentation site", "mkdocs: pages with a search", site),
)

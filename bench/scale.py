"""Bar 6: time on long chains, memory on a model with 2.4 GB of external weights, and equal bytes for equal input."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.bar import ISSUE, Bar, Sheet
from bench.judge import judge
from bench.peers import OURS, run, warm_up
from bench.script import main
from bench.survey import BUILD
from bench.workers import Reply, Worker
from bench.zoo import model_file

CHAINS = (1_000, 4_000, 16_000)  # nodes
MOST_SECONDS = 5.0  # for the longest chain, loading and saving included
MOST_GROWTH = 1.5  # seconds per node of the longest chain over those of the next: linear, with room for caches
BLOCK = ("MatMul", "Add", "Identity", "Tanh")
WIDTH = 16  # of the chains' matrices

LAYERS = 8
SIDE = 8660  # of a square fp32 matrix of 300 MB
QUICK_SIDE = 2738  # of 30 MB
MOST_ANONYMOUS = 0.5e9  # bytes
SAMPLE_EVERY = 0.005  # seconds

REPEATED = ("gru_op", "mobilenet_v2_legacy", "loop_if_script", "light_shufflenet")
LIMIT = 900.0  # seconds for one optimization


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Time on long chains, anonymous memory on 2.4 GB of weights, equal bytes for equal input."""
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scale-", dir=BUILD))
    try:
        return [
            _chains(sheet, folder, optimizer),
            *_memory(sheet, folder, QUICK_SIDE if quick else SIDE, optimizer),
            _same_bytes(sheet, folder, optimizer),
        ]
    finally:
        shutil.rmtree(folder)


def optimize(name: str, source: str, output: str, verify: bool) -> None:
    """Inside a worker: one optimization, ours with or without verification."""
    if name != OURS:
        run(name, source, output)
        return
    import graphopt

    graphopt.optimize(source, verify=verify).save(output)


def chain(nodes: int) -> onnx.ModelProto:
    """(MatMul, Add, Identity, Tanh) repeated to `nodes` nodes, with a dynamic first dim."""
    rng = np.random.default_rng(nodes)
    weight = numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4, "weight")
    bias = numpy_helper.from_array(rng.standard_normal(WIDTH).astype(np.float32), "bias")
    second = {"MatMul": ["weight"], "Add": ["bias"]}
    made = []
    for position in range(nodes):
        kind = BLOCK[position % len(BLOCK)]
        made.append(
            helper.make_node(kind, [f"v{position}", *second.get(kind, [])], [f"v{position + 1}"], f"n{position}")
        )
    graph = helper.make_graph(
        made,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(f"v{nodes}", TensorProto.FLOAT, ["batch", WIDTH])],
        [weight, bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_large_model(path: Path, side: int) -> None:
    """A chain of MatMul and Gemm on square weights in one external file, written layer by layer."""
    values = np.random.default_rng(0).standard_normal(side).astype(np.float32) / np.float32(side)
    weights, made = [], []
    with (path.parent / "weights.bin").open("wb") as file:
        for layer in range(LAYERS):
            # Rows are the same numbers turned, so that 300 MB cost one row of random numbers.
            for row in range(side):
                np.roll(values, row + layer).tofile(file)
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            size = 4 * side * side
            place = {"location": "weights.bin", "offset": str(layer * size), "length": str(size)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
            weights.append(tensor)
            kind = "Gemm" if layer % 2 else "MatMul"
            made.append(helper.make_node(kind, [f"v{layer}", f"w{layer}"], [f"v{layer + 1}"], f"layer{layer}"))
    graph = helper.make_graph(
        made,
        "large",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1, side])],
        [helper.make_tensor_value_info(f"v{LAYERS}", TensorProto.FLOAT, [1, side])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _chains(sheet: Sheet, folder: Path, optimizer: str) -> Bar:
    rows: list[tuple[int, float, float]] = []
    text = "chains: seconds per node, longest over next; longest"
    target = f"<= {MOST_GROWTH}; < {MOST_SECONDS:.0f} s"
    with Worker() as worker:
        warm_up(worker, optimizer)
        for nodes in CHAINS:
            source = folder / "chain.onnx"
            onnx.save(chain(nodes), source)
            seconds = []
            for _ in range(2):  # the quicker of two: the machine is not ours alone
                reply = _optimized(worker, optimizer, source, folder / "chain.out.onnx", verify=False)
                if reply.kind != "value":
                    return Bar(ISSUE, 6, text, target, f"{nodes} nodes: {reply.kind}: {reply.text}", False)
                seconds.append(reply.seconds)
            rows.append((nodes, min(seconds), 1e6 * min(seconds) / nodes))
    sheet.table("chains", ("nodes", "seconds", "microseconds per node"), rows)
    growth = rows[-1][2] / rows[-2][2]
    times = ", ".join(f"{row[1]:.2f} s" for row in rows)
    return Bar(ISSUE, 6, text, target, f"{growth:.2f} ({times})", growth <= MOST_GROWTH and rows[-1][1] < MOST_SECONDS)


def _memory(sheet: Sheet, folder: Path, side: int, optimizer: str) -> Iterator[Bar]:
    source = folder / "large" / "model.onnx"
    source.parent.mkdir()
    write_large_model(source, side)
    total = 4 * LAYERS * side * side / 1e9
    rows = []
    for verify in (False, True):
        # Each in its own process, without a limit of address space: mapped files count towards that one.
        output = folder / "large-out" / "model.onnx"
        output.parent.mkdir()
        with Worker(memory_limit=None) as worker:
            warm_up(worker, optimizer)
            with _peak_anonymous(worker.pid()) as peak:
                reply = _optimized(worker, optimizer, source, output, verify=verify)
        figure = peak[0] / 1e9
        outcome = _outcome(reply, source, output)
        shutil.rmtree(output.parent)
        rows.append((verify, figure, reply.seconds, outcome))
        text = f"{total:.1f} GB of weights: anonymous memory, {'verified' if verify else 'not verified'}"
        yield Bar(
            ISSUE, 6, text, f"< {MOST_ANONYMOUS / 1e9} GB",
            f"{figure:.2f} GB ({reply.seconds:.1f} s)" if outcome == "ok" else outcome,
            outcome == "ok" and peak[0] < MOST_ANONYMOUS,
        )  # fmt: skip
    shutil.rmtree(source.parent)
    sheet.table("large model", ("verified", "GB anonymous", "seconds", "outcome"), rows)


def _outcome(reply: Reply, source: Path, output: Path) -> str:
    """Whether a right model was written, weights included: one that only points at the input's is no output."""
    if reply.kind != "value":
        return f"{reply.kind}: {reply.text}"[:200]
    with Worker(memory_limit=None) as judging:
        judgement = judge(judging, source, output)
    return "ok" if judgement.verdict == "ok" else f"{judgement.verdict}: {judgement.detail}"[:200]


def _same_bytes(sheet: Sheet, folder: Path, optimizer: str) -> Bar:
    rows = []
    for name in REPEATED:
        outputs = []
        for attempt in range(2):  # two processes, hence two seeds of Python's hashes
            output = folder / f"same-{attempt}.onnx"
            with Worker() as worker:
                _optimized(worker, optimizer, model_file(name), output, verify=False)
            outputs.append(output.read_bytes() if output.exists() else None)
            output.unlink(missing_ok=True)
        rows.append((name, outputs[0] is not None and outputs[0] == outputs[1]))
    sheet.table("the same input twice", ("model", "same bytes"), rows)
    same = sum(row[1] for row in rows)
    return Bar(ISSUE, 6, "the same input gives the same bytes", f"{len(rows)}", f"{same}", same == len(rows))


def _optimized(worker: Worker, name: str, source: Path, output: Path, *, verify: bool) -> Reply:
    return worker.call("bench.scale:optimize", name, str(source), str(output), verify, limit=LIMIT)


@contextmanager
def _peak_anonymous(process: int) -> Iterator[list[int]]:
    """Samples the anonymous resident memory of a process from outside; the largest in bytes, as one element."""
    peak, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_EVERY):
            peak[0] = max(peak[0], _anonymous(process))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


if __name__ == "__main__":
    main(measure)

"""Bar 3 of the kernels, attention: beside ONNX Runtime's unfused graph and beside its fused operators, float32.

Twelve heads of 64, batch 1, queries, keys and values as the projections leave them ([1, length, 768]), so that the
unfused graph has its reshapes and transposes, and the fused operators their own. Short lengths run as several nodes in
one graph, as the layers of a model do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, Ratio, model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from kernels.run import Calls, Executable, aligned
from kernels.target import Target, host
from kernels.templates.attention.build import ATTENTION, build
from kernels.templates.attention.problem import Attention, AttentionCandidate, Strides

ISSUE = 4
HEADS, SIZE = 12, 64
WIDTH = HEADS * SIZE
LENGTHS = (1, 2, 5, 8, 16, 17, 33, 64, 77, 128, 197, 256, 257, 384, 511, 512, 1024, 1025, 2048)
QUICK_LENGTHS = (1, 17, 77, 128, 512)
ROUNDS, QUICK_ROUNDS = 11, 5
UNFUSED, FUSED = 1.25, 0.97


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, ONNX Runtime over ours, one thread, float32 on both sides."""
    pin()
    rows, missed = [], []
    for length in QUICK_LENGTHS if quick else LENGTHS:
        found, error = compare(length, host(), QUICK_ROUNDS if quick else ROUNDS)
        fused = min(found["MultiHeadAttention"], found["Attention"], key=lambda one: one.median)
        if found["unfused"].high < UNFUSED or fused.high < FUSED:
            missed.append(str(length))
        cells = [cell for one in found.values() for cell in (one.median, one.low, one.high)]
        rows.append((length, *cells, f"{error:.1e}"))
    columns = [text for name in ("unfused", "MHA", "Attention-23") for text in (name, "from", "to")]
    sheet.table(
        f"attention, {HEADS} heads of {SIZE}, one thread, ONNX Runtime / ours",
        ("length", *_distinct(columns), "max error"), rows,
    )  # fmt: skip
    figure = f"{len(rows) - len(missed)} of {len(rows)} lengths" + (f" (not: {', '.join(missed)})" if missed else "")
    return [Bar(ISSUE, 3, "attention", f"unfused {UNFUSED}, fused {FUSED}", figure, not missed)]


def _distinct(names: list[str]) -> list[str]:
    """Column titles, each once: spaces tell equal ones apart."""
    found: list[str] = []
    for name in names:
        while name in found:
            name += " "
        found.append(name)
    return found


def compare(
    length: int, target: Target, rounds: int, chosen: AttentionCandidate | None = None
) -> tuple[dict[str, Ratio], float]:
    """The ratios by peer, and the largest difference from the unfused graph's result."""
    generator = np.random.default_rng(0)
    copies = int(np.clip(2000 // length, 1, 16))
    # Every node has inputs of its own: equal nodes would be merged into one.
    names = [f"{name}{copy}" for copy in range(copies) for name in ("q", "k", "v")]
    feeds = {name: generator.standard_normal((1, length, WIDTH)).astype(np.float32) for name in names}
    peers = {
        "unfused": Peer(_unfused(feeds, copies), feeds),
        "MultiHeadAttention": Peer(_fused(feeds, copies, "MultiHeadAttention"), feeds),
        "Attention": Peer(_fused(feeds, copies, "Attention"), feeds),
    }
    ours, output = prepare(length, feeds, target, copies, chosen)
    ours()
    error = float(np.abs(output.reshape(1, length, WIDTH) - peers["unfused"].outputs[0]).max())
    taken = readings({**peers, "ours": ours}, rounds)
    return {name: ratio(taken[name], taken["ours"]) for name in peers}, error


def prepare(
    length: int, feeds: dict[str, np.ndarray], target: Target, copies: int, chosen: AttentionCandidate | None = None
) -> tuple[Calls, np.ndarray]:
    """Our runs and what the first one writes."""
    place = Strides(length * WIDTH, SIZE, WIDTH)
    problem = Attention(1, HEADS, length, length, SIZE, q=place, k=place, v=place, output=place)
    kernel = build(problem, chosen, target) if chosen else ATTENTION.kernel(problem, target)
    runs = []
    for copy in range(copies):
        arrays = {"output": aligned(length * WIDTH)}
        for name in ("q", "k", "v"):
            arrays[name] = aligned(length * WIDTH)
            arrays[name][:] = feeds[f"{name}{copy}"].reshape(-1)
        runs.append((kernel, arrays))
    return Executable([kernel]).calls(runs), runs[0][1]["output"]


def _unfused(feeds: dict[str, np.ndarray], copies: int) -> bytes:
    make, nodes, outputs = helper.make_node, [], []
    for n in range(copies):
        for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            nodes.append(make("Reshape", [f"{name}{n}", "split"], [f"{name}r{n}"]))
            nodes.append(make("Transpose", [f"{name}r{n}"], [f"{name}t{n}"], perm=order))
        nodes += [
            make("MatMul", [f"qt{n}", f"kt{n}"], [f"s{n}"]),
            make("Mul", [f"s{n}", "scale"], [f"m{n}"]),
            make("Softmax", [f"m{n}"], [f"p{n}"], axis=-1),
            make("MatMul", [f"p{n}", f"vt{n}"], [f"o{n}"]),
            make("Transpose", [f"o{n}"], [f"ot{n}"], perm=[0, 2, 1, 3]),
            make("Reshape", [f"ot{n}", "join"], [f"y{n}"]),
        ]
        outputs.append(f"y{n}")
    constants: dict[str, np.ndarray] = {
        "split": np.array([1, -1, HEADS, SIZE], np.int64),
        "join": np.array([1, -1, WIDTH], np.int64),
        "scale": np.array(SIZE**-0.5, np.float32),
    }
    return model(nodes, feeds, outputs, constants)


def _fused(feeds: dict[str, np.ndarray], copies: int, operator: str) -> bytes:
    nodes: list[onnx.NodeProto] = []
    for n in range(copies):
        given = [f"q{n}", f"k{n}", f"v{n}"]
        if operator == "Attention":
            node = helper.make_node("Attention", given, [f"y{n}"], q_num_heads=HEADS, kv_num_heads=HEADS)
        else:
            node = helper.make_node(operator, given, [f"y{n}"], domain="com.microsoft", num_heads=HEADS)
        nodes.append(node)
    return model(nodes, feeds, [f"y{n}" for n in range(copies)], opset=23)


if __name__ == "__main__":
    main(measure)

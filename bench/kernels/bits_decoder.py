"""Bar 4 of low precision: a token of a decoder like llama with weights of four bits, beside ONNX Runtime.

The decoder of `bench.ram` (2 GB in float32, one token behind 63 others) is quantized by ONNX Runtime's own tool:
MatMulNBits in blocks of 32 with zero points. Both sides run the same file on one thread by turns, inputs bound. The
bar is float32 products on both sides; ONNX Runtime's way that rounds activations to bytes (accuracy level 4) is a row
beside it, as its results are others: both errors are shares of the largest logit, from the file run in ONNX Runtime
without optimizations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, pin, ratio, readings, unpin
from bench.peers import OURS
from bench.ram.networks import LLAMA, PLACE, given
from bench.script import main

ISSUE, NUMBER = 25, 4
LEAST = 1.2
BLOCK = 32
LEVELS: Mapping[str, int] = {"float32 activations": 0, "activations in bytes": 4}  # accuracy levels of MatMulNBits
ROUNDS, QUICK_ROUNDS = 25, 7


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each of ONNX Runtime's ways to multiply."""
    feed = given(LLAMA).feed
    unpin()
    file = _quantized(LEVELS["float32 activations"])
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.graph_optimization_level = 1, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    (right,) = plain.run(["logits"], dict(feed))
    del plain
    program = graphopt.compile(file, threads=1, machine=graphopt.machine())
    (logits,) = program.run(["logits"], feed)
    pin()
    rows, bar = [], None
    for way, level in LEVELS.items():
        peer = Peer(str(_quantized(level)), feed)
        taken = readings({"ours": program.program.bind(feed), "peer": peer}, QUICK_ROUNDS if quick else ROUNDS)
        found = ratio(taken["peer"], taken["ours"])
        errors = [_error(one, right) for one in (logits, peer.outputs[0])]
        rows.append((way, 1e3 * float(np.median(taken["ours"])), found.median, found.low, found.high, *errors))
        bar = bar or Bar(
            ISSUE, NUMBER, "a decoder with weights of four bits, a token", f">= {LEAST} x ONNX Runtime",
            f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})", found.high >= LEAST,
        )  # fmt: skip
    titles = ("ONNX Runtime's products", "ours, ms", "ONNX Runtime / ours", "from", "to", "our error", "its error")
    sheet.table("a token of a decoder with weights of four bits, one thread", titles, rows)
    return [bar] if bar else []


def _error(found: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> float:
    """The largest difference as a share of the largest logit."""
    return float(np.abs(found - right).max() / np.abs(right).max())


def _quantized(level: int) -> Path:
    """The decoder's file with weights of four bits, made where it is not there."""
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    folder = PLACE / "models" / f"{LLAMA}_int4_level{level}"
    file = folder / f"{folder.name}.onnx"
    if not file.exists():
        logging.getLogger(tool.__name__).setLevel(logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        config = tool.DefaultWeightOnlyQuantConfig(
            block_size=BLOCK, is_symmetric=False, bits=4, accuracy_level=level or None
        )
        quantizer = tool.MatMulNBitsQuantizer(onnx.load(given(LLAMA).file), algo_config=config)
        quantizer.process()
        onnx.save(
            quantizer.model.model, file, save_as_external_data=True, all_tensors_to_one_file=True,
            location=f"{file.name}.data",
        )  # fmt: skip
    return file


if __name__ == "__main__":
    main(measure)

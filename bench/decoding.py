"""Decoding: a token after the other with keys and values in place, beside ONNX Runtime with its caches bound.

Both sides decode greedily from one token on, by turns, on one thread. ONNX Runtime's caches are OrtValues that are
bound as inputs and handed on from step to step, so that nothing leaves it; it concatenates them in every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import pin, ratio
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file

ISSUE, NUMBER = 21, 2
NAMES = ("llama_small_kv_dyn", "gpt2_kv_dyn")
TOKENS, QUICK_TOKENS = 256, 32
LEAST = 1.2
FIRST = 7  # the token that both begin with
Step = Callable[[int, int], tuple[int, float]]  # the token and how many came before -> the next token, seconds


class _Sides:
    """The steps of both sides for one model, whose caches grow with one dim and whose mask with another."""

    def __init__(self, name: str, most: int) -> None:
        file = str(model_file(name))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        given = self.session.get_inputs()
        self.pasts = [one.name for one in given if one.name.startswith("past")]
        self.outputs = [one.name for one in self.session.get_outputs()]
        (past,) = {one.shape[2] for one in given if one.name == self.pasts[0]}
        (mask,) = {one.shape[1] for one in given if one.name == "attention_mask"}
        self.program = graphopt.compile(
            file, dims={past: (0, most - 1), mask: f"{past} + 1"}, caches=True, threads=1, machine=graphopt.machine()
        )
        self.ours = {one.name: np.zeros((*one.shape[:2], 0, one.shape[3]), np.float32)
                     for one in given if one.name in self.pasts}  # fmt: skip
        self.theirs = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in self.ours.items()}

    def our_step(self, token: int, before: int) -> tuple[int, float]:
        feeds = self._numbers(token, before) | self.ours
        started = time.perf_counter()
        made = self.program(**feeds)
        taken = time.perf_counter() - started
        self.ours = {name: made[name.replace("past", "present")] for name in self.pasts}
        return int(made["logits"][0, -1].argmax()), taken

    def their_step(self, token: int, before: int) -> tuple[int, float]:
        binding = self.session.io_binding()
        for name, array in self._numbers(token, before).items():
            binding.bind_cpu_input(name, array)
        for name, value in self.theirs.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name)
        started = time.perf_counter()
        self.session.run_with_iobinding(binding)
        taken = time.perf_counter() - started
        made = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        self.theirs = {name: made[name.replace("past", "present")] for name in self.pasts}
        return int(made["logits"].numpy()[0, -1].argmax()), taken

    def _numbers(self, token: int, before: int) -> dict[str, np.ndarray]:
        return {"input_ids": np.array([[token]]), "attention_mask": np.ones((1, before + 1), np.int64)}


def _decoded(sides: _Sides, count: int) -> Iterator[tuple[int, int, float, float]]:
    """Tokens and seconds of both sides, step by step."""
    mine = other = FIRST
    for before in range(count):
        (mine, ours), (other, theirs) = sides.our_step(mine, before), sides.their_step(other, before)
        yield mine, other, ours, theirs


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model."""
    rows, slow, unequal = [], [], []
    count = QUICK_TOKENS if quick else TOKENS
    for name in NAMES:
        sides = _Sides(name, count)
        pin()
        steps = list(_decoded(sides, count))
        found = ratio([one[3] for one in steps], [one[2] for one in steps])
        equal = sum(mine == other for mine, other, _, _ in steps)
        rows.append((name, equal, found.median, found.low, found.high))
        slow += [name] if found.high < LEAST else []
        unequal += [name] if equal < count else []
    sheet.table(
        f"{count} greedy tokens, one thread: ONNX Runtime with caches bound / ours, a token",
        ("model", "tokens equal", "ratio", "from", "to"), rows,
    )  # fmt: skip
    figure = f"slower than that: {', '.join(slow) or 'none'}; other tokens: {', '.join(unequal) or 'none'}"
    wanted = f"all tokens equal, each >= {LEAST}"
    return [Bar(ISSUE, NUMBER, "decoding with caches in place", wanted, figure, not slow and not unequal)]


if __name__ == "__main__":
    main(measure)

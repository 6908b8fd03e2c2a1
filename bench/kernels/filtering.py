"""Bar 11 of the kernels: minimal filtering beside direct ones, for other kernels than 3x3; one thread, float32.

Both are the likely best by estimate, with weights out of the caches. What the estimates say stands beside what is
measured: they choose.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.kernels.cold import measure_candidates
from bench.kernels.timing import pin
from bench.peers import OURS
from bench.script import main
from kernels.target import host
from kernels.templates.convolution import choose, winograd_choice
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.convolution.ways import CONVOLUTION

ISSUE = 4
ROUNDS, QUICK_ROUNDS = 9, 3
NOT_SLOWER = 0.95


def _same(
    channels: int, output: int, size: tuple[int, ...], kernel: tuple[int, ...], dilation: int = 1, stride: int = 1
) -> Convolution:
    """A convolution in blocks of channels whose result has the image's size, but for a stride."""
    rank, pads = len(size), tuple(taps // 2 * dilation for taps in kernel) * 2
    return convolution(
        1, channels, output, size, kernel, strides=(stride,) * rank, dilations=(dilation,) * rank, pads=pads,
        order="NCHWc",
    )  # fmt: skip


PROBLEMS = (
    _same(64, 64, (1024,), (3,)), _same(512, 512, (256,), (3,)), _same(64, 64, (4096,), (3,), 5),
    _same(512, 512, (256,), (5,)), _same(128, 128, (4096,), (7,)), _same(256, 1024, (200,), (9,)),
    _same(64, 64, (4096,), (11,)), _same(64, 64, (4096,), (11,), 5), _same(192, 192, (17, 17), (1, 7)),
    _same(192, 192, (17, 17), (7, 1)), _same(384, 384, (8, 8), (1, 3)), _same(48, 64, (35, 35), (5, 5)),
    _same(64, 64, (28, 28), (7, 7)), _same(64, 64, (56, 56), (3, 5)), _same(128, 128, (32, 32), (2, 2)),
    _same(256, 512, (16, 16), (2, 3)), _same(512, 512, (500,), (2,)), _same(512, 512, (28, 28), (3, 3), 2),
    _same(256, 256, (65, 65), (3, 3), 18), _same(64, 128, (128, 128), (3, 3), 1, 2),
    _same(128, 128, (56, 56), (3, 3), 1, 2), _same(64, 128, (64, 64), (5, 5), 1, 2),
)  # fmt: skip


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Times of the direct kernel over those of the filtered one."""
    pin()
    target, rows, slower, ratios = host(), [], [], []
    for problem in PROBLEMS[::4] if quick else PROBLEMS:
        direct, filtered = (one.candidates(problem, target)[0] for one in (choose, winograd_choice))
        before, after = measure_candidates(
            CONVOLUTION, problem, (direct, filtered), target, rounds=QUICK_ROUNDS if quick else ROUNDS
        )
        estimated = choose.estimate(problem, direct, target) / winograd_choice.estimate(problem, filtered, target)
        name = _name(problem)
        rows.append((name, problem.flops / before / 1e9, str(filtered), before / after, estimated))
        ratios.append(before / after)
        if estimated > 1 and before / after < NOT_SLOWER:
            slower.append(name)
    sheet.table("direct / filtered", ("convolution", "direct, GFLOP/s", "filtered", "measured", "estimated"), rows)
    mean = float(np.exp(np.mean(np.log(ratios))))
    found = f"geometric mean {mean:.2f}, slower: {', '.join(slower) or 'none'}"
    return [Bar(ISSUE, 11, "filtered kernels beside direct ones", "none slower that is chosen", found, not slower)]


def _name(problem: Convolution) -> str:
    rank = 1 if problem.output.size[1] == problem.kernel[1] == 1 else 2
    kernel, size = ("x".join(map(str, one[-rank:])) for one in (problem.kernel, problem.input.size))
    more = f", dilation {problem.dilations[2]}" if problem.dilations[2] > 1 else ""
    more += f", stride {problem.strides[2]}" if problem.strides[2] > 1 else ""
    return f"{kernel} {problem.input.channels}-{problem.output.channels} @ {size}{more}"


if __name__ == "__main__":
    main(measure)

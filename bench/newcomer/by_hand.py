"""Rows that no script can check, judged by hand, each with today's state and the reason."""

from __future__ import annotations

from bench.newcomer.row import Judged

ROWS = (
    Judged(
        32, "code for several processors in one program", "OpenBLAS, oneDNN dispatch", "worse",
        "One level a bundle: x86-64-v3, v4 or v4-256, and a sentence where the processor lacks it.",
        "there is nothing to run: no option asks for two levels",
    ),
    Judged(
        36, "programs on several threads", "ONNX Runtime, TFLite", "level",
        "compile, run, bench and P_create_with take a number of threads; by default a program runs on all cores.",
        "python -m bench.cores measures it; how fast is no matter of yes or no",
    ),
    Judged(
        37, "a dynamic batch in a program", "ONNX Runtime, IREE", "worse",
        "One size of every dim a bundle; --dim batch=8 sets a fixed batch anew, and bundles share no weights.",
        "there is nothing to run: compile asks for every size",
    ),
    Judged(
        54, "Windows and macOS", "onnxslim, onnxsim ship wheels and run there", "worse",
        "One wheel for every system; all that it requires has wheels for Windows and macOS. Nothing was run there.",
        "there is no such machine here",
    ),
)  # fmt: skip

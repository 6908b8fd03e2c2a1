"""MLPerf's LoadGen as the one who asks: https://github.com/mlcommons/inference, the library `mlcommons-loadgen`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import OptionError
from graphopt.program.deploy.serving import Scenario

SUMMARY = "mlperf_log_summary.txt"
WANTED = ("Result is", "50.00 percentile latency", "90.00 percentile latency", "99.00 percentile latency",
          "Samples per second")  # fmt: skip
MILLISECONDS = 3_000  # that a run lasts at least
SAMPLES = 64


def ask_with_loadgen(ask: Callable[[], object], scenario: Scenario, folder: Path) -> str:
    """Let LoadGen time queries, each a call of `ask`; what its summary says, in a line. The logs go into `folder`.

    Raises OptionError where the library is not installed.
    """
    try:
        library: Any = importlib.import_module("mlperf_loadgen")
    except ImportError:
        raise OptionError("mlcommons-loadgen is not installed; pip install mlcommons-loadgen.") from None
    folder.mkdir(parents=True, exist_ok=True)
    settings = library.TestSettings()
    settings.scenario = {"single-stream": library.TestScenario.SingleStream, "offline": library.TestScenario.Offline}[
        scenario
    ]
    settings.mode = library.TestMode.PerformanceOnly
    settings.min_duration_ms = MILLISECONDS
    logs = library.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False

    def issue(samples: Sequence[Any]) -> None:
        for sample in samples:
            ask()
            library.QuerySamplesComplete([library.QuerySampleResponse(sample.id, 0, 0)])

    served = library.ConstructSUT(issue, lambda: None)
    asked = library.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    try:
        library.StartTestWithLogSettings(served, asked, settings, logs)
    finally:
        library.DestroyQSL(asked)
        library.DestroySUT(served)
    return summarized((folder / SUMMARY).read_text())


def summarized(text: str) -> str:
    """The lines of a summary that people look for, in one."""
    found = []
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if any(name.strip().startswith(wanted) for wanted in WANTED):
            found.append(f"{name.strip()}: {value.strip()}")
    return "; ".join(found)

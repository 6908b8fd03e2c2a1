"""Models with data beside them through every flow: the zoo, small models by threshold, and torch's own exports.

Torch is no dependency: without it (`pip install torch==2.13.0 onnxscript`) its rows are not measured.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.script import main
from bench.survey import BUILD
from bench.workers import Worker

ISSUE = 14
OUTSIDE_FROM = 1024  # bytes, onnx's own default
SMALL = ("mlp_tiny", "dscnn_kws", "gru_op", "lstm_bi_op", "loop_if_script", "light_shufflenet")
THRESHOLDS = (0, 4096, 1 << 20)  # bytes
EXPORTS = ("mlp", "convolutions", "attention")
FLOWS = ("optimize", "verify", "in place", "budget", "memory", "schedule", "compile")
BUDGET = 0.75  # of the arena
LIMIT = 900.0  # seconds for one flow; a guard against hanging


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = "") -> list[Bar]:
    """Models with data beside them: optimized, verified, saved in place, planned, scheduled and compiled."""
    BUILD.mkdir(parents=True, exist_ok=True)
    cases = [(name, OUTSIDE_FROM) for name in (SMALL if quick else models.names())]
    cases += [(name, threshold) for name in SMALL for threshold in THRESHOLDS]
    has_torch = importlib.util.find_spec("torch") is not None
    cases += [(f"torch {name}", -1) for name in EXPORTS] if has_torch else []
    rows = []
    for name, threshold in cases:
        with Worker() as worker:
            folder = Path(tempfile.mkdtemp(prefix="external-", dir=BUILD))
            try:
                made = worker.call("bench.external_data:make", name, threshold, str(folder), limit=LIMIT)
                said = [made.text] if made.kind != "value" else []
                for flow in FLOWS if made.kind == "value" else ():
                    reply = worker.call("bench.external_data:flow", flow, name, str(folder), limit=LIMIT)
                    said.append(reply.value if reply.kind == "value" else f"{reply.kind}: {reply.text}")
            finally:
                shutil.rmtree(folder)
            rows.append((name, "torch's" if threshold < 0 else f"{threshold:,}", *said))
            faults = [f"{name}, {flow}: {word}" for flow, word in zip(FLOWS, said, strict=False) if not _right(word)]
            sheet.console.print(*(faults or [f"{name}: right"]), sep="\n")
    sheet.table("models with data beside them", ("model", "outside from", *FLOWS), rows)
    words = [word for row in rows for word in row[2:]]
    failed = sum(not _right(word) for word in words)
    note = "" if has_torch else "; torch's exports not measured: torch is not installed"
    return [Bar(ISSUE, 1, "models with data beside them, every flow", "no failure",
                f"{failed} of {len(words)} fail{note}", failed == 0 if has_torch or failed else None)]  # fmt: skip


def _right(word: str) -> bool:
    return word in ("right", "no plan keeps it", "no kernel")


def make(name: str, threshold: int, folder: str) -> None:
    """Inside a worker: the model and its data file."""
    path = Path(folder) / "model.onnx"
    if name.startswith("torch "):
        _export(name.removeprefix("torch "), path)
    else:
        models.write(name, path, outside_from=threshold)


def flow(what: str, name: str, folder: str) -> str:
    """Inside a worker: one flow on the model; "right", or what is wrong."""
    import graphopt
    from graphopt.errors import BudgetNotKept, GraphoptError, NotLowered

    source, output = Path(folder) / "model.onnx", Path(folder) / "out.onnx"
    dims = {} if name.startswith("torch ") else models.sizes(name)
    try:
        if what == "optimize":
            result = graphopt.optimize(source)
            result.save(output)
            return "right" if result.verification.passed else str(result.verification.reason)
        if what == "verify":
            found = graphopt.verify(source, output)
            return "right" if found.passed else str(found.reason)
        if what == "in place":
            copy = Path(folder) / "copy" / "model.onnx"
            copy.parent.mkdir()
            for file in Path(folder).glob("model.onnx*"):
                shutil.copy(file, copy.parent / file.name)
            graphopt.optimize(copy).save(copy, in_place=True)
            found = graphopt.verify(source, copy)
            return "right" if found.passed else str(found.reason)
        if what == "budget":
            arena = graphopt.memory(source, dims=dims).record.arena
            result = graphopt.optimize(source, dims=dims, memory_budget=int(BUDGET * arena))
            return "right" if result.verification.passed else str(result.verification.reason)
        if what == "memory":
            return "right" if graphopt.memory(source, dims=dims).record.weights > 0 else "no weights seen"
        if what == "schedule":
            return "right" if graphopt.schedule(source, device="cpu:2", dims=dims).record.regions else "no regions"
        compiled = graphopt.compile(source, dims=dims)
        if not compiled.fallback:
            compiled.save(Path(folder) / "bundle")
        return "right"
    except BudgetNotKept:
        return "no plan keeps it"
    except NotLowered:
        return "no kernel"
    except GraphoptError as error:
        return str(error)


def _export(name: str, path: Path) -> None:
    """A small network of `EXPORTS` as torch writes it by default: a model and a data file."""
    import torch
    from torch import nn

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x).mean(1))

    torch.manual_seed(0)
    networks = {
        "mlp": (nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), (2, 64)),
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 64, 3, stride=2),
                nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
            ),
            (1, 3, 32, 32),
        ),
        "attention": (Attention(), (2, 16, 64)),
    }  # fmt: skip
    network, shape = networks[name]
    torch.onnx.export(network.eval(), (torch.randn(shape),), str(path), dynamo=True, external_data=True)


if __name__ == "__main__":
    main(measure)

"""Bar 9: transformers of the zoo at their own opset and lifted to 23, which has Attention and RMSNormalization."""

from __future__ import annotations

import time
from pathlib import Path

import graphopt
import models
from bench.bar import ISSUE, Bar, Sheet
from bench.peers import OURS
from bench.script import main

OPSET = 23
MOST = {"bert_base": 215, "swin_tiny": 400, "gpt2_dyn": 300}  # nodes
TRANSFORMERS = (
    *MOST,
    "bert_base_dyn_legacy",
    "bert_small_rawdynamo",
    "bert_small_dynquant",
    "clip_text",
    "gpt2_kv_dyn",
    "llama_small_kv_dyn",
    "llama_small_prefill",
    "t5_small_encoder",
    "vit_s16_legacy",
)
FUSED = ("Attention", "RotaryEmbedding", "Gelu", "RMSNormalization", "LayerNormalization")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Nodes of each transformer before, after, and after lifting; every lifted model is verified."""
    names = list(MOST) if quick else list(TRANSFORMERS)
    rows, found = [], {}
    for name in names:
        proto = models.load(name)
        own = graphopt.optimize(proto, verify=False)
        started = time.perf_counter()
        lifted = graphopt.optimize(proto, opset=OPSET)
        seconds = time.perf_counter() - started
        found[name] = lifted
        kinds = dict(lifted.after.by_type)
        verdict = lifted.verification.status + (f", {len(lifted.rolled_back)} taken back" if lifted.rolled_back else "")
        counts = [kinds.get(kind, 0) for kind in FUSED]
        rows.append((name, own.before.nodes, own.after.nodes, lifted.after.nodes, *counts, verdict, seconds))
    sheet.table(
        f"nodes at the own opset and at {OPSET}",
        ("model", "before", "own opset", f"opset {OPSET}", *FUSED, "check", "seconds"),
        rows,
    )
    return [
        _bar(name, most, found[name].after.nodes, sound=found[name].verification.passed) for name, most in MOST.items()
    ]


def _bar(name: str, most: int, count: int, *, sound: bool) -> Bar:
    figure = f"{count}" if sound else f"{count}, not verified"
    return Bar(ISSUE, 9, f"{name} at opset {OPSET}: nodes", f"<= {most}", figure, sound and count <= most)


if __name__ == "__main__":
    main(measure)

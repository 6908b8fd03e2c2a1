"""Networks as PyTorch has them, on the GPU at hand: eager, and as a CUDA graph; float32 without TF32, batch 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROUNDS = 30
SIDES = {"inception_v3": 299}  # pixels; others 224
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "densenet121", "inception_v3")


def network(name: str) -> tuple[Any, Any]:
    """A network with weights that nobody trained, and an image."""
    import torch
    import torchvision

    options = {"init_weights": False, "aux_logits": False} if name == "inception_v3" else {}
    made = getattr(torchvision.models, name)(weights=None, **options).eval().cuda()
    side = SIDES.get(name, 224)
    return made, torch.randn(1, 3, side, side, device="cuda")


def taken(work: Callable[[], None]) -> float:
    """Microseconds of the device, the median of rounds."""
    import torch

    found = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(1000 * begin.elapsed_time(end))
    return float(sorted(found)[ROUNDS // 2])


def main() -> None:
    """Print a line for each network."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    with torch.inference_mode():
        for name in NETWORKS:
            made, image = network(name)
            for _ in range(3):
                made(image)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made(image)
            eager, replayed = taken(lambda: made(image)), taken(graph.replay)  # noqa: B023
            print(f"{name}: torch {torch.__version__} eager {eager:.1f} us, CUDA graph {replayed:.1f} us", flush=True)


if __name__ == "__main__":
    main()

"""Networks as PyTorch has them, on the GPU at hand: eager, and as a CUDA graph; float32 without TF32, batch 1.

Images are torchvision's networks. The unrolled GRU is torch.nn.GRU of the same sizes, whose steps are cuDNN's; the tree
is computed level by level, all nodes of a level in one product.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from models.treelstm import CLASSES as TREE_CLASSES
from models.treelstm import LEAVES, WIDTH

ROUNDS = 30
SIDES = {"inception_v3": 299}  # pixels; others 224
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "densenet121", "inception_v3")
RECURRENT = ("gru_unrolled", "treelstm")
STEPS, INPUTS, HIDDEN, CLASSES = 24, 128, 256, 16  # of the zoo's gru_unrolled, which has two layers


def network(name: str) -> tuple[Any, Any]:
    """A network with weights that nobody trained, and an image."""
    import torch

    if name == "gru_unrolled":
        return _gru().cuda().eval(), torch.randn(STEPS, 1, INPUTS, device="cuda")
    if name == "treelstm":
        return _tree().cuda().eval(), torch.randn(LEAVES, WIDTH, device="cuda")
    import torchvision

    options = {"init_weights": False, "aux_logits": False} if name == "inception_v3" else {}
    made = getattr(torchvision.models, name)(weights=None, **options).eval().cuda()
    side = SIDES.get(name, 224)
    return made, torch.randn(1, 3, side, side, device="cuda")


def _gru() -> Any:
    """Two layers, whose last state is classified."""
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.last = torch.nn.GRU(INPUTS, HIDDEN, 2), torch.nn.Linear(HIDDEN, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.last(self.layers(x)[0][-1])

    return Network()


def _tree() -> Any:
    """The network of models/treelstm.py."""
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.leaf, self.inner = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False), torch.nn.Linear(2 * WIDTH, 5 * WIDTH)
            self.last = torch.nn.Linear(WIDTH, TREE_CLASSES)

        def forward(self, x: Any) -> Any:
            put, out, candidate = self.leaf(x).chunk(3, dim=1)
            cell = put.sigmoid() * candidate.tanh()
            hidden = out.sigmoid() * cell.tanh()
            while len(hidden) > 1:
                both = hidden.reshape(len(hidden) // 2, 2 * WIDTH)
                put, first, second, out, candidate = self.inner(both).chunk(5, dim=1)
                cell = put.sigmoid() * candidate.tanh() + first.sigmoid() * cell[::2] + second.sigmoid() * cell[1::2]
                hidden = out.sigmoid() * cell.tanh()
            return self.last(hidden)

    return Network()


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
        for name in (*RECURRENT, *(NETWORKS if find_spec("torchvision") else ())):
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

"""Training mode beside torch: `.venv-torch/bin/python -m bench.gradients.modes [--quick]`.

Running statistics: two networks with batch normalizations see 20 batches at a learning rate of 0, so that no ReLU's
chance is in the figures, and the running means and variances are compared with those of torch's own batch_norm in
float64. Torch follows the variance of a sample, ONNX that of the population; torch's is turned into ONNX's, which is
exact, as every batch has the same number of elements. The error of a statistic is its largest difference over its
largest number.

Dropout: two networks with Dropouts train for 50 steps. Torch is given the masks, which NumPy computes from the seed by
the formula in docs/training.md; losses are compared with those of torch in float64.

Ours may be twice as far as torch in float32, the worst of three runs on weights that are moved by a unit of rounding,
or 1e-5 (statistics) and 1e-6 (losses).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from onnx import helper, numpy_helper

import graphopt
from bench.bar import Sheet, console
from bench.gradients.train import FACTOR, FLOOR, OPTIMIZERS
from models import trainable
from tests.gradient.masks import kept

STATISTICS: tuple[trainable.Name, ...] = ("resnet18", "mobilenet_v2")
DROPPED: Mapping[trainable.Name, tuple[str, ...]] = {"mlp": ("Tanh",), "bert": ("Softmax", "Tanh")}  # behind them
RATIO, SEED = 0.2, 5
STATISTICS_STEPS, DROPPED_STEPS = 20, 50
STATISTICS_FLOOR = 1e-5
COLUMNS = ("network", "torch float32", "ONNX Runtime", "program", "holds")


def measure(sheet: Sheet, *, quick: bool = False) -> None:
    """Both tables."""
    if find_spec("torch") is None:
        raise typer.BadParameter("torch is not installed; .venv-torch has it.")
    rows = [_statistics(name) for name in STATISTICS[: 1 if quick else None]]
    sheet.table(
        f"running statistics after {STATISTICS_STEPS} batches: largest relative error of a tensor", COLUMNS, rows
    )
    rows = [_dropped(name) for name in list(DROPPED)[: 1 if quick else None]]
    sheet.table(f"{DROPPED_STEPS} steps with Dropout: largest distance of a loss from torch's float64", COLUMNS, rows)


def _row(name: str, allowed: float, own: float, ours: list[float]) -> tuple[object, ...]:
    return (name, f"{own:.1e}", *(f"{one:.1e}" for one in ours), all(one <= max(FACTOR * own, allowed) for one in ours))


def _statistics(name: trainable.Name) -> tuple[object, ...]:
    import torch  # of an environment of its own

    from bench.gradients.beside import RUNS, errors, nudged
    from bench.gradients.curves import ENGINES
    from bench.gradients.stepper import Stepper

    model, still = trainable.NETWORKS[name](0), graphopt.Optimizer(learning_rate=0.0)

    def followed(start: onnx.ModelProto, dtype: torch.dtype) -> dict[str, np.ndarray]:
        stepper = Stepper(start, "cross-entropy", still, dtype, follow=True)
        for batch in trainable.batches(name, STATISTICS_STEPS):
            stepper.run(batch)
        return stepper.statistics()

    wide = followed(model, torch.float64)
    plain = [followed(nudged(model, run), torch.float32) for run in range(RUNS)]
    own = max(max(errors(wide, one).values()) for one in plain)
    step = graphopt.train_step(model, loss="cross-entropy", optimizer=still)
    ours = []
    for engine in ENGINES:
        found = graphopt.fit(step, trainable.batches(name, STATISTICS_STEPS), engine=engine).parameters
        ours.append(max(errors(wide, {one: found[one] for one in wide}).values()))
    return _row(name, STATISTICS_FLOOR, own, ours)


def _dropped(name: trainable.Name) -> tuple[object, ...]:
    import torch  # of an environment of its own

    from bench.gradients.beside import RUNS, nudged
    from bench.gradients.curves import ENGINES, loss_by_name
    from bench.gradients.stepper import Stepper

    model, loss, optimizer = trainable.NETWORKS[name](0), loss_by_name(name), OPTIMIZERS[name]
    masked, dims = _with(model, DROPPED[name], masks=True)

    def losses(start: onnx.ModelProto, dtype: torch.dtype) -> list[float]:
        stepper = Stepper(start, loss, optimizer, dtype)
        return [stepper.run(batch) for batch in _with_masks(name, dims)]

    wide = np.array(losses(masked, torch.float64))
    own = max(float(np.abs(losses(nudged(masked, run), torch.float32) - wide).max()) for run in range(RUNS))
    dropping, _ = _with(model, DROPPED[name], masks=False)
    step = graphopt.train_step(dropping, loss=loss, optimizer=optimizer)
    ours = []
    for engine in ENGINES:
        found = graphopt.fit(step, trainable.batches(name, DROPPED_STEPS), engine=engine, seed=SEED).losses
        ours.append(float(np.abs(np.array(found) - wide).max()))
    return _row(name, FLOOR, own, ours)


def _with_masks(name: trainable.Name, dims: Mapping[str, tuple[int, ...]]) -> Iterator[Mapping[str, np.ndarray]]:
    """Batches with a factor for each element that a Dropout sees: 0, or what makes up for the dropped ones."""
    for number, batch in enumerate(trainable.batches(name, DROPPED_STEPS)):
        seed = SEED * 1_000_003 + number  # as `fit` says it
        masks = {
            mask: kept(seed, stream, size, RATIO) / np.float64(1 - RATIO)
            for stream, (mask, size) in enumerate(dims.items(), 1)
        }
        yield {**{key: np.asarray(value) for key, value in batch.items()}, **masks}


def _with(
    model: onnx.ModelProto, behind: tuple[str, ...], *, masks: bool
) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """A model with a Dropout behind each operator of some kinds; or a product with an input, and those inputs' dims."""
    copy = onnx.shape_inference.infer_shapes(model)
    known = {value.name: tuple(one.dim_value for one in value.type.tensor_type.shape.dim)
             for value in copy.graph.value_info}  # fmt: skip
    nodes = list(copy.graph.node)
    dims: dict[str, tuple[int, ...]] = {}
    del copy.graph.node[:]
    copy.graph.initializer.append(numpy_helper.from_array(np.array(RATIO, np.float32), "ratio"))
    for node in nodes:
        copy.graph.node.append(node)
        if node.op_type not in behind:
            continue
        result, before = node.output[0], f"{node.output[0]}_whole"
        copy.graph.node[-1].output[0] = before
        mask = f"mask_{len(dims) + 1}"
        dims[mask] = known[result]
        operator, other = ("Mul", mask) if masks else ("Dropout", "ratio")
        if masks:
            copy.graph.input.append(helper.make_tensor_value_info(mask, onnx.TensorProto.FLOAT, dims[mask]))
        copy.graph.node.append(helper.make_node(operator, [before, other], [result], name=f"drop_{len(dims)}"))
    return copy, dims


def command(
    quick: Annotated[bool, typer.Option(help="One network each.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Running statistics and Dropout beside torch."""
    sheet = Sheet(console())
    measure(sheet, quick=quick)
    if json:
        sheet.write(json, [])


if __name__ == "__main__":
    typer.run(command)

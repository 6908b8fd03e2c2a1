"""`run`: a bundle, or a model in ONNX Runtime with the options under which memory budgets hold."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from graphopt.check.plain import plain_feed
from graphopt.errors import OptionError
from graphopt.flows.records.run import BUNDLE
from graphopt.memory.contract import contract_options
from graphopt.model.load import load
from graphopt.model.session import session_of
from graphopt.model.text import nearest
from graphopt.program.deploy.cuda.running import OpenedTasks, RunOn
from graphopt.program.deploy.manifest import MANIFEST, Ram, read_manifest
from graphopt.program.deploy.runtime import Program, Tensor
from graphopt.program.deploy.session import Bundle
from kernels.ptx.tables import TaskArgument

SEED = 0
_PROCESS = Path("/proc/self")  # Linux
Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Runnable:
    """A program that takes arrays by name and gives arrays by name."""

    engine: str
    inputs: Mapping[str, Callable[[], np.ndarray]]  # each with what draws it
    call: Callable[[Feeds], dict[str, np.ndarray]]
    ram: Ram | None = None  # what a process takes for it, of a bundle within a budget


class Growth:
    """By how many bytes this process grows at the most from here on; nothing where the system does not tell."""

    def __init__(self) -> None:
        gc.collect()
        self._before: int | None = None
        with contextlib.suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")  # the peak is what is there now
            self._before = _resident("VmRSS")

    @property
    def bytes(self) -> int | None:
        """So far."""
        return None if self._before is None else max(0, _resident("VmHWM") - self._before)


def _resident(entry: str) -> int:
    lines = (_PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(entry))


def run(
    program: str | os.PathLike[str], feeds: Feeds | None = None, *, random: bool = False, threads: int = 0,
    on: RunOn | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Run a bundle (a folder that `compile` wrote) or a model once; the outputs by name.

    A model runs in ONNX Runtime with the options under which memory budgets hold. `random` draws the inputs that
    `feeds` lacks, the same every time; `threads` run it, 0: as many as it may use cores. A bundle for a GPU runs on the
    first one, or, with `on` "ptx-machine", small ones on a machine for PTX that needs none. Raises BundleError,
    ModelError, and OptionError for inputs that do not fit.
    """
    runnable, given = open_program(Path(program), threads=threads, on=on), dict(feeds or {})
    names = list(runnable.inputs)
    for name in given:
        if name not in names:
            raise OptionError(f"there is no input '{name}'; {nearest(name, names)}.")
    missing = next((name for name in names if name not in given), None)
    if missing is not None and not random:
        raise OptionError(f"input '{missing}' is missing; give it in feeds, or random=True.")
    return runnable.call((random_feed(runnable) if missing is not None else {}) | given)


def open_program(path: Path, *, threads: int = 0, on: RunOn | None = None) -> Runnable:
    """A folder is a bundle, a file a model; `threads` run it, 0: as many as it may use cores.

    A bundle for a GPU runs there, or `on` the PTX machine. Raises BundleError, ModelError, and OptionError for what
    cannot run.
    """
    if (path / "program.ptx").is_file():
        return _on_gpu(path, on)
    if on is not None:
        raise OptionError(f"'{path}' is no bundle for a GPU; leave out where it runs.")
    if path.is_dir() and (path / MANIFEST).is_file() and not any(path.glob("*.so")):
        read_manifest(path)  # which says what the folder has in the place of a library that is loaded
    return _bundle(path, threads) if path.is_dir() else _model(path, threads)


def _on_gpu(path: Path, on: RunOn | None) -> Runnable:
    opened = OpenedTasks(path, on)

    def drawn(one: TaskArgument) -> Callable[[], np.ndarray]:
        dtype = np.dtype(one.dtype)

        def draw() -> np.ndarray:
            generator = np.random.default_rng(SEED)
            if dtype.kind == "f":
                return generator.standard_normal(one.shape).astype(dtype)
            return generator.integers(0, 2, one.shape).astype(dtype)

        return draw

    engine = f"the PTX machine, for {opened.program.processor}" if on == "ptx-machine" else "an NVIDIA GPU"
    return Runnable(engine, {one.name: drawn(one) for one in opened.program.inputs}, opened.run)


def random_feed(runnable: Runnable) -> dict[str, np.ndarray]:
    """Values for all inputs, the same every time."""
    return {name: draw() for name, draw in runnable.inputs.items()}


def drawn_inputs(program: Program, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Values for all inputs of a compiled program, the same every time; its free dims have `sizes`, else their most."""
    known = {name: most for name, (_, most) in program.ranges.items()} | dict(sizes or {})
    return {one.name: _drawn(one._replace(shape=one.at(known)))() for one in program.inputs}


def _bundle(path: Path, threads: int) -> Runnable:
    program = Bundle(path, threads=threads)
    return Runnable(BUNDLE, _draws(program), lambda feeds: program(**feeds), read_manifest(path).ram)


def _draws(program: Program) -> dict[str, Callable[[], np.ndarray]]:
    return {one.name: _drawn(one) for one in program.inputs}


def _drawn(given: Tensor) -> Callable[[], np.ndarray]:
    def draw() -> np.ndarray:
        generator = np.random.default_rng(SEED)
        if given.dtype.kind == "f":
            return generator.standard_normal(given.shape).astype(given.dtype)
        array = generator.integers(0, 2, given.shape).astype(given.dtype)
        array.reshape(-1)[list(given.held)] = list(given.held.values())
        return array

    return draw


def _model(path: Path, threads: int) -> Runnable:
    model = load(path)
    feed = {name: np.asarray(value) for name, value in plain_feed(model).items()}
    options = contract_options()
    options.intra_op_num_threads = threads
    try:
        session = session_of(model, options)
    except Exception as error:  # of many types
        raise OptionError(f"ONNX Runtime cannot run '{path}': {error}") from error
    names = [one.name for one in session.get_outputs()]

    def call(feeds: Feeds) -> dict[str, np.ndarray]:
        try:
            return dict(zip(names, session.run(None, dict(feeds)), strict=True))
        except Exception as error:  # of many types
            raise OptionError(f"ONNX Runtime cannot run '{path}' on these inputs: {error}") from error

    def drawer(name: str) -> Callable[[], np.ndarray]:
        return lambda: feed[name]

    draws = {one.name: drawer(one.name) for one in session.get_inputs() if one.name in feed}
    return Runnable(f"ONNX Runtime {onnxruntime.__version__}", draws, call)

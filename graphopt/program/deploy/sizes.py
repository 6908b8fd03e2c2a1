"""Programs of a model with free dims: one for every size, made when the size is first seen, and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from graphopt.errors import NotLowered, OptionError

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]  # by the names of inputs


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output, as ONNX Runtime's sessions describe theirs."""

    name: str
    type: str  # tensor(float)
    shape: list[int | str | None]  # the name of a free dim; None where each run finds its own


class Runs(Protocol):
    """A program of one size."""

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names."""
        ...

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """The outputs by name."""
        ...


One = TypeVar("One", bound=Runs)


@dataclass
class Sizes(Generic[One]):
    """Programs that share constants and threads. `make` gives that of certain dims of all inputs with free ones."""

    inputs: list[Argument]
    outputs: list[Argument]
    why: str  # a bundle cannot have them all
    make: Callable[[Shapes], One]
    programs: dict[tuple[tuple[int, ...], ...], One] = field(default_factory=dict)  # by the dims of free inputs
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._free = [one for one in self.inputs if not all(isinstance(dim, int) for dim in one.shape)]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """As `Compiled.run`; the program of these sizes is made first where there is none."""
        return self.of(feeds).run(names, feeds)

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """As `Compiled.__call__`."""
        return self.of(feeds)(**feeds)

    def of(self, feeds: Mapping[str, Array]) -> One:
        """The program of the sizes of these feeds; raises OptionError for dims that do not fit the inputs."""
        for one in self._free:
            if one.name not in feeds:
                names = ", ".join(f"'{other.name}'" for other in self.inputs)
                raise OptionError(f"input '{one.name}' is missing; the program has {names}.")
        shapes = {one.name: np.shape(feeds[one.name]) for one in self._free}
        key = tuple(shapes.values())
        with self._lock:
            if key not in self.programs:
                self._check(shapes)
                self.programs[key] = self.make(shapes)
            return self.programs[key]

    def _check(self, shapes: Shapes) -> None:
        """Raise OptionError where a name stands for two sizes, or a fixed dim has another one."""
        sizes: dict[object, tuple[int, str]] = {}
        for one in self._free:
            found = shapes[one.name]
            if len(found) != len(one.shape):
                raise OptionError(f"input '{one.name}' has the dims {list(found)}; expected are {list(one.shape)}.")
            for wanted, size in zip(one.shape, found, strict=True):
                if isinstance(wanted, int) and wanted != size:
                    raise OptionError(f"input '{one.name}' has the dims {list(found)}; expected are {list(one.shape)}.")
                before, where = sizes.setdefault(wanted, (size, one.name)) if isinstance(wanted, str) else (size, "")
                if before != size:
                    raise OptionError(f"'{wanted}' is {before} in input '{where}' and {size} in input '{one.name}'.")

    def refuse(self) -> NotLowered:
        """What a caller is told who wants the one program that there is not."""
        return NotLowered(self.why)

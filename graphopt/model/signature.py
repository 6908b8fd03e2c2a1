"""The signature of a model: what its callers rely on, recorded at load and never changed unasked."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output: its name, its type, and its dims as declared (None: no shape is declared)."""

    name: str
    type: str
    dims: tuple[int | str | None, ...] | None

    @property
    def shape(self) -> str:
        """The type with its dims: float[batch, 64]."""
        dims = "?" if self.dims is None else ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"{self.type}[{dims}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.shape}"

    def meets(self, other: Port) -> bool:
        """Whether some value suits both declarations."""
        if "unknown" not in (self.type, other.type) and self.type != other.type:
            return False
        if self.dims is None or other.dims is None:
            return True
        return len(self.dims) == len(other.dims) and all(
            one == another or not (isinstance(one, int) and isinstance(another, int))
            for one, another in zip(self.dims, other.dims, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs in order, and which inputs have a default value (an initializer of the same name)."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    defaults: tuple[str, ...]

    def differences(self, other: Signature) -> tuple[str, ...]:
        """What differs in `other`, as sentences; empty when the signatures are equal."""
        found: list[str] = []
        for kind, mine, theirs in (
            ("input", self.inputs, other.inputs),
            ("output", self.outputs, other.outputs),
        ):
            names, new_names = [port.name for port in mine], [port.name for port in theirs]
            if names != new_names:
                found.append(f"the {kind}s are {new_names}, they were {names}")
                continue
            found.extend(f"{kind} {old} -> {new.shape}" for old, new in zip(mine, theirs, strict=True) if old != new)
        if set(self.defaults) != set(other.defaults):
            found.append(f"inputs with defaults are {sorted(other.defaults)}, they were {sorted(self.defaults)}")
        return tuple(found)


def signature_of(model: ir.Model) -> Signature:
    """The signature as the model declares it now."""
    graph = model.graph
    return Signature(
        tuple(port_of(value) for value in graph.inputs),
        tuple(port_of(value) for value in graph.outputs),
        tuple(value.name or "" for value in graph.inputs if value.name in graph.initializers),
    )


def port_of(value: ir.Value) -> Port:
    """An input or output as it is declared."""
    dims = None
    if value.shape is not None:
        dims = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    kind = value.type
    name = str(kind.dtype).lower() if isinstance(kind, ir.TensorType) else "unknown" if kind is None else str(kind)
    return Port(value.name or "", name, dims)

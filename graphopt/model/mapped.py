"""Tensors in a data file beside the model, read through one map of that file.

onnx_ir maps the whole file anew for every tensor, and each map keeps a file descriptor: a model of 200 tensors in a
file of 400 MB takes 80 GB of address space, and one of a thousand tensors has no descriptor left.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.model.rooms import let_go
from graphopt.model.tensors import tensors_of


def rest(model: ir.Model) -> None:
    """Let go of the pages that were read of a model's data files, until they are read again."""
    for tensor in tensors_of(model):
        if isinstance(tensor, MappedTensor):
            tensor.rest()


class DataFile:
    """A data file, mapped when the first of its tensors is read. The map goes with the last tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None

    def map(self) -> mmap.mmap:
        """The file's bytes, read-only; raises OSError where it cannot be read."""
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map


class MappedTensor(ir.ExternalTensor):
    """An external tensor that shares its file's map. Whoever makes one has looked where the file lies."""

    __slots__ = ("_file",)

    def __init__(self, tensor: ir.ExternalTensor, file: DataFile, folder: Path) -> None:
        super().__init__(
            tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name, doc_string=tensor.doc_string, base_dir=folder,
        )  # fmt: skip
        self._file = file

    def _check_path_containment(self) -> None:
        """Links were looked at when the model was loaded; a file with a second name is as good as another."""

    def _load(self) -> None:
        self._check_validity()
        shape = self.shape.numpy()
        if self.size == 0:
            self._array = np.empty(shape, dtype=self.dtype.numpy())
            return
        self.raw = self._file.map()
        if self.dtype.bitwidth < 8:
            start = self.offset or 0
            proto = onnx.TensorProto(
                data_type=int(self.dtype), dims=shape, raw_data=self.raw[start : start + self.nbytes]
            )
            self._array = ir.serde.deserialize_tensor(proto).numpy()
            return
        little = np.dtype(self.dtype.numpy()).newbyteorder("<")
        self._array = np.frombuffer(self.raw, little, self.size, self.offset or 0).reshape(shape)

    def rest(self) -> None:
        """Let go of the pages that were read; the array stays, and reads them again."""
        if self._array is not None:
            let_go(self._array)

    def release(self) -> None:
        """Let go of the array; the map stays for the other tensors."""
        self._array = None
        self.raw = None

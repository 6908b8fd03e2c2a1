"""Kills at every call of every save, with models of the zoo: the files that are left are the old ones or the new ones.

A model is read with all of its data after each kill, a bundle by the checksums of its manifest. The goal: 0 unreadable.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.script import main
from bench.survey import BUILD
from graphopt.files.folder import write_folder
from graphopt.program.deploy.bundle import replaced_files
from tests.files.faults import content, killed_at, leftovers

ISSUE = 14
MODELS = ("mlp_tiny", "dscnn_kws", "gru_op")
COMPILED = ("mlp_tiny", "dscnn_kws")
THRESHOLDS = (0, 1024, 1 << 20)  # bytes; larger tensors of the input lie outside
OWN = b"of the user"


@dataclass(frozen=True)
class Save:
    """A kind of save: what the folder holds before, the save itself, and the state that a reader finds."""

    name: str
    before: Callable[[Path], object]
    job: Callable[[Path], object]
    read: Callable[[Path], str]


def sweep(save: Save, root: Path) -> tuple[str, int, int]:
    """Kill the save before each of its calls; how many kills, and how many of them left something unreadable."""
    old, new = _folder(save, root / "old"), _folder(save, root / "new")
    save.job(new)
    states = (save.read(old), save.read(new))
    assert states[0] != states[1], "the save changes something"
    kills = unreadable = 0
    while True:
        folder = _folder(save, root / str(kills))
        killed = killed_at(kills, lambda folder=folder: save.job(folder))  # type: ignore[misc]
        try:
            whole = save.read(folder) in states and _own(folder) == _own(old)
            save.job(folder)
            whole = whole and save.read(folder) == states[1] and not leftovers(folder)
        except Exception as error:  # whatever a reader meets is what is counted here
            print(f"{save.name}, killed before call {kills}: {error}", file=sys.stderr)
            whole = False
        shutil.rmtree(folder)
        unreadable += not whole
        if not killed:
            return save.name, kills, unreadable
        kills += 1


def _folder(save: Save, folder: Path) -> Path:
    folder.mkdir()
    (folder / "own.txt").write_bytes(OWN)
    save.before(folder)
    return folder


def _own(folder: Path) -> set[str]:
    return {name for name, data in content(folder).items() if data == OWN}


def model_state(path: Path) -> str:
    """A checksum of a model with all of its data, which it has to have; empty where there is no model."""
    if not path.exists():
        return ""
    onnx.checker.check_model(str(path))
    found = onnx.load(path)
    for tensor in found.graph.initializer:
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return hashlib.sha256(found.SerializeToString(deterministic=True)).hexdigest()


def bundle_state(folder: Path) -> str:
    """A checksum of a bundle whose files all have the checksums of its manifest; empty where there is no folder."""
    if not folder.exists():
        return ""
    manifest = (folder / "manifest.json").read_bytes()
    for name, known in json.loads(manifest)["files"].items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != known["sha256"]:
            raise ValueError(f"'{name}' is not of this bundle")
    return hashlib.sha256(manifest).hexdigest()


def model_saves(name: str, threshold: int, inputs: Path) -> list[Save]:
    """The optimized model to a new place, over another model, and in place."""
    source = inputs / f"{name}-{threshold}.onnx"
    _external(models.load(name), source, threshold)
    other = models.load(name, seed=1)

    def over(folder: Path) -> None:
        _external(other, folder / "m.onnx", threshold)

    def same(folder: Path) -> None:
        _external(models.load(name), folder / "m.onnx", threshold)

    def read(folder: Path) -> str:
        return model_state(folder / "m.onnx")

    def save(folder: Path) -> None:
        graphopt.optimize(source, verify=False).save(folder / "m.onnx")

    def in_place(folder: Path) -> None:
        graphopt.optimize(folder / "m.onnx", verify=False).save(folder / "m.onnx", in_place=True)

    return [
        Save(f"{name}, {threshold:,} bytes: new", lambda folder: None, save, read),
        Save(f"{name}, {threshold:,} bytes: over another", over, save, read),
        Save(f"{name}, {threshold:,} bytes: in place", same, in_place, read),
    ]


def _external(model: onnx.ModelProto, path: Path, threshold: int) -> None:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(copy, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=threshold)


def bundle_saves(name: str, inputs: Path) -> list[Save]:
    """The compiled model into a new folder, and over the bundle of another beside files of the user."""
    made = []
    for seed in range(2):
        folder = inputs / f"{name}-bundle-{seed}"
        graphopt.compile(models.load(name, seed=seed)).save(folder)
        made.append(folder)
    files = content(made[0])

    def over(folder: Path) -> None:
        shutil.copytree(made[1], folder / "b")
        (folder / "b" / "main.cpp").write_bytes(OWN)

    def save(folder: Path) -> None:
        write_folder(folder / "b", files, replaced_files(folder / "b"))

    def read(folder: Path) -> str:
        return bundle_state(folder / "b")

    return [
        Save(f"{name}: compile, new", lambda folder: None, save, read),
        Save(f"{name}: compile, over a bundle", over, save, read),
    ]


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = "") -> list[Bar]:
    """Kills at every call of every kind of save: how many left something that cannot be read."""
    BUILD.mkdir(parents=True, exist_ok=True)
    names = MODELS[:1] if quick else MODELS
    with tempfile.TemporaryDirectory(prefix="kills-", dir=BUILD) as folder:
        inputs = Path(folder) / "inputs"
        inputs.mkdir()
        saves = [one for name in names for threshold in THRESHOLDS for one in model_saves(name, threshold, inputs)]
        saves += [one for name in COMPILED for one in bundle_saves(name, inputs)]
        rows = []
        for number, save in enumerate(saves):
            (Path(folder) / str(number)).mkdir()
            rows.append(sweep(save, Path(folder) / str(number)))
    sheet.table("kills", ("kind of save", "kills", "unreadable"), rows)
    kills, unreadable = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return [
        Bar(ISSUE, 2, "kills at every call of a save: unreadable", "0", f"{unreadable} of {kills:,}", not unreadable)
    ]


if __name__ == "__main__":
    main(measure)

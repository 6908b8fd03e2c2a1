"""Kills and refusals at every call of every kind of save: the user's files are readable and belong together."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from graphopt.errors import GraphoptError
from graphopt.files.folder import write_folder
from graphopt.files.references import named_files
from graphopt.files.single import prepared, write_file
from graphopt.model.load import load
from graphopt.model.save import data_files, save
from graphopt.program.deploy.bundle import replaced_files, write_bundle
from graphopt.program.deploy.session import Bundle
from kernels.target import host
from tests import support
from tests.files.faults import content, killed_at, leftovers, refused_from
from tests.kernels.listings import perceptron

X = np.arange(32, dtype=np.float32).reshape(1, 32)
OWN = {"notes.txt": b"of the user", "m.onnx.data.txt": b"no data of m.onnx", "src/main.cpp": b"int main() {}"}


def network(seed: int, last: str = "Neg", *, extra: bool = False) -> onnx.ModelProto:
    """y = last(x a b), with weights of 4 kB each; and 8 kB that nothing reads.

    The old model and the new one end in different operators, so that one with the data of the other is neither.
    """
    generator = np.random.default_rng(seed)
    weights = {name: generator.standard_normal((32, 32)).astype(np.float32) for name in ("a", "b")}
    if extra:
        weights = {"extra": np.ones((64, 32), np.float32), **weights}
    text = f"g (float[1,32] x) => (float[1,32] y) {{ m = MatMul(x, a) n = MatMul(m, b) y = {last}(n) }}"
    return support.model(text, 17, 8, **weights)


def write_external(path: Path, model: onnx.ModelProto, location: str) -> None:
    """The model with all tensors in a file beside it."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(copy, path, save_as_external_data=True, location=location, size_threshold=0)


def answer(path: Path) -> bytes | None:
    """What ONNX Runtime computes with a model file that ONNX finds valid; None where there is none."""
    if not path.exists():
        return None
    onnx.checker.check_model(str(path))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return bytes(session.run(None, {"x": X})[0].tobytes())


@dataclass(frozen=True)
class Kind:
    """A kind of save into a folder: what is there before, the save, and how a reader finds its output."""

    before: Callable[[Path], object]
    job: Callable[[Path], object]
    read: Callable[[Path], object]
    written: Callable[[Path], set[str]]  # the names of the output's files, asked in the end


def _model(before: Callable[[Path], object], job: Callable[[Path], object]) -> Kind:
    return Kind(
        before,
        job,
        lambda folder: answer(folder / "m.onnx"),
        lambda folder: {"m.onnx", *named_files(folder / "m.onnx")},
    )


def _save_new(folder: Path) -> None:
    save(load(network(1)), folder / "m.onnx")


def _save_external(folder: Path) -> None:
    """From an input in another folder, whose data stay there."""
    inputs = folder.parent / "inputs"
    if not inputs.exists():
        inputs.mkdir()
        write_external(inputs / "in.onnx", network(1), "in.data")
    model = load(inputs / "in.onnx")
    save(model, folder / "m.onnx", source=inputs / "in.onnx", source_data=data_files(model))


def _save_in_place(folder: Path) -> None:
    """The weight `a` and the last operator are new, `b` is read from the input's data, and what nothing reads goes."""
    path = folder / "m.onnx"
    model = load(path)
    files = data_files(model)
    model.graph.initializers.pop("extra", None)
    model.graph[-1].op_type = "Neg"
    model.graph.initializers["a"].const_value = ir.Tensor(np.full((32, 32), 0.5, np.float32), name="a")
    save(model, path, source=path, source_data=files, in_place=True)


def _save_with_report(folder: Path) -> None:
    with prepared(folder / "report.html", b"<p>new</p>" * 9):
        save(load(network(1)), folder / "m.onnx")


def _report(folder: Path) -> object:
    return (folder / "report.html").read_bytes() if (folder / "report.html").exists() else None


def _bundle_files(seed: int, folder: Path, name: str = "mlp") -> dict[str, bytes]:
    made = perceptron(host(), (32, 8), seed=seed, name=name)
    write_bundle(folder, made.listing, made.weights, host())
    return content(folder)


def _read_bundle(folder: Path) -> object:
    """All that the manifest names is as the manifest says, under the names that programs open."""
    path = folder / "b" / "manifest.json"
    if not path.exists():
        assert not (folder / "b").exists(), "a folder without a manifest is no bundle"
        return None
    files = json.loads(path.read_bytes())["files"]
    for name, known in files.items():
        assert hashlib.sha256((path.parent / name).read_bytes()).hexdigest() == known["sha256"], name
    return path.read_bytes()


def _write_own(folder: Path) -> None:
    for name, data in OWN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _earlier_bundle(files: dict[str, bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "b").mkdir()
        for name, data in files.items():
            (folder / "b" / name).write_bytes(data)
        _write_own(folder / "b")

    return write


def _bundle(before: Callable[[Path], object], files: dict[str, bytes]) -> Kind:
    return Kind(
        before,
        lambda folder: write_folder(folder / "b", files, replaced_files(folder / "b")),
        _read_bundle,
        lambda folder: {f"b/{name}" for name in files},
    )


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync is still a call at which a process dies, or that the system refuses; only the power stays on here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    bundles = tmp_path_factory.mktemp("bundles")
    old, new = _bundle_files(1, bundles / "old"), _bundle_files(2, bundles / "new")
    other = _bundle_files(3, bundles / "other", "net")

    def nothing(folder: Path) -> None:
        pass

    def single(folder: Path) -> None:
        onnx.save(network(0, "Relu"), folder / "m.onnx")

    def external(folder: Path) -> None:
        write_external(folder / "m.onnx", network(0, "Relu"), "m.onnx.data")

    def external_and_more(folder: Path) -> None:
        write_external(folder / "m.onnx", network(0, "Relu", extra=True), "m.onnx.data")

    def external_elsewhere(folder: Path) -> None:
        write_external(folder / "m.onnx", network(0, "Relu"), "weights.bin")

    def page(folder: Path) -> None:
        (folder / "report.html").write_bytes(b"<p>old</p>")

    report = Kind(page, lambda folder: write_file(folder / "report.html", b"{}"), _report, lambda _: {"report.html"})
    both = _model(lambda folder: (single(folder), page(folder)), _save_with_report)
    return {
        "single, new": _model(nothing, _save_new),
        "single over single": _model(single, _save_new),
        "single over external": _model(external, _save_new),
        "external, new": _model(nothing, _save_external),
        "external over external": _model(external, _save_external),
        "in place, equal layout": _model(external, _save_in_place),
        "in place, other layout": _model(external_and_more, _save_in_place),
        "in place, other name": _model(external_elsewhere, _save_in_place),
        "report": report,
        "model and report": Kind(
            both.before, both.job, lambda folder: (both.read(folder), _report(folder))[0],
            lambda folder: {*both.written(folder), "report.html"},
        ),
        "bundle, new": _bundle(nothing, old),
        "bundle over bundle": _bundle(_earlier_bundle(old), new),
        "bundle over one of another name": _bundle(_earlier_bundle(old), other),
    }  # fmt: skip


KINDS = (
    "single, new", "single over single", "single over external", "external, new", "external over external",
    "in place, equal layout", "in place, other layout", "in place, other name", "report", "model and report",
    "bundle, new", "bundle over bundle", "bundle over one of another name",
)  # fmt: skip


class Place:
    """A fresh folder for each run of a kind, and what is found there before and after."""

    def __init__(self, kind: Kind, root: Path) -> None:
        self.kind, self.root = kind, root
        self.old_folder = self._folder("old")
        self.old = kind.read(self.old_folder)
        done = self._folder("new")
        kind.job(done)
        self.new = kind.read(done)
        assert self.new is not None and self.new != self.old
        self._check_end(done)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        _write_own(folder)
        self.kind.before(folder)
        return folder

    def run(self, name: str, job: Callable[[Callable[[], object]], bool]) -> tuple[bool, object]:
        """Do the save in a folder of its own by way of `job`, read, save again; what `job` said and what was read."""
        folder = self._folder(name)
        reached = job(lambda: self.kind.job(folder))
        found = self.kind.read(folder)
        assert found in (self.old, self.new), "neither the old nor the new"
        self._check_own(folder)
        self.kind.job(folder)
        assert self.kind.read(folder) == self.new
        self._check_end(folder)
        shutil.rmtree(folder)
        return reached, found

    def _check_own(self, folder: Path) -> None:
        found = content(folder)
        inside = {f"b/{name}": data for name, data in OWN.items()} if (self.old_folder / "b").exists() else {}
        for name, data in {**OWN, **inside}.items():
            assert found[name] == data

    def _check_end(self, folder: Path) -> None:
        self._check_own(folder)
        own = {name for name in content(self.old_folder) if name.removeprefix("b/") in OWN}
        assert set(content(folder)) == own | self.kind.written(folder)
        assert not leftovers(folder)
        assert not (folder / "b").exists() or not leftovers(folder / "b")


@pytest.mark.parametrize("name", KINDS)
def test_a_kill_at_any_call_leaves_the_old_or_the_new(name: str, kinds: dict[str, Kind], tmp_path: Path) -> None:
    place, number, found = Place(kinds[name], tmp_path), 0, set()
    while True:
        killed, state = place.run(f"k{number}", lambda job, at=number: killed_at(at, job))  # type: ignore[misc]
        found.add(state)
        if not killed:
            break
        number += 1
    assert number > 8 and found == {place.old, place.new}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("name", KINDS)
def test_what_the_system_refuses_is_a_sentence_and_leaves_the_old_or_the_new(
    name: str, error: int, kinds: dict[str, Kind], tmp_path: Path
) -> None:
    place, number, sentences = Place(kinds[name], tmp_path), 0, []

    def attempt(job: Callable[[], object]) -> bool:
        def told() -> None:
            try:
                job()
            except GraphoptError as refusal:
                sentences.append(str(refusal))

        return refused_from(number, error, told)

    while True:
        before = len(sentences)
        reached, found = place.run(f"k{number}", attempt)
        for sentence in sentences[before:]:
            if "' was not written: " in sentence:
                assert found == place.old or "report.html" in sentence, "the model was moved before its report"
            else:
                assert (
                    found == place.new and " was written, but the system cannot promise that it is on disk" in sentence
                )
        if not reached:
            break
        number += 1
    assert len(sentences) > 5


@pytest.mark.parametrize("name", ["bundle over bundle", "bundle over one of another name"])
def test_a_bundle_runs_after_a_kill_at_any_call(name: str, kinds: dict[str, Kind], tmp_path: Path) -> None:
    """Each in a folder of its own, since a process loads a library of one name once."""
    number, answers = 0, set()
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        kinds[name].before(folder)
        killed = killed_at(number, lambda folder=folder: kinds[name].job(folder))  # type: ignore[misc]
        answers.add(Bundle(folder / "b").run(None, {"x": X})[0].tobytes())
        if not killed:
            break
        number += 1
    assert len(answers) == 2


def test_living_processes_keep_their_hidden_folders(tmp_path: Path) -> None:
    """One holds its report ready while another saves beside it."""
    with prepared(tmp_path / "slow.json", b"{}"):
        (hidden,) = leftovers(tmp_path)
        write_file(tmp_path / "quick.json", b"[]")
        assert leftovers(tmp_path) == [hidden]
    assert content(tmp_path) == {"slow.json": b"{}", "quick.json": b"[]"} and not leftovers(tmp_path)


def test_a_note_that_came_with_a_folder_removes_no_file_of_a_name(tmp_path: Path) -> None:
    """Somebody sends a hidden folder that lists a file of the user: by name, or outside of the folder."""
    folder = tmp_path / "sent"
    hidden = folder / ".graphopt-1-00000000"
    for path in (folder / "thesis.txt", tmp_path / "thesis.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"...")
    inside, outside = os.lstat(folder / "thesis.txt"), os.lstat(tmp_path / "thesis.txt")
    for name, found, size in (("thesis.txt", inside, 4), ("../thesis.txt", outside, 3)):
        hidden.mkdir()
        entry = {"name": name, "inode": found.st_ino, "bytes": size, "changed": found.st_mtime_ns}
        (hidden / "orphans").write_text(json.dumps([entry]))
        write_file(folder / "r.json", b"{}")
        assert not leftovers(folder)
        assert content(tmp_path) == {"sent/r.json": b"{}", "sent/thesis.txt": b"...", "thesis.txt": b"..."}


@pytest.mark.parametrize("through", ["now", "old"])
def test_links_that_came_with_a_folder_reach_nothing_outside(through: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_bytes(b"...")
    hidden = tmp_path / "sent" / ".graphopt-1-00000000"
    hidden.mkdir(parents=True)
    (tmp_path / "sent" / "thesis.txt").symlink_to(f"{hidden.name}/now/thesis.txt")
    (hidden / "now").symlink_to(tmp_path if through == "now" else "old")
    (hidden / "old").symlink_to(tmp_path)
    write_file(tmp_path / "sent" / "r.json", b"{}")
    assert (tmp_path / "thesis.txt").read_bytes() == b"..."

"""Bundles: what is in the folder, the same bytes twice, whole or not there, and what loading refuses."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphopt.errors import BundleError
from graphopt.program.deploy.bundle import write_bundle
from graphopt.program.deploy.manifest import PlannedBuffer, read_manifest
from graphopt.program.deploy.session import Bundle, Program
from kernels.emit.processor import Requirement, requirements
from kernels.target import host
from tests.kernels.listings import Written, difference, perceptron

FILES = ["example.c", "libmlp.so", "manifest.json", "mlp.h", "mlp.py", "mlp.weights"]


@pytest.fixture(scope="module")
def written() -> Written:
    return perceptron(host(), rows=2)


@pytest.fixture(scope="module")
def whole(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "mlp"
    write_bundle(folder, written.listing, written.weights, host(), buffers=[PlannedBuffer("hidden", 0, 256, 0, 2)])
    return folder


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def content(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(folder.iterdir())}


def rows(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 16)).astype(np.float32)


def test_a_bundle_gives_what_the_listing_gives(written: Written, whole: Path) -> None:
    x = rows()
    inside = Program(written.listing, written.weights)(x=x)["y"]
    for mapped in (False, True):
        program = Bundle(whole, mapped=mapped)
        assert np.array_equal(program.run(None, {"x": x})[0], inside)
        program.close()
    assert (np.abs(inside - written.answer(x)) <= written.bound(x)).all()


def test_the_manifest_says_what_is_there(written: Written, whole: Path) -> None:
    manifest = json.loads((whole / "manifest.json").read_text())
    assert sorted(content(whole)) == FILES
    assert manifest["schema"] == "graphopt.bundle/1" and manifest["name"] == "mlp"
    assert sorted(manifest["files"]) == [one for one in FILES if one != "manifest.json"]
    for name, known in manifest["files"].items():
        data = (whole / name).read_bytes()
        assert known == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert [step["kernel"] for step in manifest["runs"]] == ["dense0", "dense1"]
    assert manifest["buffers"] == [{"name": "hidden", "offset": 0, "bytes": 256, "begin": 0, "end": 2}]
    program = manifest["program"]
    assert program["arena_bytes"] == written.listing.arena_bytes == 256
    assert program["inputs"] == [{"name": "x", "dtype": "f32", "code": 1, "shape": [2, 16]}]
    assert program["features"] == [one.name for one in requirements(host())]
    assert program["weights_bytes"] == (whole / "mlp.weights").stat().st_size


def test_a_manifest_is_read_back(written: Written, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    made = write_bundle(folder, written.listing, written.weights, host())
    assert read_manifest(folder) == made and made.program.arena_bytes == 256
    for text, message in (("{}", "is no manifest of a bundle"), (None, "cannot be read: No such file or directory")):
        (folder / "manifest.json").unlink() if text is None else (folder / "manifest.json").write_text(text)
        with pytest.raises(BundleError, match=message):
            read_manifest(folder)


def test_the_same_input_gives_the_same_bytes_wherever_it_is_written(
    written: Written, whole: Path, tmp_path: Path
) -> None:
    again = tmp_path / "elsewhere"
    write_bundle(again, written.listing, written.weights, host(), buffers=[PlannedBuffer("hidden", 0, 256, 0, 2)])
    assert content(again) == content(whole)
    for data in content(whole).values():
        assert str(tmp_path).encode() not in data and os.uname().nodename.encode() not in data


def test_a_bundle_replaces_a_bundle_and_leaves_what_else_is_there(written: Written, bundle: Path) -> None:
    other = perceptron(host(), rows=2, seed=5)
    (bundle / "main.cpp").write_text("int main() {}")
    (bundle / "src").mkdir()
    (bundle / "src" / "in.raw").write_bytes(b"1234")
    inode = bundle.stat().st_ino
    write_bundle(bundle, other.listing, other.weights, host())
    assert sorted(one.name for one in bundle.iterdir()) == sorted([*FILES, "main.cpp", "src"])
    assert (bundle / "main.cpp").read_text() == "int main() {}" and (bundle / "src" / "in.raw").read_bytes() == b"1234"
    assert [one.name for one in bundle.parent.iterdir()] == ["copy"] and bundle.stat().st_ino == inode
    assert not any((bundle / name).is_symlink() for name in FILES)
    x = rows()
    assert (np.abs(Bundle(bundle)(x=x)["y"] - other.answer(x)) <= other.bound(x)).all()


def test_a_bundle_of_another_name_takes_the_place_of_the_first(bundle: Path) -> None:
    other = perceptron(host(), rows=2, seed=5, name="net")
    (bundle / "net.txt").write_text("")
    write_bundle(bundle, other.listing, other.weights, host())
    names = [one.replace("mlp", "net") for one in FILES]
    assert sorted(one.name for one in bundle.iterdir()) == sorted([*names, "net.txt"])


def test_bundles_can_be_read_by_others(written: Written, tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        for _ in range(2):
            write_bundle(tmp_path / "b", written.listing, written.weights, host())
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755
    assert {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "b").iterdir()} == {0o644}


def test_a_link_to_a_folder_is_followed(written: Written, bundle: Path) -> None:
    link = bundle.parent / "link"
    link.symlink_to("copy")
    other = perceptron(host(), rows=2, seed=5)
    write_bundle(link, other.listing, other.weights, host())
    assert link.is_symlink() and sorted(content(bundle)) == FILES
    assert (bundle / "mlp.weights").read_bytes() == (link / "mlp.weights").read_bytes()


def test_files_that_were_changed_or_are_not_the_bundles_are_not_lost(written: Written, bundle: Path) -> None:
    def refused(name: str, message: str, seed_name: str = "mlp") -> None:
        other = perceptron(host(), rows=2, seed=5, name=seed_name)
        before = content(bundle)
        with pytest.raises(BundleError, match=rf"{re.escape(name)}' {message}"):
            write_bundle(bundle, other.listing, other.weights, host())
        assert content(bundle) == before

    example = (bundle / "example.c").read_bytes()
    (bundle / "example.c").write_text("my own main")
    changed = "was changed since the bundle was written, and would be overwritten; delete it, move it away, or choose"
    refused("example.c", changed)
    (bundle / "example.c").unlink()
    (bundle / "elsewhere.c").write_bytes(example)
    (bundle / "example.c").symlink_to("elsewhere.c")
    refused("example.c", changed)
    (bundle / "example.c").unlink()
    (bundle / "net.h").write_text("my own header")
    refused("net.h", "would be overwritten; move it away or choose another folder", "net")
    write_bundle(bundle, written.listing, written.weights, host())
    assert sorted(content(bundle)) == sorted([*FILES, "elsewhere.c", "net.h"]), "a file that was missing is back"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "my web page", "icons": []}', "is no manifest of a bundle"),
        (None, "names '../thesis.txt', which is no file of the bundle; choose another folder"),
    ],
)
def test_a_manifest_that_is_not_ours_opens_no_door(
    written: Written, bundle: Path, text: str | None, message: str
) -> None:
    whole = json.loads((bundle / "manifest.json").read_text())
    whole["files"]["../thesis.txt"] = whole["files"].pop("example.c")
    (bundle / "manifest.json").write_text(text or json.dumps(whole))
    before = content(bundle)
    with pytest.raises(BundleError, match=message):
        write_bundle(bundle, written.listing, written.weights, host())
    assert content(bundle) == before


def test_two_processes_do_not_write_one_bundle_at_once(written: Written, bundle: Path) -> None:
    lock = os.open(bundle, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = content(bundle)
    with pytest.raises(BundleError, match=r"another process writes to '.*copy' just now; try again when it has ended"):
        write_bundle(bundle, written.listing, written.weights, host())
    os.close(lock)
    assert content(bundle) == before


def test_nothing_else_is_overwritten(written: Written, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("...")
    (tmp_path / "file").write_text("")
    for folder, message in (
        ("letters", "holds other files and no bundle"),
        ("na\0me", "is no name of a folder, since it holds a NUL character"),
        ("file", "is a file; a bundle is a folder"),
        ("nowhere/at/all", "does not exist; create it first"),
    ):
        with pytest.raises(BundleError, match=message):
            write_bundle(tmp_path / folder, written.listing, written.weights, host())
    with pytest.raises(BundleError, match="bytes of weights, not 3"):
        write_bundle(tmp_path / "new", written.listing, b"abc", host())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "letters"]


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("libmlp.so", _cut, "libmlp.so' is damaged, or was changed"),
        ("libmlp.so", _flip, "libmlp.so' is damaged, or was changed"),
        ("libmlp.so", Path.unlink, "libmlp.so' cannot be read: No such file or directory"),
        ("mlp.weights", _cut, "mlp.weights' has 2144 bytes instead of 4288: it is cut off, or another program's"),
        ("mlp.weights", _flip, "mlp.weights' are damaged, or another program's"),
        ("mlp.weights", Path.unlink, "mlp.weights' cannot be opened: No such file or directory"),
        ("manifest.json", _cut, "manifest.json' cannot be read"),
        ("manifest.json", Path.unlink, "is no compiled program: it has no manifest.json"),
        ("manifest.json", lambda path: path.write_text('{"schema": "graphopt.bundle/9", "name": "", "files": {}}'),
         "has the schema 'graphopt.bundle/9'; this code reads 'graphopt.bundle/1'"),
        ("manifest.json", lambda path: path.write_bytes(b"\xff{}"), "manifest.json' cannot be read"),
        ("manifest.json", lambda path: path.write_text("[" * 100_000), "manifest.json' cannot be read"),
        ("manifest.json", lambda path: path.write_text("[]"), "manifest.json' is damaged: it is no JSON object"),
    ],
)  # fmt: skip
def test_damaged_bundles(bundle: Path, name: str, damage: Callable[[Path], None], message: str) -> None:
    damage(bundle / name)
    with pytest.raises(BundleError, match=message):
        Bundle(bundle)


ABSENT = object()
DAMAGES = [
    ("schema", None, "it names no schema"), ("schema", ["graphopt.bundle/1"], "it names no schema"),
    ("name", None, "it names no program"), ("name", 7, "it names no program"), ("name", {}, "it names no program"),
    ("name", "", "'' is no name of a program"), ("name", "../copy/mlp", "'../copy/mlp' is no name of a program"),
    ("name", "other", "it does not list 'libother.so'"), ("name", "m\0p", r"'m\\x00p' is no name of a program"),
    ("files", None, "it lists no files"), ("files", [], "it lists no files"), ("files", "a", "it lists no files"),
    ("files", {}, "it does not list 'libmlp.so'"), ("files", {"libmlp.so": None}, "it does not list 'libmlp.so'"),
    ("files", {"libmlp.so": "abc"}, "it does not list 'libmlp.so'"),
    ("files", {"libmlp.so": {}}, "it has no checksum of 'libmlp.so'"),
    ("files", {"libmlp.so": {"sha256": None}}, "it has no checksum of 'libmlp.so'"),
    ("files", {"libmlp.so": {"sha256": 5}}, "it has no checksum of 'libmlp.so'"),
    *((key, ABSENT, message) for key, message in (
        ("schema", "it names no schema"), ("name", "it names no program"), ("files", "it lists no files"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_manifests_with_entries_of_other_kinds(bundle: Path, key: str, value: object, message: str) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest[key] = value
    if value is ABSENT:
        del manifest[key]
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=f"manifest.json' is damaged: {message}; compile the model again"):
        Bundle(bundle)


@pytest.mark.parametrize("files", [None, [], "a", 7, {"libmlp.so": None}, {"libmlp.so": {"bytes": "many"}}])
def test_a_manifest_whose_files_are_of_another_kind_is_not_read_back(bundle: Path, files: object) -> None:
    path = bundle / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": files}))
    with pytest.raises(BundleError, match="is no manifest of a bundle"):
        read_manifest(bundle)


def test_a_processor_that_lacks_something(written: Written, tmp_path: Path) -> None:
    needed = (
        (Requirement("avx9000", 0x7FFF, 0, 0, 3),)
        if host().architecture.name == "x86_64"
        else (Requirement("sve9", 16, 0, 0, 63),)
    )
    write_bundle(tmp_path / "b", written.listing, written.weights, host(), needed=needed)
    with pytest.raises(BundleError, match=f"this processor lacks '{needed[0].name}'"):
        Bundle(tmp_path / "b")


def test_two_bundles_of_one_name_do_not_take_each_others_functions(whole: Path, tmp_path: Path) -> None:
    """Both libraries define mlp_run and dense0."""
    other = perceptron(host(), (16, 8, 10), rows=2, seed=9)
    write_bundle(tmp_path / "other", other.listing, other.weights, host())
    first, second, x = Bundle(whole), Bundle(tmp_path / "other"), rows()
    before = first(x=x)["y"]
    assert (np.abs(second(x=x)["y"] - other.answer(x)) <= other.bound(x)).all()
    assert np.array_equal(first(x=x)["y"], before)


_SCRIPT = """
import sys, numpy as np, mlp
program = mlp.load()
x = np.load(sys.argv[1])
np.save(sys.argv[2], program(x=x)["y"])
assert program.run(["y"], {"x": x})[0].shape == (2, 10)
try:
    program(z=x)
except mlp.ProgramError as error:
    print(error)
loaded = {one.split(".")[0] for one in sys.modules}
print(sorted(loaded & {"graphopt", "kernels", "onnx", "onnxruntime", "llvmlite", "msgspec"}))
"""


def test_the_folder_alone_is_enough_for_python(written: Written, bundle: Path) -> None:
    x = rows()
    np.save(bundle.parent / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(bundle.parent / "x.npy"), str(bundle.parent / "y.npy")],
        cwd=bundle.parent, env={"PYTHONPATH": str(bundle)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "there is no input 'z'; the program has 'x'.\n[]\n"
    assert np.array_equal(np.load(bundle.parent / "y.npy"), Program(written.listing, written.weights)(x=x)["y"])


def test_a_program_without_weights(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", difference(host()), b"", host())
    left, right = (np.full((3, 5), one, np.float32) for one in (5, 3))
    for mapped in (False, True):
        assert (Bundle(tmp_path / "b", mapped=mapped)(left=left, right=right)["delta"] == 2).all()


def test_names_are_escaped_where_they_are_text(tmp_path: Path) -> None:
    listing = difference(host())
    names = ('le"ft\\%s*/', "größe ??/")
    inputs = tuple(replace(one, name=name) for one, name in zip(listing.inputs, names, strict=True))
    write_bundle(tmp_path / "b", replace(listing, inputs=inputs), b"", host())
    program = Bundle(tmp_path / "b")
    assert tuple(one.name for one in program.inputs) == names
    one = np.ones((3, 5), np.float32)
    assert (program.run(None, dict.fromkeys(names, one))[0] == 0).all()

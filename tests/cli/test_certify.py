"""`graphopt certify` and `graphopt.certify`: what is printed, what is refused, and with which status."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import numpy_helper

import graphopt
from graphopt.errors import BundleError, OptionError, VerificationError
from graphopt.flows import certify as flow
from graphopt.program.deploy.manifest import file_of, read_manifest, written
from tests.cli.shell import Shell


@pytest.fixture
def bundle(shell: Shell) -> Path:
    assert shell.run("compile", "in.onnx", "b", "--dim", "batch=2").status == 0
    return shell.folder / "b"


def test_a_bundle_is_certified(shell: Shell, bundle: Path) -> None:
    answer = shell.run("certify", "b", "--seed", "5", "--feeds", "2")
    assert answer.status == 0 and answer.out.rstrip().endswith("certified     b")
    assert "2 fresh feeds (seed 5), threads: 1" in answer.out and "no allocation in a run" in answer.out
    found = shell.run("certify", "b", "--model", "in.onnx", "--json").json
    assert found["schema"] == "graphopt.certificate/1" and found["runs"] == len(read_manifest(bundle).runs)
    assert found["seed"] == 0 and found["threads"] == [1] and found["compared_feeds"] > 3
    assert found["max_rel"] <= found["tolerance"]["float32"]


def test_a_changed_bundle_ends_with_status_1(shell: Shell, bundle: Path) -> None:
    library = bytearray((bundle / "libin.so").read_bytes())
    library[-1] ^= 1
    (bundle / "libin.so").write_bytes(library)
    answer = shell.run("certify", "b")
    assert answer.status == 1 and answer.error == (
        "'b/libin.so' is not the file that the manifest names: it was changed, or cut off."
    )
    (bundle / "in.weights").unlink()
    manifest = read_manifest(bundle)
    files = {name: file for name, file in manifest.files.items() if name.endswith((".py", ".h"))}
    (bundle / "manifest.json").write_bytes(written(msgspec.structs.replace(manifest, files=files)))
    assert shell.run("certify", "b").error == "the manifest of 'b' does not list 'libin.so'."
    (bundle / "in.h").unlink()
    assert shell.run("certify", "b").error == "'b/in.h' cannot be read: No such file or directory."
    assert shell.run("certify", "in.onnx").error.startswith("'in.onnx/manifest.json' cannot be read")
    assert shell.run("certify", "b", "--feeds", "0").status == 2


def test_another_model_is_not_what_the_bundle_gives(shell: Shell, bundle: Path) -> None:
    other = shell.read("in.onnx")
    weights = next(one for one in other.graph.initializer if one.name == "w")
    weights.CopyFrom(numpy_helper.from_array(2 * np.ones((4, 3), np.float32), "w"))
    shell.write("other.onnx", other)
    with pytest.raises(VerificationError, match="the bundle does not give what ONNX Runtime gives for the model"):
        graphopt.certify(bundle, model=shell.folder / "other.onnx")


def test_sizes_that_the_library_does_not_have_are_refused(shell: Shell, bundle: Path) -> None:
    manifest = read_manifest(bundle)
    program = msgspec.structs.replace(manifest.program, scratch_bytes=manifest.program.scratch_bytes + 64)
    (bundle / "manifest.json").write_bytes(written(msgspec.structs.replace(manifest, program=program)))
    with pytest.raises(BundleError, match="the library describes another program than the manifest"):
        graphopt.certify(bundle)
    content = (bundle / "in.weights").read_bytes() + bytes(64)
    (bundle / "in.weights").write_bytes(content)
    files = manifest.files | {"in.weights": file_of(content)}
    (bundle / "manifest.json").write_bytes(written(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(BundleError, match=f"the weights have {len(content)} bytes; the program reads"):
        graphopt.certify(bundle)
    with pytest.raises(OptionError, match="0 feeds try nothing; ask for one at least"):
        graphopt.certify(bundle, feeds=0)


def test_other_bits_of_a_second_call_are_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose results depend on what the call before has left."""

    class Forgetful(flow.Bundle):
        calls = 0

        def run(self, names, feeds):  # type: ignore[no-untyped-def]
            self.calls += 1
            return [array + (self.calls > 3) for array in super().run(names, feeds)]

    monkeypatch.setattr(flow, "Bundle", Forgetful)
    sentence = r"output 'y' of feed 1 \(seed 0\) has other bits with 1 threads than in the first call with 1"
    with pytest.raises(VerificationError, match=sentence):
        graphopt.certify(bundle, feeds=2)

"""`graphopt check`: a bundle that is whole, and what one that is not is told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from graphopt.program.deploy.manifest import file_of, read_manifest, written
from tests import support
from tests.cli.shell import Shell


@pytest.fixture
def bundle(shell: Shell) -> Path:
    model = support.model("g (float[2,4] x) => (float[2,3] y) { y = MatMul(x, w) }", w=np.ones((4, 3), np.float32))
    shell.write("in.onnx", model)
    assert shell.run("compile", "in.onnx", "b", "--tune", "0").status == 0
    return shell.folder / "b"


def test_a_bundle_is_checked(shell: Shell, bundle: Path) -> None:
    digest = hashlib.sha256((shell.folder / "in.onnx").read_bytes()).hexdigest()
    answer = shell.run("check", "b", "--model", "in.onnx")
    assert answer.status == 0 and answer.out.rstrip().endswith("checked       b")
    assert "ABI 1" in answer.out and digest in answer.out and "the weights' checksum as it should be" in answer.out
    found = shell.run("check", "b", "--json").json
    assert found["schema"] == "graphopt.checked/1" and found["abi"] == 1 and found["model"] == digest
    assert found["levels"] == [found["here"]] and found["why_not"] is None


def test_what_is_not_whole_is_refused(shell: Shell, bundle: Path) -> None:
    shell.write("other.onnx", support.model("g (float[4] x) => (float[4] y) { y = Neg(x) }"))
    answer = shell.run("check", "b", "--model", "other.onnx")
    assert answer.status == 1 and answer.error.startswith("the bundle was made of another model: its digest is ")
    manifest, weights = read_manifest(bundle), bundle / "in.weights"
    content = bytearray(weights.read_bytes())
    content[5] ^= 1
    weights.write_bytes(content)
    assert shell.run("check", "b").error.startswith("'b/in.weights' is not the file that the manifest names")
    files = manifest.files | {"in.weights": file_of(bytes(content))}
    (bundle / "manifest.json").write_bytes(written(msgspec.structs.replace(manifest, files=files)))
    assert shell.run("check", "b").error.startswith("the weights are damaged, or another program's: their checksum is")
    weights.write_bytes(content + bytes(64))
    files = manifest.files | {"in.weights": file_of(bytes(content) + bytes(64))}
    (bundle / "manifest.json").write_bytes(written(msgspec.structs.replace(manifest, files=files)))
    assert "bytes; the program reads" in shell.run("check", "b").error
    assert shell.run("check", "in.onnx").status == 1


def test_a_bundle_for_another_machine_is_checked_but_not_run(shell: Shell, bundle: Path) -> None:
    assert shell.run("compile", "in.onnx", "arm", "--target", "aarch64", "--unchecked").status == 0
    answer = shell.run("check", "arm")
    assert answer.status == 0 and "not run here: it is compiled for aarch64, and this machine is" in answer.out

"""Two hundred bundles with one change each, in the tables of the library or in the manifest: none of them is proved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

import graphopt
from bench.zoo import model_file
from graphopt.errors import BundleError
from graphopt.program.certify.elf import SharedLibrary
from graphopt.program.certify.proof import prove
from graphopt.program.certify.statement import Refused
from graphopt.program.certify.tables import read_statement
from graphopt.program.deploy.manifest import Manifest, file_of, read_manifest, written
from tests.program.certify.changes import ALONE, SEVERAL, changed

# A chain, branches whose buffers take each other's bytes, and a program of one worker only; 200 changes in all.
MODELS = {"gru_unrolled": 60, "squeezenet1_1": 110, "mlp_tiny": 30}


@pytest.fixture(scope="module", params=MODELS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / str(request.param)
    graphopt.compile(model_file(request.param)).save(folder)
    return folder


def _content(bundle: Path, manifest: Manifest) -> bytes:
    return (bundle / f"lib{manifest.name}.so").read_bytes()


def test_every_changed_bundle_is_refused(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    content = _content(bundle, manifest)
    assert prove(read_statement(manifest, SharedLibrary(content))).runs == len(manifest.runs)
    done: Counter[str] = Counter()
    for seed in range(MODELS[bundle.name]):
        name, (other, library) = changed(seed, manifest, content)
        assert other != manifest or library != content, f"{name} of seed {seed} changes something"
        with pytest.raises(Refused):
            prove(read_statement(other, SharedLibrary(library)))
        done[name] += 1
    kinds = ALONE if manifest.program.shared_arena_bytes is None else (*ALONE, *SEVERAL)
    assert set(done) == {kind.__name__ for kind in kinds}


def test_a_bundle_with_a_changed_library_is_refused_from_its_folder(bundle: Path, tmp_path: Path) -> None:
    """Also where the manifest names the changed file, so that only the tables tell."""
    whole = graphopt.certify(bundle, feeds=1, seed=3)
    assert whole.runs == len(read_manifest(bundle).runs) and whole.seed == 3
    manifest = read_manifest(bundle)
    seed = 2  # offsets_exchanged
    _, (_, library) = changed(seed, manifest, _content(bundle, manifest))
    for file in bundle.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    name = f"lib{manifest.name}.so"
    (tmp_path / name).write_bytes(library)
    with pytest.raises(BundleError, match="is not the file that the manifest names: it was changed, or cut off"):
        graphopt.certify(tmp_path)
    honest = msgspec.structs.replace(manifest, files=manifest.files | {name: file_of(library)})
    (tmp_path / "manifest.json").write_bytes(written(honest))
    with pytest.raises(Refused):
        graphopt.certify(tmp_path)
